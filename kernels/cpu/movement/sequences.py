"""ReverseSequence, TensorScatter, BitCast and Compress by a known condition: rows that move as they are, any dtype."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bolt_numba.kernels.cpu.faults import held
from bolt_numba.kernels.cpu.language.lang import split
from bolt_numba.kernels.cpu.movement.gather import index_bytes, load_index
from bolt_numba.kernels.cpu.movement.move import PARALLEL_BYTES, copy_run, steps
from bolt_numba.kernels.cpu.movement.table_gather import table_gather_steps
from bolt_numba.kernels.extents import Reach, box
from bolt_numba.kernels.geometry.strides import move
from bolt_numba.kernels.geometry.transfers import compress_tables, has_fixed_size, knows_condition, typed
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types, kernel
from bolt_numba.ops.arrays.conversion import BitCast
from bolt_numba.ops.arrays.gather import Compress
from bolt_numba.ops.arrays.slicing import ReverseSequence
from bolt_numba.ops.layers.cache import TensorScatter
from bolt_numba.ops.registry import normalise_axis
from bolt_numba.types import BOOL, TensorType


def _reversed(a: Any) -> dict[str, Reach]:
    rows = box(a.run, (a.times, a.time_step), (a.batches, a.batch_step))
    return {"x": rows, "y": rows, "lengths": index_bytes(a.batches, a.wide)}


@native(
    x=PTR, y=PTR, lengths=PTR, wide=I64, times=I64, batches=I64, time_step=I64, batch_step=I64, run=I64,
    extents=_reversed,
)  # fmt: skip
def reverse_rows(p, tid, nthreads):
    """Rows of ``run`` bytes at t * time_step + b * batch_step; the first lengths[b] of each b in reverse order.

    lengths: 0 to ``times``.
    """
    lo, hi = split(p.times * p.batches, tid, nthreads)
    for at in range(lo, hi):
        b = at // p.times
        t = at - b * p.times
        length = load_index(p.lengths, b, p.wide)
        source = length - 1 - t if t < length else t
        base = b * p.batch_step
        copy_run(p.y + base + t * p.time_step, p.x + base + source * p.time_step, p.run)


@kernel(ReverseSequence, accepts=has_fixed_size)
def reverse_sequence(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    x, lengths = ins[0], ins[1]
    assert x is not None
    assert lengths is not None
    if not x.size:
        return []
    run = x.dtype.itemsize * math.prod(x.dims[2:])
    row = {0: run * x.dims[1], 1: run}
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "wide": int(lengths.dtype.itemsize == 8)}
    args["lengths"], checks = held(op, ins, 1, "sequence_lens", x.dims[op.batch_axis], 0, x.dims[op.time_axis])
    args |= {"times": x.dims[op.time_axis], "batches": x.dims[op.batch_axis], "run": run}
    args |= {"time_step": row[op.time_axis], "batch_step": row[op.batch_axis]}
    return [*checks, Step(reverse_rows, args, x.nbytes >= PARALLEL_BYTES)]


def _scattered(a: Any) -> dict[str, Reach]:
    lines = a.batches * a.middle
    return {
        "new": lines * a.count * a.run,
        "y": lines * a.size * a.run,
        "starts": index_bytes(a.batches, a.wide) if lines else 0,
    }


@native(
    new=PTR, y=PTR, starts=PTR_OR_0, wide=I64, batches=I64, middle=I64, count=I64, size=I64, run=I64, circular=I64,
    extents=_scattered,
)  # fmt: skip
def scatter_rows(p, tid, nthreads):
    """Y [batches, middle, size, run] gets new [batches, middle, count, run] from starts[b] on; starts 0: none given."""
    lo, hi = split(p.batches * p.middle, tid, nthreads)
    for at in range(lo, hi):
        start = load_index(p.starts, at // p.middle, p.wide) if p.starts else 0
        for i in range(p.count):
            place = start + i
            if p.circular:
                place %= p.size
            if place >= 0 and place < p.size:
                copy_run(p.y + (at * p.size + place) * p.run, p.new + (at * p.count + i) * p.run, p.run)


@kernel(TensorScatter, accepts=has_fixed_size, inplace=(0,))
def tensor_scatter(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A copy of the cache where it does not take over its memory, then the new rows; those outside are left out."""
    past, new = ins[0], ins[1]
    assert past is not None
    assert new is not None
    axis = normalise_axis(op, op.axis, len(past.dims))
    starts = ins[2] if len(ins) > 2 else None
    args: dict[str, Argument] = {"new": In(1), "y": Out(0), "starts": None}
    checks: list[Step] = []
    if starts is not None and new.size:
        args["starts"] = In(2)
        if op.mode == "linear":
            args["starts"], checks = held(
                op, ins, 2, "write_indices", past.dims[0], 0, past.dims[axis] - new.dims[axis]
            )
    args |= {"wide": int(starts is not None and starts.dtype.itemsize == 8), "batches": past.dims[0]}
    args |= {"middle": math.prod(past.dims[1:axis]), "count": new.dims[axis], "size": past.dims[axis]}
    args |= {"run": past.dtype.itemsize * math.prod(past.dims[axis + 1 :]), "circular": int(op.mode == "circular")}
    copied = steps([move((past.nbytes,), (1,), (1,), 1)], In(0), Out(0)) if past.size else []
    return [*checks, *copied, Step(scatter_rows, args, new.nbytes >= PARALLEL_BYTES)] if new.size else copied


def _keeps_bits(op: Any, ins: Types) -> bool:
    """Not to bool, which has bits that are none."""
    return has_fixed_size(op, ins) and op.to != BOOL


@kernel(BitCast, accepts=_keeps_bits, inplace=(0,))
def bit_cast(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """A copy, or nothing where the result takes over the operand's memory."""
    nbytes = outs[0].nbytes
    return steps([move((nbytes,), (1,), (1,), 1)], In(0), Out(0)) if nbytes else []


@kernel(Compress, accepts=knows_condition)
def compress_known(op: Compress, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """What is kept as a table."""
    return table_gather_steps(*compress_tables(op, ins), typed(ins).dtype.itemsize)
