/* Sessions: the memory of a run, the shapes it has, and the loop that runs the steps. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* A value that the program takes or gives. */
typedef struct port {
    const char *name;
    const int64_t *dims;
    int64_t rank, dtype, kind;
    size_t nbytes;
    void *own;   /* the session's buffer, NULL until it is asked for */
    void *bound; /* the caller's, NULL where the session's is used */
} port;

/* What changes when the session is resized. */
typedef struct memory {
    const int64_t *plan;
    unsigned char *image, *arena;
    bn_kernel *calls; /* of each step */
    port *ports;
    bn_team *team; /* NULL for one thread */
} memory;

struct bn_session {
    bn_model *model;
    int threads; /* that the caller asked for, 0 for the plan's */
    bool is_patched; /* whether the image has the addresses that the ports have now */
    int inputs, outputs;
    int *places; /* ports of the inputs, then of the outputs */
    memory now;
    bn_error error;
};

static const bn_program *program_of(const bn_session *session) { return &session->model->program; }

/* --- memory ------------------------------------------------------------------------------------------------------------ */

static void free_memory(const bn_program *program, memory *m) {
    bn_team_destroy(m->team);
    for (int i = 0; m->ports != NULL && i < program->values; i++) bn_release(m->ports[i].own);
    free(m->ports);
    free(m->calls);
    bn_release(m->image);
    bn_release(m->arena);
    memset(m, 0, sizeof *m);
}

static void set_ports(const bn_program *program, memory *m) {
    const int64_t *dims = bn_dims_of(program, m->plan, 0);
    for (int i = 0; i < program->values; i++) {
        const int64_t *value = bn_row(program, BNP_TABLE_VALUES, i);
        port *p = &m->ports[i];
        p->name = bn_string(program, value[BNP_VALUE_NAME]);
        p->rank = value[BNP_VALUE_RANK];
        p->dtype = value[BNP_VALUE_DTYPE];
        p->kind = value[BNP_VALUE_KIND];
        p->dims = dims;
        p->nbytes = (size_t)bn_nbytes(dims, p->rank, p->dtype);
        dims += p->rank;
    }
}

static const unsigned char *array_at(const bn_model *model, int64_t array) {
    return model->weights + bn_row(&model->program, BNP_TABLE_ARRAYS, array)[BNP_ARRAY_OFFSET];
}

/* The image with all addresses but those of inputs and outputs. */
static void link_image(const bn_model *model, memory *m) {
    const bn_program *program = &model->program;
    const int64_t *plan = m->plan;
    int64_t end = plan[BNP_PLAN_FIRST_PATCH] + plan[BNP_PLAN_PATCHES];
    memcpy(m->image, program->at[BNP_TABLE_IMAGES] + plan[BNP_PLAN_IMAGE], (size_t)plan[BNP_PLAN_IMAGE_NBYTES]);
    for (int64_t i = plan[BNP_PLAN_FIRST_PATCH]; i < end; i++) {
        const int64_t *patch = bn_row(program, BNP_TABLE_PATCHES, i);
        int64_t which = patch[BNP_PATCH_WHICH];
        uintptr_t base;
        switch (patch[BNP_PATCH_KIND]) {
        case BNP_PATCH_KIND_KERNEL: memcpy(&base, &model->kernels[which], sizeof base); break;
        case BNP_PATCH_KIND_ARRAY: base = (uintptr_t)array_at(model, which); break;
        case BNP_PATCH_KIND_ARENA: base = (uintptr_t)m->arena; break;
        case BNP_PATCH_KIND_IMAGE: base = (uintptr_t)m->image; break;
        default: continue;
        }
        base += (uintptr_t)patch[BNP_PATCH_OFFSET];
        memcpy(m->image + 8 * patch[BNP_PATCH_WORD], &base, sizeof base);
    }
    for (int64_t i = 0; i < plan[BNP_PLAN_STEPS]; i++)
        m->calls[i] = model->kernels[bn_row(program, BNP_TABLE_STEPS, plan[BNP_PLAN_FIRST_STEP] + i)[BNP_STEP_KERNEL]];
}

