"""What each operator computes, in the arithmetic of a chip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from simnpu_sdk.errors import SimError
from simnpu_sdk.graph import Graph, Op, Tensor

Array: TypeAlias = np.ndarray
Kernel: TypeAlias = "Callable[[Call, list[Array]], Array]"


class Call:
    """An operator with its tensors, on a chip of this arithmetic."""

    def __init__(self, graph: Graph, op: Op, arithmetic: str) -> None:
        self.op, self.arithmetic, self.attributes = op, arithmetic, op.attributes
        self.ins: list[Tensor] = [graph.tensors[i] for i in op.inputs]
        self.out: Tensor = graph.tensors[op.outputs[0]]

    def __call__(self, operands: list[Array]) -> Array:
        """The result.  Raises SimError where its shape is none that was declared."""
        with np.errstate(all="ignore"):
            made = np.asarray(KERNELS[self.op.kind](self, operands))
        if self.arithmetic == "bf16" and made.dtype == np.float32:
            made = as_bf16(made)
        wanted = self.out.shape
        if len(wanted) != made.ndim or any(d not in (None, n) for d, n in zip(wanted, made.shape, strict=True)):
            raise SimError(f"{self.op.kind}: got a result {made.shape}, wanted {wanted}")
        return made


def as_bf16(x: Array) -> Array:
    """Numbers as f32 whose lower 16 bits are zero: rounded to the nearest, of two to the even one; no NaN is lost."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, rounded.astype(np.uint32).view(np.float32).reshape(x.shape)).astype(np.float32)


def as_bytes(x: Array) -> Array:
    """Numbers rounded to the nearest of 256 between the least and the greatest (zero among them)."""
    low, high = min(float(x.min(initial=0)), 0.0), max(float(x.max(initial=0)), 0.0)
    scale = (high - low) / 255 or 1.0
    zero = np.rint(-low / scale)
    return ((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale).astype(np.float32)


ROUNDED: dict[str, Callable[[Array], Array]] = {"f32": lambda x: x, "bf16": as_bf16, "u8": as_bytes}


def product(call: Call, x: Array, w: Array) -> Array:
    """Matrix product of operands that the chip rounds; sums are f32."""
    rounded = ROUNDED[call.arithmetic]
    return np.asarray(np.matmul(rounded(x), rounded(w)), np.float32)


# --- images ------------------------------------------------------------------------------------------------------


def windows(call: Call, x: Array, kernel: tuple[int, int], outside: float) -> Array:
    """The windows of an image: [n, oh, ow, r, s, c], with this number around the image."""
    top, left, bottom, right = call.attributes["pads"]
    (sh, sw), (dh, dw) = call.attributes["strides"], call.attributes.get("dilations", (1, 1))
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=outside)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, (dh, dw), strict=True)]
    seen = sliding_window_view(x, spans, (1, 2))[:, ::sh, ::sw, :, ::dh, ::dw]
    return np.moveaxis(seen, 3, 5)


def sums_of_windows(call: Call, x: Array, w: Array, outside: float, multiply: Callable[[Array, Array], Array]) -> Array:
    """Products of windows and filters [o, r, s, c / groups], group by group."""
    groups = call.attributes.get("groups", 1)
    seen = windows(call, x, w.shape[1:3], outside)
    n, oh, ow = seen.shape[:3]
    parts = []
    for columns, filters in zip(np.split(seen, groups, 5), np.split(w, groups, 0), strict=True):
        made = multiply(columns.reshape(n * oh * ow, -1), filters.reshape(len(filters), -1).T)
        parts.append(made.reshape(n, oh, ow, -1))
    return np.concatenate(parts, 3)


def conv(call: Call, xs: list[Array]) -> Array:
    made = sums_of_windows(call, xs[0], xs[1], 0, lambda x, w: product(call, x, w))
    return made + xs[2] if len(xs) > 2 else made


def max_pool(call: Call, xs: list[Array]) -> Array:
    lowest = -np.inf if xs[0].dtype == np.float32 else 0
    return windows(call, xs[0], tuple(call.attributes["kernel"]), lowest).max((3, 4))


