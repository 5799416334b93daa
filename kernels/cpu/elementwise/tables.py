"""Lookups in tables: of bytes 64 at a time where the table fits into four registers (AVX-512 VBMI), else one by one."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache
from typing import Any

from bolt_numba.kernels.common.tables import UNITS, Lookup
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    load_u8,
    lookup_bytes,
    native_source,
    split,
    store_u8,
    tile_load,
    vload_i32,
    vstore,
)
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import I64, PTR, Native, native
from bolt_numba.kernels.registry import Argument, Step
from bolt_numba.ops.arrays.byte_table import ENTRIES

WIDE = target().has_vbmi


@cache
def byte_lookup() -> Native:
    """Kernel of bytes to bytes; y may be x."""

    def body(p, tid, nthreads):
        x, y, table = p.x, p.y, p.table
        i, end = split(p.n, tid, nthreads)
        if WIDE:
            entries = tile_load(4, 1, table, BYTES)
            while end - i >= BYTES:
                vstore(y + i, lookup_bytes(entries, vload_i32(x + i)))
                i += BYTES
        while i < end:
            store_u8(y + i, load_u8(table + load_u8(x + i)))
            i += 1

    body.__name__ = "byte_lookup"
    return native(x=PTR, y=PTR, table=PTR, n=I64, extents=lambda a: {"x": a.n, "y": a.n, "table": ENTRIES})(body)


def _text(form: Lookup) -> str:
    return f"""
def {form.name}(p, tid, nthreads):
    lo, hi = split(p.n, tid, nthreads)
    count = hi - lo
    x = view(p.x + p.unit * lo, count, {form.source})
    y, table = view(p.y + {form.unit} * lo, count, {UNITS[form.unit]}), view(p.table, 65536, {UNITS[form.unit]})
    for i in range(count):
        v = {form.index.format(x="x[i]")}
        y[i] = table[v]
"""


@cache
def lookup(form: Lookup) -> Native:
    """The kernel of any elements; unit: bytes of one."""
    text, fields = _text(form), {"x": PTR, "y": PTR, "table": PTR, "n": I64, "unit": I64}

    def reach(a: Any) -> dict[str, Reach]:
        return {"x": a.unit * a.n, "y": form.unit * a.n, "table": form.nbytes}

    return native_source(text, form.name, fields, extents=reach, **scope_of(text))


def step(form: Lookup, args: dict[str, Argument]) -> Step:
    """Entries of a table for ``n`` elements."""
    n: Any = args["n"]
    if form.source == "u8" and form.unit == 1:
        return Step(byte_lookup(), args, n >= (16 if WIDE else 2) * PAYS_ELEMENTS)
    return Step(lookup(form), args | {"unit": form.size}, n >= PAYS_ELEMENTS)
