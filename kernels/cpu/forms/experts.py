"""Products of rows with the matrices that are chosen for each: rows are grouped by these, and no others are read.

A result is one sum over k in order, whichever rows share its matrix: neither threads nor other rows change a bit.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from bolt_numba.base.follow import fixed
from bolt_numba.base.types import BF16, F16, F32, AnyDType, Array
from bolt_numba.kernels.cpu.faults import report
from bolt_numba.kernels.cpu.forms.planes import Layout, pack_planes
from bolt_numba.kernels.cpu.forms.products import (
    TALL,
    indented,
    layout_of,
    middle_of,
    parts_of,
    record_bytes,
    round_rows,
    table_lines,
    table_of,
    tile_lines,
)
from bolt_numba.kernels.cpu.language.lang import (
    BYTES,
    LANES,
    fill_bytes,
    fma,
    load_i32,
    load_i64,
    native,
    native_source,
    reduce_add,
    splat,
    split,
    store_f32,
    store_i32,
    store_i64,
    vload,
    vload_bf16,
    vload_bf16_n,
    vload_f16,
    vload_f16_n,
    vload_n,
)  # fmt: skip
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.products.matmul import is_parallel
from bolt_numba.kernels.cpu.products.pack import PANEL
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import FAULT
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, Native
from bolt_numba.kernels.registry import Argument, Context, Fault, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.products.forms import FORMS
from bolt_numba.ops.layers.products.matmul_experts import MatMulExperts
from bolt_numba.ops.layers.products.matmul_forms import ROUNDED_TOGETHER

RUN = 24
"""Bytes of what `group_rows` says of a matrix that some rows have: which, the first of them, behind the last."""


def _grouped(a: Numbers) -> dict[str, Reach]:
    made: dict[str, Reach] = {"ids": a.step * a.count, "held": 4 * a.count, "counts": 8 * a.experts}
    return made | {"runs": 8 + RUN * a.experts, "order": 8 * a.count}


@native(ids=PTR, fault=FAULT, held=PTR, counts=PTR, runs=PTR, order=PTR, count=I64, step=I64, experts=I64, shared=I64,
        extents=_grouped)  # fmt: skip
def group_rows(p, tid, nthreads):
    """Rows by their matrices; one that is not there is reported, and the first stands in for it.

    ids: ``count`` integers of ``step`` bytes · held, counts: i32 [count], i64 [experts], workspace · runs: how many
    there are, then `RUN` bytes of each · order: i32 [count][2], rows of x and of y · shared: rows of y that
    have one of x.
    """
    if tid != 0:
        return
    fill_bytes(p.counts, np.uint8(0), 8 * p.experts)
    for i in range(p.count):  # each is read once, as others may write to them meanwhile
        expert = load_i64(p.ids + 8 * i) if p.step == 8 else np.int64(load_i32(p.ids + 4 * i))
        if expert < 0 or expert >= p.experts:
            report(p.fault, i, expert, 0, p.experts - 1)
            expert = np.int64(0)
        store_i32(p.held + 4 * i, np.int32(expert))
        store_i64(p.counts + 8 * expert, load_i64(p.counts + 8 * expert) + 1)
    found, begin = 0, 0
    for expert in range(p.experts):
        many = load_i64(p.counts + 8 * expert)
        store_i64(p.counts + 8 * expert, begin)
        if many > 0:
            run = p.runs + 8 + RUN * found
            store_i64(run, expert)
            store_i64(run + 8, begin)
            store_i64(run + 16, begin + many)
            found, begin = found + 1, begin + many
    store_i64(p.runs, found)
    for i in range(p.count):
        at = p.counts + 8 * load_i32(p.held + 4 * i)
        to = p.order + 8 * load_i64(at)
        store_i64(at, load_i64(at) + 1)
        store_i32(to, np.int32(i // p.shared))
        store_i32(to + 4, np.int32(i))


def _grouping(ids: Any, experts: int, shared: int) -> tuple[dict[str, Argument], Step]:
    """What products read, and the step that makes it."""
    made: dict[str, Argument] = {"runs": Scratch(8 + RUN * experts), "order": Scratch(8 * ids.size)}
    args: dict[str, Argument] = {
        "ids": In(2), "fault": Fault(2), "held": Scratch(4 * ids.size), "counts": Scratch(8 * experts),
        "count": ids.size, "step": ids.dtype.itemsize, "experts": experts, "shared": shared,
    }  # fmt: skip
    return made, Step(group_rows, args | made, False)


# -------------------------------------------------------------------------------------------------------------- planes


def _source(layout: Layout, height: int, planes: int) -> str:
    """Text of the kernel that takes tiles of ``height`` rows of a matrix, then single ones."""
    body = ["panels = ceil_div(p.n, 2 * LANES)", *table_lines(layout), "b0 = splat(np.float32(0))", "b1 = b0"]
    body += ["first, last = split(panels * load_i64(p.runs), tid, nthreads)", "for task in range(first, last):"]
    task = [f"run, panel = p.runs + 8 + {RUN} * (task // panels), task % panels", "j = panel * 2 * LANES"]
    task += ["matrix = p.w + p.panel * (load_i64(run) * panels + panel)"]
    task += ["at, end = p.order + 8 * load_i64(run + 8), p.order + 8 * load_i64(run + 16)"]
    for tall in dict.fromkeys((height, 1)):
        begin = ["w = matrix"]
        for r in range(tall):
            begin.append(f"x{r} = p.x + p.row * load_i32(at + {8 * r})")
            begin.append(f"row{r} = load_i32(at + {8 * r + 4})")
        tile = [*tile_lines(layout, range(tall), planes, begin), f"at += {8 * tall}"]
        task += [f"while at + {8 * tall} <= end:", *indented(tile)]
    return "\n".join(["def product_of_experts(p, tid, nthreads):", *indented([*body, *indented(task)])]) + "\n"


def _multiplied(a: Numbers) -> dict[str, Reach]:
    panels = -(-a.n // PANEL)
    return {
        "x": a.row * a.given, "w": a.panel * panels * a.experts, "y": 4 * a.rows * a.n, "table": BYTES,
        "runs": 8 + RUN * a.experts, "order": 8 * a.rows,
    }  # fmt: skip


@cache
def product(layout: Layout, height: int, planes: int) -> Native:
    """Kernel of tiles of up to ``height`` rows, of so many planes of bytes each.

    x: records by `round_rows`, ``row`` bytes for each of ``given`` rows · w: by `pack_planes` · runs, order: by
    `group_rows` · y: f32 [rows][n] · chunks: of a panel, of ``chunk`` units each · table: of codes, or 0.
    """
    fields: dict[str, Any] = {
        "x": PTR, "row": I64, "given": I64, "w": PTR, "panel": I64, "experts": I64, "runs": PTR, "order": PTR,
        "y": PTR, "n": I64, "rows": I64, "chunks": I64, "chunk": I64, "table": PTR_OR_0,
    }  # fmt: skip
    text = _source(layout, height, planes)
    return native_source(text, "product_of_experts", fields, extents=_multiplied, **scope_of(text))


def _accepts(op: MatMulExperts, ins: Types, plain: bool = False) -> bool:
    given: Any = ins
    is_plain = FORMS[op.form].plain is not None
    return is_plain == plain and all(t.is_static and t.size > 0 for t in given) and ins[1].known is not None


def _steps(op: MatMulExperts, ins: Types, context: Context, planes: int) -> list[Step]:
    x, raw, ids = ins[0], ins[1], ins[2]
    form, k, (experts, n, _) = FORMS[op.form], fixed(x.dims[-1]), raw.dims
    layout, given = layout_of(form), x.size // k
    height = TALL[planes - 1] if ids.size > experts else 1  # fewer rows than matrices rarely share one
    chunks = -(-k // layout.chunk)
    row, panel = chunks * (layout.chunk // layout.unit) * record_bytes(layout.unit, planes), layout.panel_bytes(k)

    def pack(array: Array) -> Array:
        flat = array.reshape(experts * n, -1)
        return pack_planes(layout, n, k, lambda rows: parts_of(form, flat[rows]), experts)

    records, (made, grouping) = Scratch(row * given), _grouping(ids, experts, ids.size // given)
    rounding: dict[str, Argument] = {
        "x": In(0), "to": records, "rows": given, "padded": given, "k": k,
        "groups": chunks * (layout.chunk // ROUNDED_TOGETHER), "middle": middle_of(layout, planes),
    }  # fmt: skip
    main: dict[str, Argument] = made | {
        "x": records, "row": row, "given": given, "w": context.packed(raw.known, ("experts", op.form), pack),
        "panel": panel, "experts": experts, "y": Out(0), "n": n, "rows": ids.size, "chunks": chunks,
        "chunk": layout.chunk // layout.unit, "table": table_of(layout),
    }  # fmt: skip
    return [
        grouping,
        Step(round_rows(layout.unit, planes), rounding, is_parallel(context, 0, 4 * x.size)),
        Step(product(layout, height, planes), main, is_parallel(context, 2 * ids.size * n * k, panel * n // PANEL)),
    ]


@kernel(MatMulExperts, accepts=_accepts)
def experts_strict(op: MatMulExperts, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Rounds x to 24 bits, as many as floats have."""
    return _steps(op, ins, context, 3)


