"""Reshaping, joining, splitting and filling: operators that move whole axes or make shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.types import I64, Array, Dim, Sym, TensorType
from bolt_numba.base.types import Shape as Dims
from bolt_numba.ops.arrays.generate import ConstantOfShape, EyeLike, Range, Trilu
from bolt_numba.ops.arrays.slicing import Pad, Slice
from bolt_numba.ops.content import PLANNED, bounded
from bolt_numba.ops.dtypes import INDICES, same_dtype
from bolt_numba.ops.registry import Op, fresh_dim, normalise_axis, op, want_among, want_dtype
from bolt_numba.ops.shapes import (
    broadcast_shapes,
    distinct_axes,
    known_dims,
    known_ints,
    known_length,
    product,
    shape_of,
    unknown_shape,
    want_dim,
    want_dims,
)

__all__ = [
    "Concat", "ConstantOfShape", "DepthToSpace", "Expand", "EyeLike", "Flatten", "Identity", "Pad", "Range", "Reshape",
    "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze",
]  # fmt: skip


def _ints(values: Array) -> list[Any]:
    """Content of a shape operand; `Sym` stays."""
    return [v if isinstance(v, (Sym, int)) else int(v) for v in np.asarray(values).flat]


def _objects(dims: Sequence[Dim], shape: Dims) -> Array:
    """Dims as an i64 array, or as an object array when any is a symbol."""
    if all(type(d) is int for d in dims):
        return np.array(dims, I64).reshape(shape)  # type: ignore[arg-type]
    made = np.empty(len(dims), object)
    for i, d in enumerate(dims):
        made[i] = d
    return made.reshape(shape)  # type: ignore[arg-type]


@op("Identity")
class Identity(Op):
    """y = x, also a sequence or an optional.  Source: ONNX Identity-25."""

    is_view = True
    on_symbols = True

    def infer(self, x: TensorType) -> TensorType:
        return x

    def reference(self, x: Any) -> Any:
        return x.copy() if isinstance(x, np.ndarray) else (x,)


@op("Reshape")
class Reshape(Op):
    """y = x's elements in another shape.

    x: [...] any · shape: [r] i64; one -1 is solved, 0 keeps x's dimension there unless allowzero -> y: x's dtype.
    Source: ONNX Reshape-25.
    """

    allowzero: bool = False
    is_view = True
    on_symbols = True
    value_inputs = (1,)
    moves_memory = True
    data_bounds = bounded(shape=PLANNED)

    def infer(self, x: TensorType, shape: TensorType) -> TensorType:
        want_dtype(self, "shape", shape.dtype, *INDICES)
        shape_of(self, "shape", shape, 1)
        wanted = known_dims(shape)
        if wanted is None:
            return TensorType(x.dtype, unknown_shape(known_length(shape)))
        return TensorType(x.dtype, self._solved(x, wanted))

    def _solved(self, x: TensorType, wanted: list[Dim]) -> Dims:
        bad = [d for d in wanted if isinstance(d, int) and d < -1]
        self.fail_if(bad or sum(d == -1 for d in wanted) > 1, "shape", wanted, "dimensions, at most one of them -1")
        dims = list(wanted)
        if not self.allowzero:
            for i, d in enumerate(wanted):
                if d == 0:
                    if x.shape is not None and i >= len(x.shape):
                        raise self.fail("shape", wanted, f"no 0 beyond the {len(x.shape)} dimensions of x")
                    dims[i] = fresh_dim() if x.shape is None else x.shape[i]
        if -1 in dims:
            dims[dims.index(-1)] = self._missing(x, wanted, dims)
        elif x.is_static and all(isinstance(d, int) for d in dims) and product(dims) != x.size:
            raise self.fail("shape", wanted, f"{x.size} elements, as in {x}")
        return tuple(dims)

    def _missing(self, x: TensorType, wanted: list[Dim], dims: list[Dim]) -> Dim:
        if x.shape is None:
            return fresh_dim()
        left = list(x.shape)
        rest: list[Dim] = []
        for d in dims:  # dimensions on both sides cancel, so that symbols need not be divided
            if d == -1:
                continue
            if d in left:
                left.remove(d)
            else:
                rest.append(d)
        total, divisor = product(left), product(rest)
        if divisor == 0 or (isinstance(total, int) and isinstance(divisor, int) and total % divisor):
            raise self.fail("shape", wanted, f"a divisor of the elements of {x}")
        return 1 if total == divisor else total // divisor  # a divisor of 0 elements is refused by the run

    def reference(self, x: Array, shape: Array) -> Array:
        dims = _ints(shape)
        if not self.allowzero:
            dims = [x.shape[i] if d == 0 else d for i, d in enumerate(dims)]
        return x.reshape(dims).copy()


@op("Flatten")
class Flatten(Op):
    """y = x as a matrix: axes before ``axis`` are the rows, the others the columns.  Source: ONNX Flatten-25."""

    axis: int = 1
    is_view = True
    on_symbols = True

    def infer(self, x: TensorType) -> TensorType:
        if x.shape is None:
            return TensorType(x.dtype, unknown_shape(2))
        axis = self._axis(len(x.shape))
        return TensorType(x.dtype, (product(x.shape[:axis]), product(x.shape[axis:])))

    def _axis(self, rank: int) -> int:
        self.fail_if(not -rank <= self.axis <= rank, "axis", self.axis, f"{-rank} to {rank}")
        return self.axis + rank if self.axis < 0 else self.axis

    def reference(self, x: Array) -> Array:
        axis = self._axis(x.ndim)
        rows, columns = int(np.prod(x.shape[:axis], dtype=I64)), int(np.prod(x.shape[axis:], dtype=I64))
        return x.reshape(rows, columns).copy()


@op("Squeeze")
class Squeeze(Op):
    """y = x without some axes of length 1: those of ``axes`` ([m] i64), or all.  Source: ONNX Squeeze-25."""

    is_view = True
    on_symbols = True
    value_inputs = (1,)
    moves_memory = True
    data_bounds = bounded(axes=PLANNED)

    def infer(self, x: TensorType, axes: TensorType | None = None) -> TensorType:
        if x.shape is None:
            return TensorType(x.dtype, None)
        rank = len(x.shape)
        if axes is None:
            symbolic = any(isinstance(d, Sym) for d in x.shape)
            return TensorType(x.dtype, None if symbolic else tuple(d for d in x.shape if d != 1))
        want_dtype(self, "axes", axes.dtype, *INDICES)
        shape_of(self, "axes", axes, 0, 1)
        given = known_ints(axes)
        if given is None:
            count = known_length(axes)
            if count is not None and count > rank:
                raise self.fail("length of axes", count, f"at most {rank}")
            return TensorType(x.dtype, unknown_shape(None if count is None else rank - count))
        gone = distinct_axes(self, given, rank)
        for a in gone:
            want_dim(self, f"axis {a} of x", x.shape[a], 1)
        return TensorType(x.dtype, tuple(d for i, d in enumerate(x.shape) if i not in gone))

    def reference(self, x: Array, axes: Array | None = None) -> Array:
        return np.squeeze(x, None if axes is None else tuple(_ints(axes))).copy()


@op("Unsqueeze")
class Unsqueeze(Op):
    """y = x with axes of length 1 put in, counted in y.  x: [...] any · axes: [m] i64.  Source: ONNX Unsqueeze-25."""

    is_view = True
    on_symbols = True
    value_inputs = (1,)
    moves_memory = True
    data_bounds = bounded(axes=PLANNED)

    def infer(self, x: TensorType, axes: TensorType) -> TensorType:
        want_dtype(self, "axes", axes.dtype, *INDICES)
        shape_of(self, "axes", axes, 0, 1)
        if x.shape is None:
            return TensorType(x.dtype, None)
        given, count = known_ints(axes), known_length(axes)
        if given is None:
            return TensorType(x.dtype, unknown_shape(None if count is None else len(x.shape) + count))
        new = distinct_axes(self, given, len(x.shape) + len(given))
        left = iter(x.shape)
        return TensorType(x.dtype, tuple(1 if i in new else next(left) for i in range(len(x.shape) + len(new))))

    def reference(self, x: Array, axes: Array) -> Array:
        return np.expand_dims(x, tuple(_ints(axes))).copy()


@op("Transpose")
class Transpose(Op):
    """y[i0, i1, ...] = x with axis ``perm[j]`` as y's axis j.  x: [...] any.  Source: ONNX Transpose-25."""

    perm: tuple[int, ...]
    on_symbols = True

    @property
    def axis_order(self) -> tuple[int, ...]:
        return self.perm

    def infer(self, x: TensorType) -> TensorType:
        self.fail_if(sorted(self.perm) != list(range(len(self.perm))), "perm", self.perm, "each axis once")
        if x.shape is None:
            return TensorType(x.dtype, unknown_shape(len(self.perm)))
        self.fail_if(len(self.perm) != len(x.shape), "length of perm", len(self.perm), f"{len(x.shape)}, the rank of x")
        return TensorType(x.dtype, tuple(x.shape[p] for p in self.perm))

    def reference(self, x: Array) -> Array:
        return x.transpose(self.perm).copy()


