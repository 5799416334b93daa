"""Readers of operators that move, cut or make data without arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F16, F32, Array
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import Ints, ints, known_scalar
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_as_is, add_reader, reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays import shape as s
from bolt_numba.ops.arrays.conversion import BitCast
from bolt_numba.ops.arrays.generate import ConstantOfShape, EyeLike, Range, Trilu
from bolt_numba.ops.arrays.random import Dropout
from bolt_numba.ops.arrays.slicing import Pad, ReverseSequence, Slice
from bolt_numba.ops.pointwise import Cast

add_as_is(s.Identity, s.Flatten, s.Expand, s.Shape, s.Size, Trilu, s.DepthToSpace)
add_as_is(s.Concat, since=4)
add_as_is(s.Reshape, since=5)
add_as_is(s.Tile, since=6)
add_as_is(Slice, since=10)
add_as_is(Pad, since=11)
add_as_is(s.Squeeze, s.Unsqueeze, since=13)
add_as_is(EyeLike, BitCast)
add_reader("Concat", AsIs(s.Concat, axis=1))
add_reader("Squeeze", AsIs(s.Squeeze(), "x axes=?"))
add_reader("Unsqueeze", AsIs(s.Unsqueeze(), "x axes="))
add_reader("ReverseSequence", AsIs(ReverseSequence, "x lengths"))


@reader("Slice")
def slice_1(b: NodeBuilder, x: Value, *, starts: Ints, ends: Ints, axes: Ints | None = None) -> Value:
    """Before opset 10; axes that are stated are as many as starts, also where they are none."""
    return b(Slice(), x, ints(starts), ints(ends), None if axes is None else ints(axes))


@reader("Dropout", since=12)
def dropout(
    b: NodeBuilder, x: Value, ratio: Value | None = None, training_mode: Value | None = None, *, seed: int | None = None
) -> Any:
    """The identity: in inference, and also in training when the ratio is 0."""
    training = False if training_mode is None else known_scalar(training_mode)
    share = 0.5 if ratio is None else known_scalar(ratio)
    if training is False or share == 0:
        return x, _ones(b, x) if b.wants(1) else None
    return b(Dropout(seed), x, ratio, training_mode)


@reader("Dropout")
def dropout_1(b: NodeBuilder, x: Value, *, ratio: float = 0.5, is_test: bool = False) -> tuple[Value, Value | None]:
    return x, _ones(b, x) if b.wants(1) else None


def _ones(b: NodeBuilder, x: Value) -> Value:
    dtype = BOOL if b.version >= 10 else x.type.dtype
    return b(ConstantOfShape(True if dtype == BOOL else 1.0, dtype), b(s.Shape(), x))


@reader("Constant")
def constant(
    b: NodeBuilder,
    *,
    value: Array | None = None,
    sparse_value: Array | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: Ints | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
) -> Value:
    typed = (
        (value, None),
        (sparse_value, None),
        (value_float, np.float32),
        (value_floats, np.float32),
        (value_int, np.int64),
        (value_ints, np.int64),
        (value_string, object),
        (value_strings, object),
    )
    given = [(v, dtype) for v, dtype in typed if v is not None]
    b.invalid_if(len(given) != 1, "values of a constant", len(given), 1)
    data, dtype = given[0]
    return b.const(np.asarray(data, dtype=dtype), f"{b.prefix}value")


@reader("ConstantOfShape")
def constant_of_shape(b: NodeBuilder, shape: Value, *, value: Array | None = None) -> Value:
    fill = np.zeros(1, np.float32) if value is None else value
    b.invalid_if(fill.size != 1, "elements of value", fill.size, 1)
    return b(ConstantOfShape(fill.reshape(-1)[0].item(), fill.dtype), shape)


@reader("Reshape")
def reshape_1(b: NodeBuilder, x: Value, *, shape: Ints = ()) -> Value:
    return b(s.Reshape(), x, ints(shape))


@reader("Transpose")
def transpose(b: NodeBuilder, x: Value, *, perm: Ints | None = None) -> Value:
    return b(s.Transpose(tuple(range(b.rank_of(x)))[::-1] if perm is None else perm), x)


@reader("Split", since=13)
def split(b: NodeBuilder, x: Value, split: Value | None = None, *, axis: int = 0, num_outputs: int = 0) -> list[Value]:
    count = len(b.outputs)
    b.invalid_if(num_outputs and num_outputs != count, "num_outputs", num_outputs, f"{count}, the number of outputs")
    return _parts(b, x, split, axis)


@reader("Split", since=2)
def split_2(b: NodeBuilder, x: Value, *, axis: int = 0, split: Ints = ()) -> list[Value]:
    return _parts(b, x, ints(split) if split else None, axis)


@reader("Split")
def split_1(b: NodeBuilder, x: Value, sizes: Value | None = None, *, axis: int = 0, split: Ints = ()) -> list[Value]:
    return _parts(b, x, ints(split) if split else sizes, axis)


def _parts(b: NodeBuilder, x: Value, sizes: Any, axis: int) -> list[Value]:
    return b.node(s.Split(axis, len(b.outputs)), x, sizes).outputs


@reader("Tile")
def tile_1(b: NodeBuilder, x: Value, tiles: Value, axis: Value) -> Value:
    repeats = [1] * b.rank_of(x)
    repeats[b.known_ints(axis, "axis")[0]] = b.known_ints(tiles, "tiles")[0]
    return b(s.Tile(), x, ints(repeats))


@reader("Pad", since=2)
def pad_2(b: NodeBuilder, x: Value, *, pads: Ints, mode: str = "constant", value: float = 0.0) -> Value:
    return b(Pad(mode), x, ints(pads), value if mode == "constant" else None)


@reader("Pad")
def pad_1(b: NodeBuilder, x: Value, *, paddings: Ints, mode: str = "constant", value: float = 0.0) -> Value:
    return pad_2(b, x, pads=paddings, mode=mode, value=value)


@reader("Range")
def range_(b: NodeBuilder, start: Value, limit: Value, delta: Value, *, stash_type: int = 1) -> Value:
    dtype = start.type.dtype
    if dtype == F16 or dtype.name == "bfloat16":  # computed in f32, rounded at the end
        wide = [b(Cast(F32), v) for v in (start, limit, delta)]
        return b(Cast(dtype), b(Range(), *wide))
    return b(Range(), start, limit, delta)


@reader("SpaceToDepth")
def space_to_depth(b: NodeBuilder, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    if mode == "CRD":
        return _space_to_depth_crd(b, x, blocksize)
    b.invalid_if(mode != "DCR", "mode", mode, "DCR or CRD")
    return b(s.SpaceToDepth(blocksize), x)


def _space_to_depth_crd(b: NodeBuilder, x: Value, blocksize: int) -> Value:
    """Channel, row, column: the inverse of DepthToSpace in that mode."""
    n, c, h, w = (b.static_dim(x, i) for i in range(4))
    b.invalid_if(blocksize < 1 or h % blocksize or w % blocksize, "blocksize", blocksize, f"a divisor of {h} and {w}")
    oh, ow = h // blocksize, w // blocksize
    blocks = b(s.Reshape(), x, ints([n, c, oh, blocksize, ow, blocksize]))
    moved = b(s.Transpose((0, 1, 3, 5, 2, 4)), blocks)
    return b(s.Reshape(), moved, ints([n, c * blocksize * blocksize, oh, ow]))
