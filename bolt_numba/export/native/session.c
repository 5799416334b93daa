/* Sessions: the memory of a run, the shapes it has, and what goes in and out. */

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

/* For a pointer that must not be NULL; the message is the session's where there is one. */
static bn_status got_null(const bn_session *session, const char *function) {
    bn_error *error = session == NULL ? bn_thread_error() : &((bn_session *)(uintptr_t)session)->error;
    return bn_fail(error, BN_ARGUMENT, "%s: got NULL", function);
}

static const bn_program *program_of(const bn_session *session) { return &session->model->program; }

/* --- memory ------------------------------------------------------------------------------------------------------------ */

static void free_memory(memory *m) {
    bn_team_destroy(m->team);
    for (int i = 0; m->ports != NULL && i < m->port_count; i++) bn_release(m->ports[i].own);
    for (int64_t i = 0; m->stages != NULL && i < m->plan[BNP_PLAN_STAGES]; i++) {
        bn_release(m->stages[i].image);
        free(m->stages[i].calls);
    }
    free(m->stages);
    free(m->ports);
    free(m->dims);
    bn_release(m->arena);
    memset(m, 0, sizeof *m);
}

static int64_t ranks(const bn_program *program, const int64_t *head) {
    int64_t sum = 0;
    for (int i = 0; i < program->values; i++) sum += bn_row(program, BNP_TABLE_VALUES, i)[BNP_VALUE_RANK];
    for (int64_t i = 0; i < head[BNP_PLAN_PLACES]; i++)
        sum += bn_place(program, head, program->values + i)[BNP_PLACE_RANK];
    return sum;
}

static void set_ports(const bn_program *program, memory *m) {
    int64_t *dims = m->dims;
    for (int i = 0; i < m->port_count; i++) {
        port *p = &m->ports[i];
        bool is_place = i >= program->values;
        const int64_t *row = is_place ? bn_place(program, m->plan, i) : bn_row(program, BNP_TABLE_VALUES, i);
        p->name = is_place ? NULL : bn_string(program, row[BNP_VALUE_NAME]);
        p->rank = row[is_place ? (int)BNP_PLACE_RANK : (int)BNP_VALUE_RANK];
        p->dtype = row[is_place ? (int)BNP_PLACE_DTYPE : (int)BNP_VALUE_DTYPE];
        p->kind = is_place ? BN_PLACE : row[BNP_VALUE_KIND];
        p->dims = dims;
        if (p->rank > 0)
            memcpy(dims, is_place ? bn_row(program, BNP_TABLE_DIMS, row[BNP_PLACE_DIMS]) : bn_dims_of(program, m->plan, i),
                   (size_t)p->rank * sizeof *dims);
        p->nbytes = p->room = (size_t)bn_nbytes(dims, p->rank, p->dtype);
        dims += p->rank;
    }
}

const unsigned char *bn_array_at(const bn_model *model, int64_t array) {
    return model->weights + bn_row(&model->program, BNP_TABLE_ARRAYS, array)[BNP_ARRAY_OFFSET];
}

static int threads_of(const int64_t *plan, int wanted) {
    int most = (int)plan[BNP_PLAN_THREADS];
    return wanted == 0 || wanted > most ? most : wanted;
}

/* The threads of a set of shapes: those of the stage that wants most. */
static int team_of(const int64_t *head, int wanted) {
    int most = 1;
    for (int64_t i = 0; i < head[BNP_PLAN_STAGES]; i++) {
        int own = threads_of(head + i * BNP_PLAN_WIDTH, wanted);
        most = own > most ? own : most;
    }
    return most;
}

static bool has_team(memory *m, int threads) {
    if (threads > 1) m->team = bn_team_create(threads);
    return threads == 1 || m->team != NULL;
}

/* Memory of what the session alone touches: states and places. */
static bool has_own(memory *m) {
    for (int i = 0; i < m->port_count; i++) {
        port *p = &m->ports[i];
        if (p->kind != BNP_VALUE_KIND_STATE_IN && p->kind != BNP_VALUE_KIND_STATE_OUT && p->kind != BN_PLACE) continue;
        p->own = bn_allocate(p->room);
        if (p->own == NULL) return false;
    }
    return true;
}

static bool has_stages(const bn_program *program, memory *m) {
    int64_t arena = 0, first = (m->plan - bn_row(program, BNP_TABLE_PLANS, 0)) / BNP_PLAN_WIDTH;
    for (int64_t i = 0; i < m->plan[BNP_PLAN_STAGES]; i++) {
        stage *s = &m->stages[i];
        s->plan = bn_row(program, BNP_TABLE_PLANS, first + i);
        s->image = bn_allocate((size_t)s->plan[BNP_PLAN_IMAGE_NBYTES]);
        s->calls = calloc((size_t)s->plan[BNP_PLAN_STEPS] + 1, sizeof *s->calls);
        if (s->image == NULL || s->calls == NULL) return false;
        if (s->plan[BNP_PLAN_ARENA_NBYTES] > arena) arena = s->plan[BNP_PLAN_ARENA_NBYTES];
    }
    m->arena = bn_allocate((size_t)arena);
    return m->arena != NULL;
}

