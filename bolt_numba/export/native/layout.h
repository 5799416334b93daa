/* The tables of a native program.  Made from bolt_numba/export/layout.py, which says what they mean. */

#ifndef BN_LAYOUT_H
#define BN_LAYOUT_H

#define BNP_PACKAGE_VERSION "0.1.0"
#define BNP_VERSION 2
#define BNP_HEADER_WORDS 64
#define BNP_PAGE 4096
#define BNP_LINE 64
#define BNP_FAULT_WORDS 8
#define BNP_TRAILER_WORDS 8
#define BNP_MOST_PROGRAMS 3
#define BNP_MAGIC INT64_C(3544411312749563458)
#define BNP_END_MAGIC INT64_C(3552294750991437378)
#define BNP_STEP_WIDTH 4
#define BNP_PLAN_WIDTH 22
#define BNP_TABLE_COUNT 17
enum {
    BNP_HEADER_MAGIC = 0,
    BNP_HEADER_VERSION = 1,
    BNP_HEADER_BYTES = 2,
    BNP_HEADER_CRC = 3,
    BNP_HEADER_FLAGS = 4,
    BNP_HEADER_LEVEL = 6,
    BNP_HEADER_NAME = 7,
    BNP_HEADER_PRODUCER = 8,
    BNP_HEADER_DATA_CRC = 9,
    BNP_HEADER_TABLES = 10,
    BNP_HEADER_FEATURES = 11,
    BNP_HEADER_FIRST_TABLE = 16
};
enum {
    BNP_FLAG_LINKED = 1,
    BNP_FLAG_DATA_APART = 2
};
enum {
    BNP_TABLE_STRINGS = 0,
    BNP_TABLE_CODE = 1,
    BNP_TABLE_KERNELS = 2,
    BNP_TABLE_IMPORTS = 3,
    BNP_TABLE_DATA = 4,
    BNP_TABLE_ARRAYS = 5,
    BNP_TABLE_VALUES = 6,
    BNP_TABLE_DIMS = 7,
    BNP_TABLE_PLANS = 8,
    BNP_TABLE_RESULTS = 9,
    BNP_TABLE_IMAGES = 10,
    BNP_TABLE_STEPS = 11,
    BNP_TABLE_PATCHES = 12,
    BNP_TABLE_FAULTS = 13,
    BNP_TABLE_PLACES = 14,
    BNP_TABLE_CHOICES = 15,
    BNP_TABLE_FIELDS = 16
};
enum {
    BNP_VALUE_KIND_INPUT = 0,
    BNP_VALUE_KIND_OUTPUT = 1,
    BNP_VALUE_KIND_KEPT = 2,
    BNP_VALUE_KIND_STATE_IN = 3,
    BNP_VALUE_KIND_STATE_OUT = 4
};
enum {
    BNP_RESULT_KIND_MADE = 0,
    BNP_RESULT_KIND_INPUT = 1,
    BNP_RESULT_KIND_ARRAY = 2
};
enum {
    BNP_PATCH_KIND_KERNEL = 0,
    BNP_PATCH_KIND_ARRAY = 1,
    BNP_PATCH_KIND_ARENA = 2,
    BNP_PATCH_KIND_IMAGE = 3,
    BNP_PATCH_KIND_INPUT = 4,
    BNP_PATCH_KIND_OUTPUT = 5
};
enum {
    BNP_TRAILER_MAGIC = 0,
    BNP_TRAILER_PROGRAMS = 1,
    BNP_TRAILER_FIRST = 2
};
enum {
    BNP_KERNEL_NAME = 0,
    BNP_KERNEL_CODE = 1,
    BNP_KERNEL_NBYTES = 2,
    BNP_KERNEL_FIRST_IMPORT = 3,
    BNP_KERNEL_IMPORTS = 4
};
enum {
    BNP_IMPORT_NAME = 0,
    BNP_IMPORT_SLOT = 1
};
enum {
    BNP_ARRAY_OFFSET = 0,
    BNP_ARRAY_NBYTES = 1
};
enum {
    BNP_VALUE_NAME = 0,
    BNP_VALUE_KIND = 1,
    BNP_VALUE_DTYPE = 2,
    BNP_VALUE_RANK = 3,
    BNP_VALUE_DIMS = 4,
    BNP_VALUE_SOURCE = 5,
    BNP_VALUE_FIRST = 6
};
enum {
    BNP_DIM_SIZE = 0
};
enum {
    BNP_PLAN_DIMS = 0,
    BNP_PLAN_IMAGE = 1,
    BNP_PLAN_IMAGE_NBYTES = 2,
    BNP_PLAN_FIRST_STEP = 3,
    BNP_PLAN_STEPS = 4,
    BNP_PLAN_FIRST_PATCH = 5,
    BNP_PLAN_PATCHES = 6,
    BNP_PLAN_FIRST_FAULT = 7,
    BNP_PLAN_FAULTS = 8,
    BNP_PLAN_FAULT_COUNTER = 9,
    BNP_PLAN_RESULTS = 10,
    BNP_PLAN_ARENA_NBYTES = 11,
    BNP_PLAN_THREADS = 12,
    BNP_PLAN_STAGES = 13,
    BNP_PLAN_FIRST_PLACE = 14,
    BNP_PLAN_PLACES = 15,
    BNP_PLAN_CHOICE = 16,
    BNP_PLAN_FIRST_CHOICE = 17,
    BNP_PLAN_CHOICES = 18,
    BNP_PLAN_SIZES = 19,
    BNP_PLAN_FIRST_FIELD = 20,
    BNP_PLAN_FIELDS = 21
};
enum {
    BNP_RESULT_KIND = 0,
    BNP_RESULT_WHICH = 1
};
enum {
    BNP_STEP_KERNEL = 0,
    BNP_STEP_RECORD = 1,
    BNP_STEP_PARALLEL = 2,
    BNP_STEP_LABEL = 3
};
enum {
    BNP_PATCH_KIND = 0,
    BNP_PATCH_WHICH = 1,
    BNP_PATCH_WORD = 2,
    BNP_PATCH_OFFSET = 3
};
enum {
    BNP_FAULT_LABEL = 0,
    BNP_FAULT_TEXT = 1,
    BNP_FAULT_RANK = 2,
    BNP_FAULT_DIMS = 3
};
enum {
    BNP_PLACE_DTYPE = 0,
    BNP_PLACE_RANK = 1,
    BNP_PLACE_DIMS = 2,
    BNP_PLACE_LENGTH = 3,
    BNP_PLACE_AXIS = 4
};
enum {
    BNP_CHOICE_LOW = 0,
    BNP_CHOICE_HIGH = 1,
    BNP_CHOICE_STAGE = 2
};
enum {
    BNP_FIELD_WORD = 0,
    BNP_FIELD_FIRST = 1,
    BNP_FIELD_VALUE = 2,
    BNP_FIELD_SLOPE = 3
};
/* Numbers of a row of each table; 0 for areas, which are bytes. */
#define BNP_WIDTHS {0, 0, 5, 2, 0, 2, 7, 1, 22, 2, 0, 4, 4, 4, 5, 3, 4}
#define BNP_TABLE_NAMES {"STRINGS", "CODE", "KERNELS", "IMPORTS", "DATA", "ARRAYS", "VALUES", "DIMS", "PLANS", "RESULTS", "IMAGES", "STEPS", "PATCHES", "FAULTS", "PLACES", "CHOICES", "FIELDS"}
#define BNP_FUNCTIONS(each) \
    each(memcpy) \
    each(memset) \
    each(memmove) \
    each(memcmp) \
    each(rintf) \
    each(rint) \
    each(nearbyintf) \
    each(nearbyint) \
    each(roundf) \
    each(round) \
    each(floorf) \
    each(floor) \
    each(ceilf) \
    each(ceil) \
    each(truncf) \
    each(trunc) \
    each(fmodf) \
    each(fmod) \
    each(powf) \
    each(pow) \
    each(fmaf) \
    each(fma) \
    each(expf) \
    each(exp) \
    each(logf) \
    each(log) \
    each(sinf) \
    each(sin) \
    each(cosf) \
    each(cos) \
    each(sched_yield)

#endif
