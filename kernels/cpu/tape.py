"""Tapes of integer arithmetic, evaluated in one call: what a plan holds for the sizes at hand (`runtime.tape`).

An operation is a row of three words: what to do, and the registers of its operands.  The operation in row i writes
register ``base + i``.  Register 0 is 1 until something does not hold: a guard, a division by 0, or an integer of
2 ** 62 and more.  Operations whose names begin with ``f`` are on f64, whose bits are in the registers.
"""

from __future__ import annotations

import numpy as np

from bolt_numba.kernels.cpu.executor import DATA
from bolt_numba.kernels.cpu.fillers import FILLERS
from bolt_numba.kernels.cpu.language.lang import (
    I64,
    PTR,
    inline,
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
    **{sign: (f"a {sign} b", f"abs(f64(a) {sign} f64(b)) < most") for sign in "+-*"},
    "//": ("a // (b + (b == 0))", "(b != 0) & (abs(f64(a)) < most)"), "%": ("a % (b + (b == 0))", "b != 0"),
    "max": ("max(a, b)", ""), "min": ("min(a, b)", ""),
    **{sign: (f"i64(a {sign} b)", "") for sign in COMPARISONS},
    **{sign: (f"a {sign} b", "") for sign in "&|^"},
    "<<": ("a << (b & 63)", "(b >= 0) & (b < 62) & (abs(f64(a)) * f64(i64(1) << (b & 63)) < most)"),
    ">>": ("a >> max(min(b, i64(63)), i64(0))", "b >= 0"),
    "neg": ("-a", "abs(f64(a)) < most"), "abs": ("abs(a)", "abs(f64(a)) < most"), "not": ("i64(a == 0)", ""),
    "is": ("i64(0)", "a != 0"), "is not": ("i64(0)", "a == 0"), "divisor": ("divisor(a, b)", ""),
    **{f"f{sign}": (f"i64(u {sign} v)", "") for sign in COMPARISONS},
}  # fmt: skip
"""Of each operation its formula, and what has to hold; ``is`` and ``is not`` are guards: an operand is not 0, or is."""
REALS: dict[str, tuple[str, str]] = {
    **{f"f{sign}": (f"u {sign} v", "") for sign in "+-*"}, "f/": ("u / (v + f64(v == 0))", "v != 0"),
    "fmax": ("v if v > u else u", ""), "fmin": ("v if v < u else u", ""), "float": ("f64(a)", "abs(f64(a)) < exact"),
}  # fmt: skip
"""The same of those whose result is an f64.  ``float`` converts an integer that f64 holds."""
GUARDS = {f"is {sign}": ("i64(0)", f"a {sign} b") for sign in COMPARISONS}
"""Guards of integers that are compared."""
OPERATIONS = (*FORMULAS, *REALS, *GUARDS)
"""What rows name by their place here."""
MOST_NUMBER, EXACT = 2.0**62, 2.0**53
ROW = 24

WORD, HALF, FLOAT, DOUBLE, ROUNDED, ADDRESS = range(6)
"""Kinds of what `fill` writes: of an integer an i64, an i32, an f32, an f64; of an f64 that as an f32 (its bits are an
i64); an address in the arena, or behind another base."""


@inline
def divisor(n, most):  # type: ignore[no-untyped-def]
    """See `base.selects.divisor`."""
    found = min(most, n) if n > 0 else most
    while found > 1 and n % found != 0:
        found -= 1
    return max(found, 0)


def _source() -> str:
    lines = [
        "def evaluate(p, tid, nthreads):",
        "    registers = p.registers",
        "    for i in range(p.first, p.last):",
        f"        row, y, to = p.ops + {ROW} * i, i64(0), registers + 8 * (p.base + i)",
        "        what, one, two = load_i64(row), registers + 8 * load_i64(row + 8), registers + 8 * load_i64(row + 16)",
        "        a, b, holds = load_i64(one), load_i64(two), True",
        "        u, v = view(one, 1, real)[0], view(two, 1, real)[0]",
    ]
    for number, (name, (formula, holds)) in enumerate({**FORMULAS, **REALS, **GUARDS}.items()):
        lines.append(f"        {'elif' if number else 'if'} what == {number}:")
        lines += [f"            view(to, 1, real)[0] = {formula}"] if name in REALS else [f"            y = {formula}"]
        lines += ["            y = load_i64(to)"] if name in REALS else []
        lines += [f"            holds = {holds}"] if holds else []
    lines += [
        "        store_i64(to, y)",
        "        if not holds:",
        "            store_i64(registers, 0)",
        "            return",
    ]
    return "\n".join(lines) + "\n"


evaluate = native_source(
    _source(), "evaluate", {"ops": PTR, "registers": PTR, "first": I64, "last": I64, "base": I64}, frozenset(),
    load_i64=load_i64, store_i64=store_i64, view=view, divisor=divisor, i64=np.int64, f64=np.float64, real=np.float64,
    most=MOST_NUMBER, exact=EXACT,
)  # fmt: skip
"""Operations ``first`` to ``last``."""


@native(rows=PTR, count=I64, registers=PTR, to=PTR, bases=PTR)
def fill(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Write registers into parameter records; rows: byte offset, kind, register.

    bases: addresses of arrays (their ``id``); kind ``ADDRESS + i`` is an address so many bytes behind the first element
    of the i-th of them.  rows: i64 [count][3] · registers: i64 or f64, by number · bases: i64 [arrays].
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
        elif kind == ROUNDED:
            store_f32(at, np.float32(view(p.registers + 8 * load_i64(row + 16), 1, np.float64)[0]))
        else:
            store_i64(at, y + load_i64(load_i64(p.bases + 8 * (kind - ADDRESS)) + DATA))


@native(unused=I64)
def nothing(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """In the place of a step that other sizes have."""


OF_TAPES = (evaluate, fill, nothing, *FILLERS.values())
"""Kernels that every tape may need."""
