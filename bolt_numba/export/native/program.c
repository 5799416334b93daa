/* Reads the tables of a program and checks each number in them, so that what follows can use them as they are. */

#include <inttypes.h>
#include <string.h>

#include "internal.h"

static const int widths[BNP_TABLE_COUNT] = BNP_WIDTHS;
static const char *const table_names[BNP_TABLE_COUNT] = BNP_TABLE_NAMES;

#define MAX_RANK 64
#define MAX_NBYTES ((int64_t)1 << 46) /* more than a process can have */

const int64_t *bn_row(const bn_program *program, int table, int64_t row) {
    return (const int64_t *)(const void *)(program->at[table] + row * 8 * widths[table]);
}

const char *bn_string(const bn_program *program, int64_t offset) {
    return (const char *)program->at[BNP_TABLE_STRINGS] + offset;
}

const int64_t *bn_dims_of(const bn_program *program, const int64_t *plan, int value) {
    int64_t at = plan[BNP_PLAN_DIMS];
    for (int i = 0; i < value; i++) at += bn_row(program, BNP_TABLE_VALUES, i)[BNP_VALUE_RANK];
    return bn_row(program, BNP_TABLE_DIMS, at);
}

int64_t bn_array_nbytes(const bn_program *program, const int64_t *head, int64_t number) {
    if (number < program->values) {
        const int64_t *value = bn_row(program, BNP_TABLE_VALUES, number);
        return bn_nbytes(bn_dims_of(program, head, (int)number), value[BNP_VALUE_RANK], value[BNP_VALUE_DTYPE]);
    }
    const int64_t *place = bn_place(program, head, number);
    return bn_nbytes(bn_row(program, BNP_TABLE_DIMS, place[BNP_PLACE_DIMS]), place[BNP_PLACE_RANK], place[BNP_PLACE_DTYPE]);
}

const int64_t *bn_place(const bn_program *program, const int64_t *head, int64_t number) {
    return bn_row(program, BNP_TABLE_PLACES, head[BNP_PLAN_FIRST_PLACE] + number - program->values);
}

int64_t bn_nbytes(const int64_t *dims, int64_t rank, int64_t dtype) {
    int64_t nbytes = (int64_t)bn_dtype_size((bn_dtype)dtype), product = nbytes;
    for (int64_t i = 0; i < rank; i++) {
        if (dims[i] < 0) return -1;
        if (dims[i] == 0) nbytes = 0;
        if (dims[i] > 0 && product > MAX_NBYTES / dims[i]) return -1; /* a zero elsewhere makes it no better */
        product *= dims[i] > 0 ? dims[i] : 1;
    }
    return nbytes == 0 ? 0 : product;
}

/* --- one check, and the words that say it failed ------------------------------------------------------------------- */

typedef struct reading {
    const bn_program *program;
    bn_error *error;
    const int64_t *head; /* the first stage of the set of shapes that is looked at */
} reading;

/* Whether low <= got <= high; `what` is the column, or another name of the number. */
static bool is_within(const reading *r, int table, int64_t row, const char *what, int64_t got, int64_t low, int64_t high) {
    if (got >= low && got <= high) return true;
    bn_fail(r->error, BN_DAMAGED, "program: %s[%" PRId64 "]: %s: got %" PRId64 ", wanted %" PRId64 " to %" PRId64,
            table_names[table], row, what, got, low, high);
    return false;
}

/* Whether rows first ... first + count - 1 are there. */
static bool is_span(const reading *r, int table, int64_t row, const char *what, int64_t first, int64_t count, int of) {
    int64_t rows = r->program->count[of];
    return is_within(r, table, row, what, first, 0, rows) && is_within(r, table, row, what, count, 0, rows - first);
}

/* --- header -------------------------------------------------------------------------------------------------------- */

