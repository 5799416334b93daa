"""Tapes of integer arithmetic, evaluated in one call: what a plan holds for the sizes at hand (`runtime.tape`).

An operation is a row of three words: what to do, and the registers of its operands.  The operation in row i writes
register ``base + i``.  Register 0 is 1 until something does not hold: a guard, a division by 0, or a number of 2 ** 62
and more.
"""

from __future__ import annotations

import numpy as np

from bolt_numba.kernels.cpu.language.lang import (
    I64,
    PTR,
    load_i64,
    native,
    store_f32,
    store_f64,
    store_i32,
    store_i64,
)

OPERATIONS = (
    "+", "-", "*", "//", "%", "max", "min", "<", "<=", ">", ">=", "==", "!=", "&", "|", "^", "<<", ">>", "neg", "abs",
    "not", "is", "is not",
)  # fmt: skip
"""What rows name by their place here; ``is`` and ``is not`` are guards: that an operand is not 0, that it is 0."""
(ADD, SUB, MUL, DIV, MOD, MAX, MIN, LT, LE, GT, GE, EQ, NE, AND, OR, XOR, SHL, SHR, NEG, ABS, NOT, IS, IS_NOT) = range(
    len(OPERATIONS)
)
MOST = 2.0**62
ROW = 24

WORD, HALF, FLOAT, DOUBLE, ADDRESS = range(5)
"""Kinds of what `fill` writes of an integer: an i64, an i32, an f32, an f64, an address in the arena."""


@native(ops=PTR, registers=PTR, first=I64, last=I64, base=I64)
def evaluate(p, tid, nthreads):
    """Operations ``first`` to ``last``."""
    registers = p.registers
    for i in range(p.first, p.last):
        row = p.ops + ROW * i
        what, a, b = load_i64(row), load_i64(registers + 8 * load_i64(row + 8)), load_i64(registers + 8 * load_i64(row + 16))
        y, holds = np.int64(0), True
        if what == ADD:
            y = a + b
        elif what == SUB:
            y = a - b
        elif what == MUL:
            y = a * b
            holds = abs(np.float64(a) * np.float64(b)) < MOST
        elif what == DIV:
            holds = b != 0
            y = a // b if holds else np.int64(0)
        elif what == MOD:
            holds = b != 0
            y = a % b if holds else np.int64(0)
        elif what == MAX:
            y = max(a, b)
        elif what == MIN:
            y = min(a, b)
        elif what == LT:
            y = np.int64(a < b)
        elif what == LE:
            y = np.int64(a <= b)
        elif what == GT:
            y = np.int64(a > b)
        elif what == GE:
            y = np.int64(a >= b)
        elif what == EQ:
            y = np.int64(a == b)
        elif what == NE:
            y = np.int64(a != b)
        elif what == AND:
            y = a & b
        elif what == OR:
            y = a | b
        elif what == XOR:
            y = a ^ b
        elif what == SHL:
            holds = (b >= 0) & (b < 62) & (abs(np.float64(a)) * np.float64(np.int64(1) << (b & 62)) < MOST)
            y = a << b
        elif what == SHR:
            holds = b >= 0
            y = a >> min(b, np.int64(63))
        elif what == NEG:
            y = -a
        elif what == ABS:
            y = abs(a)
        elif what == NOT:
            y = np.int64(a == 0)
        elif what == IS:
            holds = a != 0
        else:
            holds = a == 0
        store_i64(registers + 8 * (p.base + i), y)
        if not holds or abs(np.float64(y)) >= MOST:
            store_i64(registers, 0)
            return


@native(rows=PTR, count=I64, registers=PTR, to=PTR, arena=I64)
def fill(p, tid, nthreads):
    """Write registers into parameter records; rows: byte offset, kind, register; arena: its address."""
    for i in range(p.count):
        row = p.rows + ROW * i
        at, kind, y = p.to + load_i64(row), load_i64(row + 8), load_i64(p.registers + 8 * load_i64(row + 16))
        if kind == WORD:
            store_i64(at, y)
        elif kind == HALF:
            store_i32(at, np.int32(y))
        elif kind == FLOAT:
            store_f32(at, np.float32(y))
        elif kind == DOUBLE:
            store_f64(at, np.float64(y))
        else:
            store_i64(at, y + p.arena)