def avg_pool(call: Call, xs: list[Array]) -> Array:
    kernel = tuple(call.attributes["kernel"])
    total = windows(call, xs[0], kernel, 0).sum((3, 4), dtype=np.float32)
    inside = np.ones((1, *xs[0].shape[1:3], 1), np.float32)
    return total / windows(call, inside, kernel, float(call.attributes["count_pads"])).sum((3, 4), dtype=np.float32)


# --- bytes -------------------------------------------------------------------------------------------------------


def quantised(x: Array, t: Tensor) -> Array:
    return np.clip(np.rint(x / np.float32(t.scale[0])) + t.zero_point, 0, 255).astype(np.uint8)


def exact(x: Array, w: Array) -> Array:
    """Product of whole numbers, exact to 2 ** 53."""
    return np.matmul(x.astype(np.float64), w.astype(np.float64))


def finished(call: Call, sums: Array, xs: list[Array]) -> Array:
    """Sums of bytes as real numbers, with a bias (i32: of the sums, f32: of the numbers) and limits, or as bytes."""
    bias = xs[2] if len(xs) > 2 else None
    if bias is not None and bias.dtype == np.int32:
        sums, bias = sums + bias, None
    real = sums.astype(np.float32) * (np.float32(call.ins[0].scale[0]) * np.asarray(call.ins[1].scale, np.float32))
    real = clip(call, [real if bias is None else real + bias])
    return quantised(real, call.out) if call.out.dtype == "u8" else real


def centred(x: Array, t: Tensor) -> Array:
    return x.astype(np.int32) - t.zero_point


def byte_conv(call: Call, xs: list[Array]) -> Array:
    x, w = centred(xs[0], call.ins[0]), centred(xs[1], call.ins[1])
    return finished(call, sums_of_windows(call, x, w, 0, exact), xs)


def byte_fully_connected(call: Call, xs: list[Array]) -> Array:
    return finished(call, exact(centred(xs[0], call.ins[0]), centred(xs[1], call.ins[1]).T), xs)


# --- the rest ----------------------------------------------------------------------------------------------------


def fully_connected(call: Call, xs: list[Array]) -> Array:
    made = product(call, xs[0], xs[1].T)
    return made + xs[2] if len(xs) > 2 else made


def softmax(call: Call, xs: list[Array]) -> Array:
    e = np.exp(xs[0] - xs[0].max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def reshape(call: Call, xs: list[Array]) -> Array:
    x, shape = xs[0], call.attributes["shape"]
    return x.reshape([x.shape[i] if d == 0 else d for i, d in enumerate(shape)])


def clip(call: Call, xs: list[Array]) -> Array:
    low, high = call.attributes.get("low"), call.attributes.get("high")
    return np.clip(xs[0], None if low is None else np.float32(low), None if high is None else np.float32(high))


def simple(function: Any) -> Kernel:
    return lambda call, xs: function(*xs)


KERNELS: dict[str, Kernel] = {
    "Conv2D": conv, "MaxPool2D": max_pool, "AvgPool2D": avg_pool, "FullyConnected": fully_connected,
    "MatMul": lambda call, xs: product(call, xs[0], xs[1]), "Softmax": softmax, "Reshape": reshape, "Clip": clip,
    "Transpose": lambda call, xs: np.ascontiguousarray(xs[0].transpose(call.attributes["perm"])),
    "Concat": lambda call, xs: np.concatenate(xs, call.attributes["axis"]),
    "Mean": lambda call, xs: xs[0].mean(tuple(call.attributes["axes"]), np.float32, keepdims=True),
    "Quantize": lambda call, xs: quantised(xs[0], call.out),
    "Dequantize": lambda call, xs: centred(xs[0], call.ins[0]).astype(np.float32) * np.float32(call.ins[0].scale[0]),
    "QConv2D": byte_conv, "QFullyConnected": byte_fully_connected,
    "Add": simple(np.add), "Sub": simple(np.subtract), "Mul": simple(np.multiply), "Div": simple(np.divide),
    "Max": simple(np.maximum), "Min": simple(np.minimum), "Exp": simple(np.exp), "Tanh": simple(np.tanh),
    "Neg": simple(np.negative), "Relu": simple(lambda x: np.maximum(x, np.float32(0))),
    "Sqrt": simple(np.sqrt), "Sigmoid": simple(lambda x: 1 / (1 + np.exp(-x))),
}  # fmt: skip
