"""Cast from and to floats of 8 and 4 bits and integers of less than a byte: by tables that the reference fills."""

from __future__ import annotations

from functools import lru_cache

from bolt_numba.base.types import AnyDType
from bolt_numba.kernels.cpu.language.lang import native_source
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.cast_tables import UNITS, cast_table, has_table, table_form
from bolt_numba.kernels.geometry.unseen import tested
from bolt_numba.kernels.jit import I64, PTR, Native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.ops.pointwise import Cast
from bolt_numba.ops.pointwise.row import Pointwise


def _text(name: str, source: str, index: str, unit: int) -> str:
    return f"""
def {name}(p, tid, nthreads):
    lo, hi = split(p.n, tid, nthreads)
    count = hi - lo
    x = view(p.x + p.unit * lo, count, {source})
    y, table = view(p.y + {unit} * lo, count, {UNITS[unit]}), view(p.table, 65536, {UNITS[unit]})
    for i in range(count):
        v = {index.format(x="x[i]")}
        y[i] = table[v]
"""


@lru_cache(maxsize=64)
def _kernel(source: str, index: str, unit: int) -> Native:
    kind = "low_byte" if "255" in index else "odd" if "65535" in index else "bits"
    name = f"lookup_{source}_{kind}_{8 * unit}"
    text = _text(name, source, index, unit)
    fields = {"x": PTR, "y": PTR, "table": PTR, "n": I64, "unit": I64}
    places = 256 if source == "u8" or kind == "low_byte" else 65536

    def reach(a: Numbers) -> dict[str, Reach]:
        return {"x": a.unit * a.n, "y": unit * a.n, "table": unit * places}

    return native_source(text, name, fields, extents=reach, **scope_of(text))


def table_step(op: Pointwise, source: AnyDType, target: AnyDType, x: Argument, y: Argument, n: int) -> Step:
    """The step of a Cast that `table_form` knows, of ``n`` elements."""
    read, index, numbers = tested(table_form(source, target))
    table = cast_table(op, numbers)
    args: dict[str, Argument] = {"x": x, "y": y, "table": table.view(f"u{table.itemsize}"), "n": n}
    return Step(_kernel(read, index, target.itemsize), args | {"unit": source.itemsize}, n >= PAYS_ELEMENTS)


@kernel(Cast, accepts=has_table)
def cast_by_table(op: Pointwise, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """One table for each pair of dtypes and rounding."""
    x = ins[0]
    return [table_step(op, x.dtype, outs[0].dtype, In(0), Out(0), x.size)] if x.size else []
