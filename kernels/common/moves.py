"""Operators that join, cut, turn, repeat, surround or fill arrays, by strided moves of any rank and size; Trilu."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from bolt_numba.base.follow import is_followed, pure
from bolt_numba.base.selects import filled
from bolt_numba.base.types import BOOL, F32, STRING, AnyDType, Array
from bolt_numba.base.types import I64 as INT64
from bolt_numba.kernels.declare import I64, PTR, inline
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry import transfers as plans
from bolt_numba.kernels.geometry.elements import DeviceParts, elements
from bolt_numba.kernels.geometry.transfers import Transfer, has_fixed_size, knows, whole
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, everywhere
from bolt_numba.ops.arrays import shape as s
from bolt_numba.ops.arrays.conversion import BitCast
from bolt_numba.ops.arrays.gather import Compress
from bolt_numba.ops.arrays.generate import ConstantOfShape, EyeLike, Range, Trilu
from bolt_numba.ops.arrays.slicing import Pad, Slice
from bolt_numba.ops.registry import Op


@everywhere(s.Identity, s.Reshape, s.Flatten, s.Squeeze, s.Unsqueeze, accepts=has_fixed_size)
def copy(op: Op, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Views are copied only where the planner cannot make them an alias."""
    return on.carried([Transfer(whole(outs[0].nbytes), In(0), Out(0))])


@everywhere(BitCast, accepts=lambda op, ins: has_fixed_size(op, ins) and op.to != BOOL, inplace=(0,))
def bit_cast(op: BitCast, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """A copy, or nothing where the result takes over the operand's memory; bool has bits that are none."""
    return copy(op, ins, outs, context, on)


@everywhere(s.Transpose, s.DepthToSpace, s.SpaceToDepth, accepts=has_fixed_size)
def transpose(op: Op, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """DepthToSpace and SpaceToDepth turn arrays of six axes."""
    return on.carried(plans.transpose_transfers(op, ins, outs))


@everywhere(s.Concat, accepts=has_fixed_size)
def concat(op: s.Concat, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """One move per operand."""
    return on.carried(plans.concat_transfers(op, ins, outs))


@everywhere(s.Split, accepts=has_fixed_size)
def split_axis(op: s.Split, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """One move per part."""
    return on.carried(plans.split_transfers(op, ins, outs))


@everywhere(Slice, accepts=knows(1, 2, 3, 4))
def slice_axes(op: Slice, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """One move; negative steps are negative strides."""
    return on.carried(plans.slice_transfers(op, ins, outs))


@everywhere(s.Expand, accepts=has_fixed_size)
def expand(op: s.Expand, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    return on.carried(plans.expand_transfers(op, ins, outs))


@everywhere(s.Tile, accepts=knows(1))
def tile(op: s.Tile, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    return on.carried(plans.tile_transfers(op, ins, outs))


@everywhere(ConstantOfShape, accepts=lambda op, ins: op.dtype != STRING)
def constant_of_shape(op: ConstantOfShape, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    return on.carried(plans.fill(np.full(1, op.value, dtype=op.dtype), outs[0].dims, op.dtype.itemsize))


@everywhere(Range, accepts=lambda op, ins: all(t is not None and t.known is not None for t in ins))
def arange(op: Range, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """A copy of the numbers, computed when planning."""
    dtype, bounds = ins[0].dtype, [t.known.item() for t in ins if t is not None]  # type: ignore[union-attr]
    given = op, dtype, *bounds
    if dtype == INT64:
        args = {"first": bounds[0], "step": bounds[2], "repeat": 1, "count": outs[0].size, "total": outs[0].size}
        numbers = filled("steps", args, outs[0].dims, dtype, (0, 0), (_numbers, given))
    elif dtype == F32 and not is_followed((bounds[0], bounds[2])):
        first, step = np.array([bounds[0], bounds[2]], dtype).view(np.int32).tolist()
        args = {"first": first, "step": step, "count": outs[0].size}
        numbers = filled("reals", args, outs[0].dims, dtype, (0, 0), (_numbers, given))
    else:
        numbers = _numbers(*given)
    return on.carried([Transfer(whole(outs[0].nbytes), numbers, Out(0))])


@pure
def _numbers(op: Range, dtype: AnyDType, *bounds: int | float) -> Array:
    return np.ascontiguousarray(op.reference(*(np.array(n, dtype) for n in bounds)))


@everywhere(EyeLike, accepts=has_fixed_size)
def eye_like(op: EyeLike, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """A copy of the matrix, computed when planning."""
    x = ins[0]
    return on.carried(plans.stored(op.reference(np.broadcast_to(np.zeros((), x.dtype), x.dims))))


@everywhere(Pad, accepts=knows(1, 3))
def pad(op: Pad, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Constant: a move of what is kept and fills around it; other modes: tables of source indices."""
    if op.mode == "constant":
        return on.carried(plans.pad_transfers(op, ins, outs))
    x = ins[0]
    return on.table_gather_steps(x.dims, plans.pad_tables(op, ins), x.dtype.itemsize)


@everywhere(Compress, accepts=plans.knows_condition)
def compress_known(op: Compress, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """What a known condition keeps, as a table."""
    return on.table_gather_steps(*plans.compress_tables(op, ins), ins[0].dtype.itemsize)


# ------------------------------------------------------------------------------------------------------------ triangles


def _triangle(a: Numbers, upper: bool) -> dict[str, Reach]:
    rows = a.images * a.height * a.run
    return {"x": rows, "y": rows, "k": 8}


@elements(
    over={"i": "images", "r": "height"}, extents=_triangle, x=PTR, y=PTR, k=PTR, width=I64, unit=I64, run=I64
)  # fmt: skip
def triangle(on: DeviceParts, upper: bool):
    """Kernel of x, y [images, height] rows of ``width`` elements of ``unit`` bytes, which keep one side of a diagonal.

    k: i64 [1], the diagonal; one beyond the corners is like the corners'.
    """
    load, keep = on.load("i64"), on.keep

    @inline
    def element(r, t, c, x, y, k, height, width, unit, run):
        diagonal = min(max(load(k) + 0, -height), width)
        edge = min(max(r + diagonal + (0 if upper else 1), 0), width) * unit
        low, high = (edge, run) if upper else (0, edge)
        keep(y + t * run, x + t * run, c, low, high, run)

    return element


def _triangular(op: Trilu, ins: Types) -> bool:
    return has_fixed_size(op, ins) and all(t is None or t.dtype.itemsize == 8 for t in ins[1:2])


@everywhere(Trilu, accepts=_triangular, few=True)
def trilu(op: Trilu, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Rows with a zeroed part."""
    x = ins[0]
    if not x.size:
        return []
    (height, width), unit, given = x.dims[-2:], x.dtype.itemsize, len(ins) > 1 and ins[1] is not None
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "k": In(1) if given else np.zeros(1, np.int64)}
    args |= {"images": x.size // (height * width), "height": height, "width": width, "unit": unit, "run": width * unit}
    return [on.step(triangle, (bool(op.upper),), args, on.pays(x.nbytes), unit)]
