/* Runs: the images of the stages, the loop over their steps, what is next, and what the outputs are then. */

#define _GNU_SOURCE

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "session.h"

static const bn_program *program_of(const bn_session *session) { return &session->model->program; }

/* --- images ------------------------------------------------------------------------------------------------------------ */

/* Put an address into the word of a patch: of what that names, and how far on. */
static void put_address(const stage *s, int64_t number, const int64_t *patch, uintptr_t base) {
    uintptr_t address = base + s->offsets[number];
    memcpy(s->image + 8 * patch[BNP_PATCH_WORD], &address, sizeof address);
}

static bool is_of_port(const int64_t *patch) {
    return patch[BNP_PATCH_KIND] == BNP_PATCH_KIND_INPUT || patch[BNP_PATCH_KIND] == BNP_PATCH_KIND_OUTPUT;
}

static const int64_t *patch_of(const bn_program *program, const stage *s, int64_t number) {
    return bn_row(program, BNP_TABLE_PATCHES, s->plan[BNP_PLAN_FIRST_PATCH] + number);
}

bool bn_patch_limits(const bn_program *p, const int64_t *head, const int64_t *plan, const int64_t *patch, int64_t *things,
                     int64_t *low, int64_t *high) {
    int64_t which = patch[BNP_PATCH_WHICH];
    *things = *low = *high = 0;
    switch (patch[BNP_PATCH_KIND]) {
    case BNP_PATCH_KIND_KERNEL: *things = p->count[BNP_TABLE_KERNELS]; break;
    case BNP_PATCH_KIND_ARRAY: *things = p->count[BNP_TABLE_ARRAYS]; break;
    case BNP_PATCH_KIND_ARENA: *high = plan[BNP_PLAN_ARENA_NBYTES]; return true;
    case BNP_PATCH_KIND_IMAGE: *high = plan[BNP_PLAN_IMAGE_NBYTES]; return true;
    case BNP_PATCH_KIND_INPUT: *things = bn_is_read(p, head, which) ? which + 1 : 0; break;
    default: *things = p->values + head[BNP_PLAN_PLACES] - p->inputs; break;
    }
    if (which < 0 || which >= *things) return false;
    if (patch[BNP_PATCH_KIND] == BNP_PATCH_KIND_ARRAY) {
        const int64_t *array = bn_row(p, BNP_TABLE_ARRAYS, which);
        *low = -array[BNP_ARRAY_OFFSET]; /* arrays may be read backwards */
        *high = array[BNP_ARRAY_NBYTES];
    } else if (patch[BNP_PATCH_KIND] != BNP_PATCH_KIND_KERNEL)
        *high = bn_array_nbytes(p, head, which + (patch[BNP_PATCH_KIND] == BNP_PATCH_KIND_OUTPUT ? p->inputs : 0));
    return true;
}

bool bn_is_taped(const int64_t *plan) { return plan[BNP_PLAN_NUMBERS] > 0; }

/* Write what follows from sizes; false where the tape does not hold. */
static bool set_words(const bn_model *model, const memory *m, stage *s) {
    return !bn_is_taped(s->plan) || (bn_evaluate(&model->program, s->plan, m->ports, m->registers) &&
                                     bn_write_tape(model, s, m->registers));
}

/* Whether a patch leads to a place within what it names, with what its word holds. */
static bool is_inside(const bn_program *program, const memory *m, const stage *s, const int64_t *patch) {
    int64_t things, low, high, word;
    memcpy(&word, s->image + 8 * patch[BNP_PATCH_WORD], sizeof word);
    bn_patch_limits(program, m->plan, s->plan, patch, &things, &low, &high);
    return word >= low - patch[BNP_PATCH_OFFSET] && word <= high - patch[BNP_PATCH_OFFSET];
}

