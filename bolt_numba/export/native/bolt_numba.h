/* bolt_numba.h: runs native programs, which `bolt-numba export` makes of models, without Python.

   The life of a model:

       bn_model *model = NULL;
       bn_session *session = NULL;
       bn_model_open("digits.bolt", &model);
       bn_session_create(model, NULL, &session);
       float *x = bn_session_input(session, 0);           ... fill x ...
       bn_session_run(session);
       const float *y = bn_session_output(session, 0);    ... read y ...
       bn_session_destroy(session);
       bn_model_close(model);

   Errors.  Every function that can fail returns a bn_status; BN_OK is 0.  bn_error_message says in words what was
   wrong.  A call that fails changes nothing but that message; a run that fails leaves the content of the outputs open.

   Shapes.  A program has one plan or several, each for one set of input shapes or for many.  A session begins with the
   first set that was given to the export; bn_session_resize and bn_session_set_input_shape choose others.  Arrays are
   dense, in C order, of the dtype that bn_info names.

   Pointers are not NULL unless a function says so.  One that is makes the call BN_ARGUMENT, or what the function gives
   for a number out of range: NULL, 0, or -1 for an index; bn_error_message says so.

   Ownership.  What a getter returns belongs to the session (names: to the model) and is valid until that is destroyed
   or, for dimensions and buffers, resized.  Memory that is bound stays the caller's.

   Threads.  A model may be used from any number of threads at once.  A session runs one call at a time: give each
   thread its own by bn_session_clone.  Clones share weights and machine code.  A session keeps threads - 1 workers,
   which share large steps with the caller; results are the same bits for any number of threads.  On x86 a run flushes
   denormal results to zero, and puts the caller's floating-point control back.

   Trust.  A program is machine code.  Its tables are checked, so that a damaged file is refused; who can write the file
   can still run what he likes.  Open only files that you trust. */

#ifndef BOLT_NUMBA_H
#define BOLT_NUMBA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define BN_API __attribute__((visibility("default")))
#else
#define BN_API
#endif

typedef struct bn_model bn_model;     /* a program in memory: tables, machine code, weights */
typedef struct bn_session bn_session; /* memory and threads for one run of a model at a time */

typedef enum bn_status {
    BN_OK = 0,
    BN_ARGUMENT = 1,  /* an argument that the function does not take */
    BN_FILE = 2,      /* a file cannot be read, or has no native program */
    BN_DAMAGED = 3,   /* a program whose tables do not fit together, or that was changed */
    BN_VERSION = 4,   /* a program of another version of the format */
    BN_TARGET = 5,    /* a program for instructions that this processor lacks */
    BN_NO_PLAN = 6,   /* no plan for these shapes */
    BN_NO_MEMORY = 7, /* the system gives no memory, or no executable memory */
    BN_DATA = 8,      /* the content of an input asks for what is not there, such as an index out of range */
    BN_TIME = 9       /* a run took longer than bn_session_set_time_limit allows */
} bn_status;

/* The numbers of ONNX's TensorProto.DataType. */
typedef enum bn_dtype {
    BN_FLOAT = 1,
    BN_UINT8 = 2,
    BN_INT8 = 3,
    BN_UINT16 = 4,
    BN_INT16 = 5,
    BN_INT32 = 6,
    BN_INT64 = 7,
    BN_BOOL = 9,
    BN_FLOAT16 = 10,
    BN_DOUBLE = 11,
    BN_UINT32 = 12,
    BN_UINT64 = 13,
    BN_COMPLEX64 = 14,
    BN_COMPLEX128 = 15,
    BN_BFLOAT16 = 16
} bn_dtype;

/* What is known of an input or output, for the shapes that the session has now.  Where data decide the size of an output,
   dims and nbytes are those of the last run, and before the first run the greatest. */
typedef struct bn_info {
    const char *name;
    bn_dtype dtype;
    int rank;            /* number of dimensions; 0 for a scalar */
    const int64_t *dims; /* rank sizes */
    size_t nbytes;       /* bytes of the whole array */
} bn_info;

/* threads: of a run, the caller's included; 0 for as many as the program was planned for. */
typedef struct bn_options {
    int threads;
} bn_options;

/* --- text ------------------------------------------------------------------------------------------------------- */

/* Version of this library, such as "0.1.0". */
BN_API const char *bn_version(void);

/* A status in a few words; never NULL. */
BN_API const char *bn_status_text(bn_status status);

/* What was wrong with the last call for this session that failed, "" when there was none.  With NULL: with the last
   call of this thread that failed and had no session, such as bn_model_open.  Valid until the next such call. */
BN_API const char *bn_error_message(const bn_session *session);

/* Bytes of one element, 0 for a number that is no dtype. */
BN_API size_t bn_dtype_size(bn_dtype dtype);

/* --- models ----------------------------------------------------------------------------------------------------- */

/* Map a file: a .bolt file with native programs, or a bare program.  Of several the best that this processor runs is
   taken.  Less than 4 MiB of weights stay in the file's pages, which processes share; more are put on large pages. */
