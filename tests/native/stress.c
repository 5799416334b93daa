/* What tests do to the C library from C.

   stress run MODEL THREADS RUNS     inputs from standard input, one after another; outputs of the last run to standard
                                     output; states go on from run to run
   stress cycles MODEL COUNT         create, run and destroy sessions, and now and then the model: prints growth in KiB
   stress clones MODEL THREADS RUNS  clones on threads of their own, each of two threads: the same bits
   stress shapes MODEL COUNT         one session through many shapes, its first input of 1 to COUNT rows: prints growth in KiB
   stress mutants MODEL COUNT SEED   damaged copies are refused, or run; the checksum is mended in half of them */

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

#define WANT(call)                                                                                             \
    do {                                                                                                       \
        bn_status found = (call);                                                                              \
        if (found != BN_OK) {                                                                                  \
            fprintf(stderr, "%s: %s: %s | %s\n", #call, bn_status_text(found), bn_error_message(NULL),         \
                    session_now == NULL ? "" : bn_error_message(session_now));                                 \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

static _Thread_local bn_session *session_now;

static void fill(bn_session *session, unsigned seed) {
    for (int i = 0; i < bn_session_inputs(session); i++) {
        bn_info info;
        WANT(bn_session_input_info(session, i, &info));
        char *bytes = bn_session_input(session, i);
        for (size_t at = 0; info.dtype == BN_FLOAT && at < info.nbytes; at += 4) {
            seed = seed * 1664525u + 1013904223u;
            float value = (float)(seed >> 8) / (float)(1 << 24);
            memcpy(bytes + at, &value, 4);
        }
    }
}

static uint32_t sum_of(bn_session *session) {
    uint32_t crc = 0;
    for (int i = 0; i < bn_session_outputs(session); i++) {
        bn_info info;
        WANT(bn_session_output_info(session, i, &info));
        crc = bn_crc32(crc, bn_session_output(session, i), info.nbytes);
    }
    return crc;
}

/* --- run ------------------------------------------------------------------------------------------------------------- */

static int run(const char *path, int threads, int runs) {
    bn_model *model;
    const bn_options options = {threads};
    WANT(bn_model_open(path, &model));
    WANT(bn_session_create(model, &options, &session_now));
    bn_model_close(model);
    for (int i = 0; i < bn_session_inputs(session_now); i++) {
        bn_info info;
        WANT(bn_session_input_info(session_now, i, &info));
        if (fread(bn_session_input(session_now, i), 1, info.nbytes, stdin) != info.nbytes) return 2;
    }
    for (int i = 0; i < runs; i++) WANT(bn_session_run(session_now));
    for (int i = 0; i < bn_session_outputs(session_now); i++) {
        bn_info info;
        WANT(bn_session_output_info(session_now, i, &info));
        fwrite(bn_session_output(session_now, i), 1, info.nbytes, stdout);
    }
    bn_session_destroy(session_now);
    return 0;
}

/* --- cycles ---------------------------------------------------------------------------------------------------------- */

static long resident_kib(void) {
    long pages = 0, unused;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL) return 0;
    if (fscanf(file, "%ld %ld", &unused, &pages) != 2) pages = 0;
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int cycles(const char *path, int count) {
    bn_model *model;
    long before = 0;
    uint32_t wanted = 0;
    WANT(bn_model_open(path, &model));
    for (int i = 0; i < count; i++) {
        const bn_options options = {1 + i % 3};
        if (i % 100 == 99) {
            bn_model_close(model);
            WANT(bn_model_open(path, &model));
        }
        WANT(bn_session_create(model, &options, &session_now));
        fill(session_now, 1);
        WANT(bn_session_run(session_now));
        uint32_t sum = sum_of(session_now);
        if (i == 0) wanted = sum;
        if (sum != wanted) return 3;
        bn_session_destroy(session_now);
        if (i == count / 5) before = resident_kib();
    }
    session_now = NULL;
    bn_model_close(model);
    printf("%ld\n", resident_kib() - before);
    return 0;
}

/* --- clones ---------------------------------------------------------------------------------------------------------- */

typedef struct task {
    bn_session *session;
    int runs, wrong;
    uint32_t wanted;
} task;

static void *run_clone(void *argument) {
    task *t = argument;
    session_now = t->session;
    for (int i = 0; i < t->runs; i++) {
        fill(t->session, 1);
        WANT(bn_session_run(t->session));
        t->wrong += sum_of(t->session) != t->wanted;
    }
    return NULL;
}

static int clones(const char *path, int threads, int runs) {
    bn_model *model;
    bn_session *first;
    const bn_options options = {2};
    pthread_t thread[64];
    task tasks[64];
    int wrong = 0;
    if (threads > 64) return 2;
    WANT(bn_model_open(path, &model));
    WANT(bn_session_create(model, &options, &first));
    fill(first, 1);
    WANT(bn_session_run(first));
    for (int i = 0; i < threads; i++) {
        tasks[i] = (task){NULL, runs, 0, sum_of(first)};
        WANT(bn_session_clone(first, &tasks[i].session));
    }
    bn_session_destroy(first);
    bn_model_close(model);
    for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, run_clone, &tasks[i]);
    for (int i = 0; i < threads; i++) {
        pthread_join(thread[i], NULL);
        wrong += tasks[i].wrong;
        bn_session_destroy(tasks[i].session);
    }
    return wrong != 0;
}

/* --- shapes ---------------------------------------------------------------------------------------------------------- */

static bn_status set_rows(bn_session *session, int input, int64_t rows) {
    bn_info info;
    int64_t dims[64];
    WANT(bn_session_input_info(session, input, &info));
    if (info.rank == 0) return BN_OK;
    memcpy(dims, info.dims, (size_t)info.rank * sizeof *dims);
    dims[0] = rows;
    return bn_session_set_input_shape(session, input, dims, info.rank);
}

static int shapes(const char *path, int count) {
    bn_model *model;
    long before = 0;
    const bn_options options = {2};
    uint32_t *wanted = calloc((size_t)count + 1, sizeof *wanted);
    WANT(bn_model_open(path, &model));
    WANT(bn_session_create(model, &options, &session_now));
    for (int i = 0; i < 6 * count; i++) {
        int rows = 1 + (int)((unsigned)i * 7919u % (unsigned)count); /* in no order, and each several times */
        WANT(set_rows(session_now, 0, rows));
        fill(session_now, 1);
        WANT(bn_session_run(session_now));
        uint32_t sum = sum_of(session_now);
        if (wanted[rows] != 0 && wanted[rows] != sum) return 3;
        wanted[rows] = sum;
        if (i == 2 * count) before = resident_kib();
    }
    if (set_rows(session_now, 0, count + 1) != BN_NO_PLAN || set_rows(session_now, 0, -1) != BN_NO_PLAN) return 4;
    printf("%ld\n", resident_kib() - before);
    bn_session_destroy(session_now);
    bn_model_close(model);
    free(wanted);
    return 0;
}

/* --- mutants ----------------------------------------------------------------------------------------------------------- */

static uint64_t state;

static uint64_t drawn(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static const int64_t odd_numbers[] = {0, 1, -1, 7, 63, 64, 4095, 4096, 1 << 20, INT32_MAX, INT64_MAX, INT64_MIN, -64};
static const int widths[BNP_TABLE_COUNT] = BNP_WIDTHS;

/* Change a word of the header or of a table.  Gives whether a run may follow: a program is code, so what says where
   kernels read and write is not to be changed before one. */
static bool mutate(int64_t *words, const int64_t *clean) {
    int table = (int)drawn(BNP_TABLE_COUNT + 1);
    int64_t *place = &words[drawn(BNP_HEADER_FIRST_TABLE + 2 * BNP_TABLE_COUNT)];
    bool may_run = false;
    if (table < BNP_TABLE_COUNT) {
        int64_t at = clean[BNP_HEADER_FIRST_TABLE + 2 * table], rows = clean[BNP_HEADER_FIRST_TABLE + 2 * table + 1];
        int64_t numbers = widths[table] == 0 ? rows / 8 : rows * widths[table];
        if (numbers == 0) return false;
        place = &words[at / 8 + (int64_t)drawn((uint64_t)numbers)];
        may_run = table == BNP_TABLE_STRINGS || table == BNP_TABLE_FAULTS;
    }
    int64_t before = *place;
    switch (drawn(3)) {
    case 0: *place = odd_numbers[drawn(sizeof odd_numbers / sizeof odd_numbers[0])]; break;
    case 1: *place = (int64_t)((uint64_t)*place + drawn(129) - 64); break;
    default: *place = (int64_t)((uint64_t)*place ^ (UINT64_C(1) << drawn(64))); break;
    }
    return may_run || *place == before;
}

static void mend(int64_t *words, int64_t nbytes) {
    const unsigned char *block = (const unsigned char *)words;
    int64_t data = words[BNP_HEADER_FIRST_TABLE + 2 * BNP_TABLE_DATA];
    int64_t count = words[BNP_HEADER_FIRST_TABLE + 2 * BNP_TABLE_DATA + 1];
    if (data < 8 * BNP_HEADER_WORDS || data > nbytes || count < 0 || count > nbytes - data) return;
    uint32_t crc = bn_crc32(0, block + 8 * BNP_HEADER_FLAGS, (size_t)(data - 8 * BNP_HEADER_FLAGS));
    words[BNP_HEADER_CRC] = bn_crc32(crc, block + data + count, (size_t)(nbytes - data - count));
    words[BNP_HEADER_DATA_CRC] = bn_crc32(0, block + data, (size_t)count);
}

static bool is_lively(const int64_t *words, size_t nbytes, bool may_run) {
    bn_model *model;
    if (bn_model_from_memory(words, nbytes, &model) != BN_OK) return false;
    if (bn_session_create(model, NULL, &session_now) != BN_OK) { /* an arena that nobody has */
        bn_model_close(model);
        return false;
    }
    for (int i = 0; i < bn_session_outputs(session_now); i++) {
        bn_info info;
        WANT(bn_session_output_info(session_now, i, &info));
        if (strlen(info.name) > nbytes) exit(5);
        (void)bn_session_find(session_now, info.name, NULL);
    }
    if (may_run && bn_session_run(session_now) > BN_TIME) exit(6);
    for (int rows = 0; rows < 8; rows++) /* a damaged tape gives other sizes, or holds no more */
        if (bn_session_inputs(session_now) > 0 && set_rows(session_now, 0, rows) > BN_TIME) exit(7);
    bn_session_destroy(session_now);
    session_now = NULL;
    bn_model_close(model);
    return true;
}

static int mutants(const char *path, int count, unsigned seed) {
    bn_file file;
    bn_error error;
    int lively = 0, mended = 0;
    state = seed * UINT64_C(2654435761) + 88172645463325252u;
    WANT(bn_map_file(path, &file, &error));
    int64_t trailer[BNP_TRAILER_WORDS];
    memcpy(trailer, file.data + file.nbytes - sizeof trailer, sizeof trailer);
    bool is_bare = trailer[BNP_TRAILER_MAGIC] != BNP_END_MAGIC;
    size_t at = is_bare ? 0 : (size_t)trailer[BNP_TRAILER_FIRST];
    size_t nbytes = is_bare ? file.nbytes : (size_t)trailer[BNP_TRAILER_FIRST + 1];
    const int64_t *clean = (const int64_t *)(const void *)(file.data + at);
    int64_t *words = bn_allocate(nbytes);
    for (int i = 0; i < count; i++) {
        bool may_run = true, is_mended = i % 2 == 0;
        memcpy(words, file.data + at, nbytes);
        for (uint64_t left = 1 + drawn(3); left > 0; left--) may_run = mutate(words, clean) && may_run;
        if (is_mended) mend(words, (int64_t)nbytes);
        if (!is_lively(words, nbytes, may_run)) continue;
        lively++;
        mended += is_mended;
    }
    for (int i = 0; i < count / 10; i++) { /* cut short */
        memcpy(words, file.data + at, nbytes);
        if (is_lively(words, drawn(nbytes), false)) return 7;
    }
    bn_release(words);
    bn_unmap_file(&file);
    printf("%d of %d opened, %d of them mended\n", lively, count, mended);
    return 0;
}

#ifdef FUZZ /* by coverage (`tests/fuzz`): the checksum is mended, so that what lies behind it is reached */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    if (nbytes < 8 * BNP_HEADER_WORDS) return 0;
    int64_t *words = bn_allocate(nbytes);
    memcpy(words, data, nbytes);
    mend(words, (int64_t)nbytes);
    (void)is_lively(words, nbytes, false);
    bn_release(words);
    return 0;
}

#else

int main(int argc, char **argv) {
    const char *what = argc > 3 ? argv[1] : "";
    int number = argc > 3 ? atoi(argv[3]) : 0, other = argc > 4 ? atoi(argv[4]) : 1;
    if (strcmp(what, "run") == 0) return run(argv[2], number, other);
    if (strcmp(what, "cycles") == 0) return cycles(argv[2], number);
    if (strcmp(what, "clones") == 0) return clones(argv[2], number, other);
    if (strcmp(what, "shapes") == 0) return shapes(argv[2], number);
    if (strcmp(what, "mutants") == 0) return mutants(argv[2], number, (unsigned)other);
    return 2;
}

#endif
