"""ScatterElements and ScatterND: a copy, then updates by indices that only the run knows.

Of several updates of one place the last one stays.  So without a reduction every update first claims its place, in
memory of the step, and the highest number is the one that writes.  Sums of f32, i32 and i64 are atomic additions,
whose order differs from run to run; sessions of ``numerics="strict"`` and the other reductions go through the updates
in order, by a thread for each line of places that have nothing to do with those of another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from bolt_numba.kernels.cuda.declare import I64, PTR, CudaKernel
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import atomic_max_i32, load_i32, store_i32
from bolt_numba.kernels.cuda.movement.gather import CHUNKS, THREAD, chunk_args, chunk_blocks, chunk_text
from bolt_numba.kernels.cuda.movement.index import MOST
from bolt_numba.kernels.cuda.movement.moves import THREADS, carried, mover, widest
from bolt_numba.kernels.cuda.movement.places import FIELDS, SCOPE_OF_PLACES, IndexForm, along_args, tuples, tuples_args
from bolt_numba.kernels.declare import Source
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.geometry.transfers import Transfer, has_fixed_size, typed, whole
from bolt_numba.kernels.registry import Argument, Context, In, Out, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.gather import ScatterElements, ScatterND
from bolt_numba.ops.registry import normalise_axis
from bolt_numba.types import BF16, F16, F32, F64, I32, TensorType, dtype_name
from bolt_numba.types import I64 as INT64

_COMBINED = {
    "add": "old + new",
    "mul": "old * new",
    "max": "new if new > old or new != new else old",
    "min": "new if new < old or new != new else old",
}
_REDUCED = (F32, F16, BF16, F64, I32, INT64)
_ADDED = (F32, I32, INT64)
"""Numbers that memory adds up."""


def _made(name: str, places: IndexForm, fields: dict[str, Any], text: str, **scope: Any) -> CudaKernel:
    """A kernel whose threads ``t`` of ``count_all`` run the lines of ``text``."""
    head = f"def {name}({', '.join(fields)}):\n{THREAD.format(threads=THREADS)}    if t < count_all:\n"

    def reach(a: Any) -> dict[str, Reach]:
        index, rows = places.reach(a)
        made: dict[str, Reach] = {"index": index}
        if "data" in fields:
            made |= {"data": rows * a.run, "dense": a.nbytes}
        return made | ({"claims": 4 * rows} if "claims" in fields else {})

    source = Source(head + text, name, {**SCOPE_OF_PLACES, **scope})
    return CudaKernel(source, name, fields, threads=THREADS, blocks=chunk_blocks, extents=reach)


@cache
def claim(places: IndexForm, clears: bool) -> CudaKernel:
    """Kernel of a thread for each index: its place is claimed by the highest number, or first by none."""
    name = f"{'clear' if clears else 'claim'}_{places.key}"
    fields = {"claims": PTR, "index": PTR, "fault": FIELDS["fault"], "count_all": I64, **places.fields}
    done = "store_i32(claims + 4 * row, -1)" if clears else "atomic_max_i32(claims + 4 * row, t)"
    text = f"        u = t\n{places.lines(2)}        if row >= 0:\n            {done}\n"
    return _made(name, places, fields, text, store_i32=store_i32, atomic_max_i32=atomic_max_i32)


@cache
def write_claimed(places: IndexForm, unit: int) -> CudaKernel:
    """Kernel that writes the rows of the updates that hold their places."""
    name = f"scatter_{places.key}_{8 * unit}"
    fields = {**FIELDS, "claims": PTR, "nbytes": I64, **CHUNKS, **places.fields}
    text = (
        f"{chunk_text(unit)}{places.lines(2)}        if row >= 0 and load_i32(claims + 4 * row) == np.int64(u):\n"
        f"            move(dense + {unit} * np.int64(t), data + row * run + c)\n"
    )
    return _made(name, places, fields, text, load_i32=load_i32, move=mover(unit))


@cache
def add_places(places: IndexForm, dtype: str, unit: int) -> CudaKernel:
    """Kernel that adds every element of the updates to its place."""
    name = f"scatter_atomically_{places.key}_{dtype}"
    fields = {**FIELDS, "nbytes": I64, **CHUNKS, **places.fields}
    text = (
        f"{chunk_text(unit)}{places.lines(2)}        if row >= 0:\n"
        f"            add(data + row * run + c, load(dense + {unit} * np.int64(t)))\n"
    )
    scope = {"add": getattr(lang, f"atomic_add_{dtype}"), "load": getattr(lang, f"load_{dtype}")}
    return _made(name, places, fields, text, **scope)


@cache
def reduce_in_order(places: IndexForm, dtype: str, unit: int, reduction: str) -> CudaKernel:
    """Kernel of a thread for each line of ``n`` updates, ``inner`` apart, or for each element of all rows.

    by_rows: whether thread t is element t of every row; else it is line t, of updates of one element.
    """
    name = f"scatter_{reduction}_{places.key}_{dtype}"
    fields = {**FIELDS, "nbytes": I64, "count_all": I64, "n": I64, "inner": I64, "by_rows": I64, **places.fields}
    text = (
        "        lane = np.int64(t)\n"
        f"        c = {unit} * lane if by_rows else np.int64(0)\n"
        "        first = np.int64(0) if by_rows else lane // inner * (n * inner) + lane % inner\n"
        "        for k in range(n):\n"
        "            u = np.uint32(first + k * inner)\n"
        f"{places.lines(3)}"
        "            if row >= 0:\n"
        "                there = data + row * run + c\n"
        "                old, new = load(there), load(dense + np.int64(u) * run + c)\n"
        f"                store(there, {_COMBINED[reduction]})\n"
    )
    scope = {"load": getattr(lang, f"load_{dtype}"), "store": getattr(lang, f"store_{dtype}")}
    return _made(name, places, fields, text, **scope)


def _claimed_steps(places: IndexForm, args: dict[str, Argument], count: int, x: TensorType) -> list[Step]:
    run: Any = args["run"]
    claims, unit = Scratch(4 * (x.nbytes // run)), widest(run)
    each = {n: args[n] for n in ("index", "fault", *places.fields)} | {"claims": claims, "count_all": count}
    last = args | chunk_args(count, run, unit) | {"claims": claims}
    return [*(Step(claim(places, clears), each) for clears in (True, False)), Step(write_claimed(places, unit), last)]


def _steps(
    op: Any, ins: Types, context: Context, found: tuple[IndexForm, dict[str, Argument], int], lines: dict[str, Argument]
) -> list[Step]:
    """A copy of x, then the updates; lines: how they are shared where order matters."""
    x, updates = typed(ins), typed(ins, 2)
    copied = carried([Transfer(whole(x.nbytes), In(0), Out(0))])
    if not updates.size:
        return copied
    places, args, count = found
    args = args | {"data": Out(0), "dense": In(2), "nbytes": updates.nbytes}
    if op.reduction == "none":
        return [*copied, *_claimed_steps(places, args, count, x)]
    dtype, unit, run = dtype_name(x.dtype), x.dtype.itemsize, args["run"]
    assert isinstance(run, int)
    if op.reduction == "add" and x.dtype in _ADDED and (x.dtype != F32 or context.numerics != "strict"):
        return [*copied, Step(add_places(places, dtype, unit), args | chunk_args(count, run, unit))]
    return [*copied, Step(reduce_in_order(places, dtype, unit, op.reduction), args | lines)]


def _accepts(op: Any, ins: Types) -> bool:
    x = ins[0]
    if x is None or not has_fixed_size(op, ins) or not x.dims or not x.size:
        return False
    if not all(t is not None and t.is_static and t.size <= MOST for t in ins):
        return False
    return op.reduction == "none" or x.dtype in _REDUCED


@kernel(ScatterElements, device="cuda", accepts=_accepts, inplace=(0,))
def scatter_elements(op: ScatterElements, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Lines go along the axis: updates of different lines never meet."""
    index = typed(ins, 1)
    axis = normalise_axis(op, op.axis, len(index.dims))
    n, inner = index.dims[axis], math.prod(index.dims[axis + 1 :])
    lines: dict[str, Argument] = {"n": n, "inner": inner, "by_rows": 0, "count_all": index.size // max(n, 1)}
    return _steps(op, ins, context, along_args(op, ins), lines)


@kernel(ScatterND, device="cuda", accepts=_accepts, inplace=(0,))
def scatter_nd(op: ScatterND, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Where order matters, a thread takes one element of every row."""
    places, args, count = tuples_args(op, ins)
    assert isinstance(args["run"], int)
    elements = args["run"] // typed(ins).dtype.itemsize
    lines: dict[str, Argument] = {"n": count, "inner": 1, "by_rows": 1, "count_all": elements}
    return _steps(op, ins, context, (places, args, count), lines)


def samples() -> list[CudaKernel]:
    """A kernel of each kind, for the table of resources."""
    form = tuples(8, 2)
    kinds = [claim(form, True), claim(form, False), write_claimed(form, 16), add_places(form, "f32", 4)]
    return [*kinds, reduce_in_order(form, "f16", 2, "max")]
