"""A transposed convolution of bytes is one convolution that gives the pixels between two inputs as channels.

integer_conv_transpose(ConvTranspose(DQ(x), DQ(w))) -> Slice(DepthToSpace(QLinearConv(x, w')))   s * s times the filters

Result q * s + f takes the taps f, f + s, f + 2s ... of a filter, so each f has a filter of its own; missing taps are 0.
Where sizes are known, and for other ranks, a Reshape, Transpose and Reshape stand for DepthToSpace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.quantize import DequantizeLinear
from bolt_numba.ops.arrays.shape import DepthToSpace, Reshape, Transpose
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.layers.products.conv import ConvTranspose
from bolt_numba.ops.layers.products.integer_products import QLinearConv
from bolt_numba.ops.windows import per_axis
from bolt_numba.passes.quantised.products import Stored, bias_of_sums, constant_of, known, stored, sums_stay_within
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule


@rule(Pat(ConvTranspose, (Pat(DequantizeLinear, name="x"), Pat(DequantizeLinear, name="w"))))
def integer_conv_transpose(m: Match, b: Builder) -> Result:
    x = stored(m["x"])
    return m.refuse("no bytes") if x is None else as_convolution(m, b, x)


def as_convolution(m: Match, b: Builder, x: Stored) -> Result:
    """The transposed convolution ``m.root`` of bytes ``x`` with the dequantised filters ``w`` as one convolution."""
    op: Any = m.root.op
    w = stored(m["w"])
    if w is None or op.activation is not None:
        return m.refuse("no bytes, or fused already")
    data, scale, points = (known(v) for v in (w.data, w.scale, w.zero))
    if x.axis is not None or w.axis not in (None, 1) or data is None or scale is None or points is None:
        return m.refuse("several scales of x or of a filter, or filters that are computed")
    op = _with_pads(op, m.root.inputs[0], data.shape[2:])
    if op is None or set(op.dilations) - {1}:
        return m.refuse("dilated, or pads that follow from sizes that only the run tells, or are negative")
    g = _Phases.of(op, data.shape)
    last = op.layout == "NHWC"
    depth = data.shape[0] // op.group * math.prod(g.taps)
    given = bias_of_sums((*m.root.inputs, None)[2], x, w, depth)
    bias = None if given is None else constant_of(given)
    if not sums_stay_within(x, w, depth) or (bias is None) != (given is None):
        return m.refuse("sums that may exceed 32 bits, or a bias that is computed")
    conv = QLinearConv(pads=g.conv_pads, group=op.group, layout=op.layout)
    scale, zero = (v if v.size == 1 else g.repeated(v) for v in (scale, points))
    filters, biases = g.filters(data, points), None if bias is None else g.repeated(bias)
    sums = b(conv, x.data, x.scale, x.zero, filters, scale, zero, None, None, biases)
    y = g.spread_last(b, sums) if last else g.spread(b, sums)
    if y is None:
        return m.refuse("sizes that only the run tells, of unequal strides or groups")
    return g.cropped(b, y, 1 if last else 2)


def _with_pads(op: ConvTranspose, x: Value | None, spans: Sequence[int]) -> Any:
    """The operator with pads instead of what they follow from; None where that is not known, or more than all."""
    if op.auto_pad in ("NOTSET", "VALID") and not op.output_shape:
        return op
    shape = None if x is None else x.type.shape
    sizes = () if shape is None else shape[1:-1] if op.layout == "NHWC" else shape[2:]
    if not sizes or not all(isinstance(d, int) for d in sizes):
        return None
    made = replace(op, pads=op.resolved_pads(sizes, spans), auto_pad="NOTSET", output_shape=())  # type: ignore[arg-type]
    return made if made.output_dims(sizes, spans) == op.output_dims(sizes, spans) else None


@record(frozen=True)
class _Phases:
    """The geometry.  results: filters of a group.  taps: of one phase.  begins, ends: what is cut off at last."""

    group: int
    results: int
    spans: tuple[int, ...]
    strides: tuple[int, ...]
    taps: tuple[int, ...]
    conv_pads: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, op: Any, shape: tuple[int, ...]) -> _Phases:
        spans, rank = shape[2:], len(shape) - 2
        windows = op.windows(spans)
        pads = windows.pads if op.auto_pad == "NOTSET" else (0,) * (2 * rank)
        strides = tuple(windows.strides)
        extra = per_axis(op, "output_padding", op.output_padding, rank, 0, 0)
        wanted = [r + e for r, e in zip(spans, extra, strict=True)]
        taps = tuple(-(-r // s) for r, s in zip(spans, strides, strict=True))
        rows = [max(t, -(-d // s)) for t, d, s in zip(taps, wanted, strides, strict=True)]
        begins, ends = list(pads[:rank]), [r * s - d for r, s, d in zip(rows, strides, wanted, strict=True)]
        before, behind = [t - 1 for t in taps], [r - 1 for r in rows]
        for i, s in enumerate(strides):  # what is cut off in whole strides is not computed
            ends[i] += pads[rank + i]
            for padded, cut in ((before, begins), (behind, ends)):
                dropped = min(padded[i], cut[i] // s)
                padded[i], cut[i] = padded[i] - dropped, cut[i] - dropped * s
        return cls(op.group, shape[1], spans, strides, taps, (*before, *behind), tuple(begins), tuple(ends))

    def repeated(self, v: Array) -> Array:
        """Numbers of the filters as numbers of all results: group, phase, filter."""
        full = (self.group, math.prod(self.strides), self.results)
        return np.ascontiguousarray(np.broadcast_to(v.reshape(-1, 1, self.results), full)).reshape(-1)

    def filters(self, w: Array, zero: Array) -> Array:
        """[group, phase and filter, channels of a group, taps] of w [channels, filters of a group, spans]."""
        rank, whole = len(self.spans), [t * s for t, s in zip(self.taps, self.strides, strict=True)]
        full = np.empty((*w.shape[:2], *whole), w.dtype)
        full[...] = zero.reshape(-1, *(1,) * rank)
        full[(slice(None), slice(None), *map(slice, self.spans))] = w
        split = [d for pair in zip(self.taps, self.strides, strict=True) for d in pair]
        parts = full.reshape(self.group, -1, self.results, *split)
        parts = np.flip(parts, tuple(3 + 2 * i for i in range(rank)))
        order = (0, *(4 + 2 * i for i in range(rank)), 2, 1, *(3 + 2 * i for i in range(rank)))
        made = parts.transpose(order).reshape(-1, w.shape[0] // self.group, *self.taps)
        return np.ascontiguousarray(made)

    def spread(self, b: Builder, y: Value) -> Value | None:
        """Phases as pixels."""
        rank, sizes = len(self.spans), (y.type.shape or ())[2:]
        if math.prod(self.strides) == 1:
            return y
        steps = set(self.strides)
        if all(isinstance(d, int) for d in sizes):
            apart = np.array([0, self.group, *self.strides, self.results, *sizes], np.int64)
            pixels = [a for i in range(rank) for a in (rank + 3 + i, 2 + i)]
            moved = b(Transpose((0, 1, rank + 2, *pixels)), b(Reshape(), y, apart))
            merged = [0, self.group * self.results, *(d * s for d, s in zip(sizes, self.strides, strict=True))]
            return b(Reshape(), moved, np.array(merged, np.int64))
        if rank == 2 and len(steps) == 1 and self.group == 1:
            return b(DepthToSpace(steps.pop()), y)
        return None

    def spread_last(self, b: Builder, y: Value) -> Value | None:
        """`spread`, channels last."""
        rank, sizes = len(self.spans), (y.type.shape or ())[1:-1]
        if math.prod(self.strides) == 1:
            return y
        if not all(isinstance(d, int) for d in sizes):
            return None
        apart = np.array([0, *sizes, self.group, *self.strides, self.results], np.int64)
        pixels = [a for i in range(rank) for a in (1 + i, rank + 2 + i)]
        moved = b(Transpose((0, *pixels, rank + 1, 2 * rank + 2)), b(Reshape(), y, apart))
        merged = [0, *(d * s for d, s in zip(sizes, self.strides, strict=True)), self.group * self.results]
        return b(Reshape(), moved, np.array(merged, np.int64))

    def cropped(self, b: Builder, y: Value, first: int) -> Value:
        """Without what the pads cut off; first: the first spatial axis."""
        if not any((*self.begins, *self.ends)):
            return y
        ends = [-e if e else LAST for e in self.ends]
        axes = np.arange(first, first + len(ends))
        return b(Slice(), y, np.array(self.begins), np.array(ends), axes)


LAST = np.iinfo(np.int64).max
RULES: tuple[Rule, ...] = (integer_conv_transpose,)