static bn_status read_tables(bn_program *program, const unsigned char *block, int64_t nbytes, bn_error *error) {
    const int64_t *words = (const int64_t *)(const void *)block;
    reading r = {program, error, NULL};
    for (int table = 0; table < BNP_TABLE_COUNT; table++) {
        int64_t at = words[BNP_HEADER_FIRST_TABLE + 2 * table], count = words[BNP_HEADER_FIRST_TABLE + 2 * table + 1];
        int64_t width = widths[table] == 0 ? 1 : 8 * widths[table];
        bool is_apart = table == BNP_TABLE_DATA && (words[BNP_HEADER_FLAGS] & BNP_FLAG_DATA_APART) != 0;
        int64_t room = is_apart ? MAX_NBYTES : nbytes;
        int64_t first = is_apart ? 0 : 8 * BNP_HEADER_WORDS;
        if (!is_within(&r, table, 0, "place", at, first, is_apart ? 0 : nbytes) || at % BNP_LINE != 0 ||
            !is_within(&r, table, 0, "rows", count, 0, (room - at) / width)) {
            if (at % BNP_LINE != 0) bn_fail(error, BN_DAMAGED, "program: %s: place: got %" PRId64, table_names[table], at);
            return BN_DAMAGED;
        }
        program->at[table] = is_apart ? NULL : block + at;
        program->count[table] = count;
    }
    return BN_OK;
}

static bn_status check_crc(const bn_program *program, const unsigned char *block, int64_t nbytes, bn_error *error) {
    const int64_t *words = (const int64_t *)(const void *)block;
    const unsigned char *from = block + 8 * BNP_HEADER_FLAGS, *data = program->at[BNP_TABLE_DATA], *end = block + nbytes;
    uint32_t crc = 0;
    if (data != NULL) {
        crc = bn_crc32(crc, from, (size_t)(data - from));
        from = data + program->count[BNP_TABLE_DATA];
    }
    crc = bn_crc32(crc, from, (size_t)(end - from));
    if (words[BNP_HEADER_CRC] == (int64_t)crc) return BN_OK;
    return bn_fail(error, BN_DAMAGED, "program: checksum: got %" PRIx64 ", wanted %08" PRIx32,
                   (uint64_t)words[BNP_HEADER_CRC], crc);
}

static bn_status read_header(bn_program *program, const unsigned char *block, int64_t nbytes, bn_error *error) {
    const int64_t *words = (const int64_t *)(const void *)block;
    reading r = {program, error, NULL};
    if (nbytes < 8 * BNP_HEADER_WORDS || words[BNP_HEADER_MAGIC] != BNP_MAGIC)
        return bn_fail(error, BN_FILE, "program: got other content, wanted a native program");
    if (words[BNP_HEADER_VERSION] != BNP_VERSION)
        return bn_fail(error, BN_VERSION, "program: version: got %" PRId64 ", wanted %d", words[BNP_HEADER_VERSION],
                       BNP_VERSION);
    if (words[BNP_HEADER_BYTES] != nbytes || words[BNP_HEADER_TABLES] != BNP_TABLE_COUNT)
        return bn_fail(error, BN_DAMAGED, "program: size: got %" PRId64 " bytes, wanted %" PRId64, nbytes,
                       words[BNP_HEADER_BYTES]);
    bn_status status = read_tables(program, block, nbytes, error);
    if (status == BN_OK) status = check_crc(program, block, nbytes, error);
    if (status != BN_OK) return status;
    program->flags = words[BNP_HEADER_FLAGS];
    program->data_crc = (uint32_t)words[BNP_HEADER_DATA_CRC];
    int64_t strings = program->count[BNP_TABLE_STRINGS];
    if (strings == 0 || bn_string(program, strings - 1)[0] != 0)
        return bn_fail(error, BN_DAMAGED, "program: STRINGS: wanted a zero at their end");
    int64_t level = words[BNP_HEADER_LEVEL];
    if (!is_within(&r, BNP_TABLE_STRINGS, 0, "level", level, 0, strings - 1)) return BN_DAMAGED;
    program->level = bn_string(program, level);
    return BN_OK;
}

/* --- tables of the model --------------------------------------------------------------------------------------------- */

static bool check_strings(const reading *r) {
    static const struct {
        int table, column;
    } strings[] = {{BNP_TABLE_KERNELS, BNP_KERNEL_NAME}, {BNP_TABLE_IMPORTS, BNP_IMPORT_NAME},
                   {BNP_TABLE_VALUES, BNP_VALUE_NAME},   {BNP_TABLE_STEPS, BNP_STEP_LABEL},
                   {BNP_TABLE_FAULTS, BNP_FAULT_LABEL},  {BNP_TABLE_FAULTS, BNP_FAULT_TEXT}};
    const bn_program *p = r->program;
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++)
        for (int64_t row = 0; row < p->count[strings[i].table]; row++)
            if (!is_within(r, strings[i].table, row, "string", bn_row(p, strings[i].table, row)[strings[i].column], 0,
                           p->count[BNP_TABLE_STRINGS] - 1))
                return false;
    return true;
}

