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
    store_i32,
    store_i64,
    view,
)
from bolt_numba.kernels.jit import native_source

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
FORMULAS: dict[str, tuple[str, str]] = {
    "+": ("a + b", ""), "-": ("a - b", ""), "*": ("a * b", "abs(f64(a) * f64(b)) < most"),
    "//": ("a // (b + (b == 0))", "b != 0"), "%": ("a % (b + (b == 0))", "b != 0"),
    "max": ("max(a, b)", ""), "min": ("min(a, b)", ""),
    **{sign: (f"i64(a {sign} b)", "") for sign in COMPARISONS},
    **{sign: (f"a {sign} b", "") for sign in "&|^"},
    "<<": ("a << (b & 63)", "(b >= 0) & (b < 62) & (abs(f64(a)) * f64(i64(1) << (b & 63)) < most)"),
    ">>": ("a >> max(min(b, i64(63)), i64(0))", "b >= 0"),
    "neg": ("-a", ""), "abs": ("abs(a)", ""), "not": ("i64(a == 0)", ""), "is": ("i64(0)", "a != 0"),
    "is not": ("i64(0)", "a == 0"),
}  # fmt: skip
"""Of each operation its formula, and what has to hold; ``is`` and ``is not`` are guards: an operand is not 0, or is."""
OPERATIONS = tuple(FORMULAS)
"""What rows name by their place here."""
MOST = 2.0**62
ROW = 24

WORD, HALF, FLOAT, DOUBLE, ADDRESS = range(5)
"""Kinds of what `fill` writes of an integer: an i64, an i32, an f32, an f64, an address in the arena (or another)."""


def _source() -> str:
    lines = [
        "def evaluate(p, tid, nthreads):",
        "    registers = p.registers",
        "    for i in range(p.first, p.last):",
        f"        row = p.ops + {ROW} * i",
        "        what = load_i64(row)",
        "        a, b = load_i64(registers + 8 * load_i64(row + 8)), load_i64(registers + 8 * load_i64(row + 16))",
        "        y, holds = i64(0), True",
    ]
    for number, (formula, holds) in enumerate(FORMULAS.values()):
        lines += [f"        {'elif' if number else 'if'} what == {number}:", f"            y = {formula}"]
        lines += [f"            holds = {holds}"] if holds else []
    lines += [
        "        store_i64(registers + 8 * (p.base + i), y)",
        "        if not holds or abs(f64(y)) >= most:",
        "            store_i64(registers, 0)",
        "            return",
    ]
    return "\n".join(lines) + "\n"


evaluate = native_source(
    _source(), "evaluate", {"ops": PTR, "registers": PTR, "first": I64, "last": I64, "base": I64}, frozenset(),
    load_i64=load_i64, store_i64=store_i64, i64=np.int64, f64=np.float64, most=MOST,
)  # fmt: skip
"""Operations ``first`` to ``last``."""


@native(rows=PTR, count=I64, registers=PTR, to=PTR, bases=PTR)
def fill(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Write registers into parameter records; rows: byte offset, kind, register.

    bases: addresses; kind ``ADDRESS + i`` is an address so many bytes behind the i-th of them.
    """
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
            view(at, 1, np.float64)[0] = np.float64(y)
        else:
            store_i64(at, y + load_i64(p.bases + 8 * (kind - ADDRESS)))


@native(unused=I64)
def nothing(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """In the place of a step that other sizes have."""


OF_TAPES = (evaluate, fill, nothing)
"""Kernels that every tape may need."""
