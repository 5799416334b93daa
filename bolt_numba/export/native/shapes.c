/* The shapes that a session has: those that the caller asks for, the plan that serves them, what is wrong with others. */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "session.h"

static const bn_program *program_of(const bn_session *session) { return &session->model->program; }

static void set_asked(port *p, const int64_t *dims) {
    if (p->rank > 0) memcpy(p->dims, dims, (size_t)p->rank * sizeof *dims);
    int64_t nbytes = bn_nbytes(p->dims, p->rank, p->dtype);
    p->nbytes = nbytes < 0 ? 0 : (size_t)nbytes;
}

/* Keep the sizes that are asked for, and have them again. */
static void keep_asked(bn_session *session) {
    memcpy(session->asked_dims + session->asked_count, session->asked_dims, (size_t)session->asked_count * sizeof(int64_t));
}

static void restore_asked(bn_session *session) {
    const int64_t *dims = session->asked_dims + session->asked_count;
    for (int i = 0; i < program_of(session)->inputs; dims += session->asked[i++].rank) set_asked(&session->asked[i], dims);
}

/* Whether an input may have the sizes that are asked for, in some set of shapes of a plan. */
static bool may_have(const bn_program *program, const int64_t *plan, const port *asked, int value) {
    const int64_t *dims = bn_dims_of(program, plan, value);
    const int64_t *declared = bn_row(program, BNP_TABLE_DIMS, bn_row(program, BNP_TABLE_VALUES, value)[BNP_VALUE_DIMS]);
    for (int64_t axis = 0; axis < asked[value].rank; axis++) {
        int64_t size = asked[value].dims[axis];
        bool varies = bn_is_taped(plan) && declared[axis] < 0;
        if (size < 0 || (varies ? size > dims[axis] : size != dims[axis])) return false;
    }
    return true;
}

static bool serves(const bn_session *session, const int64_t *plan) {
    const bn_program *program = program_of(session);
    for (int i = 0; i < program->inputs; i++)
        if (!may_have(program, plan, session->asked, i)) return false;
    return !bn_is_taped(plan) || bn_evaluate(program, plan, session->asked, session->now.registers);
}

/* The first stage of what runs for the sizes that are asked for, NULL where nothing does. */
static const int64_t *plan_for(const bn_session *session) {
    const bn_program *program = program_of(session);
    const int64_t *plan = session->now.plan;
    if (serves(session, plan)) return plan; /* the next sizes are likely to be near */
    for (int64_t i = 0; i < program->count[BNP_TABLE_PLANS]; i += plan[BNP_PLAN_STAGES]) {
        plan = bn_row(program, BNP_TABLE_PLANS, i);
        if (serves(session, plan)) return plan;
    }
    return NULL;
}

/* Append the shapes of all inputs to a message: "x 1x28x28, y 3"; those of a plan with a tape are the greatest. */
static void append_shapes(const bn_session *session, const int64_t *plan, bn_error *error) {
    for (int i = 0; i < session->inputs; i++) {
        const port *p = &session->asked[session->places[i]];
        const int64_t *dims = plan == NULL ? p->dims : bn_dims_of(program_of(session), plan, session->places[i]);
        size_t at = strlen(error->text), room = sizeof error->text;
        const char *most = plan != NULL && bn_is_taped(plan) ? "up to " : "";
        snprintf(error->text + at, room - at, "%s%s %s", i == 0 ? " " : ", ", p->name, most);
        for (int64_t axis = 0; axis < p->rank; axis++) {
            at = strlen(error->text);
            snprintf(error->text + at, room - at, "%s%" PRId64, axis == 0 ? "" : "x", dims[axis]);
        }
    }
}

bn_status bn_no_plan(bn_session *session) {
    bn_error *error = &session->error;
    bn_fail(error, BN_NO_PLAN, "shapes: got");
    append_shapes(session, NULL, error);
    const int64_t *plan = NULL;
    for (int64_t i = 0; i < program_of(session)->count[BNP_TABLE_PLANS]; i += plan[BNP_PLAN_STAGES]) {
        size_t at = strlen(error->text);
        snprintf(error->text + at, sizeof error->text - at, i == 0 ? "; wanted" : "; or");
        plan = bn_row(program_of(session), BNP_TABLE_PLANS, i);
        append_shapes(session, plan, error);
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

/* Have the sizes that are asked for, by a plan that serves them. */
static bn_status turn_to(bn_session *session, const int64_t *plan) {
    memory next, *now = &session->now;
    bn_status status;
    if (plan == now->plan && bn_is_taped(plan)) {
        for (int i = 0; i < now->port_count; i++) now->ports[i].bound = NULL;
        bn_unlink(now);
        status = bn_set_shapes(session->model, now, session->asked, &session->error);
    } else {
        status = bn_make_memory(session->model, plan, session->threads, session->asked, now, &next, &session->error);
        if (status == BN_OK) {
            move_states(program_of(session), now, &next);
            bn_free_memory(now, &next);
            *now = next;
        }
    }
    if (status == BN_OK) session->is_unsettled = false;
    else restore_asked(session);
    return status;
}

bn_status bn_session_resize(bn_session *session, const int64_t *const *shapes) {
    if (session == NULL || shapes == NULL) return bn_got_null(session, "bn_session_resize");
    for (int i = 0; i < session->inputs; i++)
        if (shapes[i] == NULL && session->asked[session->places[i]].rank > 0) return bn_got_null(session, "bn_session_resize");
    keep_asked(session);
    for (int i = 0; i < session->inputs; i++) set_asked(&session->asked[session->places[i]], shapes[i]);
    const int64_t *plan = plan_for(session);
    if (plan != NULL) return turn_to(session, plan);
    bn_no_plan(session);
    restore_asked(session);
    return BN_NO_PLAN;
}

bn_status bn_session_set_input_shape(bn_session *session, int input, const int64_t *dims, int rank) {
    port *p = bn_port_at(session, input, false);
    if (p == NULL) return BN_ARGUMENT;
    if (rank != p->rank)
        return bn_fail(&session->error, BN_ARGUMENT, "%s: got %d sizes, wanted %" PRId64, p->name, rank, p->rank);
    if (dims == NULL && rank > 0) return bn_got_null(session, "bn_session_set_input_shape");
    const bn_program *program = program_of(session);
    keep_asked(session);
    set_asked(&session->asked[session->places[input]], dims);
    const int64_t *plan = plan_for(session);
    if (plan != NULL) return turn_to(session, plan);
    for (int64_t i = 0; session->inputs > 1 && i < program->count[BNP_TABLE_PLANS]; i += plan[BNP_PLAN_STAGES]) {
        plan = bn_row(program, BNP_TABLE_PLANS, i);
        if (!may_have(program, plan, session->asked, session->places[input])) continue;
        session->is_unsettled = true; /* the shapes of the others are to come */
        return BN_OK;
    }
    bn_no_plan(session);
    restore_asked(session);
    return BN_NO_PLAN;
}