static bool check_code(const reading *r) {
    const bn_program *p = r->program;
    bool is_linked = (p->flags & BNP_FLAG_LINKED) != 0;
    for (int64_t i = 0; i < p->count[BNP_TABLE_KERNELS]; i++) {
        const int64_t *kernel = bn_row(p, BNP_TABLE_KERNELS, i);
        int64_t first = is_linked ? -1 : 0, last = is_linked ? -1 : p->count[BNP_TABLE_CODE] - 1;
        if (!is_within(r, BNP_TABLE_KERNELS, i, "code", kernel[BNP_KERNEL_CODE], first, last) ||
            !is_within(r, BNP_TABLE_KERNELS, i, "bytes", kernel[BNP_KERNEL_NBYTES], 0, p->count[BNP_TABLE_CODE]) ||
            !is_span(r, BNP_TABLE_KERNELS, i, "imports", kernel[BNP_KERNEL_FIRST_IMPORT], kernel[BNP_KERNEL_IMPORTS],
                     BNP_TABLE_IMPORTS))
            return false;
    }
    for (int64_t i = 0; i < p->count[BNP_TABLE_IMPORTS]; i++) {
        int64_t slot = bn_row(p, BNP_TABLE_IMPORTS, i)[BNP_IMPORT_SLOT];
        if (!is_within(r, BNP_TABLE_IMPORTS, i, "slot", slot, 0, p->count[BNP_TABLE_CODE] - 8)) return false;
    }
    return true;
}

static bool check_arrays(const reading *r) {
    const bn_program *p = r->program;
    for (int64_t i = 0; i < p->count[BNP_TABLE_ARRAYS]; i++) {
        const int64_t *array = bn_row(p, BNP_TABLE_ARRAYS, i);
        if (!is_span(r, BNP_TABLE_ARRAYS, i, "bytes", array[BNP_ARRAY_OFFSET], array[BNP_ARRAY_NBYTES], BNP_TABLE_DATA))
            return false;
    }
    return true;
}

static bool is_taken(int64_t kind) { return kind == BNP_VALUE_KIND_INPUT || kind == BNP_VALUE_KIND_STATE_IN; }

static bool check_value(const reading *r, int64_t i, const int64_t *value) {
    const bn_program *p = r->program;
    int64_t rank = value[BNP_VALUE_RANK];
    if (!is_within(r, BNP_TABLE_VALUES, i, "kind", value[BNP_VALUE_KIND], 0, BNP_VALUE_KIND_STATE_OUT) ||
        !is_within(r, BNP_TABLE_VALUES, i, "rank", rank, 0, MAX_RANK) ||
        !is_span(r, BNP_TABLE_VALUES, i, "dims", value[BNP_VALUE_DIMS], rank, BNP_TABLE_DIMS))
        return false;
    if (value[BNP_VALUE_DTYPE] < 0 || value[BNP_VALUE_DTYPE] > 64 ||
        bn_dtype_size((bn_dtype)value[BNP_VALUE_DTYPE]) == 0) {
        bn_fail(r->error, BN_DAMAGED, "program: VALUES[%" PRId64 "]: dtype: got %" PRId64, i, value[BNP_VALUE_DTYPE]);
        return false;
    }
    if (value[BNP_VALUE_KIND] != BNP_VALUE_KIND_STATE_IN) return true;
    if (!is_within(r, BNP_TABLE_VALUES, i, "source", value[BNP_VALUE_SOURCE], p->inputs, p->values - 1) ||
        !is_within(r, BNP_TABLE_VALUES, i, "first", value[BNP_VALUE_FIRST], 0, p->count[BNP_TABLE_ARRAYS] - 1))
        return false;
    int64_t kind = bn_row(p, BNP_TABLE_VALUES, value[BNP_VALUE_SOURCE])[BNP_VALUE_KIND];
    return is_within(r, BNP_TABLE_VALUES, i, "kind of source", kind, BNP_VALUE_KIND_STATE_OUT, BNP_VALUE_KIND_STATE_OUT);
}

