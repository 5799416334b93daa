"""Distances between rows: four rows against a panel of points, as a product would read them."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache

from bolt_numba.base.types import F32
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import PAYS_FLOPS
from bolt_numba.kernels.cpu.products.pack import PANEL, pack_b, pack_panels, panel_columns, source_rows
from bolt_numba.kernels.jit import I64, PTR, Native, native_source
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.products.distances import Distances

ROWS = 4
"""Rows that are compared with a panel together."""

_HEAD = """
def {name}(p, tid, nthreads):
    x, y, b, n, m, k = p.x, p.y, p.b, p.n, p.m, p.k
    tiles = ceil_div(n, {rows})
    first, last = split(tiles * ceil_div(m, PANEL), tid, nthreads)
    for item in range(first, last):
        panel, row = item // tiles, item % tiles * {rows}
        at, left = b + 4 * k * PANEL * panel, m - PANEL * panel
        to = y + 4 * (row * m + PANEL * panel)
"""


def _block(rows: int, width: int, power: int) -> list[str]:
    """Lines for ``rows`` rows and ``width`` vectors of points."""
    cells = [(i, j) for i in range(rows) for j in range(width)]
    lines = [f"a{i}{j} = splat(f32(0))" for i, j in cells]
    lines.append("for q in range(k):")
    lines += [f"    b{j} = vload(at + (q * {width} + {j}) * BYTES)" for j in range(width)]
    for i in range(rows):
        lines.append(f"    s = splat(load_f32(x{i} + 4 * q))")
        for j in range(width):
            lines.append(f"    d = s - b{j}")
            lines.append(f"    a{i}{j} = " + (f"fma(d, d, a{i}{j})" if power == 2 else f"a{i}{j} + vabs(d)"))
    for i in range(rows):
        lines.append(f"if row + {i} < n:")
        lines += [f"    vstore_n(to + 4 * {i} * m + {j} * BYTES, a{i}{j}, left - {j} * LANES)" for j in range(width)]
    return lines


@cache
def distances(rows: int, power: int) -> Native:
    """Kernel: x [n, k] against panels b of m points, as `pack.pack_b` makes them; y [n, m]."""
    name = f"distances_{rows}_{power}"
    lines = [f"x{i} = x + 4 * k * min(row + {i}, n - 1)" for i in range(rows)]
    for width, where in ((2, "if left > LANES:"), (1, "else:")):
        lines += [where, *("    " + line for line in _block(rows, width, power))]
    text = _HEAD.format(name=name, rows=rows) + "".join(f"        {line}\n" for line in lines)
    return native_source(
        text, name, {"x": PTR, "y": PTR, "b": PTR, "n": I64, "m": I64, "k": I64},
        extents=lambda a: {"x": 4 * a.n * a.k, "y": 4 * a.n * a.m, "b": 4 * a.k * panel_columns(a.m) if a.n else 0},
        PANEL=PANEL, **scope_of(text),
    )  # fmt: skip


def _accepts(op: Distances, ins: Types) -> bool:
    return all(t is not None and t.dtype == F32 for t in ins)


@kernel(Distances, accepts=_accepts)
def distances_f32(op: Distances, ins: Types, outs: Outs, context: Context) -> list[Step]:
    (n, k), m, known = ins[0].dims, ins[1].dims[1], ins[1].known
    steps: list[Step] = []
    panels: Argument
    if known is not None:
        panels = context.packed(known, "panels", lambda w: pack_panels(w, threads=context.threads))
    else:
        panels = Scratch(4 * k * panel_columns(m))
        args: dict[str, Argument] = {
            "b": In(1), "to": panels, "blocks": 1, "block": 4 * k * m, "rows": source_rows(1, k), "k": k, "n": m,
            "row": 4 * m, "column": 4, "alpha": 1.0,
        }  # fmt: skip
        steps.append(Step(pack_b, args, False))
    args = {"x": In(0), "y": Out(0), "b": panels, "n": n, "m": m, "k": k}
    return [*steps, Step(distances(1 if n == 1 else ROWS, op.power), args, 3 * n * m * k > PAYS_FLOPS)]
