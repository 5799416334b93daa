/* crc32 (polynomial 0xEDB88320 in reflected form) by tables, sixteen bytes at a time. */

#include <pthread.h>
#include <string.h>

#include "internal.h"

#define SLICES 16

static uint32_t table[SLICES][256];
static pthread_once_t made = PTHREAD_ONCE_INIT;

static void make_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0);
        table[0][byte] = crc;
    }
    for (int slice = 1; slice < SLICES; slice++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = table[slice - 1][byte];
            table[slice][byte] = (before >> 8) ^ table[0][before & 0xFF];
        }
}

uint32_t bn_crc32(uint32_t crc, const void *data, size_t nbytes) {
    const unsigned char *at = data;
    pthread_once(&made, make_table);
    crc = ~crc;
    for (; nbytes >= SLICES; nbytes -= SLICES, at += SLICES) {
        uint32_t words[4];
        memcpy(words, at, sizeof words);
        words[0] ^= crc;
        crc = 0;
        for (int word = 0; word < 4; word++)
            for (int byte = 0; byte < 4; byte++)
                crc ^= table[SLICES - 1 - 4 * word - byte][(words[word] >> (8 * byte)) & 0xFF];
    }
    for (; nbytes > 0; nbytes--, at++) crc = (crc >> 8) ^ table[0][(crc ^ *at) & 0xFF];
    return ~crc;
}