static bool check_values(bn_program *program, const reading *r) {
    int64_t count = program->count[BNP_TABLE_VALUES], inputs = 0;
    if (!is_within(r, BNP_TABLE_VALUES, 0, "rows", count, 0, 1 << 20)) return false;
    while (inputs < count && is_taken(bn_row(program, BNP_TABLE_VALUES, inputs)[BNP_VALUE_KIND])) inputs++;
    program->inputs = (int)inputs;
    program->values = (int)count;
    for (int64_t i = 0; i < count; i++) {
        const int64_t *value = bn_row(program, BNP_TABLE_VALUES, i);
        if (!check_value(r, i, value)) return false;
        if (i < inputs || !is_taken(value[BNP_VALUE_KIND])) continue;
        bn_fail(r->error, BN_DAMAGED, "program: VALUES[%" PRId64 "]: got an input behind outputs", i);
        return false;
    }
    return true;
}

/* --- plans ----------------------------------------------------------------------------------------------------------- */

static bool check_shapes(const reading *r, int64_t number, const int64_t *plan) {
    const bn_program *p = r->program;
    int64_t ranks = 0, taken = 0;
    for (int i = 0; i < p->values; i++) {
        ranks += bn_row(p, BNP_TABLE_VALUES, i)[BNP_VALUE_RANK];
        taken = i < p->inputs ? ranks : taken;
    }
    if (!is_span(r, BNP_TABLE_PLANS, number, "dims", plan[BNP_PLAN_DIMS], ranks, BNP_TABLE_DIMS) ||
        !is_span(r, BNP_TABLE_PLANS, number, "begin", plan[BNP_PLAN_BEGIN], taken, BNP_TABLE_DIMS))
        return false;
    for (int i = 0; i < p->values; i++) {
        const int64_t *value = bn_row(p, BNP_TABLE_VALUES, i), *dims = bn_dims_of(p, plan, i);
        int64_t nbytes = bn_nbytes(dims, value[BNP_VALUE_RANK], value[BNP_VALUE_DTYPE]);
        if (!is_within(r, BNP_TABLE_PLANS, number, "bytes of a value", nbytes, 0, MAX_NBYTES)) return false;
        if (value[BNP_VALUE_KIND] != BNP_VALUE_KIND_STATE_IN) continue;
        int source = (int)value[BNP_VALUE_SOURCE];
        const int64_t *next = bn_row(p, BNP_TABLE_VALUES, source);
        int64_t given = bn_nbytes(bn_dims_of(p, plan, source), next[BNP_VALUE_RANK], next[BNP_VALUE_DTYPE]);
        int64_t first = bn_row(p, BNP_TABLE_ARRAYS, value[BNP_VALUE_FIRST])[BNP_ARRAY_NBYTES];
        if (!is_within(r, BNP_TABLE_PLANS, number, "bytes of a next state", given, nbytes, nbytes) ||
            !is_within(r, BNP_TABLE_PLANS, number, "bytes of a first state", first, nbytes, nbytes))
            return false;
    }
    return true;
}

bool bn_is_read(const bn_program *p, const int64_t *head, int64_t number) {
    return (number >= 0 && number < p->inputs) || (number >= p->values && number < p->values + head[BNP_PLAN_PLACES]);
}

static bool is_read(const reading *r, int64_t number) { return bn_is_read(r->program, r->head, number); }

static bool check_results(const reading *r, int64_t number, const int64_t *plan) {
    const bn_program *p = r->program;
    int outputs = p->values - p->inputs;
    if (plan[BNP_PLAN_CHOICES] > 0) return is_within(r, BNP_TABLE_PLANS, number, "results", plan[BNP_PLAN_RESULTS], -1, -1);
    if (!is_span(r, BNP_TABLE_PLANS, number, "results", plan[BNP_PLAN_RESULTS], outputs, BNP_TABLE_RESULTS)) return false;
    for (int i = 0; i < outputs; i++) {
        int64_t row = plan[BNP_PLAN_RESULTS] + i, nbytes = bn_array_nbytes(p, r->head, p->inputs + i), source = nbytes;
        const int64_t *result = bn_row(p, BNP_TABLE_RESULTS, row);
        int64_t kind = result[BNP_RESULT_KIND], which = result[BNP_RESULT_WHICH];
        bool is_exact = plan == r->head; /* else the sizes of this stage may be less than the greatest */
        if (!is_within(r, BNP_TABLE_RESULTS, row, "kind", kind, 0, BNP_RESULT_KIND_ARRAY)) return false;
        if (kind == BNP_RESULT_KIND_INPUT) {
            if (!is_read(r, which)) return is_within(r, BNP_TABLE_RESULTS, row, "input", which, 0, -1);
            source = bn_array_nbytes(p, r->head, which);
        } else if (kind == BNP_RESULT_KIND_ARRAY) {
            if (!is_within(r, BNP_TABLE_RESULTS, row, "array", which, 0, p->count[BNP_TABLE_ARRAYS] - 1)) return false;
            source = bn_row(p, BNP_TABLE_ARRAYS, which)[BNP_ARRAY_NBYTES];
        }
        int64_t most = kind == BNP_RESULT_KIND_ARRAY ? MAX_NBYTES : nbytes;
        if (!is_within(r, BNP_TABLE_RESULTS, row, "bytes", source, is_exact ? nbytes : 0, most)) return false;
    }
    return true;
}

