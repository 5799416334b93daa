"""ByteTable: 64 lookups at a time where the table fits into four registers (AVX-512 VBMI), else one by one."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache

from bolt_numba.kernels.cpu.isa import target
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    load_u8,
    lookup_bytes,
    split,
    store_u8,
    tile_load,
    vload_i32,
    vstore,
)
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.jit import I64, PTR, Native, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.ops.arrays.byte_table import ENTRIES, ByteTable

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
    extents = lambda a: {"x": a.n, "y": a.n, "table": ENTRIES}  # noqa: E731
    return native(x=PTR, y=PTR, table=PTR, n=I64, extents=extents)(body)


@kernel(ByteTable, inplace=(0,))
def byte_table(op: ByteTable, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Any shape."""
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "table": In(1), "n": outs[0].size}
    return [Step(byte_lookup(), args, outs[0].size >= (16 if WIDE else 2) * PAYS_ELEMENTS)] if outs[0].size else []