@op("Concat")
class Concat(Op):
    """y = operands one after another along an axis.

    xs: same dtype, same shape but for the axis -> y: the same, with the sum along the axis.  Source: ONNX Concat-13.
    """

    axis: int
    on_symbols = True

    @property
    def joined_axis(self) -> int:
        return self.axis

    def infer(self, *xs: TensorType) -> TensorType:
        dtype = same_dtype(self, *xs)
        shapes: list[Dims | None] = [t.shape for t in xs]
        known = [s for s in shapes if s is not None]
        if not known:
            return TensorType(dtype, None)
        rank = len(known[0])
        axis = normalise_axis(self, self.axis, rank)
        if any(len(s) != rank for s in known):
            raise self.fail("ranks of operands", sorted({len(s) for s in known}), "one rank")
        out: list[Dim] = list(known[0])
        for other in known[1:]:
            pairs = [*zip(out, other, strict=True)]
            if any(a != b and isinstance(a, int) and isinstance(b, int) for a, b in pairs[:axis] + pairs[axis + 1 :]):
                shapes_text = " and ".join(f"[{', '.join(map(str, s))}]" for s in (known[0], other))
                raise self.fail("shapes of operands", shapes_text, f"equal sizes but along axis {axis}")
            out = [b if isinstance(a, Sym) else a for a, b in pairs]
        total: Dim = 0
        for s in shapes:
            total = total + (fresh_dim() if s is None else s[axis])
        out[axis] = total
        return TensorType(dtype, tuple(out))

    def reference(self, *xs: Array) -> Array:
        return np.concatenate(xs, axis=self.axis)