static bool check_steps(const reading *r, const int64_t *plan) {
    const bn_program *p = r->program;
    int64_t end = plan[BNP_PLAN_FIRST_STEP] + plan[BNP_PLAN_STEPS];
    for (int64_t i = plan[BNP_PLAN_FIRST_STEP]; i < end; i++) {
        const int64_t *step = bn_row(p, BNP_TABLE_STEPS, i);
        if (!is_within(r, BNP_TABLE_STEPS, i, "kernel", step[BNP_STEP_KERNEL], 0, p->count[BNP_TABLE_KERNELS] - 1) ||
            !is_within(r, BNP_TABLE_STEPS, i, "record", step[BNP_STEP_RECORD], 0, plan[BNP_PLAN_IMAGE_NBYTES] - 1) ||
            !is_within(r, BNP_TABLE_STEPS, i, "record beside a line", step[BNP_STEP_RECORD] % BNP_LINE, 0, 0) ||
            !is_within(r, BNP_TABLE_STEPS, i, "parallel", step[BNP_STEP_PARALLEL], 0, 1))
            return false;
    }
    return true;
}

static bool check_patches(const reading *r, const int64_t *plan) {
    const bn_program *p = r->program;
    int64_t end = plan[BNP_PLAN_FIRST_PATCH] + plan[BNP_PLAN_PATCHES], words = plan[BNP_PLAN_IMAGE_NBYTES] / 8;
    for (int64_t i = plan[BNP_PLAN_FIRST_PATCH]; i < end; i++) {
        const int64_t *patch = bn_row(p, BNP_TABLE_PATCHES, i);
        int64_t things, low, high;
        if (!is_within(r, BNP_TABLE_PATCHES, i, "kind", patch[BNP_PATCH_KIND], 0, BNP_PATCH_KIND_OUTPUT) ||
            !is_within(r, BNP_TABLE_PATCHES, i, "word", patch[BNP_PATCH_WORD], 0, words - 1))
            return false;
        if (!bn_patch_limits(p, r->head, plan, patch, &things, &low, &high))
            return is_within(r, BNP_TABLE_PATCHES, i, "which", patch[BNP_PATCH_WHICH], 0, things - 1);
        if (!is_within(r, BNP_TABLE_PATCHES, i, "offset", patch[BNP_PATCH_OFFSET], low, high)) return false;
    }
    return true;
}

static bool check_faults(const reading *r, int64_t number, const int64_t *plan) {
    const bn_program *p = r->program;
    int64_t first = plan[BNP_PLAN_FIRST_FAULT], count = plan[BNP_PLAN_FAULTS];
    int64_t counter = plan[BNP_PLAN_FAULT_COUNTER], words = plan[BNP_PLAN_IMAGE_NBYTES] / 8;
    if (count == 0) return is_within(r, BNP_TABLE_PLANS, number, "fault counter", counter, -1, -1);
    if (!is_within(r, BNP_TABLE_PLANS, number, "fault counter", counter, 0, words - BNP_FAULT_WORDS * (count + 1)))
        return false;
    for (int64_t i = first; i < first + count; i++) {
        const int64_t *fault = bn_row(p, BNP_TABLE_FAULTS, i);
        int64_t rank = fault[BNP_FAULT_RANK];
        if (!is_within(r, BNP_TABLE_FAULTS, i, "rank", rank, 0, MAX_RANK)) return false;
        if (fault[BNP_FAULT_WORD] != -1) {
            if (!is_within(r, BNP_TABLE_FAULTS, i, "word", fault[BNP_FAULT_WORD], 0, words - rank)) return false;
            continue;
        }
        if (!is_span(r, BNP_TABLE_FAULTS, i, "dims", fault[BNP_FAULT_DIMS], rank, BNP_TABLE_DIMS)) return false;
        if (bn_nbytes(bn_row(p, BNP_TABLE_DIMS, fault[BNP_FAULT_DIMS]), rank, BN_UINT8) < 0)
            return is_within(r, BNP_TABLE_FAULTS, i, "elements", -1, 0, MAX_NBYTES);
    }
    return true;
}

