/* A session: the memory of a run, its stages, and what the caller sees of it. */

#ifndef BN_SESSION_H
#define BN_SESSION_H

#include "internal.h"

/* A value that the program takes or gives, or a place between stages. */
typedef struct port {
    const char *name; /* NULL of a place */
    int64_t *dims;    /* as the last run left them */
    int64_t rank, dtype, kind;
    size_t nbytes; /* for these */
    size_t room;   /* for the greatest where data decide its size, for these sizes elsewhere */
    size_t most;   /* for the greatest of the plan */
    void *own;     /* the session's buffer, NULL until it is asked for */
    void *bound;   /* the caller's, NULL where the session's is used */
} port;

/* What runs between two decisions. */
typedef struct stage {
    const int64_t *plan;
    unsigned char *image;
    bn_kernel *calls; /* of each step */
    bool *is_shared;  /* whether threads share it, of each step */
    uintptr_t *offsets; /* of each patch: how far on in what it names */
    int64_t number;   /* that led here when the image was made */
    bool is_linked;   /* whether the image has the addresses that the ports have now */
    bool is_fresh;    /* whether all else in it is for the sizes that the ports had at that number */
} stage;

/* What changes when the session is resized. */
typedef struct memory {
    const int64_t *plan; /* of the first stage */
    stage *stages;
    unsigned char *arena;
    int64_t arena_nbytes;
    int64_t *registers; /* of the tape that is looked at */
    int64_t *dims;      /* of all ports */
    port *ports;   /* values, then places */
    int port_count;
    int threads;
    bn_team *team; /* NULL for one thread */
} memory;

struct bn_session {
    bn_model *model;
    int threads; /* that the caller asked for, 0 for the plan's */
    double time_limit; /* seconds of a run, 0 for any */
    int inputs, outputs;
    int *places; /* ports of the inputs, then of the outputs */
    port *asked; /* values that are taken, with the sizes that the caller wants */
    int64_t *asked_dims; /* asked_count of them, then those of before the last call that changed them */
    int64_t asked_count;
    bool is_unsettled; /* whether no plan is for these sizes, so far */
    memory now;
    bn_error error;
};

#define BN_PLACE (-1) /* kind of a port that is between stages */

/* Make the image of a stage, all addresses with it but those of ports. */
bn_status bn_link_stage(const bn_model *model, const memory *m, stage *s, bn_error *error);

/* Whether what a stage holds follows from sizes. */
bool bn_is_taped(const int64_t *plan);

/* Give a port sizes; whether they are some, and it has memory for as many bytes. */
bool bn_set_dims(port *p, const int64_t *dims);

/* Compute what a tape holds for the sizes of ports, into 1 + NUMBERS + OPERATIONS registers; whether it serves them. */
bool bn_evaluate(const bn_program *program, const int64_t *plan, const port *ports, int64_t *registers);

/* Write that into the image of a stage; false where it names what is not there. */
bool bn_write_tape(const bn_model *model, stage *s, const int64_t *registers);

/* Say that there is no plan for the sizes that the caller wants. */
bn_status bn_no_plan(bn_session *session);

/* Say that ports are elsewhere now. */
void bn_unlink(memory *m);

/* Where the values of a port are; memory of its own is made when it is first wanted.  NULL when memory is short. */
void *bn_port_buffer(bn_session *session, port *p);

/* Where the bytes of an array are. */
const unsigned char *bn_array_at(const bn_model *model, int64_t array);

/* --- session.c ------------------------------------------------------------------------------------------------------- */

/* For a pointer that must not be NULL; the message is the session's where there is one. */
bn_status bn_got_null(const bn_session *session, const char *function);

/* Memory for a plan and the sizes that are asked for; it takes over what it can of the memory that it is to follow. */
bn_status bn_make_memory(const bn_model *model, const int64_t *plan, int threads, const port *asked, const memory *before,
                         memory *m, bn_error *error);

/* Free what one has of its own, and not of another one. */
void bn_free_memory(memory *m, const memory *other);

/* Give memory whose plan has a tape the sizes that are asked for, and the outputs those that follow. */
bn_status bn_set_shapes(const bn_model *model, memory *m, const port *asked, bn_error *error);

/* An input or output by its number, NULL with a message where there is none. */
port *bn_port_at(bn_session *session, int number, bool is_output);

#endif