static int threads_of(const int64_t *plan, int wanted) {
    int most = (int)plan[BNP_PLAN_THREADS];
    return wanted == 0 || wanted > most ? most : wanted;
}

static bool has_team(memory *m, int threads) {
    if (threads > 1) m->team = bn_team_create(threads);
    return threads == 1 || m->team != NULL;
}

/* Memory of the values that the session alone touches: states. */
static bool has_states(const bn_program *program, memory *m) {
    for (int i = 0; i < program->values; i++) {
        port *p = &m->ports[i];
        if (p->kind != BNP_VALUE_KIND_STATE_IN && p->kind != BNP_VALUE_KIND_STATE_OUT) continue;
        p->own = bn_allocate(p->nbytes);
        if (p->own == NULL) return false;
    }
    return true;
}

static void reset_states(const bn_model *model, memory *m) {
    for (int i = 0; i < model->program.inputs; i++)
        if (m->ports[i].kind == BNP_VALUE_KIND_STATE_IN)
            memcpy(m->ports[i].own, array_at(model, bn_row(&model->program, BNP_TABLE_VALUES, i)[BNP_VALUE_FIRST]),
                   m->ports[i].nbytes);
}

static bn_status make_memory(const bn_model *model, const int64_t *plan, int threads, memory *m, bn_error *error) {
    const bn_program *program = &model->program;
    memset(m, 0, sizeof *m);
    m->plan = plan;
    m->image = bn_allocate((size_t)plan[BNP_PLAN_IMAGE_NBYTES]);
    m->arena = bn_allocate((size_t)plan[BNP_PLAN_ARENA_NBYTES]);
    m->calls = calloc((size_t)plan[BNP_PLAN_STEPS] + 1, sizeof *m->calls);
    m->ports = calloc((size_t)program->values + 1, sizeof *m->ports);
    bool is_there = m->image != NULL && m->arena != NULL && m->calls != NULL && m->ports != NULL;
    if (is_there) set_ports(program, m);
    if (!is_there || !has_states(program, m) || !has_team(m, threads_of(plan, threads))) {
        free_memory(program, m);
        return bn_fail(error, BN_NO_MEMORY, "session: got no memory for a plan of %" PRId64 " bytes",
                       plan[BNP_PLAN_ARENA_NBYTES] + plan[BNP_PLAN_IMAGE_NBYTES]);
    }
    link_image(model, m);
    reset_states(model, m);
    return BN_OK;
}

/* --- life ---------------------------------------------------------------------------------------------------------------- */

static void set_places(bn_session *session) {
    const bn_program *program = program_of(session);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < program->values; i++) {
            int64_t wanted = pass == 0 ? BNP_VALUE_KIND_INPUT : BNP_VALUE_KIND_OUTPUT;
            if (bn_row(program, BNP_TABLE_VALUES, i)[BNP_VALUE_KIND] != wanted) continue;
            session->places[session->inputs + session->outputs] = i;
            if (pass == 0) session->inputs++;
            else session->outputs++;
        }
}

static bn_status create(bn_model *model, const int64_t *plan, int threads, bn_session **made, bn_error *error) {
    const bn_program *program = &model->program;
    bn_session *session = calloc(1, sizeof *session);
    int *places = calloc((size_t)program->values + 1, sizeof *places);
    bn_status status = BN_NO_MEMORY;
    if (session == NULL || places == NULL) bn_fail(error, BN_NO_MEMORY, "session: got no memory");
    else status = make_memory(model, plan, threads, &session->now, error);
    if (status != BN_OK) {
        free(session);
        free(places);
        return status;
    }
    session->model = model;
    session->threads = threads;
    session->places = places;
    set_places(session);
    bn_model_keep(model);
    *made = session;
    return BN_OK;
}