/* --- stages ---------------------------------------------------------------------------------------------------------- */

/* Whether an array holds a number that decides: i64, or a boolean. */
static bool is_number(const reading *r, int64_t number, bool may_be_bool) {
    const bn_program *p = r->program;
    if (!is_read(r, number) || bn_array_nbytes(p, r->head, number) < 1) return false;
    int64_t dtype = number < p->values ? bn_row(p, BNP_TABLE_VALUES, number)[BNP_VALUE_DTYPE]
                                       : bn_place(p, r->head, number)[BNP_PLACE_DTYPE];
    return dtype == BN_INT64 || (may_be_bool && dtype == BN_BOOL);
}

static bool check_places(const reading *r) {
    const bn_program *p = r->program;
    int64_t first = r->head[BNP_PLAN_FIRST_PLACE];
    for (int64_t i = 0; i < r->head[BNP_PLAN_PLACES]; i++) {
        const int64_t *place = bn_row(p, BNP_TABLE_PLACES, first + i);
        int64_t dtype = place[BNP_PLACE_DTYPE], rank = place[BNP_PLACE_RANK];
        if (!is_within(r, BNP_TABLE_PLACES, first + i, "rank", rank, 0, MAX_RANK) ||
            !is_span(r, BNP_TABLE_PLACES, first + i, "dims", place[BNP_PLACE_DIMS], rank, BNP_TABLE_DIMS))
            return false;
        if (dtype < 0 || dtype > 64 || bn_dtype_size((bn_dtype)dtype) == 0 ||
            bn_array_nbytes(p, r->head, p->values + i) < 0)
            return is_within(r, BNP_TABLE_PLACES, first + i, "dtype or sizes", dtype, 0, -1);
    }
    for (int64_t i = 0; i < r->head[BNP_PLAN_PLACES]; i++) {
        const int64_t *place = bn_row(p, BNP_TABLE_PLACES, first + i);
        if (place[BNP_PLACE_LENGTH] == -1) continue;
        if (!is_number(r, place[BNP_PLACE_LENGTH], false))
            return is_within(r, BNP_TABLE_PLACES, first + i, "length", place[BNP_PLACE_LENGTH], 0, -1);
        if (!is_within(r, BNP_TABLE_PLACES, first + i, "axis", place[BNP_PLACE_AXIS], 0, place[BNP_PLACE_RANK] - 1))
            return false;
    }
    return true;
}

static bool check_choices(const reading *r, int64_t number, const int64_t *plan) {
    const bn_program *p = r->program;
    int64_t first = plan[BNP_PLAN_FIRST_CHOICE], choice = plan[BNP_PLAN_CHOICE];
    if (!is_span(r, BNP_TABLE_PLANS, number, "choices", first, plan[BNP_PLAN_CHOICES], BNP_TABLE_CHOICES)) return false;
    if (choice != -1 && !is_number(r, choice, true))
        return is_within(r, BNP_TABLE_PLANS, number, "choice", choice, 0, -1);
    for (int64_t i = first; i < first + plan[BNP_PLAN_CHOICES]; i++)
        if (!is_within(r, BNP_TABLE_CHOICES, i, "stage", bn_row(p, BNP_TABLE_CHOICES, i)[BNP_CHOICE_STAGE], 0,
                       r->head[BNP_PLAN_STAGES] - 1))
            return false;
    return true;
}

static bool check_sizes(const reading *r, int64_t number, const int64_t *plan) {
    const bn_program *p = r->program;
    int64_t words = plan[BNP_PLAN_IMAGE_NBYTES] / 8, sizes = 0;
    if (plan[BNP_PLAN_SIZES] == -1) return true;
    for (int i = p->inputs; i < p->values; i++) sizes += bn_row(p, BNP_TABLE_VALUES, i)[BNP_VALUE_RANK];
    return is_within(r, BNP_TABLE_PLANS, number, "sizes", plan[BNP_PLAN_SIZES], 0, words - sizes);
}

/* --- tapes ----------------------------------------------------------------------------------------------------------- */