PART = 256
"""Bytes that the type of one result takes, at least."""


@op("Split")
class Split(Op):
    """Parts of x along an axis, ``num_outputs`` of them.

    x: [...] any · split: [num_outputs] i64, the lengths; without it equal parts, the last one shorter -> parts like x.
    Source: ONNX Split-18.
    """

    axis: int = 0
    num_outputs: int = 1
    value_inputs = (1,)
    moves_memory = True
    data_bounds = bounded(split=PLANNED)

    def infer(self, x: TensorType, split: TensorType | None = None) -> tuple[TensorType, ...]:
        self.fail_if(self.num_outputs < 1, "num_outputs", self.num_outputs, "at least 1")
        ask(PART * self.num_outputs, "Split: types of its parts")
        want_dims(self, "split", split, self.num_outputs)
        if x.shape is None:
            return (TensorType(x.dtype, None),) * self.num_outputs
        axis = normalise_axis(self, self.axis, len(x.shape))
        size = x.shape[axis]
        lengths: list[Dim] | None
        if split is None:
            lengths = self.equal_parts(size)
        else:
            want_dtype(self, "split", split.dtype, *INDICES)
            lengths = known_dims(split)
        if lengths is None:
            lengths = [fresh_dim() for _ in range(self.num_outputs)]
        else:
            self._check_lengths(lengths, size)
        return tuple(TensorType(x.dtype, (*x.shape[:axis], d, *x.shape[axis + 1 :])) for d in lengths)

    def _check_lengths(self, lengths: Sequence[Dim], size: Dim) -> None:
        total: Dim = 0
        for d in lengths:
            total = total + d
        negative = any(isinstance(d, int) and d < 0 for d in lengths)
        if negative or (isinstance(total, int) and isinstance(size, int) and total != size):
            raise self.fail("split", list(lengths), f"lengths that add up to {size}")

    def equal_parts(self, size: Dim) -> list[Dim]:
        """Lengths without the operand ``split``; raises ShapeError when they leave nothing for the last one."""
        n = self.num_outputs
        part = size // n if size % n == 0 else (size + n - 1) // n
        last = size - part * (n - 1)
        if isinstance(last, int) and last < 0:
            raise self.fail("num_outputs", n, f"a number that splits {size}")
        return [part] * (n - 1) + [last]

    def reference(self, x: Array, split: Array | None = None) -> tuple[Array, ...]:
        lengths: list[Any] = self.equal_parts(x.shape[self.axis]) if split is None else _ints(split)
        ends = np.cumsum(lengths)[:-1]
        return tuple(part.copy() for part in np.split(x, ends, axis=self.axis))


@op("Expand")
class Expand(Op):
    """y = x broadcast against a shape, in both directions.  x: [...] any · shape: [r] i64.  Source: ONNX Expand-13."""

    value_inputs = (1,)
    moves_memory = True
    data_bounds = bounded(shape=PLANNED)
    on_symbols = True

    def infer(self, x: TensorType, shape: TensorType) -> TensorType:
        want_dtype(self, "shape", shape.dtype, *INDICES)
        want_dims(self, "shape", shape, None)
        wanted = known_dims(shape)
        if wanted is not None:
            return TensorType(x.dtype, broadcast_shapes(self, tuple(wanted), x.shape))  # of two symbols that of shape
        count = known_length(shape)
        if count is None or x.shape is None:
            return TensorType(x.dtype, None)
        return TensorType(x.dtype, unknown_shape(max(count, len(x.shape))))

    def reference(self, x: Array, shape: Array) -> Array:
        return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(_ints(shape)))).copy()


