"""CumSum and CumProd: running sums and products along one axis, of any plain dtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.cpu.reductions.reduce import generated
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.geometry.reduced import around_axis
from bolt_numba.kernels.jit import I64, PTR
from bolt_numba.kernels.registry import Argument, Context, In, Out, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.reduce import CumProd, CumSum
from bolt_numba.ops.registry import normalise_axis
from bolt_numba.types import F32, F64, AnyDType, TensorType, dtype_name

PARALLEL_ELEMENTS = PAYS_ELEMENTS
"""Elements from which a second thread pays."""
COLUMNS = 512
"""Columns that run together."""
ROWS = 4
"""Lines that run together: within a line of floats each result waits for the one before."""
FEW_COLUMNS = 9
"""Columns under which `ROWS` of them run as lines do, in registers."""


@dataclass(frozen=True, slots=True)
class PrefixOp:
    """What is compiled for one operator, dtype and direction."""

    dtype: AnyDType
    sums: bool
    reverse: bool
    exclusive: bool

    @property
    def name(self) -> str:
        parts = ("cumsum" if self.sums else "cumprod", dtype_name(self.dtype))
        return "_".join((*parts, *("reverse",) * self.reverse, *("exclusive",) * self.exclusive))

    @property
    def total(self) -> str:
        """Dtype of what is carried along a line: to cut it down at each element would cost as much as adding."""
        return {"i": "i64", "u": "u64"}.get(self.dtype.kind, dtype_name(self.dtype))

    @property
    def start(self) -> int:
        return int(not self.sums)

    @property
    def sign(self) -> str:
        return "+" if self.sums else "*"

    @property
    def place(self) -> str:
        return "n - 1 - i" if self.reverse else "i"

    def lines_text(self, lines: int, first: str, step: str = "1", indent: int = 12) -> str:
        """As many lines, an element of each in turn; ``first``: where line {j} begins; step: to its next element."""
        t = dtype_name(self.dtype)
        made = []
        for j in range(lines):
            made += [f"{v}{j} = view(p.{v} + {self.dtype.itemsize} * ({first.format(j=j)}), n, {t})" for v in "xy"]
            made.append(f"t{j} = {self.total}({self.start})")
        made += ["for i in range(n):", f"    at = ({self.place}) * {step}"]
        for j in range(lines):
            body = [f"    v{j} = x{j}[at]", f"    y{j}[at] = {t}(t{j})"]
            body.insert(1 + self.exclusive, f"    t{j} = {self.total}(t{j} {self.sign} v{j})")
            made += body
        return "\n".join(" " * indent + line for line in made)

    def text(self) -> str:
        """``[outer, n, inner]`` along axis 1; room: 8 `COLUMNS` bytes for each thread.

        grouped: items of `ROWS` lines each, where inner is 1; the lines that are left, or blocks of columns, follow.
        """
        t, unit = dtype_name(self.dtype), self.dtype.itemsize
        return f"""
def {self.name}(p, tid, nthreads):
    n, inner, blocks, grouped = p.n, p.inner, p.blocks, p.grouped
    first, last = split(grouped + (p.outer - {ROWS} * grouped) * blocks, tid, nthreads)
    for item in range(first, last):
        if item < grouped:
            o = item * {ROWS}
{self.lines_text(ROWS if self.dtype.kind == "f" else 1, "(o + {j}) * n")}
            continue
        o = (item + {ROWS - 1} * grouped) // blocks
        if inner == 1:
{self.lines_text(1, "o * n")}
            continue
        if inner < {FEW_COLUMNS}:
            base = o * n * inner
            for c in range(0, inner - {ROWS - 1}, {ROWS}):
{self.lines_text(ROWS, "base + c + {j}", "inner", 16)}
            for c in range(inner - inner % {ROWS}, inner):
{self.lines_text(1, "base + c", "inner", 16)}
            continue
        column = (item - o * blocks) * {COLUMNS}
        width = min(inner - column, {COLUMNS})
        totals = view(p.room + {8 * COLUMNS} * tid, width, {t})
        for j in range(width):
            totals[j] = {t}({self.start})
        for i in range(n):
            row = o * n + {self.place}
            x = view(p.x + {unit} * (row * inner + column), width, {t})
            y = view(p.y + {unit} * (row * inner + column), width, {t})
            for j in range(width):
                before = totals[j]
                totals[j] = {t}(before {self.sign} x[j])
                y[j] = {"before" if self.exclusive else "totals[j]"}
"""


_FIELDS = dict.fromkeys(("x", "y", "room"), PTR) | dict.fromkeys(("outer", "n", "inner", "blocks", "grouped"), I64)


def _reach(unit: int, a: Any) -> dict[str, Reach]:
    count = unit * a.outer * a.n * a.inner
    return {"x": count, "y": count, "room": 8 * COLUMNS * a.threads}


def _accepts(op: CumSum | CumProd, ins: Types) -> bool:
    x, axis = ins[0], ins[1]
    if x is None or axis is None or axis.known is None or not x.is_static or not x.dims:
        return False
    return x.dtype.kind in "iu" or x.dtype in (F32, F64)


@kernel(CumSum, CumProd, accepts=_accepts, inplace=(0,))
def running(op: CumSum | CumProd, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Lines in order, some floats' side by side; beside the last axis blocks of columns, row after row."""
    x, axis = ins[0], ins[1]
    assert x is not None, "accepts() has tested this"
    assert axis is not None, "accepts() has tested this"
    assert axis.known is not None, "accepts() has tested this"
    if not x.size:
        return []
    outer, n, inner = around_axis(x.dims, normalise_axis(op, int(axis.known.reshape(-1)[0]), len(x.dims)))
    scan = PrefixOp(x.dtype, isinstance(op, CumSum), bool(op.reverse), bool(op.exclusive))
    made = generated(scan.text(), scan.name, partial(_reach, x.dtype.itemsize), **_FIELDS)
    blocks, grouped = -(-inner // COLUMNS), outer // ROWS if inner == 1 and x.dtype.kind == "f" else 0
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "room": Scratch(8 * COLUMNS * context.threads)}
    args |= {"outer": outer, "n": n, "inner": inner, "blocks": blocks, "grouped": grouped}
    return [Step(made, args, (outer * n * inner > PARALLEL_ELEMENTS) & (outer * blocks > 1))]