static bn_status check_threads(int threads, int least, bn_error *error) {
    if (threads >= least && threads <= BN_MAX_THREADS) return BN_OK;
    return bn_fail(error, BN_ARGUMENT, "threads: got %d, wanted %d to %d", threads, least, BN_MAX_THREADS);
}

bn_status bn_session_create(bn_model *model, const bn_options *options, bn_session **session) {
    bn_error *error = bn_thread_error();
    int threads = options == NULL ? 0 : options->threads;
    if (model == NULL || session == NULL) return bn_fail(error, BN_ARGUMENT, "bn_session_create: got NULL");
    *session = NULL;
    bn_status status = check_threads(threads, 0, error);
    return status != BN_OK ? status : create(model, bn_row(&model->program, BNP_TABLE_PLANS, 0), threads, session, error);
}

bn_status bn_session_clone(const bn_session *session, bn_session **clone) {
    if (session == NULL || clone == NULL) return bn_fail(bn_thread_error(), BN_ARGUMENT, "bn_session_clone: got NULL");
    *clone = NULL;
    return create(session->model, session->now.plan, session->threads, clone, bn_thread_error());
}

void bn_session_destroy(bn_session *session) {
    if (session == NULL) return;
    bn_model *model = session->model;
    free_memory(&model->program, &session->now);
    free(session->places);
    free(session);
    bn_model_close(model);
}

bn_status bn_session_set_threads(bn_session *session, int threads) {
    bn_status status = check_threads(threads, 1, &session->error);
    if (status != BN_OK) return status;
    memory next = session->now;
    next.team = NULL;
    if (!has_team(&next, threads_of(next.plan, threads)))
        return bn_fail(&session->error, BN_NO_MEMORY, "threads: got no memory for %d", threads);
    bn_team_destroy(session->now.team);
    session->now = next;
    session->threads = threads;
    return BN_OK;
}

/* --- inputs and outputs ------------------------------------------------------------------------------------------------ */

static port *port_at(bn_session *session, int number, bool is_output) {
    int count = is_output ? session->outputs : session->inputs;
    if (number >= 0 && number < count)
        return &session->now.ports[session->places[number + (is_output ? session->inputs : 0)]];
    bn_fail(&session->error, BN_ARGUMENT, "%s: got %d, wanted 0 to %d", is_output ? "output" : "input", number, count - 1);
    return NULL;
}

static void tell(const port *p, bn_info *info) {
    info->name = p->name;
    info->dtype = (bn_dtype)p->dtype;
    info->rank = (int)p->rank;
    info->dims = p->dims;
    info->nbytes = p->nbytes;
}

static bn_status info_of(const bn_session *session, int number, bool is_output, bn_info *info) {
    const port *p = port_at((bn_session *)(uintptr_t)session, number, is_output);
    if (p == NULL) return BN_ARGUMENT;
    tell(p, info);
    return BN_OK;
}

static int index_of(const bn_session *session, const char *name, int first, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(session->now.ports[session->places[first + i]].name, name) == 0) return i;
    return -1;
}

/* Where the values of a port are; memory of its own is made when it is first wanted. */
static void *buffer(bn_session *session, port *p) {
    if (p->bound != NULL) return p->bound;
    if (p->own == NULL) {
        p->own = bn_allocate(p->nbytes);
        session->is_patched = false;
        if (p->own == NULL) bn_fail(&session->error, BN_NO_MEMORY, "%s: got no memory for %zu bytes", p->name, p->nbytes);
    }
    return p->own;
}

static bn_status bind(bn_session *session, port *p, void *data, size_t nbytes) {
    if (p == NULL) return BN_ARGUMENT;
    if (data != NULL && nbytes != p->nbytes)
        return bn_fail(&session->error, BN_ARGUMENT, "%s: got %zu bytes, wanted %zu", p->name, nbytes, p->nbytes);
    size_t item = bn_dtype_size((bn_dtype)p->dtype);
    if ((uintptr_t)data % (item > 8 ? 8 : item) != 0)
        return bn_fail(&session->error, BN_ARGUMENT, "%s: got memory at an odd place, wanted a multiple of %zu", p->name,
                       item);
    p->bound = data;
    session->is_patched = false;
    return BN_OK;
}