static void reset_states(const bn_model *model, memory *m) {
    for (int i = 0; i < model->program.inputs; i++)
        if (m->ports[i].kind == BNP_VALUE_KIND_STATE_IN)
            memcpy(m->ports[i].own, bn_array_at(model, bn_row(&model->program, BNP_TABLE_VALUES, i)[BNP_VALUE_FIRST]),
                   m->ports[i].nbytes);
}

static bn_status make_memory(const bn_model *model, const int64_t *plan, int threads, memory *m, bn_error *error) {
    const bn_program *program = &model->program;
    memset(m, 0, sizeof *m);
    m->plan = plan;
    m->port_count = program->values + (int)plan[BNP_PLAN_PLACES];
    m->stages = calloc((size_t)plan[BNP_PLAN_STAGES], sizeof *m->stages);
    m->dims = calloc((size_t)ranks(program, plan) + 1, sizeof *m->dims);
    m->ports = calloc((size_t)m->port_count + 1, sizeof *m->ports);
    bool is_there = m->stages != NULL && m->dims != NULL && m->ports != NULL;
    if (is_there) set_ports(program, m);
    if (!is_there || !has_stages(program, m) || !has_own(m) || !has_team(m, team_of(plan, threads))) {
        free_memory(m);
        return bn_fail(error, BN_NO_MEMORY, "session: got no memory for a plan of %" PRId64 " bytes",
                       plan[BNP_PLAN_ARENA_NBYTES] + plan[BNP_PLAN_IMAGE_NBYTES]);
    }
    for (int64_t i = 0; i < plan[BNP_PLAN_STAGES]; i++)
        if (m->stages[i].plan[BNP_PLAN_FIELDS] == 0) bn_link_stage(model, m, &m->stages[i]);
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
    if (model == NULL || session == NULL) return got_null(NULL, "bn_session_create");
    *session = NULL;
    bn_status status = check_threads(threads, 0, error);
    return status != BN_OK ? status : create(model, bn_row(&model->program, BNP_TABLE_PLANS, 0), threads, session, error);
}

bn_status bn_session_clone(const bn_session *session, bn_session **clone) {
    if (session == NULL || clone == NULL) return got_null(NULL, "bn_session_clone");
    *clone = NULL;
    bn_status status = create(session->model, session->now.plan, session->threads, clone, bn_thread_error());
    if (status == BN_OK) (*clone)->time_limit = session->time_limit;
    return status;
}

void bn_session_destroy(bn_session *session) {
    if (session == NULL) return;
    bn_model *model = session->model;
    free_memory(&session->now);
    free(session->places);
    free(session);
    bn_model_close(model);
}

bn_status bn_session_set_threads(bn_session *session, int threads) {
    if (session == NULL) return got_null(NULL, "bn_session_set_threads");
    bn_status status = check_threads(threads, 1, &session->error);
    if (status != BN_OK) return status;
    memory next = session->now;
    next.team = NULL;
    if (!has_team(&next, team_of(next.plan, threads)))
        return bn_fail(&session->error, BN_NO_MEMORY, "threads: got no memory for %d", threads);
    bn_team_destroy(session->now.team);
    session->now = next;
    session->threads = threads;
    return BN_OK;
}

bn_status bn_session_set_time_limit(bn_session *session, double seconds) {
    if (session == NULL) return got_null(NULL, "bn_session_set_time_limit");
    if (!(seconds >= 0 && seconds < HUGE_VAL))
        return bn_fail(&session->error, BN_ARGUMENT, "time limit: got %g s, wanted 0 or more", seconds);
    session->time_limit = seconds;
    return BN_OK;
}

/* --- inputs and outputs ------------------------------------------------------------------------------------------------ */

static port *port_at(bn_session *session, int number, bool is_output) {
    if (session == NULL) {
        got_null(NULL, "session");
        return NULL;
    }
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
    if (info == NULL) return got_null(session, is_output ? "bn_session_output_info" : "bn_session_input_info");
    const port *p = port_at((bn_session *)(uintptr_t)session, number, is_output);
    if (p == NULL) return BN_ARGUMENT;
    tell(p, info);
    return BN_OK;
}

static int index_of(const bn_session *session, const char *name, bool is_output) {
    if (session == NULL || name == NULL) {
        got_null(session, is_output ? "bn_session_output_index" : "bn_session_input_index");
        return -1;
    }
    const int *places = session->places + (is_output ? session->inputs : 0);
    for (int i = 0; i < (is_output ? session->outputs : session->inputs); i++)
        if (strcmp(session->now.ports[places[i]].name, name) == 0) return i;
    return -1;
}

static int count_of(const bn_session *session, bool is_output) {
    if (session != NULL) return is_output ? session->outputs : session->inputs;
    got_null(NULL, is_output ? "bn_session_outputs" : "bn_session_inputs");
    return 0;
}

