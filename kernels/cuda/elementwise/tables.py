"""ByteTable, and casts of narrow numbers by the tables of `kernels.geometry.cast_tables`: a thread looks up a few."""

from __future__ import annotations

import functools

from bolt_numba.kernels.cuda.declare import I64, PTR, WIDE_BLOCK, CudaKernel, ceil_div
from bolt_numba.kernels.cuda.elementwise.scalars import scope_of
from bolt_numba.kernels.declare import Source
from bolt_numba.kernels.geometry.cast_tables import UNITS, cast_table, has_table, table_form
from bolt_numba.kernels.geometry.unseen import tested
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.ops.arrays.byte_table import ENTRIES, ByteTable
from bolt_numba.ops.pointwise import Cast
from bolt_numba.ops.pointwise.row import Pointwise

PER = 4
"""Elements of a thread."""
_SIZES = {"u8": 1, "i8": 1, "u16": 2, "i16": 2, "f32": 4, "i32": 4, "u32": 4, "f64": 8, "i64": 8, "u64": 8}


@functools.cache
def lookup(source: str, index: str, unit: int) -> CudaKernel:
    """``y[i] = table[index of x[i]]``: elements of ``source``, entries of ``unit`` bytes."""
    entry, size = UNITS[unit], _SIZES[source]
    item = [f"v{{e}} = {index.format(x='q[{e}]')}", f"r{{e}} = load_{entry}(table + (v{{e}}) * {unit})"]
    wide = [line.format(e=e) for e in range(PER) for line in item]
    stored = ", ".join(f"r{e}" for e in range(PER))
    has_wide = PER * max(size, unit) <= 16
    lines = [
        f"item = u32(cuda.blockIdx.x) * u32({WIDE_BLOCK}) + u32(cuda.threadIdx.x)",
        f"lo = i64(item) * {PER}",
        f"if (lo + {PER} <= n) & (((x & {PER * size - 1}) | (y & {PER * unit - 1})) == 0):"
        if has_wide
        else "if False:",
        f"    q = load{PER}_{source}(x + lo * {size})" if has_wide else "    pass",
        *([f"    {line}" for line in wide] if has_wide else []),
        *([f"    store{PER}_{entry}(y + lo * {unit}, {stored})"] if has_wide else []),
        "else:",
        f"    for i in range(lo, min(lo + {PER}, n)):",
        f"        q = load_{source}(x + i * {size})",
        f"        v = {index.format(x='q')}",
        f"        store_{entry}(y + i * {unit}, load_{entry}(table + v * {unit}))",
    ]
    kind = "low_byte" if "255" in index else "odd" if "65535" in index else "bits"
    name = f"lookup_{source}_{kind}_{8 * unit}"
    text = "\n".join([f"def {name}(x, y, table, n):", *(f"    {line}" for line in lines)]) + "\n"
    places = ENTRIES if source == "u8" or kind == "low_byte" else 65536
    return CudaKernel(
        Source(text, name, {**scope_of(text)}), name, {"x": PTR, "y": PTR, "table": PTR, "n": I64}, threads=WIDE_BLOCK,
        blocks=lambda a: ceil_div(a.n, PER * WIDE_BLOCK),
        extents=lambda a: {"x": size * a.n, "y": unit * a.n, "table": unit * places},
    )  # fmt: skip


@kernel(ByteTable, device="cuda", inplace=(0,))
def byte_table(op: ByteTable, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Any shape."""
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "table": In(1), "n": outs[0].size}
    return [Step(lookup("u8", "i64({x})", 1), args)] if outs[0].size else []


@kernel(Cast, device="cuda", accepts=has_table)
def cast_by_table(op: Pointwise, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """One table for each pair of dtypes and rounding."""
    x = ins[0]
    form = table_form(x.dtype, outs[0].dtype)
    if not x.size:
        return []
    source, index, numbers = tested(form)
    table, unit = cast_table(op, numbers), outs[0].dtype.itemsize
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "table": table.view(f"u{unit}"), "n": x.size}
    return [Step(lookup(source.replace("bool", "u8"), index, unit), args)]


def samples() -> list[CudaKernel]:
    """Bytes, and floats to bytes."""
    return [lookup("u8", "i64({x})", 1), lookup("i32", "(({x} >> 16) & 65535) | (({x} & 65535) != 0)", 1)]