int bn_session_inputs(const bn_session *session) { return session->inputs; }
int bn_session_outputs(const bn_session *session) { return session->outputs; }

bn_status bn_session_input_info(const bn_session *session, int input, bn_info *info) {
    return info_of(session, input, false, info);
}

bn_status bn_session_output_info(const bn_session *session, int output, bn_info *info) {
    return info_of(session, output, true, info);
}

int bn_session_input_index(const bn_session *session, const char *name) {
    return index_of(session, name, 0, session->inputs);
}

int bn_session_output_index(const bn_session *session, const char *name) {
    return index_of(session, name, session->inputs, session->outputs);
}

void *bn_session_input(bn_session *session, int input) {
    port *p = port_at(session, input, false);
    return p == NULL ? NULL : buffer(session, p);
}

void *bn_session_output(bn_session *session, int output) {
    port *p = port_at(session, output, true);
    return p == NULL ? NULL : buffer(session, p);
}

bn_status bn_session_bind_input(bn_session *session, int input, const void *data, size_t nbytes) {
    return bind(session, port_at(session, input, false), (void *)(uintptr_t)data, nbytes);
}

bn_status bn_session_bind_output(bn_session *session, int output, void *data, size_t nbytes) {
    return bind(session, port_at(session, output, true), data, nbytes);
}

const void *bn_session_find(bn_session *session, const char *name, bn_info *info) {
    for (int i = 0; i < program_of(session)->values; i++) {
        port *p = &session->now.ports[i];
        if (p->kind == BNP_VALUE_KIND_STATE_OUT || strcmp(p->name, name) != 0) continue;
        if (info != NULL) tell(p, info);
        return buffer(session, p);
    }
    bn_fail(&session->error, BN_ARGUMENT, "value: got '%s', wanted an input, an output, a kept value or a state", name);
    return NULL;
}

bn_status bn_session_reset_state(bn_session *session) {
    reset_states(session->model, &session->now);
    return BN_OK;
}

/* --- shapes -------------------------------------------------------------------------------------------------------------- */

static bool fits(const bn_session *session, const int64_t *plan, const int64_t *const *shapes) {
    for (int i = 0; i < session->inputs; i++) {
        const port *p = &session->now.ports[session->places[i]];
        const int64_t *dims = bn_dims_of(program_of(session), plan, session->places[i]);
        if (p->rank > 0 && memcmp(dims, shapes[i], (size_t)p->rank * sizeof *dims) != 0) return false;
    }
    return true;
}

/* Append the shapes of all inputs to a message: "x 1x28x28, y 3". */
static void append_shapes(const bn_session *session, const int64_t *plan, const int64_t *const *shapes, bn_error *error) {
    for (int i = 0; i < session->inputs; i++) {
        const port *p = &session->now.ports[session->places[i]];
        const int64_t *dims = plan == NULL ? shapes[i] : bn_dims_of(program_of(session), plan, session->places[i]);
        size_t at = strlen(error->text), room = sizeof error->text;
        snprintf(error->text + at, room - at, "%s%s ", i == 0 ? " " : ", ", p->name);
        for (int64_t axis = 0; axis < p->rank; axis++) {
            at = strlen(error->text);
            snprintf(error->text + at, room - at, "%s%" PRId64, axis == 0 ? "" : "x", dims[axis]);
        }
    }
}

