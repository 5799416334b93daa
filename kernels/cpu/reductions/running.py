"""Running sums and products along one axis, of any plain dtype."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from bolt_numba.base.types import AnyDType, dtype_name
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.cpu.reductions.reduce import generated
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.jit import I64, PTR
from bolt_numba.kernels.registry import Argument, In, Out, Scratch, Step
from bolt_numba.ops.arrays.reduce import CumProd, CumSum

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


def _reach(unit: int, a: Numbers) -> dict[str, Reach]:
    count = unit * a.outer * a.n * a.inner
    return {"x": count, "y": count, "room": 8 * COLUMNS * a.threads}


def step(op: CumSum | CumProd, dtype: AnyDType, form: tuple[int, int, int], threads: int) -> Step:
    """Lines in order, some floats' side by side; beside the last axis blocks of columns, row after row."""
    outer, n, inner = form
    scan = PrefixOp(dtype, isinstance(op, CumSum), bool(op.reverse), bool(op.exclusive))
    made = generated(scan.text(), scan.name, partial(_reach, dtype.itemsize), **_FIELDS)
    blocks, grouped = -(-inner // COLUMNS), outer // ROWS if inner == 1 and dtype.kind == "f" else 0
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "room": Scratch(8 * COLUMNS * threads)}
    args |= {"outer": outer, "n": n, "inner": inner, "blocks": blocks, "grouped": grouped}
    return Step(made, args, (outer * n * inner > PAYS_ELEMENTS) & (outer * blocks > 1))