BN_API bn_status bn_model_open(const char *path, bn_model **model);

/* The same of bytes, which are copied. */
BN_API bn_status bn_model_from_memory(const void *data, size_t nbytes, bn_model **model);

/* A kernel: computes part `part` of `parts` of a step. */
typedef void (*bn_kernel)(void *record, int64_t part, int64_t parts);

/* A program that is linked into the executable, as exported libraries have it. */
typedef struct bn_linked {
    const void *program; /* the block of tables, 64-aligned, for as long as the model is open */
    size_t nbytes;
    const bn_kernel *kernels; /* in the order of its table of kernels; NULL where the block has their machine code */
    size_t kernel_count;
    const void *weights; /* 64-aligned; NULL where the block has them, or a file */
    size_t weights_nbytes;
    int weights_are_constants; /* 1 where they are constants of an object file, whose pages may be let go; else 0 */
} bn_linked;

/* A model of linked parts.  weights_path: the file of weights of an exported library, NULL where they are linked in. */
BN_API bn_status bn_model_linked(const bn_linked *linked, const char *weights_path, bn_model **model);

/* What the program was made for, such as "x86-64-v3". */
BN_API const char *bn_model_target(const bn_model *model);

/* Number of plans; one may run many sets of shapes. */
BN_API int bn_model_plans(const bn_model *model);

/* Let go of the model; its memory goes with the last session that uses it.  NULL is allowed. */
BN_API void bn_model_close(bn_model *model);

/* --- sessions --------------------------------------------------------------------------------------------------- */

/* options: NULL for the defaults. */
BN_API bn_status bn_session_create(bn_model *model, const bn_options *options, bn_session **session);

/* Another session of the same model: same shapes, threads and limit of time, own memory, states as at the beginning, nothing bound.
   `session` must not be running meanwhile. */
BN_API bn_status bn_session_clone(const bn_session *session, bn_session **clone);

/* NULL is allowed. */
BN_API void bn_session_destroy(bn_session *session);

/* threads: 1 to 256. */
BN_API bn_status bn_session_set_threads(bn_session *session, int threads);

/* seconds: of one run, behind which no loop begins an iteration: the run is BN_TIME, and states are as before it.  0: no
   limit, as at first. */
BN_API bn_status bn_session_set_time_limit(bn_session *session, double seconds);

/* Numbers of inputs and outputs that the caller gives and gets.  States and kept values are not among them. */
BN_API int bn_session_inputs(const bn_session *session);
BN_API int bn_session_outputs(const bn_session *session);

BN_API bn_status bn_session_input_info(const bn_session *session, int input, bn_info *info);
BN_API bn_status bn_session_output_info(const bn_session *session, int output, bn_info *info);

/* Bytes that the output takes at most: info.nbytes, but where data decide its size.  0 for a number out of range. */
BN_API size_t bn_session_output_capacity(const bn_session *session, int output);

/* Number of the input, or output, of that name; -1 where there is none. */
BN_API int bn_session_input_index(const bn_session *session, const char *name);
BN_API int bn_session_output_index(const bn_session *session, const char *name);

/* Have inputs of these shapes: for each input a pointer to as many sizes as it has dimensions.  What was bound is bound no
   more, and states begin anew where their shapes changed.  bn_session_output_info then tells the shapes of the outputs.
   BN_NO_PLAN, with the shapes that there are in the message, changes nothing. */
BN_API bn_status bn_session_resize(bn_session *session, const int64_t *const *shapes);

/* The same for one input, the others keep theirs.  Where other inputs have to change, too, it is BN_OK as long as the input
   may have this shape beside others; until these are set, calls that need buffers or shapes of outputs give
   BN_NO_PLAN.  rank: how many sizes there are, those that the input has. */
BN_API bn_status bn_session_set_input_shape(bn_session *session, int input, const int64_t *dims, int rank);

/* The buffer that the next run reads, or writes: the session's own, 64-aligned, or what was bound.  The session's own is
   of any content at first.  NULL for a number out of range or when memory is short. */
BN_API void *bn_session_input(bn_session *session, int input);
BN_API void *bn_session_output(bn_session *session, int output);

/* Use memory of the caller's at a multiple of the element's size: of exactly info.nbytes bytes, or of as many as
   bn_session_output_capacity says.  NULL with 0 bytes: the session's own again.  Arrays must not overlap. */
BN_API bn_status bn_session_bind_input(bn_session *session, int input, const void *data, size_t nbytes);
BN_API bn_status bn_session_bind_output(bn_session *session, int output, void *data, size_t nbytes);

/* Compute the outputs from the inputs, and the next states from the states. */
BN_API bn_status bn_session_run(bn_session *session);

/* The array of that name as the last run left it: an input, an output, a value kept at export, or a state, which is
   elsewhere after the next run.  info may be NULL.  NULL where there is none. */
BN_API const void *bn_session_find(bn_session *session, const char *name, bn_info *info);

/* All states as before the first run. */
BN_API bn_status bn_session_reset_state(bn_session *session);

#ifdef __cplusplus
}
#endif

#endif
