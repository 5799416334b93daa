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
    size_t room;   /* for the greatest */
    void *own;     /* the session's buffer, NULL until it is asked for */
    void *bound;   /* the caller's, NULL where the session's is used */
} port;

/* What runs between two decisions. */
typedef struct stage {
    const int64_t *plan;
    unsigned char *image;
    bn_kernel *calls; /* of each step */
    int64_t number;   /* that led here when the image was made */
    bool is_linked;   /* whether the image has the addresses that the ports have now */
} stage;

/* What changes when the session is resized. */
typedef struct memory {
    const int64_t *plan; /* of the first stage */
    stage *stages;
    unsigned char *arena;
    int64_t *dims; /* of all ports */
    port *ports;   /* values, then places */
    int port_count;
    bn_team *team; /* NULL for one thread */
} memory;

struct bn_session {
    bn_model *model;
    int threads; /* that the caller asked for, 0 for the plan's */
    double time_limit; /* seconds of a run, 0 for any */
    int inputs, outputs;
    int *places; /* ports of the inputs, then of the outputs */
    memory now;
    bn_error error;
};

#define BN_PLACE (-1) /* kind of a port that is between stages */

/* Make the image of a stage, all addresses with it but those of ports. */
void bn_link_stage(const bn_model *model, const memory *m, stage *s);

/* Say that ports are elsewhere now. */
void bn_unlink(memory *m);

/* Where the values of a port are; memory of its own is made when it is first wanted.  NULL when memory is short. */
void *bn_port_buffer(bn_session *session, port *p);

/* Where the bytes of an array are. */
const unsigned char *bn_array_at(const bn_model *model, int64_t array);

#endif