@op("Tile")
class Tile(Op):
    """y = x repeated along each axis.  x: [...] any · repeats: [rank of x] i64.  Source: ONNX Tile-13."""

    value_inputs = (1,)
    moves_memory = True
    data_bounds = bounded(repeats=PLANNED)

    def infer(self, x: TensorType, repeats: TensorType) -> TensorType:
        want_dtype(self, "repeats", repeats.dtype, *INDICES)
        want_dims(self, "repeats", repeats, None if x.shape is None else len(x.shape))
        counts, length = known_dims(repeats), known_length(repeats)
        if x.shape is None:
            return TensorType(x.dtype, unknown_shape(length))
        length = len(x.shape)
        if counts is not None and any(isinstance(d, int) and d < 0 for d in counts):
            raise self.fail("repeats", counts, "at least 0")
        if counts is None:
            return TensorType(x.dtype, unknown_shape(length))
        return TensorType(x.dtype, tuple(d * r for d, r in zip(x.shape, counts, strict=True)))

    def reference(self, x: Array, repeats: Array) -> Array:
        return np.tile(x, _ints(repeats))


def _bounds(rank: int, start: int, end: int | None) -> slice:
    first = min(max(start + rank if start < 0 else start, 0), rank)
    last = rank if end is None else min(max(end + rank if end < 0 else end, 0), rank)
    return slice(first, max(first, last))


@op("Shape")
class Shape(Op):
    """y = x's dimensions from ``start`` to ``end``, i64.  Source: ONNX Shape-25."""

    start: int = 0
    end: int | None = None
    reads_only_shape = True

    def infer(self, x: TensorType) -> TensorType:
        if x.shape is None:
            return TensorType(I64, (fresh_dim("rank"),))
        dims = x.shape[_bounds(len(x.shape), self.start, self.end)]
        return TensorType(I64, (len(dims),), value=_objects(dims, (len(dims),)))

    def reference(self, x: Array) -> Array:
        return np.array(x.shape[_bounds(x.ndim, self.start, self.end)], dtype=I64)


@op("Size")
class Size(Op):
    """y = number of elements of x, a scalar i64.  Source: ONNX Size-25."""

    reads_only_shape = True

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(I64, (), value=None if x.shape is None else _objects([product(x.shape)], ()))

    def reference(self, x: Array) -> Array:
        return np.array(x.size, dtype=I64)


@op("DepthToSpace")
class DepthToSpace(Op):
    """y = channels spread over blocks of pixels.

    x: [n, c, h, w] any -> y: [n, c / b / b, h * b, w * b]; mode DCR: depth is (row, column, channel), CRD: (channel,
    row, column).  Source: ONNX DepthToSpace-13.
    """

    blocksize: int
    mode: str = "DCR"

    def infer(self, x: TensorType) -> TensorType:
        want_among(self, ("DCR", "CRD"), mode=self.mode)
        shape = shape_of(self, "x", x, 4)
        if shape is None:
            return TensorType(x.dtype, None)
        n, c, h, w = shape
        b = self.blocksize
        if b < 1 or (isinstance(c, int) and c % (b * b)):
            raise self.fail("channels of x", c, f"a multiple of {b * b}")
        return TensorType(x.dtype, (n, c // (b * b), h * b, w * b))

    def reference(self, x: Array) -> Array:
        (n, c, h, w), b = x.shape, self.blocksize
        if self.mode == "DCR":
            y = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
        else:
            y = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
        return y.reshape(n, c // (b * b), h * b, w * b).copy()


@op("SpaceToDepth")
class SpaceToDepth(Op):
    """y = blocks of pixels stacked as channels, in the order (row, column, channel).

    x: [n, c, h, w] any -> y: [n, c * b * b, h / b, w / b].  Source: ONNX SpaceToDepth-13.
    """

    blocksize: int

    def infer(self, x: TensorType) -> TensorType:
        shape = shape_of(self, "x", x, 4)
        if shape is None:
            return TensorType(x.dtype, None)
        n, c, h, w = shape
        b = self.blocksize
        if b < 1 or any(isinstance(d, int) and d % b for d in (h, w)):
            raise self.fail("height and width of x", f"{h} and {w}", f"multiples of {b}")
        return TensorType(x.dtype, (n, c * (b * b), h // b, w // b))

    def reference(self, x: Array) -> Array:
        (n, c, h, w), b = x.shape, self.blocksize
        y = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
        return y.reshape(n, c * b * b, h // b, w // b).copy()
