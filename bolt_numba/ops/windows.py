"""Windows that slide over the spatial axes: paddings, output sizes, taps, and the two layouts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bolt_numba.base.budget import CALL, ask, spend
from bolt_numba.base.records import record
from bolt_numba.base.types import Array, Dim, Shape, TensorType
from bolt_numba.ops.registry import Op, fresh_dim, want_among

LAYOUTS = ("NCHW", "NHWC")
GREATEST_SPAN = (1 << 31) - 1
"""The greatest kernel, stride, dilation or pad, and the longest span: beyond it no product with a size is safe."""
AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def channels_first(x: Array, layout: str) -> Array:
    """View of ``x`` as [n, c, spatial...]."""
    return x if layout == "NCHW" else np.moveaxis(x, -1, 1)


def as_layout(x: Array, layout: str) -> Array:
    """Dense array in ``layout`` from one that is [n, c, spatial...]."""
    return np.ascontiguousarray(x if layout == "NCHW" else np.moveaxis(x, 1, -1))


def split_shape(owner: Op, x: TensorType, layout: str, rank: int | None = None) -> tuple[Dim, Dim, Shape] | None:
    """Batch, channels and spatial sizes of ``x``; None when its rank is unknown; raises ShapeError."""
    want_among(owner, LAYOUTS, layout=layout)
    if x.shape is None:
        return None
    if rank is not None and len(x.shape) != rank:
        raise owner.fail("rank of x", f"{len(x.shape)} ({x})", rank)
    if len(x.shape) < 2:
        raise owner.fail("rank of x", len(x.shape), "at least 2")
    if layout == "NCHW":
        return x.shape[0], x.shape[1], x.shape[2:]
    return x.shape[0], x.shape[-1], x.shape[1:-1]


def join_shape(n: Dim, c: Dim, spatial: Sequence[Dim], layout: str) -> Shape:
    """Inverse of `split_shape`."""
    return (n, c, *spatial) if layout == "NCHW" else (n, *spatial, c)


def per_axis(owner: Op, what: str, given: Sequence[int], count: int, default: int = 1, low: int = 1) -> tuple[int, ...]:
    """``count`` numbers, the default when none is given; raises ShapeError."""
    values = tuple(given) or (default,) * count
    if len(values) != count:
        raise owner.fail(f"length of {what}", len(values), count)
    if values and (min(values) < low or max(values) > GREATEST_SPAN):
        raise owner.fail(what, values, f"{low} to {GREATEST_SPAN}")
    return values


def want_auto_pad(owner: Op, auto_pad: str) -> None:
    """Raise ShapeError for a word that is none of `AUTO_PADS`."""
    want_among(owner, AUTO_PADS, auto_pad=auto_pad)


def resolve_pads(
    auto_pad: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> tuple[int, ...]:
    """Explicit pads, begins then ends, for static sizes; strides, dilations and pads may be empty for their defaults.

    Source: ONNX Conv-22, attribute auto_pad.  SAME_UPPER puts the odd element at the end, SAME_LOWER at the begin.
    """
    rank = len(sizes)
    if auto_pad == "NOTSET":
        return tuple(pads) or (0,) * (2 * rank)
    if auto_pad == "VALID":
        return (0,) * (2 * rank)
    s, d = tuple(strides) or (1,) * rank, tuple(dilations) or (1,) * rank
    totals = [max((-(-sizes[i] // s[i]) - 1) * s[i] + (kernel[i] - 1) * d[i] + 1 - sizes[i], 0) for i in range(rank)]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return tuple(small + large) if auto_pad == "SAME_UPPER" else tuple(large + small)


_MADE: dict[Any, Windows] = {}
MOST_MADE = 1024
"""Windows kept by their attributes: every new shape asks for those of all its layers several times."""


@record(frozen=True)
class Windows:
    """Positions of a kernel on spatial axes; one entry per axis, two in pads (begins, then ends).

    ceil: a last window may begin inside the input or its begin padding and end outside.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str = "NOTSET"
    ceil: bool = False
    spans: tuple[int, ...] = ()
    """Input elements from the first to the last of a dilated kernel; follows from the others."""

    def __post_init__(self) -> None:
        self.__dict__["spans"] = tuple([(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)])

    @staticmethod
    def of(
        owner: Op,
        kernel: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        pads: Sequence[int],
        auto_pad: str,
        ceil: bool = False,
    ) -> Windows:
        """Windows from attributes, where empty tuples mean 1, 1 and 0; raises ShapeError."""
        key = tuple(kernel), tuple(strides), tuple(dilations), tuple(pads), auto_pad, ceil
        known = _MADE.get(key)
        if known is not None:
            return known
        want_auto_pad(owner, auto_pad)
        rank = len(kernel)
        made = Windows(
            per_axis(owner, "kernel", kernel, rank),
            per_axis(owner, "strides", strides, rank),
            per_axis(owner, "dilations", dilations, rank),
            per_axis(owner, "pads", pads, 2 * rank, 0, 0),
            auto_pad,
            ceil and auto_pad == "NOTSET",
        )
        if max(made.spans, default=0) > GREATEST_SPAN:
            raise owner.fail("span of the dilated kernel", made.spans, f"at most {GREATEST_SPAN}")
        if len(_MADE) >= MOST_MADE:
            _MADE.clear()
        _MADE[key] = made
        return made

    def resolved(self, sizes: Sequence[int]) -> Windows:
        """The same windows with explicit pads."""
        if self.auto_pad == "NOTSET" and self.pads:
            return self
        pads = resolve_pads(self.auto_pad, sizes, self.kernel, self.strides, self.dilations, self.pads)
        return replace(self, pads=pads, auto_pad="NOTSET")

    def output_dims(self, owner: Op, sizes: Sequence[Dim]) -> Shape:
        """Number of positions along each axis; raises ShapeError when the kernel does not fit.

        Source: ONNX Conv-22, MaxPool-22 and AveragePool-22.
        """
        if len(sizes) != len(self.kernel):
            raise owner.fail("spatial axes of x", len(sizes), f"{len(self.kernel)}, as the kernel has")
        return tuple([self._output_dim(owner, i, size) for i, size in enumerate(sizes)])

    def static_dims(self, owner: Op, sizes: Sequence[int]) -> list[int]:
        """`output_dims` of static sizes."""
        return [d for d in self.output_dims(owner, sizes) if isinstance(d, int)]

    def _output_dim(self, owner: Op, i: int, size: Dim) -> Dim:
        stride, span = self.strides[i], self.spans[i]
        if self.auto_pad != "NOTSET" and self.auto_pad != "VALID":
            return (size + stride - 1) // stride
        pad, pad_end = (0, 0) if self.auto_pad == "VALID" else (self.pads[i], self.pads[len(self.kernel) + i])
        room = size + (pad + pad_end - span)
        if isinstance(size, int) and isinstance(room, int):
            if room < 0 and not (self.ceil and room + stride > 0):
                raise owner.fail("padded size of x", room + span, f"at least {span}, what the kernel spans")
            count = -(-room // stride) + 1
            late = (count - 1) * stride >= size + pad
            return (count - late) if self.ceil else room // stride + 1
        if not self.ceil or stride == 1:
            return room // stride + 1
        return (room + stride - 1) // stride + 1 if stride + pad_end <= span else fresh_dim("windows")

    def padded(self, x: Array, value: float | int, outs: Sequence[int]) -> Array:
        """``x`` [n, c, spatial...] surrounded by ``value`` so far that the last window lies inside."""
        rank = len(self.kernel)
        widths = [(0, 0), (0, 0)]
        for i, size in enumerate(x.shape[2:]):
            reach = (outs[i] - 1) * self.strides[i] + self.spans[i] - size - self.pads[i]
            widths.append((self.pads[i], max(reach, self.pads[rank + i])))
        if not any(map(any, widths)):
            return x
        room = math.prod(d + sum(w) for d, w in zip(x.shape, widths, strict=True))
        ask(room * x.itemsize, f"windows of {self.kernel}: padded operand")
        return np.pad(x, widths, constant_values=value)

    def taps(self, x: Array, outs: Sequence[int]) -> Iterator[Array]:
        """For each kernel position in row-major order, the view [n, c, outs...] of the padded ``x`` that it meets."""
        spend(math.prod(self.kernel) * (CALL + math.prod((*x.shape[:2], *outs))), f"windows of {self.kernel}")
        for tap in itertools.product(*map(range, self.kernel)):
            begins = [t * d for t, d in zip(tap, self.dilations, strict=True)]
            index = [
                slice(b, b + (o - 1) * s + 1 if o else b, s) for b, o, s in zip(begins, outs, self.strides, strict=True)
            ]
            yield x[(slice(None), slice(None), *index)]
