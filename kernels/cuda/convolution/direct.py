"""Any convolution and transposed convolution, one thread an output element: for what the faster kernels do not take."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BF16, F16, TensorType, dtype_name
from bolt_numba.base.types import F32 as FLOAT32
from bolt_numba.kernels.cuda.convolution.axes import axes_of, channels, steps_between
from bolt_numba.kernels.cuda.convolution.tail import Ending, float_ending
from bolt_numba.kernels.cuda.declare import I64, PTR, PTR_OR_0, inline
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.elementwise.epilogue import ACTIVATION_FIELDS, activation, activation_args, can_activate
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.geometry.elements import DeviceParts, Elements
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel, result_of
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.layers.products.conv import Conv, Convolution, ConvTranspose

_AXES = "dhw"
_FIELDS = ("size", "out", "taps", "stride", "dilation", "pad")
_SIZES: dict[str, Any] = {f"{field}{axis}": I64 for field in _FIELDS for axis in _AXES}
_FIELDS_OF_ALL: dict[str, Any] = {
    **dict.fromkeys(("x", "w", "y"), PTR),
    **dict.fromkeys(("bias", "res", "columns", "factors", "scales"), PTR_OR_0),
    **dict.fromkeys(("kg", "cg", "wk", "wc", "wt", "zero"), I64),
    **ACTIVATION_FIELDS, **{f"x{axis}": I64 for axis in f"nc{_AXES}"}, **_SIZES,
}  # fmt: skip


@inline
def met_by_window(o, tap, stride, dilation, pad):
    """Index of the input that a tap of output ``o`` meets, which may be outside."""
    return np.int64(o) * stride + tap * dilation - pad


@inline
def met_transposed(o, tap, stride, dilation, pad):
    """The same for a transposed convolution; -1 where the strides lead past it."""
    at = np.int64(o) + pad - tap * dilation
    return at // stride if at >= 0 and at % stride == 0 else np.int64(-1)


@inline
def product(a, b, zero):
    return a * b


@inline
def product_centred(a, b, zero):
    return np.int32((np.int32(a) - np.int32(zero)) * np.int32(b))


@record(frozen=True)
class Direct:
    """Dtypes of x and w, what becomes of the sums, whether channels come last, and bytes of bias and residual."""

    x: str
    w: str
    ending: Ending
    last: bool
    transposed: bool
    bias: int
    residual: int

    def __str__(self) -> str:
        return f"{self.x}_{self.w}_{self.ending.y}{'_transposed' * self.transposed}"


def _reach(a: Numbers, of: Direct) -> dict[str, Any]:
    sizes, filters = lang.SIZES, a.k * a.cg * a.tapsd * a.tapsh * a.tapsw
    count = a.images * a.k * a.outd * a.outh * a.outw
    return {
        "x": sizes[of.x] * a.images * a.xn, "w": sizes[of.w] * filters, "bias": of.bias * a.k,
        "y": sizes[of.ending.y] * count, "res": of.residual * count, "columns": 4 * a.k, "factors": 4 * a.k,
        "scales": 16,
    }  # fmt: skip


def _direct(on: DeviceParts, of: Direct):
    """Fields.  x: elements [images][xn] · w: [k][cg][taps] · bias: f32 [k] · y, res: alike.

    wk, wc, wt: elements of w from a filter, an input channel and a tap to the next ·
    zero: of x, where these are bytes · xn, xc, xd, xh, xw: elements of x between indices · columns, factors, scales:
    see `tail.BYTE_TAIL` · the rest: see `ConvAxis`.
    """
    load, load_w, store = getattr(lang, f"load_{of.x}"), getattr(lang, f"load_{of.w}"), on.store(of.ending.y)
    SX, SW, SY = lang.SIZES[of.x], lang.SIZES[of.w], lang.SIZES[of.ending.y]
    met, finish, transposed = met_transposed if of.transposed else met_by_window, of.ending.finish, of.transposed
    is_sum = of.ending.sums == "i32"
    times, number = product_centred if is_sum else product, np.int32 if is_sum else np.float32

    @inline
    def element(
        image, column, od, oh, ow, t, x, w, bias, res, y, kg, cg, wk, wc, wt, zero, columns, factors, scales, act0,
        act1, xn, xc, xd, xh, xw, sized, sizeh, sizew, tapsd, tapsh, tapsw, strided, strideh, stridew, dilationd,
        dilationh, dilationw, padd, padh, padw,
    ):  # fmt: skip
        group = np.int64(np.uint32(np.uint32(column) // np.uint32(kg)))
        pixels = x + SX * (image * xn + group * cg * xc)
        filters = w + SW * (column * wk if not transposed else (group * cg * wc + (column - group * kg) * wk))
        acc, tap = number(0), 0
        for td in range(tapsd):
            for th in range(tapsh):
                for tw in range(tapsw):
                    d, h = met(od, td, strided, dilationd, padd), met(oh, th, strideh, dilationh, padh)
                    v = met(ow, tw, stridew, dilationw, padw)
                    if d >= 0 and h >= 0 and v >= 0 and d < sized and h < sizeh and v < sizew:
                        at = pixels + SX * (d * xd + h * xh + v * xw)
                        for c in range(cg):
                            acc += times(load(at + SX * c * xc), load_w(filters + SW * (c * wc + tap * wt)), zero)
                    tap += 1
        store(y + SY * t, finish(acc, column, t, (bias, res, columns, factors, scales), act0, act1))

    return element


_PIXEL = {f"o{axis}": f"out{axis}" for axis in _AXES}
_OVER = {False: {"image": "images", "column": "k", **_PIXEL}, True: {"image": "images", **_PIXEL, "column": "k"}}
DIRECT = {
    last: Elements(f"direct_{'last' if last else 'first'}", over, "", _FIELDS_OF_ALL, _reach, _direct)
    for last, over in _OVER.items()
}
"""By whether channels come last: [images, outd, outh, outw, k], or [images, k, outd, outh, outw]."""


def direct_step(of: Direct, args: dict[str, Argument]) -> Step:
    return PARTS.step(DIRECT[of.last], (of,), args)


def direct_args(op: Convolution | ConvTranspose, x: TensorType, w: TensorType, y: TensorType) -> dict[str, Argument]:
    """Arguments that follow from shapes."""
    transposed, taps = isinstance(op, ConvTranspose), math.prod(w.dims[2:])
    axes, c, k = axes_of(op, x, w.dims[2:], y), channels(x, op.layout), channels(y, op.layout)
    args: dict[str, Argument] = {
        "images": x.dims[0], "k": k, "kg": k // op.group, "cg": c // op.group,
        "wk": taps if transposed else c // op.group * taps, "wc": k // op.group * taps if transposed else taps, "wt": 1,
    }  # fmt: skip
    args |= {f"x{axis}": step for axis, step in steps_between([a.size for a in axes], c, op.layout).items()}
    for letter, a in zip(_AXES, axes, strict=True):
        numbers = (a.size, a.out, a.kernel, a.stride, a.dilation, a.pad)
        args |= {f"{field}{letter}": n for field, n in zip(_FIELDS, numbers, strict=True)}
    return args


def accepts_direct(op: Conv | ConvTranspose, ins: Types) -> bool:
    """Operands of one float dtype of at most 32 bits, which 32 bits can number."""
    given = [t for t in ins if t is not None]
    if getattr(op, "to", None) is not None or any(t.dtype != given[0].dtype or not t.is_static for t in given):
        return False
    if given[0].dtype not in (FLOAT32, F16, BF16) or not can_activate(op.activation):
        return False
    return all(0 < t.size <= MAX_I32 for t in (*given, result_of(op, ins)))


@kernel(Conv, ConvTranspose, device="cuda", accepts=accepts_direct, rank=-10)
def direct(op: Conv | ConvTranspose, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """One thread an element."""
    x, w = ins[0], ins[1]
    bias, res = (*ins, None, None)[2:4]
    name, transposed = dtype_name(x.dtype), isinstance(op, ConvTranspose)
    args: dict[str, Argument] = {
        "x": In(0), "w": In(1), "bias": None if bias is None else In(2), "res": None if res is None else In(3),
        "y": Out(), "zero": 0, "columns": None, "factors": None, "scales": None, **activation_args(op.activation),
        **direct_args(op, x, w, outs[0]),
    }  # fmt: skip
    size = x.dtype.itemsize
    of = Direct(name, name, float_ending(name, activation(op.activation)), op.layout == "NHWC", transposed, size, size)
    return [direct_step(of, args)]
