"""Readers of operators that move or cut data: shapes, joins, slices."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.types import I32, I64, Sym
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import END, Ints, constant, ints
from bolt_numba.converters.paddle.reading.binding import Values
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.generate import Trilu
from bolt_numba.ops.arrays.shape import Concat, Flatten, Reshape, Shape, Size, Split, Squeeze, Tile, Transpose
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.control import If
from bolt_numba.ops.pointwise import Add, And, Equal, Less, Max, Mod, Sub, Where

PADDLE.reader("reshape", legacy=("reshape2",), slots={"ShapeTensor": "shape*"})(AsIs(Reshape()))
PADDLE.reader(legacy=("flatten", "flatten2"))(AsIs(Flatten))
PADDLE.reader("shape64")(AsIs(Shape(), "input"))
PADDLE.reader("size", "numel", slots={"X": "input"})(AsIs(Size(), "input"))


@PADDLE.reader("view_shape")
def view_shape(b: PaddleBuilder, input: Value, *, dims: Ints) -> Value:
    return b.shaped(input, dims)


@PADDLE.reader("squeeze", legacy=("squeeze2",))
def squeeze(b: PaddleBuilder, x: Value, axes: Value | None = None) -> Value:
    """X without those of the axes that have length 1; without all such axes where none is named.

    A named axis whose length only the run tells vanishes, unless the file declares that the rank stays.
    """
    named = b.known_ints(axes, "axes") if axes is not None else ()
    declared = b.declared()
    stays = declared is not None and declared.shape is not None and len(declared.shape) == b.rank_of(x)
    lengths = {a: b.dim_of(x, a) for a in b.axes_of(x, named)}
    kept = sorted(a for a, d in lengths.items() if d == 1 or (isinstance(d, Sym) and named and not stays))
    return b(Squeeze(), x, ints(kept)) if kept else x


@PADDLE.reader("unsqueeze", legacy=("unsqueeze2",), slots={"AxesTensorList": "axes*"})
def unsqueeze(b: PaddleBuilder, x: Value, axes: Value) -> Value:
    """Axes of length 1, put in one after the other."""
    is_new = [False] * b.rank_of(x)
    for axis in b.known_ints(axes, "axes"):
        b.invalid_if(not -len(is_new) - 1 <= axis <= len(is_new), "axes", axis, f"{-len(is_new) - 1} to {len(is_new)}")
        is_new.insert(axis if axis >= 0 else axis + len(is_new) + 1, True)
    return b.unsqueezed(x, *(i for i, new in enumerate(is_new) if new))


@PADDLE.reader("flatten_contiguous_range", pir=("flatten",))
def flatten(b: PaddleBuilder, x: Value, *, start_axis: int = 1, stop_axis: int = 1) -> Value:
    """The axes from ``start_axis`` to ``stop_axis`` as one."""
    rank = b.rank_of(x)
    if rank == 0:
        return b.shaped(x, [1])
    first, last = b.axis_of(x, start_axis), b.axis_of(x, stop_axis)
    b.invalid_if(last < first, "stop_axis", stop_axis, f"at least {start_axis}")
    rest = [b(Shape(last + 1), x)] if last + 1 < rank else []
    return b.shaped(x, [0] * first + [-1], *rest)


@PADDLE.reader("transpose", legacy=("transpose2",), slots={"axis": "perm"})
def transpose(b: PaddleBuilder, x: Value, *, perm: Ints, data_format: str = "") -> Value:
    return b(Transpose(tuple(b.axis_of(x, a) for a in perm)), x) if perm else x


@PADDLE.reader(pir=("swapaxes",))
def swapaxes(b: PaddleBuilder, x: Value, *, axis1: int, axis2: int) -> Value:
    order = list(range(b.rank_of(x)))
    first, second = b.axis_of(x, axis1), b.axis_of(x, axis2)
    order[first], order[second] = second, first
    return b.transposed(x, *order)


@PADDLE.reader("concat")
def concat(b: PaddleBuilder, x: Values, axis: Value) -> Value:
    if constant(axis) is not None:
        return b(Concat(b.whole(axis, "axis")), *x)
    rank = b.rank_of(x[0])
    fits = [a for a in range(rank) if all(_fit(x[0], other, a) for other in x)]
    b.invalid_if(not fits, "shapes", [v.type.shape for v in x], "ones that differ along one axis")
    place = b(Mod(), b(Add(), b.as_scalar(b.to(axis, I64)), rank), rank)
    return _joined_at(b, list(x), place, fits)


def _fit(x: Value, y: Value, axis: int) -> bool:
    """Whether two arrays can be joined along an axis, as far as their shapes are known."""
    first, second = x.type.shape or (), y.type.shape or ()
    pairs = zip(first, second, strict=len(first) == len(second))
    return all(p == q or isinstance(p, Sym) or isinstance(q, Sym) for i, (p, q) in enumerate(pairs) if i != axis)


def _joined_at(b: Builder, x: list[Value], place: Value, axes: list[int]) -> Value:
    """X joined along that one of the axes which the run tells."""
    if len(axes) == 1:
        return b(Concat(axes[0]), *x)
    branches = []
    for tried in (axes[:1], axes[1:]):
        graph = Graph("joined")
        inputs = [graph.add_input(f"x{i}", v.type.with_value(None)) for i, v in enumerate((*x, place))]
        inner = Builder(graph)
        graph.add_output(_joined_at(inner, inputs[:-1], inputs[-1], tried), "y")
        branches.append(graph)
    made: Value = b(If(*branches), b(Equal(), place, axes[0]), *x, place)
    return made


@PADDLE.reader("stack")
def stack(b: PaddleBuilder, x: Values, *, axis: int = 0) -> Value:
    b.invalid_if(not x, "number of operands", 0, "at least 1")
    rank = b.rank_of(x[0]) + 1
    at = axis + rank if axis < 0 else axis
    return b(Concat(at), *(b.unsqueezed(v, at) for v in x))


def _parts(b: PaddleBuilder, x: Value, axis: int, count: int, sizes: Value | None = None) -> list[Value]:
    return list(b.node(Split(axis, count), x, sizes).outputs)


@PADDLE.reader("split", slots={"sections": "sections", "SectionsTensorList": "sections*"})
def split(b: PaddleBuilder, x: Value, sections: Value, axis: Value, *, num: int = 0) -> Value | list[Value]:
    """Parts of the sizes ``sections``, of which one may be -1, or ``num`` equal ones."""
    at, count = b.axis_of(x, b.whole(axis, "axis")), b.count(0)
    if num:
        return split_with_num(b, x, axis, num=num)
    known = constant(sections)
    if known is not None and -1 in known:
        rest = b(Sub(), b.length(x, at), int(known[known != -1].sum()))
        sections = b.joined(*(rest if size == -1 else [int(size)] for size in known.reshape(-1)))
    return _parts(b, x, at, count, b.to(sections, I64))


@PADDLE.reader(pir=("split_with_num",))
def split_with_num(b: PaddleBuilder, x: Value, axis: Value, *, num: int) -> list[Value]:
    count = b.count(0)
    b.invalid_if(num != count, "num", num, f"{count}, the number of results")
    return _parts(b, x, b.axis_of(x, b.whole(axis, "axis")), num)


@PADDLE.reader("unbind", "unstack")
def unbind(b: PaddleBuilder, x: Value, *, axis: int = 0, num: int = 0) -> list[Value]:
    at = b.axis_of(x, axis)
    return [b(Squeeze(), piece, ints([at])) for piece in _parts(b, x, at, b.count(0))]


_SLICE = {"StartsTensorList": "starts*", "EndsTensorList": "ends*", "StridesTensorList": "strides*"}


@PADDLE.reader("slice", slots=_SLICE)
def slice_(
    b: PaddleBuilder, input: Value, starts: Value, ends: Value, *, axes: Ints, decrease_axis: Ints = ()
) -> Value:
    """From starts to ends along axes; those of ``decrease_axis`` vanish."""
    made = b(Slice(), input, b.to(starts, I64), b.to(ends, I64), ints(axes))
    return _without(b, made, decrease_axis)


def _without(b: PaddleBuilder, x: Value, axes: Ints) -> Value:
    return b(Squeeze(), x, ints(axes)) if axes else x


@PADDLE.reader("strided_slice", slots=_SLICE)
def strided_slice(
    b: PaddleBuilder, input: Value, starts: Value, ends: Value, strides: Value, *, axes: Ints, decrease_axis: Ints = ()
) -> Value:
    bounds = strided_bounds(b, input, axes, starts, ends, strides)
    return _without(b, b(Slice(), input, bounds[0], bounds[1], ints(axes), bounds[2]), decrease_axis)


def strided_bounds(
    b: PaddleBuilder, x: Value, axes: Ints, starts: Value, ends: Value, strides: Value
) -> tuple[Value, Value, Value]:
    """Bounds as `Slice` takes them: an end of -1 with a negative stride lies before the first element.

    In Paddle 2 that is the only such end: one further left is the first element itself.
    """
    starts, ends, strides = (b.to(v, I64) for v in (starts, ends, strides))
    steps = constant(strides)
    if steps is None or (steps < 0).any():
        before = b(And(), b(Equal(), ends, -1), b(Less(), strides, 0))
        if b.is_legacy:
            from_end = b(Max(), b(Add(), ends, b.lengths(x, axes)), 0)
            ends = b(Where(), b(Less(), ends, 0), from_end, ends)
        ends = b(Where(), before, b.const(np.array(-END)), ends)
    return starts, ends, strides


_CROP = {"OffsetsTensor": "offsets*", "ShapeTensor": "shape*"}


@PADDLE.reader("crop_tensor", pir=("crop",), slots=_CROP)
def crop(b: PaddleBuilder, x: Value, shape: Value, offsets: Value) -> Value:
    """A part of x: its shape, where -1 is up to the end, and where it begins."""
    starts, sizes = b.to(offsets, I64), b.to(shape, I64)
    known = constant(sizes)
    ends = b(Add(), starts, sizes)
    if known is None or (known == -1).any():
        ends = b(Where(), b(Equal(), sizes, -1), b.const(np.array(END)), ends)
    return b(Slice(), x, starts, ends)


@PADDLE.reader(legacy=("crop",))
def crop_v1(b: PaddleBuilder, x: Value, y: Value | None, offsets: Value, *, shape: Ints = ()) -> Value:
    sizes = b(Shape(), y) if y is not None else b.const(ints(shape))
    return crop(b, x, sizes, offsets)


_EXPAND = {"expand_shapes_tensor": "shape*"}


@PADDLE.reader("expand_v2", pir=("expand",), slots=_EXPAND)
def expand(b: PaddleBuilder, x: Value, shape: Value) -> Value:
    """X broadcast to a shape, in which -1 and -2 keep a dimension."""
    wanted = constant(shape)
    if wanted is not None:
        return b.expanded(x, b.const(ints(1 if d < 0 else int(d) for d in wanted)))
    wide = b.to(shape, I64)
    return b.expanded(x, b(Where(), b(Less(), wide, 0), b.const(np.array(1)), wide))


@PADDLE.reader("expand_as", legacy=("expand_as_v2",), slots={"target_tensor": "y"})
def expand_as(b: PaddleBuilder, x: Value, y: Value | None = None, *, target_shape: Ints = ()) -> Value:
    return b.expanded(x, b(Shape(), y)) if y is not None else expand(b, x, b.const(ints(target_shape)))


_TILE = {
    **dict.fromkeys(("repeat_times_tensor", "expand_times_tensor"), "repeat_times*"),
    **dict.fromkeys(("expand_times", "ExpandTimes"), "repeat_times"),
}


@PADDLE.reader("tile", legacy=("expand",), slots=_TILE)
def tile(b: PaddleBuilder, x: Value, repeat_times: Value) -> Value:
    """X repeated; the shorter of shape and repeats gets ones before it."""
    repeats, rank = b.to(b.flat(repeat_times), I64), b.rank_of(x)
    count = b.known_dim(repeats, 0)
    if count is None:
        raise b.unsupported("repeats of unknown number")
    if count > rank:
        x = b.unsqueezed(x, *range(count - rank))
    elif count < rank:
        repeats = b.joined([1] * (rank - count), repeats)
    return b(Tile(), x, repeats) if max(count, rank) else x


@PADDLE.reader("broadcast_tensors")
def broadcast_tensors(b: PaddleBuilder, x: Values) -> list[Value]:
    """All broadcast to one shape."""
    rank = max(b.rank_of(v) for v in x)
    made = []
    for v in x:
        y = v
        for other in x:
            if other is not v:
                y = b.expanded(y, b(Shape(), other))
        made.append(y if b.rank_of(y) == rank else b.unsqueezed(y, *range(rank - b.rank_of(y))))
    return made


@PADDLE.reader("meshgrid")
def meshgrid(b: PaddleBuilder, x: Values) -> list[Value]:
    """Each vector along an axis of its own, broadcast to all axes."""
    shape = b.joined(*(b.shaped(b(Size(), v), [1]) for v in x))
    rank = len(x)
    return [b.expanded(b.shaped(v, [-1] + [1] * (rank - 1 - i)), shape) for i, v in enumerate(x)]


@PADDLE.reader("tril_triu")
def tril_triu(b: PaddleBuilder, x: Value, *, diagonal: int = 0, lower: bool = False) -> Value:
    return b(Trilu(not lower), x, diagonal if x.type.dtype == I64 else b.const(np.array(diagonal, np.int64)))


@PADDLE.reader("tril")
def tril(b: PaddleBuilder, x: Value, *, diagonal: int = 0) -> Value:
    return tril_triu(b, x, diagonal=diagonal, lower=True)


@PADDLE.reader("triu")
def triu(b: PaddleBuilder, x: Value, *, diagonal: int = 0) -> Value:
    return tril_triu(b, x, diagonal=diagonal)


@PADDLE.reader("shape")
def shape(b: PaddleBuilder, input: Value) -> Value:
    return b.to(b(Shape(), input), I32)


PADDLE.reader("is_empty", slots={"X": "x"})(lambda b, x: b(Equal(), b(Size(), x), 0))
