/* Reads pictures: binary PPM and PGM files with bytes, which most programs that know pictures write. */

#ifndef PPM_H
#define PPM_H

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct picture {
    int64_t height, width;
    uint8_t *pixels; /* height x width x (red, green, blue); the caller frees them */
} picture;

/* The next number of a header; comments reach from # to the end of the line.  -1 where there is none. */
static long ppm_number(FILE *file) {
    int c = getc(file);
    long found = -1;
    while (isspace(c) || c == '#') {
        if (c == '#')
            while (c != '\n' && c != EOF) c = getc(file);
        c = getc(file);
    }
    for (; isdigit(c) && found < 65536; c = getc(file)) found = (found < 0 ? 0 : 10 * found) + (c - '0');
    return found; /* one white space behind the number is read, too */
}

/* NULL, or what is wrong with the file.  Gray levels become colours. */
static const char *ppm_read(const char *path, picture *made) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return "cannot be opened";
    int magic = getc(file) == 'P' ? getc(file) : 0;
    long width = ppm_number(file), height = ppm_number(file), most = ppm_number(file);
    if ((magic != '5' && magic != '6') || width < 1 || height < 1 || width > 65535 || height > 65535 || most != 255) {
        fclose(file);
        return "wanted a binary PPM or PGM file with 255 levels";
    }
    size_t count = (size_t)width * (size_t)height, channels = magic == '6' ? 3 : 1;
    uint8_t *pixels = malloc(3 * count);
    size_t got = pixels == NULL ? 0 : fread(pixels, channels, count, file);
    fclose(file);
    if (got != count) {
        free(pixels);
        return pixels == NULL ? "too large" : "cut short";
    }
    if (channels == 1) /* from the end, so that no level is overwritten before it is read */
        for (size_t i = count; i-- > 0;) pixels[3 * i] = pixels[3 * i + 1] = pixels[3 * i + 2] = pixels[i];
    *made = (picture){height, width, pixels};
    return NULL;
}

#endif