static bn_status no_plan(bn_session *session, const int64_t *const *shapes) {
    bn_error *error = &session->error;
    bn_fail(error, BN_NO_PLAN, "shapes: got");
    append_shapes(session, NULL, shapes, error);
    for (int64_t i = 0; i < program_of(session)->count[BNP_TABLE_PLANS]; i++) {
        size_t at = strlen(error->text);
        snprintf(error->text + at, sizeof error->text - at, i == 0 ? "; wanted" : "; or");
        append_shapes(session, bn_row(program_of(session), BNP_TABLE_PLANS, i), NULL, error);
    }
    return BN_NO_PLAN;
}

/* States of the same sizes go on. */
static void move_states(const bn_program *program, const memory *from, memory *to) {
    for (int i = 0; i < program->inputs; i++) {
        const port *old = &from->ports[i], *next = &to->ports[i];
        if (old->kind == BNP_VALUE_KIND_STATE_IN &&
            memcmp(old->dims, next->dims, (size_t)old->rank * sizeof *old->dims) == 0)
            memcpy(next->own, old->own, old->nbytes);
    }
}

bn_status bn_session_resize(bn_session *session, const int64_t *const *shapes) {
    const bn_program *program = program_of(session);
    if (shapes == NULL) return bn_fail(&session->error, BN_ARGUMENT, "bn_session_resize: got NULL");
    for (int64_t i = 0; i < program->count[BNP_TABLE_PLANS]; i++) {
        const int64_t *plan = bn_row(program, BNP_TABLE_PLANS, i);
        memory next;
        if (!fits(session, plan, shapes)) continue;
        bn_status status = make_memory(session->model, plan, session->threads, &next, &session->error);
        if (status != BN_OK) return status;
        move_states(program, &session->now, &next);
        free_memory(program, &session->now);
        session->now = next;
        session->is_patched = false;
        return BN_OK;
    }
    return no_plan(session, shapes);
}

/* --- running ------------------------------------------------------------------------------------------------------------- */

/* Write the addresses of inputs and outputs into the image. */
static bn_status patch_ports(bn_session *session) {
    const bn_program *program = program_of(session);
    const memory *m = &session->now;
    int64_t end = m->plan[BNP_PLAN_FIRST_PATCH] + m->plan[BNP_PLAN_PATCHES];
    for (int i = 0; i < program->values; i++)
        if (buffer(session, &m->ports[i]) == NULL) return BN_NO_MEMORY;
    for (int64_t i = m->plan[BNP_PLAN_FIRST_PATCH]; i < end; i++) {
        const int64_t *patch = bn_row(program, BNP_TABLE_PATCHES, i);
        int64_t kind = patch[BNP_PATCH_KIND];
        if (kind != BNP_PATCH_KIND_INPUT && kind != BNP_PATCH_KIND_OUTPUT) continue;
        port *p = &m->ports[patch[BNP_PATCH_WHICH] + (kind == BNP_PATCH_KIND_OUTPUT ? program->inputs : 0)];
        uintptr_t address = (uintptr_t)buffer(session, p) + (uintptr_t)patch[BNP_PATCH_OFFSET];
        memcpy(m->image + 8 * patch[BNP_PATCH_WORD], &address, sizeof address);
    }
    session->is_patched = true;
    return BN_OK;
}

static void run_steps(const bn_program *program, const memory *m) {
    const int64_t *step = bn_row(program, BNP_TABLE_STEPS, m->plan[BNP_PLAN_FIRST_STEP]);
    for (int64_t i = 0; i < m->plan[BNP_PLAN_STEPS]; i++, step += BNP_STEP_WIDTH) {
        void *record = m->image + step[BNP_STEP_RECORD];
        if (m->team != NULL && step[BNP_STEP_PARALLEL] != 0) bn_team_share(m->team, m->calls[i], record);
        else m->calls[i](record, 0, 1);
    }
}

