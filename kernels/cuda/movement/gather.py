"""Gathers by indices that only the run knows, rows of any element size, and OneHot."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import I64, PTR, CudaKernel, ceil_div, cuda_kernel
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.division import divider, fast_divide
from bolt_numba.kernels.cuda.language.lang import cuda, load_f32, load_i32, load_i64
from bolt_numba.kernels.cuda.movement.index import MOST
from bolt_numba.kernels.cuda.movement.moves import THREADS, mover, widest
from bolt_numba.kernels.cuda.movement.places import (
    FIELDS,
    SCOPE_OF_PLACES,
    IndexForm,
    along_args,
    along_axis,
    along_rows,
    rows_args,
    tuples,
    tuples_args,
)
from bolt_numba.kernels.cuda.movement.table_gather import table_gather_steps
from bolt_numba.kernels.declare import Source, inline
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.geometry.transfers import MAX_TABLE, gather_tables, has_fixed_size, typed
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types, kernel, result_of
from bolt_numba.ops.arrays.gather import Gather, GatherElements, GatherND, OneHot
from bolt_numba.ops.registry import normalise_axis
from bolt_numba.types import F32, I32, TensorType
from bolt_numba.types import I64 as INT64

CHUNKS = dict.fromkeys(("count_all", "chunks", "mk", "hk"), I64)
"""Fields of kernels in which several threads share a row: all of them, those of a row, what `divider` gives for it."""


def chunk_args(count: int, run: int, unit: int) -> dict[str, Argument]:
    """Values of `CHUNKS` for ``count`` rows of ``run`` bytes, of which a thread takes ``unit``."""
    magic, shift = divider(max(run // unit, 1))
    return {"count_all": count * (run // unit), "chunks": run // unit, "mk": magic, "hk": shift}


def chunk_text(unit: int) -> str:
    """Statements that set u (index of the row) and c (bytes into it) of a thread ``t``."""
    return (
        "        u = fast_divide(t, mk, hk)\n"
        f"        c = {unit} * np.int64(np.uint32(t - u * np.uint32(chunks)))\n"
    )


THREAD = "    t = np.uint32(cuda.blockIdx.x * {threads} + cuda.threadIdx.x)\n"


def chunk_blocks(a: Any) -> int:
    return ceil_div(a.count_all, THREADS)


@cache
def gather_places(places: IndexForm, unit: int) -> CudaKernel:
    """Kernel that copies the rows that the indices mean, in the order of the indices."""
    name = f"gather_{places.key}_{8 * unit}"
    fields = {**FIELDS, **CHUNKS, **places.fields}
    text = (
        f"def {name}({', '.join(fields)}):\n"
        + THREAD.format(threads=THREADS)
        + "    if t < count_all:\n"
        + chunk_text(unit)
        + places.lines(2)
        + "        if row >= 0:\n"
        f"            move(data + row * run + c, dense + {unit} * np.int64(t))\n"
    )

    def reach(a: Any) -> dict[str, Reach]:
        index, rows = places.reach(a)
        return {"data": rows * a.run, "index": index, "dense": unit * a.count_all}

    source = Source(text, name, {**SCOPE_OF_PLACES, "move": mover(unit)})
    return CudaKernel(source, name, fields, threads=THREADS, blocks=chunk_blocks, extents=reach)


def _step(found: tuple[IndexForm, dict[str, Argument], int]) -> list[Step]:
    places, args, count = found
    run: Any = args["run"]
    unit = widest(run)
    args = args | chunk_args(count, run, unit) | {"data": In(0), "dense": Out(0)}
    return [Step(gather_places(places, unit), args)]


def _fits(op: Any, ins: Types) -> bool:
    if not has_fixed_size(op, ins) or not all(t is not None and t.is_static and t.size <= MOST for t in ins):
        return False
    return bool(result_of(op, ins).size <= MOST)


@kernel(Gather, device="cuda", accepts=_fits)
def gather(op: Gather, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Constant indices: a table; others: rows along the axis."""
    if not outs[0].size:
        return []
    known = typed(ins, 1).known
    if known is not None and known.size <= MAX_TABLE:
        return table_gather_steps(*gather_tables(op, ins), typed(ins).dtype.itemsize)
    return _step(rows_args(op, ins))


