/* Statuses and messages. */

#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

static _Thread_local bn_error of_thread;

bn_error *bn_thread_error(void) { return &of_thread; }

bn_status bn_fail(bn_error *error, bn_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return status;
}

const char *bn_version(void) { return BNP_PACKAGE_VERSION; }

const char *bn_status_text(bn_status status) {
    switch (status) {
    case BN_OK: return "done";
    case BN_ARGUMENT: return "wrong argument";
    case BN_FILE: return "unreadable file, or no native program in it";
    case BN_DAMAGED: return "damaged program";
    case BN_VERSION: return "program of another version";
    case BN_TARGET: return "program for another processor";
    case BN_NO_PLAN: return "no plan for these shapes";
    case BN_NO_MEMORY: return "not enough memory";
    case BN_DATA: return "an input asks for what is not there";
    case BN_TIME: return "a run took too long";
    }
    return "no status";
}

size_t bn_dtype_size(bn_dtype dtype) {
    switch (dtype) {
    case BN_UINT8: case BN_INT8: case BN_BOOL: return 1;
    case BN_UINT16: case BN_INT16: case BN_FLOAT16: case BN_BFLOAT16: return 2;
    case BN_FLOAT: case BN_INT32: case BN_UINT32: return 4;
    case BN_INT64: case BN_DOUBLE: case BN_UINT64: case BN_COMPLEX64: return 8;
    case BN_COMPLEX128: return 16;
    }
    return 0;
}