static bool check_finds(const reading *r) {
    const bn_program *p = r->program;
    int64_t count = p->count[BNP_TABLE_FINDS];
    for (int64_t i = 0; i < count; i++)
        if (!is_within(r, BNP_TABLE_FINDS, i, "rows", bn_row(p, BNP_TABLE_FINDS, i)[BNP_FIND_ROWS], 1, count - i)) return false;
    return true;
}

static bool check_operations(const reading *r, const int64_t *plan) {
    const bn_program *p = r->program;
    for (int64_t i = 0; i < plan[BNP_PLAN_OPERATIONS]; i++) {
        int64_t at = plan[BNP_PLAN_FIRST_OPERATION] + i, before = plan[BNP_PLAN_NUMBERS] + i;
        const int64_t *row = bn_row(p, BNP_TABLE_OPERATIONS, at);
        int64_t what = row[BNP_OPERATION_WHAT];
        int64_t most = what == BNP_TAPE_OPERATION_FIND ? p->count[BNP_TABLE_FINDS] - 1 : before;
        if (!is_within(r, BNP_TABLE_OPERATIONS, at, "what", what, 0, BNP_TAPE_OPERATION_FIND)) return false;
        if (what == BNP_TAPE_OPERATION_CONST) continue;
        if (!is_within(r, BNP_TABLE_OPERATIONS, at, "a", row[BNP_OPERATION_A], 0, before) ||
            !is_within(r, BNP_TABLE_OPERATIONS, at, "b", row[BNP_OPERATION_B], 0, most))
            return false;
    }
    return true;
}

static bool check_writes(const reading *r, const int64_t *plan) {
    const bn_program *p = r->program;
    int64_t registers = 1 + plan[BNP_PLAN_NUMBERS] + plan[BNP_PLAN_OPERATIONS];
    for (int64_t i = plan[BNP_PLAN_FIRST_WRITE]; i < plan[BNP_PLAN_FIRST_WRITE] + plan[BNP_PLAN_WRITES]; i++) {
        const int64_t *row = bn_row(p, BNP_TABLE_WRITES, i);
        int64_t kind = row[BNP_WRITE_KIND];
        bool is_half = kind == BNP_WRITE_KIND_HALF || kind == BNP_WRITE_KIND_FLOAT || kind == BNP_WRITE_KIND_ROUNDED;
        int64_t nbytes = is_half ? 4 : 8;
        int64_t last = kind == BNP_WRITE_KIND_FLAG ? plan[BNP_PLAN_STEPS] - 1 : plan[BNP_PLAN_IMAGE_NBYTES] - nbytes;
        if (!is_within(r, BNP_TABLE_WRITES, i, "kind", kind, 0, BNP_WRITE_KIND_FLAG) ||
            !is_within(r, BNP_TABLE_WRITES, i, "at", row[BNP_WRITE_AT], 0, last) ||
            !is_within(r, BNP_TABLE_WRITES, i, "register", row[BNP_WRITE_REGISTER], 0, registers - 1))
            return false;
    }
    return true;
}

static bool check_tape(const reading *r, int64_t number, const int64_t *plan) {
    const bn_program *p = r->program;
    int64_t first = plan[BNP_PLAN_FIRST_NUMBER];
    if (!is_span(r, BNP_TABLE_PLANS, number, "numbers", first, plan[BNP_PLAN_NUMBERS], BNP_TABLE_NUMBERS) ||
        !is_span(r, BNP_TABLE_PLANS, number, "operations", plan[BNP_PLAN_FIRST_OPERATION], plan[BNP_PLAN_OPERATIONS],
                 BNP_TABLE_OPERATIONS) ||
        !is_span(r, BNP_TABLE_PLANS, number, "writes", plan[BNP_PLAN_FIRST_WRITE], plan[BNP_PLAN_WRITES], BNP_TABLE_WRITES))
        return false;
    if (plan[BNP_PLAN_NUMBERS] > 0 && plan == r->head && /* it chooses the plan, and the sizes of the outputs are told at once */
        (!is_within(r, BNP_TABLE_PLANS, number, "stages of a tape", plan[BNP_PLAN_STAGES], 1, 1) ||
         !is_within(r, BNP_TABLE_PLANS, number, "sizes of a tape", plan[BNP_PLAN_SIZES], 0, MAX_NBYTES)))
        return false;
    for (int64_t i = first; i < first + plan[BNP_PLAN_NUMBERS]; i++) {
        const int64_t *row = bn_row(p, BNP_TABLE_NUMBERS, i);
        int64_t value = row[BNP_NUMBER_VALUE], axis = row[BNP_NUMBER_AXIS];
        if (!is_read(r, value)) return is_within(r, BNP_TABLE_NUMBERS, i, "value", value, 0, -1);
        bool has_content = value >= p->values && is_number(r, value, false);
        int64_t rank = value < p->values ? bn_row(p, BNP_TABLE_VALUES, value)[BNP_VALUE_RANK]
                                         : bn_place(p, r->head, value)[BNP_PLACE_RANK];
        if (!is_within(r, BNP_TABLE_NUMBERS, i, "axis", axis, has_content ? BNP_CONTENT : 0, rank - 1)) return false;
    }
    return check_operations(r, plan) && check_writes(r, plan);
}

