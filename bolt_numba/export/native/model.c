/* Models: where a program comes from, its machine code and its weights. */

#define _GNU_SOURCE

#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* --- C functions that machine code calls ---------------------------------------------------------------------------- */

typedef void (*any_function)(void);
typedef struct import {
    const char *name;
    any_function function;
} import;

#define IMPORT(name) {#name, (any_function)name},
static const import imports[] = {BNP_FUNCTIONS(IMPORT)};

static any_function imported(const char *name) {
    for (size_t i = 0; i < sizeof imports / sizeof imports[0]; i++)
        if (strcmp(imports[i].name, name) == 0) return imports[i].function;
    return NULL;
}

/* --- making a model ---------------------------------------------------------------------------------------------------- */

static void destroy(bn_model *model) {
    if (model->code != NULL) bn_free_code(model->code, (size_t)model->program.count[BNP_TABLE_CODE]);
    bn_unmap_file(&model->file);
    bn_unmap_file(&model->weights_file);
    bn_release(model->copy);
    bn_release(model->own_weights);
    free(model->kernels);
    free(model);
}

void bn_model_keep(bn_model *model) { atomic_fetch_add(&model->users, 1); }

void bn_model_close(bn_model *model) {
    if (model != NULL && atomic_fetch_sub(&model->users, 1) == 1) destroy(model);
}

static bn_status check_level(const bn_program *program, bn_error *error) {
    int rank = bn_level_rank(program->level);
    if (rank > 0) return BN_OK;
    return bn_fail(error, BN_TARGET, "program: level: got %s, %s", program->level,
                   rank == 0 ? "which has instructions that this processor lacks" : "wanted one that this library knows");
}

static bn_status load_code(bn_model *model, bn_error *error) {
    const bn_program *program = &model->program;
    size_t nbytes = (size_t)program->count[BNP_TABLE_CODE];
    if (nbytes == 0) return BN_OK;
    model->code = bn_code_memory(nbytes);
    if (model->code == NULL) return bn_fail(error, BN_NO_MEMORY, "program: code: got no memory for %zu bytes", nbytes);
    memcpy(model->code, program->at[BNP_TABLE_CODE], nbytes);
    for (int64_t i = 0; i < program->count[BNP_TABLE_IMPORTS]; i++) {
        const int64_t *row = bn_row(program, BNP_TABLE_IMPORTS, i);
        const char *name = bn_string(program, row[BNP_IMPORT_NAME]);
        any_function function = imported(name);
        if (function == NULL) return bn_fail(error, BN_DAMAGED, "program: IMPORTS[%" PRId64 "]: got %s", i, name);
        memcpy(model->code + row[BNP_IMPORT_SLOT], &function, sizeof function);
    }
    if (!bn_seal_code(model->code, nbytes))
        return bn_fail(error, BN_NO_MEMORY, "program: code: the system makes no memory executable");
    return BN_OK;
}

static bn_status find_kernels(bn_model *model, const bn_linked *linked, bn_error *error) {
    const bn_program *program = &model->program;
    size_t count = (size_t)program->count[BNP_TABLE_KERNELS];
    model->kernels = calloc(count + 1, sizeof *model->kernels);
    if (model->kernels == NULL) return bn_fail(error, BN_NO_MEMORY, "program: kernels: got no memory");
    if ((program->flags & BNP_FLAG_LINKED) != 0) {
        if (linked == NULL || linked->kernels == NULL || linked->kernel_count != count)
            return bn_fail(error, BN_ARGUMENT, "program: kernels: got no functions, wanted %zu that are linked", count);
        memcpy(model->kernels, linked->kernels, count * sizeof *model->kernels);
        return BN_OK;
    }
    bn_status status = load_code(model, error);
    for (size_t i = 0; status == BN_OK && i < count; i++) {
        uintptr_t place = (uintptr_t)model->code + (uintptr_t)bn_row(program, BNP_TABLE_KERNELS, (int64_t)i)[BNP_KERNEL_CODE];
        memcpy(&model->kernels[i], &place, sizeof place);
    }
    return status;
}

/* Look at the weights, and put many of them on large pages, where a processor finds them faster: up to a fifth of a run.
   Their pages in the file are let go as they are read.  What is linked is as whole as the code beside it. */
