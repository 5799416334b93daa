"""Readers of onnxruntime's layers that remember, cut out, unfold or forbid (domain com.microsoft)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.types import BOOL, F32, F64, I32, I64, Sym
from bolt_numba.converters.builder import END, ints
from bolt_numba.converters.forms import Forms
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import microsoft
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.accumulate import Inverse
from bolt_numba.ops.arrays.gather import Gather, GatherND, ScatterElements
from bolt_numba.ops.arrays.generate import Range
from bolt_numba.ops.arrays.reduce import ReduceMax, ReduceSum
from bolt_numba.ops.arrays.shape import Concat, Shape, Split, Transpose
from bolt_numba.ops.dtypes import FLOATS
from bolt_numba.ops.layers.products.conv import Conv

MOST_WORDS = 256
"""Of a sequence that may not appear again: each takes nodes of its own."""


@microsoft("Inverse")
def inverse(b: NodeBuilder, x: Value) -> Value:
    dtype = x.type.dtype
    return b(Inverse(), x) if dtype in (F32, F64) else b(p.Cast(dtype), b(Inverse(), b(p.Cast(F32), x)))


@microsoft("UnfoldTensor")
def unfold(b: NodeBuilder, x: Value, *, size: int, dim: int = -1, step: int = 1) -> Value:
    """All slices of one length along an axis, each behind the other axes."""
    rank = b.rank_of(x)
    if not -rank <= dim < rank or size < 1 or step < 1:
        raise b.invalid("dim, size and step", (dim, size, step), f"an axis of {rank}, and numbers from 1")
    axis, length = dim % rank, b.dim_of(x, dim)
    if not isinstance(length, Sym) and size > length:
        raise b.invalid("size", size, f"at most {length}, the length of axis {dim}")
    if isinstance(length, Sym):
        end: Any = b(p.Sub(), b.squeezed(b(Shape(axis, axis + 1), x), 0), size - 1)
    else:
        end = np.array(length - size + 1)
    starts = b.unsqueezed(b(Range(), np.array(0), end, np.array(step)), 1)
    windows = b(p.Add(), starts, b.counted(size))
    others = (i for i in range(rank + 1) if i != axis + 1)
    return b(Transpose((*others, axis + 1)), b(Gather(axis), x, windows))


@microsoft("NGramRepeatBlock")
def forbid_repetition(b: NodeBuilder, input_ids: Value, scores: Value, *, ngram_size: int) -> Value:
    """Scores [n, words], minus infinity for words that would make a sequence of so many words appear again."""
    b.invalid_if(not 0 < ngram_size <= MOST_WORDS, "ngram_size", ngram_size, f"1 to {MOST_WORDS}")
    sizes = Forms(b)
    sizes.want("input_ids", input_ids, "rows length", I64)
    sizes.want("scores", scores, "rows words", *FLOATS)
    return without_repetition(b, input_ids, scores, ngram_size, -np.inf)


def without_repetition(b: NodeBuilder, input_ids: Value, scores: Value, ngram_size: int, least: float) -> Value:
    """`forbid_repetition`, whose words get ``least``."""
    input_ids = b.reshaped(input_ids, b.sizes_of(scores, [0]), b.sizes_of(input_ids, [1]))
    input_ids = b.counted_up(input_ids, b.squeezed(b(Shape(1, 2), scores), 0))
    words = b.sliced(input_ids, 1, ngram_size - 1)  # each may come again behind what stands before it
    matches: Any = b(p.GreaterOrEqual(), words, words)
    for i in range(1, ngram_size):
        earlier = b.sliced(input_ids, 1, ngram_size - 1 - i, -i)
        now = b.sliced(input_ids, 1, -i, END if i == 1 else 1 - i)
        matches = b(p.And(), matches, b(p.Equal(), earlier, now))
    dtype = scores.type.dtype
    limits = b(p.Where(), matches, np.array(least, dtype), np.array(np.inf, dtype))
    return b(ScatterElements(1, "min"), scores, words, limits)


@microsoft("CropAndResize")
def crop_and_resize(
    b: NodeBuilder,
    x: Value,
    rois: Value,
    batch_indices: Value,
    crop_size: Value,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Value:
    """Boxes of images [n, c, h, w] in one size; rois: y1, x1, y2, x2 as parts of the last row and column."""
    b.unsupported_if(mode not in ("bilinear", "nearest"), f"mode {mode}")
    held = Forms(b)
    held.want("X", x, "images channels height width", *FLOATS)
    held.want("rois", rois, "boxes 4", *FLOATS)
    held.want("batch_indices", batch_indices, "boxes", I32)
    held.want("crop_size", crop_size, "2", I32)
    batch = b.counted_up(b(p.Cast(I64), batch_indices), b.squeezed(b(Shape(0, 1), x), 0))
    batch = b.reshaped(batch, b.sizes_of(rois, [0]))
    corners = b.node(Split(1, 4), b(p.Cast(F32), rois), ints([1, 1, 1, 1])).outputs
    images = b(Transpose((0, 2, 3, 1)), x)
    inside: Any = None
    places = []
    sizes = b.known_ints(crop_size, "crop_size")
    b.invalid_if(min(sizes) < 1, "crop_size", sizes, "a height and a width, at least 1")
    ask(8 * max(sizes), b.what)
    for i, count in enumerate(sizes):
        last = b(p.Cast(F32), b(p.Sub(), b(Shape(2 + i, 3 + i), x), 1))
        first, end = (b(p.Mul(), corners[i + k], last) for k in (0, 2))
        if count < 2:
            at: Any = b(p.Mul(), b(p.Add(), first, end), 0.5)
        else:
            part = b(p.Mul(), b(p.Sub(), end, first), 1 / (count - 1))
            at = b(p.Add(), first, b(p.Mul(), part, np.arange(count, dtype=F32)))
        within = b(p.And(), b(p.GreaterOrEqual(), at, 0.0), b(p.LessOrEqual(), at, last))
        at = b(p.Where(), within, at, np.zeros((), F32))
        places.append((at, last))
        within = b.unsqueezed(within, 1 if i else 2)
        inside = within if inside is None else b(p.And(), inside, within)
    y = _sampled(b, images, batch, places, mode)
    outside = np.array(extrapolation_value, x.type.dtype)
    return b(Transpose((0, 3, 1, 2)), b(p.Where(), b.unsqueezed(inside, 3), y, outside))


def _sampled(b: NodeBuilder, images: Any, batch: Value, places: Any, mode: str) -> Any:
    """Images [n, h, w, c] at rows and columns [boxes, height] and [boxes, width] of each box."""

    def taken(rows: Any, columns: Any) -> Any:
        axes = [b.unsqueezed(batch, 1, 2), b.unsqueezed(rows, 2), b.unsqueezed(columns, 1)]
        whole = functools.reduce(lambda v, w: b(p.Add(), v, w), [b(p.Mul(), v, 0) for v in axes])
        index = b(Concat(-1), *(b.unsqueezed(b(p.Add(), v, whole), 3) for v in axes))
        return b(GatherND(0), images, index)

    if mode == "nearest":
        return taken(*(b(p.Cast(I64), b(p.Floor(), b(p.Add(), at, 0.5))) for at, _ in places))
    low = [b(p.Floor(), at) for at, _ in places]
    near = [b(p.Cast(I64), v) for v in low]
    far = [
        b(p.Add(), v, b(p.Cast(I64), b(p.Less(), at, last))) for v, (at, last) in zip(near, places, strict=True)
    ]  # the last one has none behind it
    down, right = (b(p.Sub(), at, v) for v, (at, _) in zip(low, places, strict=True))
    down, right = (b(p.Cast(images.type.dtype), v) for v in (b.unsqueezed(down, 2, 3), b.unsqueezed(right, 1, 3)))

    def between(v: Any, w: Any, part: Any) -> Any:
        return b(p.Add(), v, b(p.Mul(), b(p.Sub(), w, v), part))

    top = between(taken(near[0], near[1]), taken(near[0], far[1]), right)
    return between(top, between(taken(far[0], near[1]), taken(far[0], far[1]), right), down)


@microsoft("WordConvEmbedding")
def word_conv_embedding(
    b: NodeBuilder,
    sequence: Value,
    weight: Value,
    bias: Value,
    table: Value,
    *,
    char_embedding_size: int = 0,
    conv_window_size: int = 0,
    embedding_size: int = 0,
) -> Value:
    """A vector for each word [words, letters] of numbers: the greatest of a convolution over its letters; 0 is none."""
    window = b.static_dim(weight, 2)
    letters = b.unsqueezed(b(Gather(0), table, sequence), 1)
    found = b(p.Tanh(), b.squeezed(b(Conv(), letters, weight, bias), 3))
    count = b(ReduceSum(), b(p.Cast(I64), b(p.Cast(BOOL), sequence)), ints([1]))
    valid = b(p.Max(), b(p.Sub(), count, window - 1), b.const(np.array(1)))
    length = b.squeezed(b(Shape(2, 3), found), 0)
    seen = b(p.Less(), b.counted(length), b.unsqueezed(valid, 1))
    greatest = b(ReduceMax(keepdims=False), b(p.Where(), seen, found, np.array(-2, F32)), ints([2]))
    return b(p.Where(), b(p.Equal(), count, np.array(0)), np.zeros((), F32), greatest)