/* Outputs that no step makes. */
static void copy_results(bn_session *session) {
    const bn_program *program = program_of(session);
    const memory *m = &session->now;
    for (int i = program->inputs; i < program->values; i++) {
        const int64_t *row = bn_row(program, BNP_TABLE_RESULTS, m->plan[BNP_PLAN_RESULTS] + i - program->inputs);
        int64_t kind = row[BNP_RESULT_KIND], which = row[BNP_RESULT_WHICH];
        if (kind == BNP_RESULT_KIND_MADE) continue;
        const void *source =
            kind == BNP_RESULT_KIND_INPUT ? buffer(session, &m->ports[which]) : (const void *)array_at(session->model, which);
        memmove(buffer(session, &m->ports[i]), source, m->ports[i].nbytes);
    }
}

/* What the steps gave as next states are the states of the next run, whose own next states go where these were. */
static void turn_states(bn_session *session) {
    const bn_program *program = program_of(session);
    for (int i = 0; i < program->inputs; i++) {
        port *state = &session->now.ports[i];
        if (state->kind != BNP_VALUE_KIND_STATE_IN) continue;
        port *next = &session->now.ports[bn_row(program, BNP_TABLE_VALUES, i)[BNP_VALUE_SOURCE]];
        void *made = next->own;
        next->own = state->own;
        state->own = made;
        session->is_patched = false;
    }
}

/* Say what a record of a fault says: "node 'n': Gather: indices[3, 4]: got 9, wanted 0 to 7". */
static void tell_fault(bn_session *session, int64_t number, const int64_t *record) {
    const bn_program *program = program_of(session);
    const int64_t *fault = bn_row(program, BNP_TABLE_FAULTS, session->now.plan[BNP_PLAN_FIRST_FAULT] + number);
    const int64_t *dims = bn_row(program, BNP_TABLE_DIMS, fault[BNP_FAULT_DIMS]);
    char place[256] = "";
    int64_t elements = bn_nbytes(dims, fault[BNP_FAULT_RANK], BN_UINT8), rest = record[1];
    bool is_inside = rest >= 0 && rest < elements && fault[BNP_FAULT_RANK] > 0;
    for (int64_t axis = 0; is_inside && axis < fault[BNP_FAULT_RANK]; axis++) {
        size_t at = strlen(place);
        elements /= dims[axis];
        snprintf(place + at, sizeof place - at, "%s%" PRId64, axis == 0 ? "[" : ", ", rest / elements);
        rest %= elements;
    }
    bn_fail(&session->error, BN_DATA, "node '%s': %s%s%s: got %" PRId64 ", wanted %" PRId64 " to %" PRId64,
            bn_string(program, fault[BNP_FAULT_LABEL]), bn_string(program, fault[BNP_FAULT_TEXT]), place,
            is_inside ? "]" : "", record[2], record[3], record[4]);
}

/* Look for faults, tell the first and forget all. */
static bn_status check_faults(bn_session *session) {
    const int64_t *plan = session->now.plan;
    if (plan[BNP_PLAN_FAULTS] == 0) return BN_OK;
    int64_t *words = (int64_t *)(void *)session->now.image + plan[BNP_PLAN_FAULT_COUNTER];
    if (words[0] == 0) return BN_OK;
    bool is_told = false;
    words[0] = 0;
    for (int64_t i = 0; i < plan[BNP_PLAN_FAULTS]; i++) {
        int64_t *record = words + BNP_FAULT_WORDS * (i + 1);
        if (record[0] == 0) continue;
        if (!is_told) tell_fault(session, i, record);
        is_told = true;
        record[0] = 0;
    }
    return BN_DATA;
}

bn_status bn_session_run(bn_session *session) {
    bn_status status = session->is_patched ? BN_OK : patch_ports(session);
    if (status != BN_OK) return status;
    bn_team_begin(session->now.team);
    unsigned control = bn_flush_denormals();
    run_steps(program_of(session), &session->now);
    bn_restore_floats(control);
    bn_team_end(session->now.team);
    status = check_faults(session);
    if (status != BN_OK) return status;
    copy_results(session);
    turn_states(session);
    return BN_OK;
}

const char *bn_error_message(const bn_session *session) {
    return session == NULL ? bn_thread_error()->text : session->error.text;
}