static bn_status read_weights(bn_model *model, size_t nbytes, const bn_linked *linked, bn_error *error) {
    bool is_file = linked != NULL ? linked->weights_are_constants != 0
                                  : model->file.data != NULL || model->weights_file.data != NULL;
    if (nbytes >= BN_LARGE_FROM && model->copy == NULL) model->own_weights = bn_allocate(nbytes);
    unsigned char *own = model->own_weights;
    uint32_t crc = 0;
    for (size_t at = 0; at < nbytes; at += BN_LARGE_FROM) {
        size_t part = nbytes - at < BN_LARGE_FROM ? nbytes - at : BN_LARGE_FROM;
        const unsigned char *found = model->weights + at;
        if (own != NULL) memcpy(own + at, found, part);
        if (linked == NULL) crc = bn_crc32(crc, own != NULL ? own + at : found, part);
        if (own != NULL && is_file) bn_forget_pages(found, part);
    }
    if (own != NULL) model->weights = own;
    if (linked == NULL && crc != model->program.data_crc)
        return bn_fail(error, BN_DAMAGED, "program: weights: checksum: got %08" PRIx32 ", wanted %08" PRIx32, crc,
                       model->program.data_crc);
    return BN_OK;
}

static bn_status find_weights(bn_model *model, const bn_linked *linked, const char *path, bn_error *error) {
    const bn_program *program = &model->program;
    size_t wanted = (size_t)program->count[BNP_TABLE_DATA], found = wanted;
    model->weights = program->at[BNP_TABLE_DATA];
    if ((program->flags & BNP_FLAG_DATA_APART) != 0) {
        found = 0;
        if (path != NULL) {
            bn_status status = bn_map_file(path, &model->weights_file, error);
            if (status != BN_OK) return status;
            model->weights = model->weights_file.data;
            found = model->weights_file.nbytes;
        } else if (linked != NULL && linked->weights != NULL) {
            model->weights = linked->weights;
            found = linked->weights_nbytes;
        }
    }
    if (found < wanted)
        return bn_fail(error, BN_FILE, "program: weights: got %zu bytes, wanted %zu", found, wanted);
    return read_weights(model, wanted, linked != NULL && linked->weights == model->weights ? linked : NULL, error);
}

/* Make a model of a block; what `model` owns already goes with it where that fails. */
static bn_status finish(bn_model *model, const void *block, size_t nbytes, const bn_linked *linked, const char *path,
                        bn_model **made, bn_error *error) {
    bn_status status = bn_read_program(&model->program, block, nbytes, error);
    if (status == BN_OK) status = check_level(&model->program, error);
    if (status == BN_OK) status = find_kernels(model, linked, error);
    if (status == BN_OK) status = find_weights(model, linked, path, error);
    if (status != BN_OK) {
        destroy(model);
        return status;
    }
    atomic_init(&model->users, 1);
    *made = model;
    return BN_OK;
}

/* --- from files and memory ------------------------------------------------------------------------------------------- */

/* How good a block's level is for this processor, as far as its header says so: what has no level is read to be
   refused with a reason. */
static int rank_of(const unsigned char *data, int64_t at, int64_t nbytes) {
    int64_t words[BNP_HEADER_WORDS];
    if (nbytes < (int64_t)sizeof words) return 0;
    memcpy(words, data + at, sizeof words);
    int64_t strings = words[BNP_HEADER_FIRST_TABLE + 2 * BNP_TABLE_STRINGS], level = words[BNP_HEADER_LEVEL];
    if (words[BNP_HEADER_MAGIC] != BNP_MAGIC || strings < 0 || strings >= nbytes || level < 0 ||
        level >= nbytes - strings)
        return 0;
    const char *name = (const char *)data + at + strings + level;
    return memchr(name, 0, (size_t)(nbytes - strings - level)) == NULL ? 0 : bn_level_rank(name);
}

