"""Any convolution and transposed convolution, one thread an output element: for what the faster kernels do not take."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.convolution.axes import axes_of, channels, steps_between
from bolt_numba.kernels.cuda.declare import I64, PTR, PTR_OR_0, CudaKernel, ceil_div, cuda_kernel, inline
from bolt_numba.kernels.cuda.elementwise.epilogue import ACTIVATION_FIELDS, activation, activation_args, can_activate
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import cuda
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types, kernel, result_of
from bolt_numba.ops.layers.conv import Conv, ConvTranspose
from bolt_numba.types import BF16, F16, TensorType, dtype_name
from bolt_numba.types import F32 as FLOAT32

THREADS = 128
MOST = (1 << 31) - 1
"""Elements of an operand up to which 32 bits number them."""
_AXES = "dhw"
_FIELDS = ("size", "out", "taps", "stride", "dilation", "pad")
_SIZES: dict[str, Any] = {f"{field}{axis}": I64 for field in _FIELDS for axis in _AXES}
_NUMBERS: dict[str, Any] = {**ACTIVATION_FIELDS, **{f"x{axis}": I64 for axis in f"nc{_AXES}"}, **_SIZES}


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
def divided(i, by):
    """Quotient and remainder."""
    q = np.uint32(i // np.uint32(by))
    return q, np.uint32(i - q * np.uint32(by))


@inline
def place_last(i, k, outd, outh, outw):
    """Image, filter and pixel of an element of [n, d, h, w, c]."""
    rest, column = divided(i, k)
    rest, ow = divided(rest, outw)
    rest, oh = divided(rest, outh)
    image, od = divided(rest, outd)
    return image, column, od, oh, ow


@inline
def place_first(i, k, outd, outh, outw):
    """The same of [n, c, d, h, w]."""
    rest, ow = divided(i, outw)
    rest, oh = divided(rest, outh)
    rest, od = divided(rest, outd)
    image, column = divided(rest, k)
    return image, column, od, oh, ow


@functools.cache
def direct_kernel(dtype: str, last: bool, transposed: bool, activate: Any) -> CudaKernel:
    """Fields.

    x, w, bias, res, y: of one dtype; w: as the operators have it · wk, wc: elements from a filter to the next, and from
    an input channel to the next · xn, xc, xd, xh, xw: elements of x between indices · the rest: see `ConvAxis`.
    last: whether channels come last.
    """
    load, store, size = getattr(lang, f"load_{dtype}"), getattr(lang, f"store_{dtype}"), lang.SIZES[dtype]
    place = place_last if last else place_first
    met = met_transposed if transposed else met_by_window

    def reach(a: Any) -> dict[str, int]:
        filters = a.k * a.cg * a.tapsd * a.tapsh * a.tapsw
        return {
            "x": size * a.images * a.xn, "w": size * filters, "bias": size * a.k, "y": size * a.total,
            "res": size * a.total,
        }  # fmt: skip

    @cuda_kernel(
        threads=THREADS, blocks=lambda a: ceil_div(a.total, THREADS), extents=reach,
        x=PTR, w=PTR, bias=PTR_OR_0, res=PTR_OR_0, y=PTR, total=I64, images=I64, k=I64, kg=I64, cg=I64, wk=I64, wc=I64,
        **_NUMBERS,
    )  # fmt: skip
    def direct(
        x, w, bias, res, y, total, images, k, kg, cg, wk, wc, act0, act1, xn, xc, xd, xh, xw, sized, sizeh, sizew,
        outd, outh, outw, tapsd, tapsh, tapsw, strided, strideh, stridew, dilationd, dilationh, dilationw,
        padd, padh, padw,
    ):  # fmt: skip
        i = np.uint32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
        if i >= np.uint32(total):
            return
        image, column, od, oh, ow = place(i, k, outd, outh, outw)
        group = np.int64(np.uint32(column // np.uint32(kg)))
        pixels = x + size * (np.int64(image) * xn + group * cg * xc)
        own = np.int64(column)
        filters = w + size * (own * wk if not transposed else (group * cg * wc + (own - group * kg) * wk))
        acc = np.float32(0)
        t = 0
        for td in range(tapsd):
            for th in range(tapsh):
                for tw in range(tapsw):
                    d, h = met(od, td, strided, dilationd, padd), met(oh, th, strideh, dilationh, padh)
                    v = met(ow, tw, stridew, dilationw, padw)
                    if d >= 0 and h >= 0 and v >= 0 and d < sized and h < sizeh and v < sizew:
                        at = pixels + size * (d * xd + h * xh + v * xw)
                        for c in range(cg):
                            acc += load(at + size * c * xc) * load(filters + size * (c * wc + t))
                    t += 1
        if bias != 0:
            acc += load(bias + size * own)
        if res != 0:
            acc += load(res + size * np.int64(i))
        store(y + size * np.int64(i), activate(acc, act0, act1))

    return direct


def accepts_direct(op: Any, ins: Types) -> bool:
    """Operands of one float dtype of at most 32 bits, which 32 bits can number."""
    given = [t for t in ins if t is not None]
    if getattr(op, "to", None) is not None or any(t.dtype != given[0].dtype or not t.is_static for t in given):
        return False
    if given[0].dtype not in (FLOAT32, F16, BF16) or not can_activate(op.activation):
        return False
    return all(0 < t.size <= MOST for t in (*given, result_of(op, ins)))


@kernel(Conv, ConvTranspose, device="cuda", accepts=accepts_direct, rank=-10, by_types=True)
def direct(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One thread an element."""
    x, w, bias, res = (*ins, None, None)[:4]
    assert x is not None
    assert w is not None
    transposed, kernel_shape = isinstance(op, ConvTranspose), w.dims[2:]
    axes, c, k = axes_of(op, x, kernel_shape, outs[0]), channels(x, op.layout), channels(outs[0], op.layout)
    taps = math.prod(kernel_shape)
    args: dict[str, Argument] = {
        "x": In(0), "w": In(1), "bias": None if bias is None else In(2), "res": None if res is None else In(3),
        "y": Out(), "total": outs[0].size, "images": x.dims[0], "k": k, "kg": k // op.group, "cg": c // op.group,
        "wk": taps if transposed else c // op.group * taps, "wc": k // op.group * taps if transposed else taps,
        **activation_args(op.activation),
    }  # fmt: skip
    args |= {f"x{axis}": step for axis, step in steps_between([a.size for a in axes], c, op.layout).items()}
    for letter, a in zip(_AXES, axes, strict=True):
        numbers = (a.size, a.out, a.kernel, a.stride, a.dilation, a.pad)
        args |= {f"{field}{letter}": n for field, n in zip(_FIELDS, numbers, strict=True)}
    return [Step(direct_kernel(dtype_name(x.dtype), op.layout == "NHWC", transposed, activation(op.activation)), args)]


def samples() -> dict[str, CudaKernel]:
    plain = activation(None)
    return {f"{dtype} {t}": direct_kernel(dtype, True, t, plain) for dtype in ("f32", "f16") for t in (False, True)}