bn_status bn_link_stage(const bn_model *model, const memory *m, stage *s, bn_error *error) {
    const bn_program *program = &model->program;
    const int64_t *step = bn_row(program, BNP_TABLE_STEPS, s->plan[BNP_PLAN_FIRST_STEP]);
    s->is_linked = s->is_fresh = false;
    for (int64_t i = 0; i < s->plan[BNP_PLAN_STEPS]; i++, step += BNP_STEP_WIDTH) {
        s->calls[i] = model->kernels[step[BNP_STEP_KERNEL]];
        s->is_shared[i] = step[BNP_STEP_PARALLEL] != 0;
    }
    memcpy(s->image, program->at[BNP_TABLE_IMAGES] + s->plan[BNP_PLAN_IMAGE], (size_t)s->plan[BNP_PLAN_IMAGE_NBYTES]);
    bool is_good = set_words(model, m, s);
    for (int64_t i = 0; is_good && i < s->plan[BNP_PLAN_PATCHES]; i++) {
        const int64_t *patch = patch_of(program, s, i);
        int64_t which = patch[BNP_PATCH_WHICH];
        uintptr_t base;
        is_good = is_inside(program, m, s, patch);
        memcpy(&s->offsets[i], s->image + 8 * patch[BNP_PATCH_WORD], sizeof *s->offsets); /* 0 but for a tape */
        s->offsets[i] += (uintptr_t)patch[BNP_PATCH_OFFSET];
        switch (patch[BNP_PATCH_KIND]) {
        case BNP_PATCH_KIND_KERNEL: memcpy(&base, &model->kernels[which], sizeof base); break;
        case BNP_PATCH_KIND_ARRAY: base = (uintptr_t)bn_array_at(model, which); break;
        case BNP_PATCH_KIND_ARENA: base = (uintptr_t)m->arena; break;
        case BNP_PATCH_KIND_IMAGE: base = (uintptr_t)s->image; break;
        default: continue;
        }
        put_address(s, i, patch, base);
    }
    s->is_fresh = is_good;
    return is_good ? BN_OK : bn_fail(error, BN_DAMAGED, "shapes: got places that the plan for them has not");
}

void bn_unlink(memory *m) {
    for (int64_t i = 0; i < m->plan[BNP_PLAN_STAGES]; i++) m->stages[i].is_linked = false;
}

static int64_t number_in(bn_session *session, int64_t number) {
    const port *p = &session->now.ports[number];
    const unsigned char *at = p->bound != NULL ? p->bound : p->own;
    int64_t found = at[0] != 0;
    if (p->dtype == BN_INT64) memcpy(&found, at, sizeof found);
    return found;
}

/* Sizes of a place whose length data decide; whether it has room for them. */
static bool set_length(bn_session *session, port *p) {
    if (p->kind != BN_PLACE) return true;
    const int64_t *place = bn_place(program_of(session), session->now.plan, p - session->now.ports);
    if (place[BNP_PLACE_LENGTH] < 0) return true;
    p->dims[place[BNP_PLACE_AXIS]] = number_in(session, place[BNP_PLACE_LENGTH]);
    return bn_set_dims(p, p->dims);
}

/* Sizes of what the tape of a stage reads. */
static bool has_sizes(bn_session *session, const stage *s) {
    for (int64_t i = 0; i < s->plan[BNP_PLAN_NUMBERS]; i++) {
        const int64_t *row = bn_row(program_of(session), BNP_TABLE_NUMBERS, s->plan[BNP_PLAN_FIRST_NUMBER] + i);
        if (!set_length(session, &session->now.ports[row[BNP_NUMBER_VALUE]])) return false;
    }
    return true;
}

