/* Tapes: what a stage holds for the sizes at hand, computed from them; `OPERATIONS` of layout.py says how. */

#include <math.h>
#include <string.h>

#include "session.h"

#define MOST 4611686018427387904.0 /* 2^62: integers are smaller */
#define EXACT 9007199254740992.0 /* 2^53: an f64 holds all integers below it */

static int64_t divided(int64_t a, int64_t b) {
    if (b == -1) return (int64_t)(0 - (uint64_t)a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static int64_t times(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

static int64_t minus(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }

static int64_t divisor(int64_t n, int64_t most) {
    int64_t found = n > 0 && n < most ? n : most;
    while (found > 1 && n % found != 0) found--;
    return found > 0 ? found : 0;
}

/* One operation on two numbers, of which one is an f64 or becomes one. */
static bool computed_real(int64_t what, int64_t a, int64_t b, int64_t *y) {
    double u, v, made;
    memcpy(&u, &a, sizeof u);
    memcpy(&v, &b, sizeof v);
    switch (what) {
    case BNP_TAPE_OPERATION_REAL_LESS: *y = u < v; return true;
    case BNP_TAPE_OPERATION_REAL_LESS_EQUAL: *y = u <= v; return true;
    case BNP_TAPE_OPERATION_REAL_GREATER: *y = u > v; return true;
    case BNP_TAPE_OPERATION_REAL_GREATER_EQUAL: *y = u >= v; return true;
    case BNP_TAPE_OPERATION_REAL_EQUAL: *y = u == v; return true;
    case BNP_TAPE_OPERATION_REAL_NOT_EQUAL: *y = u != v; return true;
    case BNP_TAPE_OPERATION_REAL_ADD: made = u + v; break;
    case BNP_TAPE_OPERATION_REAL_SUBTRACT: made = u - v; break;
    case BNP_TAPE_OPERATION_REAL_MULTIPLY: made = u * v; break;
    case BNP_TAPE_OPERATION_REAL_DIVIDE:
        if (v == 0) return false;
        made = u / v;
        break;
    case BNP_TAPE_OPERATION_REAL_GREATEST: made = v > u ? v : u; break;
    case BNP_TAPE_OPERATION_REAL_LEAST: made = v < u ? v : u; break;
    default:
        made = (double)a;
        if (!(fabs(made) < EXACT)) return false;
    }
    memcpy(y, &made, sizeof made);
    return true;
}

/* One operation on two numbers; false where it does not hold. */
static bool computed(int64_t what, int64_t a, int64_t b, int64_t *y) {
    *y = 0;
    if (what >= BNP_TAPE_OPERATION_REAL_LESS && what <= BNP_TAPE_OPERATION_REAL) return computed_real(what, a, b, y);
    switch (what) {
    case BNP_TAPE_OPERATION_ADD: *y = minus(a, minus(0, b)); break;
    case BNP_TAPE_OPERATION_SUBTRACT: *y = minus(a, b); break;
    case BNP_TAPE_OPERATION_MULTIPLY:
        if (!(fabs((double)a * (double)b) < MOST)) return false;
        *y = times(a, b);
        break;
    case BNP_TAPE_OPERATION_DIVIDE:
        if (b == 0) return false;
        *y = divided(a, b);
        break;
    case BNP_TAPE_OPERATION_REMAINDER:
        if (b == 0) return false;
        *y = minus(a, times(divided(a, b), b));
        break;
    case BNP_TAPE_OPERATION_GREATEST: *y = a > b ? a : b; break;
    case BNP_TAPE_OPERATION_LEAST: *y = a < b ? a : b; break;
    case BNP_TAPE_OPERATION_LESS: *y = a < b; break;
    case BNP_TAPE_OPERATION_LESS_EQUAL: *y = a <= b; break;
    case BNP_TAPE_OPERATION_GREATER: *y = a > b; break;
    case BNP_TAPE_OPERATION_GREATER_EQUAL: *y = a >= b; break;
    case BNP_TAPE_OPERATION_EQUAL: *y = a == b; break;
    case BNP_TAPE_OPERATION_NOT_EQUAL: *y = a != b; break;
    case BNP_TAPE_OPERATION_AND: *y = a & b; break;
    case BNP_TAPE_OPERATION_OR: *y = a | b; break;
    case BNP_TAPE_OPERATION_XOR: *y = a ^ b; break;
    case BNP_TAPE_OPERATION_SHIFT_LEFT:
        if (b < 0 || b >= 62 || !(fabs((double)a) * (double)(INT64_C(1) << b) < MOST)) return false;
        *y = times(a, INT64_C(1) << b);
        break;
    case BNP_TAPE_OPERATION_SHIFT_RIGHT:
        if (b < 0) return false;
        *y = divided(a, INT64_C(1) << (b < 62 ? b : 62));
        break;
    case BNP_TAPE_OPERATION_NEGATE: *y = minus(0, a); break;
    case BNP_TAPE_OPERATION_ABSOLUTE: *y = a < 0 ? minus(0, a) : a; break;
    case BNP_TAPE_OPERATION_NOT: *y = a == 0; break;
    case BNP_TAPE_OPERATION_IS: return a != 0;
    case BNP_TAPE_OPERATION_IS_NOT: return a == 0;
    case BNP_TAPE_OPERATION_DIVISOR: *y = divisor(a, b); break;
    default: *y = a; return true; /* a constant, which may be 2^62 */
    }
    return fabs((double)*y) < MOST;
}

/* What belongs to a key in the list that begins with a row; false where nothing does. */
static bool found(const bn_program *program, int64_t first, int64_t key, int64_t *y) {
    const int64_t *rows = bn_row(program, BNP_TABLE_FINDS, first);
    int64_t low = 0, high = rows[BNP_FIND_ROWS];
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (rows[middle * BNP_FIND_WIDTH + BNP_FIND_FIRST] <= key) low = middle;
        else high = middle;
    }
    rows += low * BNP_FIND_WIDTH;
    *y = minus(rows[BNP_FIND_VALUE], times(rows[BNP_FIND_SLOPE], minus(rows[BNP_FIND_FIRST], key)));
    return rows[BNP_FIND_FIRST] <= key && key <= rows[BNP_FIND_LAST];
}

bool bn_evaluate(const bn_program *program, const int64_t *plan, const port *ports, int64_t *registers) {
    int64_t numbers = plan[BNP_PLAN_NUMBERS];
    const int64_t *row = bn_row(program, BNP_TABLE_OPERATIONS, plan[BNP_PLAN_FIRST_OPERATION]);
    registers[0] = 1;
    for (int64_t i = 0; i < numbers; i++) {
        const int64_t *number = bn_row(program, BNP_TABLE_NUMBERS, plan[BNP_PLAN_FIRST_NUMBER] + i);
        const port *p = &ports[number[BNP_NUMBER_VALUE]];
        if (number[BNP_NUMBER_AXIS] == BNP_CONTENT) memcpy(&registers[1 + i], p->own, sizeof(int64_t));
        else registers[1 + i] = p->dims[number[BNP_NUMBER_AXIS]];
    }
    int64_t *y = registers + 1 + numbers;
    for (int64_t i = 0; i < plan[BNP_PLAN_OPERATIONS]; i++, row += BNP_OPERATION_WIDTH, y++) {
        int64_t what = row[BNP_OPERATION_WHAT], a = row[BNP_OPERATION_A], b = row[BNP_OPERATION_B];
        bool holds = what == BNP_TAPE_OPERATION_CONST  ? computed(what, a, 0, y)
                     : what == BNP_TAPE_OPERATION_FIND ? found(program, b, registers[a], y)
                                                       : computed(what, registers[a], registers[b], y);
        if (!holds) return false;
    }
    return true;
}

static void put(stage *s, int64_t at, const void *value, size_t nbytes) { memcpy(s->image + at, value, nbytes); }

bool bn_write_tape(const bn_model *model, stage *s, const int64_t *registers) {
    const bn_program *program = &model->program;
    const int64_t *row = bn_row(program, BNP_TABLE_WRITES, s->plan[BNP_PLAN_FIRST_WRITE]);
    for (int64_t i = 0; i < s->plan[BNP_PLAN_WRITES]; i++, row += BNP_WRITE_WIDTH) {
        int64_t number = registers[row[BNP_WRITE_REGISTER]], at = row[BNP_WRITE_AT];
        int32_t half = (int32_t)(uint32_t)((uint64_t)number & UINT32_MAX);
        float single = (float)number;
        double real = (double)number, exact;
        uintptr_t address;
        switch (row[BNP_WRITE_KIND]) {
        case BNP_WRITE_KIND_WORD: put(s, at, &number, sizeof number); break;
        case BNP_WRITE_KIND_HALF: put(s, at, &half, sizeof half); break;
        case BNP_WRITE_KIND_FLOAT: put(s, at, &single, sizeof single); break;
        case BNP_WRITE_KIND_DOUBLE: put(s, at, &real, sizeof real); break;
        case BNP_WRITE_KIND_ROUNDED:
            memcpy(&exact, &number, sizeof exact);
            single = (float)exact;
            put(s, at, &single, sizeof single);
            break;
        case BNP_WRITE_KIND_ARRAY:
            if (number < 0 || number >= program->count[BNP_TABLE_ARRAYS]) return false;
            memcpy(&address, s->image + at, sizeof address); /* how far on */
            if (address > (uintptr_t)bn_row(program, BNP_TABLE_ARRAYS, number)[BNP_ARRAY_NBYTES]) return false;
            address += (uintptr_t)bn_array_at(model, number);
            put(s, at, &address, sizeof address);
            break;
        default: s->is_shared[at] = number != 0; break;
        }
    }
    return true;
}