void *bn_port_buffer(bn_session *session, port *p) {
    if (p->bound != NULL) return p->bound;
    if (p->own == NULL) {
        p->own = bn_allocate(p->room);
        bn_unlink(&session->now);
        if (p->own == NULL) bn_fail(&session->error, BN_NO_MEMORY, "%s: got no memory for %zu bytes", p->name, p->room);
    }
    return p->own;
}

static bn_status bind(bn_session *session, port *p, void *data, size_t nbytes) {
    if (p == NULL) return BN_ARGUMENT;
    if (nbytes != (data == NULL ? 0 : p->room))
        return bn_fail(&session->error, BN_ARGUMENT, "%s: got %zu bytes%s, wanted %zu", p->name, nbytes,
                       data == NULL ? " at NULL" : "", data == NULL ? 0 : p->room);
    size_t item = bn_dtype_size((bn_dtype)p->dtype);
    if ((uintptr_t)data % (item > 8 ? 8 : item) != 0)
        return bn_fail(&session->error, BN_ARGUMENT, "%s: got memory at an odd place, wanted a multiple of %zu", p->name,
                       item);
    p->bound = data;
    bn_unlink(&session->now);
    return BN_OK;
}

int bn_session_inputs(const bn_session *session) { return count_of(session, false); }
int bn_session_outputs(const bn_session *session) { return count_of(session, true); }

bn_status bn_session_input_info(const bn_session *session, int input, bn_info *info) {
    return info_of(session, input, false, info);
}

bn_status bn_session_output_info(const bn_session *session, int output, bn_info *info) {
    return info_of(session, output, true, info);
}

size_t bn_session_output_capacity(const bn_session *session, int output) {
    const port *p = port_at((bn_session *)(uintptr_t)session, output, true);
    return p == NULL ? 0 : p->room;
}

int bn_session_input_index(const bn_session *session, const char *name) {
    return index_of(session, name, false);
}

int bn_session_output_index(const bn_session *session, const char *name) {
    return index_of(session, name, true);
}

void *bn_session_input(bn_session *session, int input) {
    port *p = port_at(session, input, false);
    return p == NULL ? NULL : bn_port_buffer(session, p);
}

void *bn_session_output(bn_session *session, int output) {
    port *p = port_at(session, output, true);
    return p == NULL ? NULL : bn_port_buffer(session, p);
}

bn_status bn_session_bind_input(bn_session *session, int input, const void *data, size_t nbytes) {
    return bind(session, port_at(session, input, false), (void *)(uintptr_t)data, nbytes);
}

bn_status bn_session_bind_output(bn_session *session, int output, void *data, size_t nbytes) {
    return bind(session, port_at(session, output, true), data, nbytes);
}

const void *bn_session_find(bn_session *session, const char *name, bn_info *info) {
    if (session == NULL || name == NULL) {
        got_null(session, "bn_session_find");
        return NULL;
    }
    for (int i = 0; i < program_of(session)->values; i++) {
        port *p = &session->now.ports[i];
        if (p->kind == BNP_VALUE_KIND_STATE_OUT || strcmp(p->name, name) != 0) continue;
        if (info != NULL) tell(p, info);
        return bn_port_buffer(session, p);
    }
    bn_fail(&session->error, BN_ARGUMENT, "value: got '%s', wanted an input, an output, a kept value or a state", name);
    return NULL;
}

bn_status bn_session_reset_state(bn_session *session) {
    if (session == NULL) return got_null(NULL, "bn_session_reset_state");
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
    const int64_t *plan = NULL;
    for (int64_t i = 0; i < program_of(session)->count[BNP_TABLE_PLANS]; i += plan[BNP_PLAN_STAGES]) {
        size_t at = strlen(error->text);
        snprintf(error->text + at, sizeof error->text - at, i == 0 ? "; wanted" : "; or");
        plan = bn_row(program_of(session), BNP_TABLE_PLANS, i);
        append_shapes(session, plan, NULL, error);
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
    if (session == NULL || shapes == NULL) return got_null(session, "bn_session_resize");
    for (int i = 0; i < session->inputs; i++)
        if (shapes[i] == NULL && session->now.ports[session->places[i]].rank > 0)
            return got_null(session, "bn_session_resize");
    const bn_program *program = program_of(session);
    const int64_t *plan = NULL;
    for (int64_t i = 0; i < program->count[BNP_TABLE_PLANS]; i += plan[BNP_PLAN_STAGES]) {
        plan = bn_row(program, BNP_TABLE_PLANS, i);
        memory next;
        if (!fits(session, plan, shapes)) continue;
        bn_status status = make_memory(session->model, plan, session->threads, &next, &session->error);
        if (status != BN_OK) return status;
        move_states(program, &session->now, &next);
        free_memory(&session->now);
        session->now = next;
        return BN_OK;
    }
    return no_plan(session, shapes);
}

const char *bn_error_message(const bn_session *session) {
    return session == NULL ? bn_thread_error()->text : session->error.text;
}