/* Make the image of a stage ready for the number that led to it, and for where the ports are. */
static bn_status link_ports(bn_session *session, stage *s, int64_t number) {
    const bn_program *program = program_of(session);
    const memory *m = &session->now;
    bool is_same = s->is_fresh && (s->number == number || s->plan == m->plan || !bn_is_taped(s->plan));
    if (s->is_linked && is_same) return BN_OK;
    for (int i = 0; i < m->port_count; i++)
        if (bn_port_buffer(session, &m->ports[i]) == NULL) return BN_NO_MEMORY;
    s->number = number;
    if (!is_same) {
        if (!has_sizes(session, s)) return bn_fail(&session->error, BN_DATA, "run: got a length of %" PRId64 ", wanted less", number);
        if (bn_link_stage(session->model, m, s, &session->error) != BN_OK) return BN_DAMAGED;
    }
    for (int64_t i = 0; i < s->plan[BNP_PLAN_PATCHES]; i++) {
        const int64_t *patch = patch_of(program, s, i);
        if (!is_of_port(patch)) continue;
        bool is_output = patch[BNP_PATCH_KIND] == BNP_PATCH_KIND_OUTPUT;
        port *p = &m->ports[patch[BNP_PATCH_WHICH] + (is_output ? program->inputs : 0)];
        put_address(s, i, patch, (uintptr_t)bn_port_buffer(session, p));
    }
    s->is_linked = true;
    return BN_OK;
}

/* --- steps --------------------------------------------------------------------------------------------------------------- */

static void run_steps(const bn_program *program, const memory *m, const stage *s) {
    const int64_t *step = bn_row(program, BNP_TABLE_STEPS, s->plan[BNP_PLAN_FIRST_STEP]);
    for (int64_t i = 0; i < s->plan[BNP_PLAN_STEPS]; i++, step += BNP_STEP_WIDTH) {
        void *record = s->image + step[BNP_STEP_RECORD];
        if (m->team != NULL && s->is_shared[i]) bn_team_share(m->team, s->calls[i], record);
        else s->calls[i](record, 0, 1);
    }
}