def _has_axes(op: Any, ins: Types) -> bool:
    return _fits(op, ins) and ins[0] is not None and ins[0].shape != ()


@kernel(GatherElements, device="cuda", accepts=_has_axes)
def gather_elements(op: GatherElements, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A thread for each element."""
    return _step(along_args(op, ins)) if outs[0].size else []


@kernel(GatherND, device="cuda", accepts=_fits)
def gather_nd(op: GatherND, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Several threads for each row."""
    return _step(tuples_args(op, ins)) if outs[0].size else []


# ------------------------------------------------------------------------------------------------------------- one-hot


@inline
def whole_of(number):
    """A number without its fraction; NaN and what no integer holds are nowhere."""
    return np.int64(number) if abs(number) < np.float32(1 << 62) else np.int64(1 << 62)


@cache
def set_hot(index_dtype: str, unit: int) -> CudaKernel:
    """Kernel of OneHot: y [outer, depth, inner] of elements of ``unit`` bytes; values: [2], off and on."""
    load, store = getattr(lang, f"load_u{8 * unit}"), getattr(lang, f"store_u{8 * unit}")
    size = 8 if index_dtype == "i64" else 4
    given_at, is_float = {"f32": load_f32, "i32": load_i32, "i64": load_i64}[index_dtype], index_dtype == "f32"
    numbers: dict[str, Any] = dict.fromkeys(("count", "depth", "inner", "mi", "hi", "md", "hd"), I64)

    @cuda_kernel(
        threads=THREADS, blocks=lambda a: ceil_div(a.count, THREADS), index=PTR, values=PTR, y=PTR, **numbers,
        extents=lambda a: {"index": size * (a.count // max(a.depth, 1)), "values": 2 * unit, "y": unit * a.count},
    )  # fmt: skip
    def one_hot(index, values, y, count, depth, inner, mi, hi, md, hd):
        t = np.uint32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
        if t < count:
            above = fast_divide(t, mi, hi)
            i = np.int64(np.uint32(t - above * np.uint32(inner)))
            o = fast_divide(above, md, hd)
            place = np.int64(np.uint32(above - o * np.uint32(depth)))
            number = given_at(index + size * (np.int64(o) * inner + i))
            given = whole_of(number) if is_float else np.int64(number)
            hot = given == place or given + depth == place
            store(y + unit * np.int64(t), load(values + (unit if hot else 0)))

    return one_hot


_INDEX = {F32: "f32", I32: "i32", INT64: "i64"}


def _one_hot(op: Any, ins: Types) -> bool:
    index, depth, values = ins[0], ins[1], ins[2]
    if index is None or depth is None or values is None or depth.known is None or not index.is_static:
        return False
    fits = index.size * max(int(depth.known.reshape(-1)[0]), 1) <= MOST
    return fits and index.dtype in _INDEX and has_fixed_size(op, [values]) and values.dtype.itemsize <= 8


@kernel(OneHot, device="cuda", accepts=_one_hot)
def one_hot(op: OneHot, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A thread for each element of the result."""
    index, values, out = typed(ins, 0), typed(ins, 2), outs[0]
    if not out.size:
        return []
    axis = normalise_axis(op, op.axis, len(out.dims))
    inner = math.prod(out.dims[axis + 1 :])
    args: dict[str, Argument] = {"index": In(0), "values": In(2), "y": Out(0), "count": out.size, "inner": inner}
    args["depth"] = out.dims[axis]
    args["mi"], args["hi"] = divider(inner)
    args["md"], args["hd"] = divider(out.dims[axis])
    return [Step(set_hot(_INDEX[index.dtype], values.dtype.itemsize), args)]


def samples() -> list[CudaKernel]:
    """A kernel of each kind, for the table of resources."""
    forms = [gather_places(along_rows(8), 16), gather_places(along_axis(8, 3), 4), gather_places(tuples(8, 2), 4)]
    return [*forms, set_hot("f32", 4), set_hot("i64", 4)]