/* The block of a file: all of it, or the best that the trailer names. */
static bn_status find_block(const unsigned char *data, size_t size, const unsigned char **block, size_t *nbytes,
                            bn_error *error) {
    int64_t words[BNP_TRAILER_WORDS] = {0}, end = (int64_t)size;
    int best = -2;
    if (size >= sizeof words) memcpy(words, data, sizeof words);
    if (words[BNP_HEADER_MAGIC] == BNP_MAGIC) {
        *block = data;
        *nbytes = size;
        return BN_OK;
    }
    if (size >= sizeof words) memcpy(words, data + size - sizeof words, sizeof words);
    if (words[BNP_TRAILER_MAGIC] != BNP_END_MAGIC)
        return bn_fail(error, BN_FILE, "file: got no native program; `bolt-numba export` makes one");
    int64_t count = words[BNP_TRAILER_PROGRAMS];
    if (count < 1 || count > BNP_MOST_PROGRAMS)
        return bn_fail(error, BN_DAMAGED, "file: programs: got %" PRId64, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = words[BNP_TRAILER_FIRST + 2 * i], length = words[BNP_TRAILER_FIRST + 2 * i + 1];
        if (at < 0 || at % BNP_PAGE != 0 || at > end || length < 0 || length > end - at)
            return bn_fail(error, BN_DAMAGED, "file: program %" PRId64 ": got bytes %" PRId64 " and %" PRId64
                           " more, wanted some of %" PRId64, i, at, length, end);
        int rank = rank_of(data, at, length);
        if (rank <= best) continue;
        best = rank;
        *block = data + at;
        *nbytes = (size_t)length;
    }
    return BN_OK;
}

static bn_status open_data(bn_model *model, const unsigned char *data, size_t size, bn_model **made, bn_error *error) {
    const unsigned char *block = NULL;
    size_t nbytes = 0;
    bn_status status = find_block(data, size, &block, &nbytes, error);
    if (status == BN_OK) return finish(model, block, nbytes, NULL, NULL, made, error);
    destroy(model);
    return status;
}

static bn_model *new_model(bn_model **made, bn_error *error) {
    *made = NULL;
    bn_model *model = calloc(1, sizeof *model);
    if (model == NULL) bn_fail(error, BN_NO_MEMORY, "model: got no memory");
    return model;
}

bn_status bn_model_open(const char *path, bn_model **made) {
    bn_error *error = bn_thread_error();
    if (path == NULL || made == NULL) return bn_fail(error, BN_ARGUMENT, "bn_model_open: got NULL");
    bn_model *model = new_model(made, error);
    if (model == NULL) return BN_NO_MEMORY;
    bn_status status = bn_map_file(path, &model->file, error);
    if (status != BN_OK) {
        destroy(model);
        return status;
    }
    status = open_data(model, model->file.data, model->file.nbytes, made, error);
    if (status == BN_OK) return BN_OK;
    bn_error wrong = *error; /* it does not know of the path */
    return bn_fail(error, status, "%s: %s", path, wrong.text);
}

bn_status bn_model_from_memory(const void *data, size_t nbytes, bn_model **made) {
    bn_error *error = bn_thread_error();
    if (data == NULL || made == NULL) return bn_fail(error, BN_ARGUMENT, "bn_model_from_memory: got NULL");
    bn_model *model = new_model(made, error);
    if (model == NULL) return BN_NO_MEMORY;
    model->copy = bn_allocate(nbytes);
    if (model->copy == NULL) {
        destroy(model);
        return bn_fail(error, BN_NO_MEMORY, "model: got no memory for %zu bytes", nbytes);
    }
    memcpy(model->copy, data, nbytes);
    return open_data(model, model->copy, nbytes, made, error);
}

bn_status bn_model_linked(const bn_linked *linked, const char *weights_path, bn_model **made) {
    bn_error *error = bn_thread_error();
    if (linked == NULL || linked->program == NULL || made == NULL)
        return bn_fail(error, BN_ARGUMENT, "bn_model_linked: got NULL");
    if ((uintptr_t)linked->program % BNP_LINE != 0 || (uintptr_t)linked->weights % BNP_LINE != 0)
        return bn_fail(error, BN_ARGUMENT, "bn_model_linked: got unaligned memory, wanted multiples of %d", BNP_LINE);
    bn_model *model = new_model(made, error);
    if (model == NULL) return BN_NO_MEMORY;
    return finish(model, linked->program, linked->nbytes, linked, weights_path, made, error);
}

const char *bn_model_target(const bn_model *model) {
    if (model != NULL) return model->program.level;
    bn_fail(bn_thread_error(), BN_ARGUMENT, "bn_model_target: got NULL");
    return NULL;
}

int bn_model_plans(const bn_model *model) {
    if (model == NULL) {
        bn_fail(bn_thread_error(), BN_ARGUMENT, "bn_model_plans: got NULL");
        return 0;
    }
    const bn_program *program = &model->program;
    int plans = 0;
    for (int64_t i = 0; i < program->count[BNP_TABLE_PLANS]; plans++)
        i += bn_row(program, BNP_TABLE_PLANS, i)[BNP_PLAN_STAGES];
    return plans;
}