/* Say what a record of a fault says: "node 'n': Gather: indices[3, 4]: got 9, wanted 0 to 7". */
static void tell_fault(bn_session *session, const stage *s, int64_t number, const int64_t *record) {
    const bn_program *program = program_of(session);
    const int64_t *fault = bn_row(program, BNP_TABLE_FAULTS, s->plan[BNP_PLAN_FIRST_FAULT] + number);
    const int64_t *dims = fault[BNP_FAULT_WORD] < 0 ? bn_row(program, BNP_TABLE_DIMS, fault[BNP_FAULT_DIMS])
                                                    : (int64_t *)(void *)s->image + fault[BNP_FAULT_WORD];
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
static bn_status check_faults(bn_session *session, const stage *s) {
    const int64_t *plan = s->plan;
    if (plan[BNP_PLAN_FAULTS] == 0) return BN_OK;
    int64_t *words = (int64_t *)(void *)s->image + plan[BNP_PLAN_FAULT_COUNTER];
    if (words[0] == 0) return BN_OK;
    bool is_told = false;
    words[0] = 0;
    for (int64_t i = 0; i < plan[BNP_PLAN_FAULTS]; i++) {
        int64_t *record = words + BNP_FAULT_WORDS * (i + 1);
        if (record[0] == 0) continue;
        if (!is_told) tell_fault(session, s, i, record);
        is_told = true;
        record[0] = 0;
    }
    return BN_DATA;
}

/* --- what is next --------------------------------------------------------------------------------------------------------- */

/* The stage behind one, NULL behind the last or where there is none for the number that decides. */
static stage *next_stage(bn_session *session, const stage *s, int64_t *number) {
    const bn_program *program = program_of(session);
    *number = s->plan[BNP_PLAN_CHOICE] < 0 ? 0 : number_in(session, s->plan[BNP_PLAN_CHOICE]);
    for (int64_t i = 0; i < s->plan[BNP_PLAN_CHOICES]; i++) {
        const int64_t *row = bn_row(program, BNP_TABLE_CHOICES, s->plan[BNP_PLAN_FIRST_CHOICE] + i);
        if (s->plan[BNP_PLAN_CHOICE] < 0 || (row[BNP_CHOICE_LOW] <= *number && *number <= row[BNP_CHOICE_HIGH]))
            return &session->now.stages[row[BNP_CHOICE_STAGE]];
    }
    return NULL;
}

static double seconds_now(void) {
    struct timespec found;
    clock_gettime(CLOCK_MONOTONIC, &found);
    return (double)found.tv_sec + 1e-9 * (double)found.tv_nsec;
}

static bn_status run_stages(bn_session *session, const stage **last) {
    stage *s = session->now.stages;
    int64_t number = 0;
    double ends = session->time_limit > 0 ? seconds_now() + session->time_limit : 0;
    while (s != NULL) {
        bn_status status = link_ports(session, s, number);
        if (status != BN_OK) return status;
        run_steps(program_of(session), &session->now, s);
        status = check_faults(session, s);
        if (status != BN_OK) return status;
        *last = s;
        s = next_stage(session, s, &number);
        if (ends > 0 && s != NULL && s <= *last && seconds_now() > ends) /* it goes back, so it is a loop */
            return bn_fail(&session->error, BN_TIME, "run: got more than %g s, wanted at most that", session->time_limit);
    }
    if ((*last)->plan[BNP_PLAN_CHOICES] == 0) return BN_OK;
    return bn_fail(&session->error, BN_DATA, "run: got a length of %" PRId64 ", wanted one that the export planned for", number);
}

/* --- outputs --------------------------------------------------------------------------------------------------------------- */

bool bn_set_dims(port *p, const int64_t *dims) {
    if (p->rank > 0) memcpy(p->dims, dims, (size_t)p->rank * sizeof *dims);
    int64_t nbytes = bn_nbytes(p->dims, p->rank, p->dtype);
    p->nbytes = nbytes < 0 ? 0 : (size_t)nbytes;
    return nbytes >= 0 && p->nbytes <= p->most;
}

/* Sizes of the outputs, and those outputs that no step makes. */
static bn_status copy_results(bn_session *session, const stage *s) {
    const bn_program *program = program_of(session);
    const memory *m = &session->now;
    const int64_t *sizes = s->plan[BNP_PLAN_SIZES] < 0 ? NULL : (int64_t *)(void *)s->image + s->plan[BNP_PLAN_SIZES];
    for (int i = program->inputs; i < program->values; i++) {
        const int64_t *row = bn_row(program, BNP_TABLE_RESULTS, s->plan[BNP_PLAN_RESULTS] + i - program->inputs);
        int64_t kind = row[BNP_RESULT_KIND], which = row[BNP_RESULT_WHICH];
        port *p = &m->ports[i], *from = kind == BNP_RESULT_KIND_INPUT ? &m->ports[which] : NULL;
        bool is_good = sizes == NULL || bn_set_dims(p, sizes);
        if (sizes != NULL) sizes += p->rank;
        if (from != NULL && s->plan != m->plan) is_good = from->rank == p->rank && set_length(session, from) && bn_set_dims(p, from->dims);
        is_good = is_good && p->nbytes <= p->room && (from == NULL || p->nbytes <= from->nbytes);
        if (!is_good || (kind == BNP_RESULT_KIND_ARRAY && (int64_t)p->nbytes > bn_row(program, BNP_TABLE_ARRAYS, which)[BNP_ARRAY_NBYTES]))
            return bn_fail(&session->error, BN_DATA, "%s: got sizes that it has no room for", p->name);
        if (kind == BNP_RESULT_KIND_MADE) continue;
        const void *source = from != NULL ? bn_port_buffer(session, from) : (const void *)bn_array_at(session->model, which);
        memmove(bn_port_buffer(session, p), source, p->nbytes);
    }
    return BN_OK;
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
        bn_unlink(&session->now);
    }
}

bn_status bn_session_run(bn_session *session) {
    if (session == NULL) return bn_fail(bn_thread_error(), BN_ARGUMENT, "bn_session_run: got NULL");
    const stage *last = NULL;
    if (session->is_unsettled) return bn_no_plan(session);
    bn_team_begin(session->now.team);
    unsigned control = bn_flush_denormals();
    bn_status status = run_stages(session, &last);
    bn_restore_floats(control);
    bn_team_end(session->now.team);
    if (status == BN_OK) status = copy_results(session, last);
    if (status == BN_OK) turn_states(session);
    return status;
}
