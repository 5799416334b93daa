/* Sessions: the memory of a run, the shapes it has, and what goes in and out. */

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

bn_status bn_got_null(const bn_session *session, const char *function) {
    bn_error *error = session == NULL ? bn_thread_error() : &((bn_session *)(uintptr_t)session)->error;
    return bn_fail(error, BN_ARGUMENT, "%s: got NULL", function);
}

static const bn_program *program_of(const bn_session *session) { return &session->model->program; }

/* --- memory ------------------------------------------------------------------------------------------------------------ */

void bn_free_memory(memory *m, const memory *other) {
    if (other == NULL || m->team != other->team) bn_team_destroy(m->team);
    if (other == NULL || m->arena != other->arena) bn_release(m->arena);
    for (int i = 0; m->ports != NULL && i < m->port_count; i++) bn_release(m->ports[i].own);
    for (int64_t i = 0; m->stages != NULL && i < m->plan[BNP_PLAN_STAGES]; i++) {
        bn_release(m->stages[i].image);
        free(m->stages[i].calls);
        free(m->stages[i].is_shared);
        free(m->stages[i].offsets);
    }
    free(m->stages);
    free(m->ports);
    free(m->dims);
    free(m->registers);
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
        p->nbytes = p->room = p->most = (size_t)bn_nbytes(dims, p->rank, p->dtype);
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

/* A team, or that of the memory that this one is to follow. */
static bool has_team(memory *m, int threads, const memory *before) {
    m->threads = threads;
    if (before != NULL && before->threads == threads) m->team = before->team;
    else if (threads > 1) m->team = bn_team_create(threads);
    return threads == 1 || m->team != NULL;
}

/* Memory of what the session alone touches: states and places. */
static bool has_own(memory *m) {
    for (int i = 0; i < m->port_count; i++) {
        port *p = &m->ports[i];
        if (p->kind != BNP_VALUE_KIND_STATE_IN && p->kind != BNP_VALUE_KIND_STATE_OUT && p->kind != BN_PLACE) continue;
        p->own = bn_allocate(p->most);
        if (p->own == NULL) return false;
    }
    return true;
}

static bool has_stages(const bn_program *program, memory *m, const memory *before) {
    int64_t first = (m->plan - bn_row(program, BNP_TABLE_PLANS, 0)) / BNP_PLAN_WIDTH;
    for (int64_t i = 0; i < m->plan[BNP_PLAN_STAGES]; i++) {
        stage *s = &m->stages[i];
        s->plan = bn_row(program, BNP_TABLE_PLANS, first + i);
        s->image = bn_allocate((size_t)s->plan[BNP_PLAN_IMAGE_NBYTES]);
        s->calls = calloc((size_t)s->plan[BNP_PLAN_STEPS] + 1, sizeof *s->calls);
        s->is_shared = calloc((size_t)s->plan[BNP_PLAN_STEPS] + 1, sizeof *s->is_shared);
        s->offsets = calloc((size_t)s->plan[BNP_PLAN_PATCHES] + 1, sizeof *s->offsets);
        if (s->image == NULL || s->calls == NULL || s->is_shared == NULL || s->offsets == NULL) return false;
        if (s->plan[BNP_PLAN_ARENA_NBYTES] > m->arena_nbytes) m->arena_nbytes = s->plan[BNP_PLAN_ARENA_NBYTES];
    }
    bool is_large = before != NULL && before->arena_nbytes >= m->arena_nbytes;
    m->arena = is_large ? before->arena : bn_allocate((size_t)m->arena_nbytes);
    if (is_large) m->arena_nbytes = before->arena_nbytes;
    return m->arena != NULL;
}

/* Registers for any tape of a program. */
static int64_t *registers_of(const bn_program *program) {
    int64_t most = 0;
    for (int64_t i = 0; i < program->count[BNP_TABLE_PLANS]; i++) {
        const int64_t *plan = bn_row(program, BNP_TABLE_PLANS, i);
        int64_t count = 1 + plan[BNP_PLAN_NUMBERS] + plan[BNP_PLAN_OPERATIONS];
        most = count > most ? count : most;
    }
    return calloc((size_t)most + 1, sizeof(int64_t));
}

static void reset_states(const bn_model *model, memory *m) {
    for (int i = 0; i < model->program.inputs; i++)
        if (m->ports[i].kind == BNP_VALUE_KIND_STATE_IN)
            memcpy(m->ports[i].own, bn_array_at(model, bn_row(&model->program, BNP_TABLE_VALUES, i)[BNP_VALUE_FIRST]),
                   m->ports[i].nbytes);
}

bn_status bn_set_shapes(const bn_model *model, memory *m, const port *asked, bn_error *error) {
    const bn_program *program = &model->program;
    if (!bn_is_taped(m->plan)) return BN_OK;
    for (int i = 0; i < program->inputs; i++) {
        if (!bn_set_dims(&m->ports[i], asked[i].dims))
            return bn_fail(error, BN_DAMAGED, "%s: got sizes that its plan has no room for", m->ports[i].name);
        m->ports[i].room = m->ports[i].nbytes;
    }
    bn_status status = bn_link_stage(model, m, m->stages, error);
    if (status != BN_OK) return status;
    const int64_t *sizes = (int64_t *)(void *)m->stages->image + m->plan[BNP_PLAN_SIZES];
    for (int i = program->inputs; i < program->values; i++, sizes += m->ports[i - 1].rank) {
        if (!bn_set_dims(&m->ports[i], sizes))
            return bn_fail(error, BN_DAMAGED, "%s: got sizes that its plan has no room for", m->ports[i].name);
        m->ports[i].room = m->ports[i].nbytes;
    }
    return BN_OK;
}

static bn_status link_stages(const bn_model *model, memory *m, const port *asked, bn_error *error) {
    bn_status status = bn_set_shapes(model, m, asked, error);
    for (int64_t i = 0; status == BN_OK && i < m->plan[BNP_PLAN_STAGES]; i++)
        if (!bn_is_taped(m->stages[i].plan))
            status = bn_link_stage(model, m, &m->stages[i], error);
    return status;
}

bn_status bn_make_memory(const bn_model *model, const int64_t *plan, int threads, const port *asked, const memory *before,
                         memory *m, bn_error *error) {
    const bn_program *program = &model->program;
    memset(m, 0, sizeof *m);
    m->plan = plan;
    m->port_count = program->values + (int)plan[BNP_PLAN_PLACES];
    m->stages = calloc((size_t)plan[BNP_PLAN_STAGES], sizeof *m->stages);
    m->dims = calloc((size_t)ranks(program, plan) + 1, sizeof *m->dims);
    m->ports = calloc((size_t)m->port_count + 1, sizeof *m->ports);
    m->registers = registers_of(program);
    bool is_there = m->stages != NULL && m->dims != NULL && m->ports != NULL && m->registers != NULL;
    if (is_there) set_ports(program, m);
    bn_status status = BN_OK;
    if (!is_there || !has_stages(program, m, before) || !has_own(m) || !has_team(m, team_of(plan, threads), before))
        status = bn_fail(error, BN_NO_MEMORY, "session: got no memory for a plan of %" PRId64 " bytes",
                         plan[BNP_PLAN_ARENA_NBYTES] + plan[BNP_PLAN_IMAGE_NBYTES]);
    if (status == BN_OK) status = link_stages(model, m, asked, error);
    if (status != BN_OK) bn_free_memory(m, before);
    else reset_states(model, m);
    return status;
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

/* What the caller asks for at first: the sizes of these ports, or those with which a plan begins. */
static bool has_asked(bn_session *session, const int64_t *plan, const port *ports) {
    const bn_program *program = program_of(session);
    int64_t count = 0, *dims;
    for (int i = 0; i < program->inputs; i++) count += bn_row(program, BNP_TABLE_VALUES, i)[BNP_VALUE_RANK];
    session->asked_count = count;
    session->asked = calloc((size_t)program->inputs + 1, sizeof *session->asked);
    session->asked_dims = dims = calloc(2 * (size_t)count + 1, sizeof *dims);
    if (session->asked == NULL || dims == NULL) return false;
    for (int i = 0; i < program->inputs; i++) {
        const int64_t *row = bn_row(program, BNP_TABLE_VALUES, i);
        port *p = &session->asked[i];
        p->name = bn_string(program, row[BNP_VALUE_NAME]);
        p->rank = row[BNP_VALUE_RANK];
        p->dtype = row[BNP_VALUE_DTYPE];
        p->kind = row[BNP_VALUE_KIND];
        p->dims = dims;
        const int64_t *from = ports != NULL ? ports[i].dims
                                            : bn_row(program, BNP_TABLE_DIMS, plan[BNP_PLAN_BEGIN] + (dims - session->asked_dims));
        if (p->rank > 0) memcpy(dims, from, (size_t)p->rank * sizeof *dims);
        int64_t nbytes = bn_nbytes(dims, p->rank, p->dtype);
        p->nbytes = nbytes < 0 ? 0 : (size_t)nbytes;
        dims += p->rank;
    }
    return true;
}

static void free_session(bn_session *session) {
    if (session == NULL) return;
    free(session->places);
    free(session->asked);
    free(session->asked_dims);
    free(session);
}

/* ports: with the sizes to begin with, NULL for those of the plan. */
static bn_status create(bn_model *model, const int64_t *plan, const port *ports, int threads, bn_session **made,
                        bn_error *error) {
    const bn_program *program = &model->program;
    bn_session *session = calloc(1, sizeof *session);
    if (session != NULL) {
        session->model = model;
        session->threads = threads;
        session->places = calloc((size_t)program->values + 1, sizeof *session->places);
    }
    bn_status status = BN_NO_MEMORY;
    if (session == NULL || session->places == NULL || !has_asked(session, plan, ports))
        bn_fail(error, BN_NO_MEMORY, "session: got no memory");
    else status = bn_make_memory(model, plan, threads, session->asked, NULL, &session->now, error);
    if (status != BN_OK) {
        free_session(session);
        return status;
    }
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
    if (model == NULL || session == NULL) return bn_got_null(NULL, "bn_session_create");
    *session = NULL;
    bn_status status = check_threads(threads, 0, error);
    return status != BN_OK ? status : create(model, bn_row(&model->program, BNP_TABLE_PLANS, 0), NULL, threads, session, error);
}

bn_status bn_session_clone(const bn_session *session, bn_session **clone) {
    if (session == NULL || clone == NULL) return bn_got_null(NULL, "bn_session_clone");
    *clone = NULL;
    bn_status status = create(session->model, session->now.plan, session->now.ports, session->threads, clone, bn_thread_error());
    if (status == BN_OK) (*clone)->time_limit = session->time_limit;
    return status;
}

void bn_session_destroy(bn_session *session) {
    if (session == NULL) return;
    bn_model *model = session->model;
    bn_free_memory(&session->now, NULL);
    free_session(session);
    bn_model_close(model);
}

bn_status bn_session_set_threads(bn_session *session, int threads) {
    if (session == NULL) return bn_got_null(NULL, "bn_session_set_threads");
    bn_status status = check_threads(threads, 1, &session->error);
    if (status != BN_OK) return status;
    memory next = session->now;
    next.team = NULL;
    if (!has_team(&next, team_of(next.plan, threads), NULL))
        return bn_fail(&session->error, BN_NO_MEMORY, "threads: got no memory for %d", threads);
    bn_team_destroy(session->now.team);
    session->now = next;
    session->threads = threads;
    return BN_OK;
}

bn_status bn_session_set_time_limit(bn_session *session, double seconds) {
    if (session == NULL) return bn_got_null(NULL, "bn_session_set_time_limit");
    if (!(seconds >= 0 && seconds < HUGE_VAL))
        return bn_fail(&session->error, BN_ARGUMENT, "time limit: got %g s, wanted 0 or more", seconds);
    session->time_limit = seconds;
    return BN_OK;
}

/* --- inputs and outputs ------------------------------------------------------------------------------------------------ */

port *bn_port_at(bn_session *session, int number, bool is_output) {
    if (session == NULL) {
        bn_got_null(NULL, "session");
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
    if (info == NULL) return bn_got_null(session, is_output ? "bn_session_output_info" : "bn_session_input_info");
    bn_session *own = (bn_session *)(uintptr_t)session; /* for the message */
    const port *p = bn_port_at(own, number, is_output);
    if (p == NULL) return BN_ARGUMENT;
    if (session->is_unsettled && is_output) return bn_no_plan(own);
    if (session->is_unsettled) p = &session->asked[session->places[number]];
    tell(p, info);
    return BN_OK;
}

static int index_of(const bn_session *session, const char *name, bool is_output) {
    if (session == NULL || name == NULL) {
        bn_got_null(session, is_output ? "bn_session_output_index" : "bn_session_input_index");
        return -1;
    }
    const int *places = session->places + (is_output ? session->inputs : 0);
    for (int i = 0; i < (is_output ? session->outputs : session->inputs); i++)
        if (strcmp(session->now.ports[places[i]].name, name) == 0) return i;
    return -1;
}

static int count_of(const bn_session *session, bool is_output) {
    if (session != NULL) return is_output ? session->outputs : session->inputs;
    bn_got_null(NULL, is_output ? "bn_session_outputs" : "bn_session_inputs");
    return 0;
}

void *bn_port_buffer(bn_session *session, port *p) {
    if (p->bound != NULL) return p->bound;
    if (p->own == NULL) {
        p->own = bn_allocate(p->most);
        bn_unlink(&session->now);
        if (p->own == NULL) bn_fail(&session->error, BN_NO_MEMORY, "%s: got no memory for %zu bytes", p->name, p->most);
    }
    return p->own;
}

static bn_status bind(bn_session *session, port *p, void *data, size_t nbytes) {
    if (p == NULL) return BN_ARGUMENT;
    if (session->is_unsettled) return bn_no_plan(session);
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
    bn_session *own = (bn_session *)(uintptr_t)session; /* for the message */
    const port *p = bn_port_at(own, output, true);
    if (p == NULL || !session->is_unsettled) return p == NULL ? 0 : p->room;
    bn_no_plan(own);
    return 0;
}

int bn_session_input_index(const bn_session *session, const char *name) {
    return index_of(session, name, false);
}

int bn_session_output_index(const bn_session *session, const char *name) {
    return index_of(session, name, true);
}

static void *buffer_at(bn_session *session, int number, bool is_output) {
    port *p = bn_port_at(session, number, is_output);
    if (p == NULL || !session->is_unsettled) return p == NULL ? NULL : bn_port_buffer(session, p);
    bn_no_plan(session);
    return NULL;
}

void *bn_session_input(bn_session *session, int input) { return buffer_at(session, input, false); }
void *bn_session_output(bn_session *session, int output) { return buffer_at(session, output, true); }

bn_status bn_session_bind_input(bn_session *session, int input, const void *data, size_t nbytes) {
    return bind(session, bn_port_at(session, input, false), (void *)(uintptr_t)data, nbytes);
}

bn_status bn_session_bind_output(bn_session *session, int output, void *data, size_t nbytes) {
    return bind(session, bn_port_at(session, output, true), data, nbytes);
}

const void *bn_session_find(bn_session *session, const char *name, bn_info *info) {
    if (session == NULL || name == NULL) {
        bn_got_null(session, "bn_session_find");
        return NULL;
    }
    if (session->is_unsettled) return bn_no_plan(session), NULL;
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
    if (session == NULL) return bn_got_null(NULL, "bn_session_reset_state");
    reset_states(session->model, &session->now);
    return BN_OK;
}

const char *bn_error_message(const bn_session *session) {
    return session == NULL ? bn_thread_error()->text : session->error.text;
}