static bool check_plan(const reading *r, int64_t i) {
    const int64_t *plan = bn_row(r->program, BNP_TABLE_PLANS, i);
    int64_t nbytes = plan[BNP_PLAN_IMAGE_NBYTES];
    return is_within(r, BNP_TABLE_PLANS, i, "dims", plan[BNP_PLAN_DIMS], r->head[BNP_PLAN_DIMS], r->head[BNP_PLAN_DIMS]) &&
           is_span(r, BNP_TABLE_PLANS, i, "image", plan[BNP_PLAN_IMAGE], nbytes, BNP_TABLE_IMAGES) &&
           is_within(r, BNP_TABLE_PLANS, i, "image beside a line", plan[BNP_PLAN_IMAGE] % BNP_LINE, 0, 0) &&
           is_within(r, BNP_TABLE_PLANS, i, "bytes of the image beside a word", nbytes % 8, 0, 0) &&
           is_span(r, BNP_TABLE_PLANS, i, "steps", plan[BNP_PLAN_FIRST_STEP], plan[BNP_PLAN_STEPS], BNP_TABLE_STEPS) &&
           is_span(r, BNP_TABLE_PLANS, i, "patches", plan[BNP_PLAN_FIRST_PATCH], plan[BNP_PLAN_PATCHES],
                   BNP_TABLE_PATCHES) &&
           is_span(r, BNP_TABLE_PLANS, i, "faults", plan[BNP_PLAN_FIRST_FAULT], plan[BNP_PLAN_FAULTS],
                   BNP_TABLE_FAULTS) &&
           is_within(r, BNP_TABLE_PLANS, i, "bytes of the arena", plan[BNP_PLAN_ARENA_NBYTES], 0, MAX_NBYTES) &&
           is_within(r, BNP_TABLE_PLANS, i, "threads", plan[BNP_PLAN_THREADS], 1, BN_MAX_THREADS) &&
           check_choices(r, i, plan) && check_results(r, i, plan) && check_steps(r, plan) && check_patches(r, plan) &&
           check_faults(r, i, plan) && check_sizes(r, i, plan) && check_tape(r, i, plan);
}

/* A set of shapes: its first stage, and those that follow it. */
static bool check_head(reading *r, int64_t i, int64_t plans) {
    r->head = bn_row(r->program, BNP_TABLE_PLANS, i);
    if (!is_within(r, BNP_TABLE_PLANS, i, "stages", r->head[BNP_PLAN_STAGES], 1, plans - i) ||
        !is_span(r, BNP_TABLE_PLANS, i, "places", r->head[BNP_PLAN_FIRST_PLACE], r->head[BNP_PLAN_PLACES],
                 BNP_TABLE_PLACES) ||
        !check_shapes(r, i, r->head) || !check_places(r))
        return false;
    for (int64_t stage = 0; stage < r->head[BNP_PLAN_STAGES]; stage++)
        if (!check_plan(r, i + stage)) return false;
    return true;
}

bn_status bn_read_program(bn_program *program, const void *block, size_t nbytes, bn_error *error) {
    reading r = {program, error, NULL};
    bn_status status = read_header(program, block, (int64_t)nbytes, error);
    if (status != BN_OK) return status;
    if (!check_strings(&r) || !check_code(&r) || !check_arrays(&r) || !check_values(program, &r) || !check_finds(&r))
        return BN_DAMAGED;
    int64_t plans = program->count[BNP_TABLE_PLANS];
    if (!is_within(&r, BNP_TABLE_PLANS, 0, "rows", plans, 1, 1 << 20)) return BN_DAMAGED;
    for (int64_t i = 0; i < plans; i += r.head[BNP_PLAN_STAGES])
        if (!check_head(&r, i, plans)) return BN_DAMAGED;
    return BN_OK;
}
