"""Lookups in tables: a thread looks up a few."""

from __future__ import annotations

import functools

from bolt_numba.kernels.common.tables import UNITS, Lookup
from bolt_numba.kernels.cuda.declare import I64, PTR, WIDE_BLOCK, CudaKernel, ceil_div
from bolt_numba.kernels.cuda.elementwise.scalars import scope_of
from bolt_numba.kernels.declare import Source
from bolt_numba.kernels.registry import Argument, Step

PER = 4
"""Elements of a thread."""


@functools.cache
def lookup(form: Lookup) -> CudaKernel:
    """``y[i] = table[index of x[i]]``."""
    source, index, unit, size = form.source, form.index, form.unit, form.size
    entry = UNITS[unit]
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
    text = "\n".join([f"def {form.name}(x, y, table, n):", *(f"    {line}" for line in lines)]) + "\n"
    return CudaKernel(
        Source(text, form.name, {**scope_of(text)}), form.name, {"x": PTR, "y": PTR, "table": PTR, "n": I64},
        threads=WIDE_BLOCK, blocks=lambda a: ceil_div(a.n, PER * WIDE_BLOCK),
        extents=lambda a: {"x": size * a.n, "y": unit * a.n, "table": form.nbytes},
    )  # fmt: skip


def step(form: Lookup, args: dict[str, Argument]) -> Step:
    """Entries of a table for ``n`` elements."""
    return Step(lookup(form), args)
