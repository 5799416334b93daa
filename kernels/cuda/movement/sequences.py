"""ReverseSequence and TensorScatter: rows that move to places which lengths and starts decide, any dtype."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import I64, PTR, PTR_OR_0, CudaKernel, cuda_kernel
from bolt_numba.kernels.cuda.faults import FAULT_AT, report
from bolt_numba.kernels.cuda.language.division import divider, fast_divide
from bolt_numba.kernels.cuda.language.lang import cuda, load_i32, load_i64
from bolt_numba.kernels.cuda.movement.gather import CHUNKS, chunk_args, chunk_blocks
from bolt_numba.kernels.cuda.movement.index import MOST
from bolt_numba.kernels.cuda.movement.moves import THREADS, carried, mover, widest
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.geometry.transfers import Transfer, has_fixed_size, typed, whole
from bolt_numba.kernels.registry import Argument, Context, Fault, In, Out, Step, Types, kernel
from bolt_numba.ops.arrays.slicing import ReverseSequence
from bolt_numba.ops.layers.cache import TensorScatter
from bolt_numba.ops.registry import normalise_axis
from bolt_numba.types import TensorType

_NUMBERS: dict[str, Any] = {**CHUNKS, "run": I64}


def _fits(op: Any, ins: Types) -> bool:
    return has_fixed_size(op, ins) and all(t is None or (t.is_static and t.size <= MOST) for t in ins)


@cache
def reverse_rows(unit: int, step: int, time_first: bool) -> CudaKernel:
    """Kernel of ReverseSequence: x, y [d, e] rows of ``run`` bytes, of which one axis is time; lengths: of the other.

    A length outside of 0 to ``times`` is reported, and taken for the nearest one inside.
    """
    move, load = mover(unit), load_i64 if step == 8 else load_i32

    def reach(a: Any) -> dict[str, Reach]:
        lines = a.count_all // (a.times * a.chunks)
        return {"x": unit * a.count_all, "y": unit * a.count_all, "lengths": step * lines}

    @cuda_kernel(
        threads=THREADS, blocks=chunk_blocks, extents=reach, x=PTR, y=PTR, lengths=PTR, fault=FAULT_AT, **_NUMBERS,
        times=I64, e=I64, me=I64, he=I64,
    )  # fmt: skip
    def reverse_sequence(x, y, lengths, fault, count_all, chunks, mk, hk, run, times, e, me, he):
        t = np.uint32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
        if t < count_all:
            u = fast_divide(t, mk, hk)
            c = unit * np.int64(np.uint32(t - u * np.uint32(chunks)))
            first = np.int64(fast_divide(u, me, he))
            second = np.int64(u) - first * e
            time, line = (first, second) if time_first else (second, first)
            length = np.int64(load(lengths + step * line))
            if length < 0 or length > times:
                report(fault, line, length, 0, times)
                length = min(max(length, np.int64(0)), times)
            source = length - 1 - time if time < length else time
            row = source * e + line if time_first else line * e + source
            move(x + row * run + c, y + np.int64(u) * run + c)

    return reverse_sequence


@kernel(ReverseSequence, device="cuda", accepts=_fits)
def reverse_sequence(op: ReverseSequence, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Several threads for each row."""
    x, lengths = typed(ins), typed(ins, 1)
    if not x.size:
        return []
    run = x.dtype.itemsize * math.prod(x.dims[2:])
    unit = widest(run)
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "lengths": In(1), "fault": Fault(1), "run": run}
    args |= {**chunk_args(x.dims[0] * x.dims[1], run, unit), "times": x.dims[op.time_axis], "e": x.dims[1]}
    args["me"], args["he"] = divider(x.dims[1])
    return [Step(reverse_rows(unit, lengths.dtype.itemsize, op.time_axis == 0), args)]


@cache
def scatter_rows(unit: int, step: int, circular: bool) -> CudaKernel:
    """Kernel of TensorScatter: y [batches, middle, size] rows get new [batches, middle, count] from starts[b] on.

    starts 0: none given.  A start that leaves no room for ``count`` rows is reported; rows outside are left out.
    """
    move, load = mover(unit), load_i64 if step == 8 else load_i32

    def reach(a: Any) -> dict[str, Reach]:
        lines = a.count_all // (a.chunks * a.count)
        return {"new": unit * a.count_all, "y": lines * a.size * a.run, "starts": step * (lines // a.middle)}

    @cuda_kernel(
        threads=THREADS, blocks=chunk_blocks, extents=reach, new=PTR, y=PTR, starts=PTR_OR_0, fault=FAULT_AT,
        **_NUMBERS, size=I64, count=I64, mc=I64, hc=I64, middle=I64, mm=I64, hm=I64,
    )  # fmt: skip
    def tensor_scatter(new, y, starts, fault, count_all, chunks, mk, hk, run, size, count, mc, hc, middle, mm, hm):
        t = np.uint32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
        if t < count_all:
            u = fast_divide(t, mk, hk)
            c = unit * np.int64(np.uint32(t - u * np.uint32(chunks)))
            line = fast_divide(u, mc, hc)
            batch = np.int64(fast_divide(line, mm, hm))
            start = np.int64(load(starts + step * batch)) if starts != 0 else np.int64(0)
            if not circular and (start < 0 or start > size - count):
                report(fault, batch, start, 0, size - count)
            place = start + np.int64(u) - np.int64(line) * count
            if circular:
                place = place % size
            if place >= 0 and place < size:
                move(new + unit * np.int64(t), y + (np.int64(line) * size + place) * run + c)

    return tensor_scatter


@kernel(TensorScatter, device="cuda", accepts=_fits, inplace=(0,))
def tensor_scatter(op: TensorScatter, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A copy of the cache where it does not take over its memory, then the new rows."""
    past, new = typed(ins), typed(ins, 1)
    copied = carried([Transfer(whole(past.nbytes), In(0), Out(0))])
    if not new.size:
        return copied
    axis = normalise_axis(op, op.axis, len(past.dims))
    starts = ins[2] if len(ins) > 2 else None
    run, middle = past.dtype.itemsize * math.prod(past.dims[axis + 1 :]), math.prod(past.dims[1:axis])
    unit, count = widest(run), new.dims[axis]
    args: dict[str, Argument] = {"new": In(1), "y": Out(0), "starts": None if starts is None else In(2), "run": run}
    args |= {"fault": Fault(2), **chunk_args(past.dims[0] * middle * count, run, unit), "size": past.dims[axis]}
    args |= {"count": count, "middle": middle}
    args["mc"], args["hc"] = divider(count)
    args["mm"], args["hm"] = divider(middle)
    made = scatter_rows(unit, 8 if starts is None else starts.dtype.itemsize, op.mode == "circular")
    return [*copied, Step(made, args)]


def samples() -> list[CudaKernel]:
    """A kernel of each kind, for the table of resources."""
    return [reverse_rows(16, 8, True), scatter_rows(16, 8, False), scatter_rows(16, 8, True)]
