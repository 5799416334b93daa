/* What the files of the library share.  Nothing here is for its users. */

#ifndef BN_INTERNAL_H
#define BN_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bolt_numba.h"
#include "layout.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "native programs are little-endian"
#endif

/* --- error.c: what was wrong, in words --------------------------------------------------------------------------- */

typedef struct bn_error {
    char text[512];
} bn_error;

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
bn_status bn_fail(bn_error *error, bn_status status, const char *format, ...);

/* The message of this thread, for calls that have no session. */
bn_error *bn_thread_error(void);

/* --- crc.c ------------------------------------------------------------------------------------------------------- */

/* The crc32 of zlib, continued from `crc` (0 at the beginning). */
uint32_t bn_crc32(uint32_t crc, const void *data, size_t nbytes);

/* --- memory.c: memory, mapped files, machine code ------------------------------------------------------------------ */

/* 64-aligned memory of any content, large blocks on large pages; NULL when there is none. */
void *bn_allocate(size_t nbytes);
void bn_release(void *memory);

#define BN_LARGE_FROM ((size_t)1 << 22) /* bytes from which a block is put on large pages */

/* Let go of pages of a file; they are read again if they are looked at again. */
void bn_forget_pages(const void *from, size_t nbytes);

/* A whole file, mapped read-only. */
typedef struct bn_file {
    const unsigned char *data;
    size_t nbytes;
} bn_file;

bn_status bn_map_file(const char *path, bn_file *file, bn_error *error);
void bn_unmap_file(bn_file *file);

/* Machine code in memory of its own: writable until bn_seal_code makes it executable. */
unsigned char *bn_code_memory(size_t nbytes);
bool bn_seal_code(unsigned char *code, size_t nbytes);
void bn_free_code(unsigned char *code, size_t nbytes);

/* --- cpu.c ------------------------------------------------------------------------------------------------------- */

/* How good the instructions of that level are, from 1 on; 0 where this processor lacks some, -1 for an unknown name. */
int bn_level_rank(const char *level);

/* Processors that this process may use. */
int bn_processors(void);

/* Set the floating-point control of a run; gives that of before, which bn_restore_floats puts back. */
unsigned bn_flush_denormals(void);
void bn_restore_floats(unsigned control);

/* --- program.c: tables ------------------------------------------------------------------------------------------- */

/* A checked program: where its tables begin, and how many rows (of areas: bytes) they have. */
typedef struct bn_program {
    const unsigned char *at[BNP_TABLE_COUNT];
    int64_t count[BNP_TABLE_COUNT];
    const char *level;
    int64_t flags;
    int inputs;  /* values that the program takes, states among them; the others are those that it gives */
    int values;
    uint32_t data_crc;
} bn_program;

/* Check a block of `nbytes` bytes, 8-aligned, and fill in where its tables are. */
bn_status bn_read_program(bn_program *program, const void *block, size_t nbytes, bn_error *error);

/* Row of a table. */
const int64_t *bn_row(const bn_program *program, int table, int64_t row);

/* A string of a checked program. */
const char *bn_string(const bn_program *program, int64_t offset);

/* Sizes of a value in a plan. */
const int64_t *bn_dims_of(const bn_program *program, const int64_t *plan, int value);

/* Row of a place by its number, which is counted on behind the values.  head: the first stage of its set of shapes. */
const int64_t *bn_place(const bn_program *program, const int64_t *head, int64_t number);

/* Bytes of a value or place at most. */
int64_t bn_array_nbytes(const bn_program *program, const int64_t *head, int64_t number);

/* Whether a stage may read an array of this number: inputs and places; of outputs only those of before. */
bool bn_is_read(const bn_program *program, const int64_t *head, int64_t number);

/* run.c: how many things a patch may name, and from where to where its offset may lead in the one that it names. */
bool bn_patch_limits(const bn_program *program, const int64_t *head, const int64_t *plan, const int64_t *patch,
                     int64_t *things, int64_t *low, int64_t *high);

/* Bytes of an array of these sizes; -1 where they are no sizes, or too large. */
int64_t bn_nbytes(const int64_t *dims, int64_t rank, int64_t dtype);

/* --- threads.c --------------------------------------------------------------------------------------------------- */

typedef struct bn_team bn_team;

/* A team of `threads`, the caller included; where the system gives no more there are fewer, which do the same.
   NULL when memory is short. */
bn_team *bn_team_create(int threads);
void bn_team_destroy(bn_team *team);

/* Say that the caller runs steps now, and that it has done so; NULL is a team of one. */
void bn_team_begin(bn_team *team);
void bn_team_end(bn_team *team);

/* Run a step in as many parts as the team has threads, on any of them; returns when all are done. */
void bn_team_share(bn_team *team, bn_kernel kernel, void *record);

/* --- model.c ----------------------------------------------------------------------------------------------------- */

struct bn_model {
    atomic_int users; /* the caller, and each session */
    bn_program program;
    bn_file file, weights_file;
    void *copy; /* of bytes in memory */
    unsigned char *own_weights; /* those of a file, on large pages; NULL where they are few */
    const unsigned char *weights;
    unsigned char *code;
    bn_kernel *kernels;
};

void bn_model_keep(bn_model *model);

#define BN_MAX_THREADS 256

#endif