@kernel(MatMulExperts, accepts=_accepts, numerics="default", rank=1)
def experts_of_forms(op: MatMulExperts, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Rounds x to 16 bits, then multiplies bytes."""
    return _steps(op, ins, context, 2)


# -------------------------------------------------------------------------------------------------------------- floats

LOADS = {F32: (vload, vload_n), F16: (vload_f16, vload_f16_n), BF16: (vload_bf16, vload_bf16_n)}
"""Words that read a vector of weights, and some of one, as f32."""
SUMS = 4
"""Vectors of partial sums of a row: as many additions are under way."""


def _of_floats(size: int, a: Numbers) -> dict[str, Reach]:
    return {
        "x": 4 * a.k * a.given, "w": size * a.k * a.n * a.experts, "y": 4 * a.rows * a.n,
        "runs": 8 + RUN * a.experts, "order": 8 * a.rows,
    }  # fmt: skip


@cache
def product_of_floats(plain: AnyDType) -> Native:
    """Kernel that takes each row of a matrix, as it is stored, with all rows of x that have it.

    x: f32 [given][k] · w: [experts][n][k] · runs, order: by `group_rows` · y: f32 [rows][n].
    """
    (whole, part), size = LOADS[plain], plain.itemsize

    @native(x=PTR, w=PTR, runs=PTR, order=PTR, y=PTR, k=I64, n=I64, experts=I64, given=I64, rows=I64,
            extents=partial(_of_floats, size))  # fmt: skip
    def product_of_float_experts(p, tid, nthreads):
        k, end = p.k, p.k // (SUMS * LANES) * (SUMS * LANES)
        first, last = split(p.n * load_i64(p.runs), tid, nthreads)
        for task in range(first, last):
            run, j = p.runs + 8 + RUN * (task // p.n), task % p.n
            row = p.w + size * k * (p.n * load_i64(run) + j)
            for i in range(load_i64(run + 8), load_i64(run + 16)):
                x, w = p.x + 4 * k * load_i32(p.order + 8 * i), row
                a, b, c, d = splat(np.float32(0)), splat(np.float32(0)), splat(np.float32(0)), splat(np.float32(0))
                for _ in range(0, end, SUMS * LANES):
                    a = fma(vload(x), whole(w), a)
                    b = fma(vload(x + BYTES), whole(w + size * LANES), b)
                    c = fma(vload(x + 2 * BYTES), whole(w + 2 * size * LANES), c)
                    d = fma(vload(x + 3 * BYTES), whole(w + 3 * size * LANES), d)
                    x, w = x + SUMS * BYTES, w + SUMS * size * LANES
                for q in range(end, k, LANES):
                    a = fma(vload_n(x, k - q), part(w, k - q), a)
                    x, w = x + BYTES, w + size * LANES
                store_f32(p.y + 4 * (p.n * load_i32(p.order + 8 * i + 4) + j), reduce_add((a + b) + (c + d)))

    made: Native = product_of_float_experts
    return made


@kernel(MatMulExperts, accepts=partial(_accepts, plain=True))
def experts_of_floats(op: MatMulExperts, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Weights of 16 or 32 bits, widened in registers."""
    x, raw, ids = ins[0], ins[1], ins[2]
    k, (experts, n, _) = x.dims[-1], raw.dims
    given = x.size // k
    made, grouping = _grouping(ids, experts, ids.size // given)
    main = made | {
        "x": In(0), "w": In(1), "y": Out(0), "k": k, "n": n, "experts": experts, "given": given, "rows": ids.size,
    }  # fmt: skip
    program = product_of_floats(FORMS[op.form].plain or F32)
    return [grouping, Step(program, main, is_parallel(context, 2 * ids.size * n * k, raw.nbytes))]
