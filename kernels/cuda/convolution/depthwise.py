"""Depthwise convolution: one filter for every channel, a vector of channels of a few pixels of a row for each thread.

What a row of a filter meets is loaded once for all pixels of the thread where the filter is narrow and not dilated.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BF16, F16, F32, Array, dtype_name
from bolt_numba.kernels.cuda.convolution.axes import axes_of
from bolt_numba.kernels.cuda.convolution.conv import PROCESSORS, accepts_channels_last
from bolt_numba.kernels.cuda.convolution.reading import packed_divider
from bolt_numba.kernels.cuda.convolution.tail import of_group
from bolt_numba.kernels.cuda.declare import (
    BLOCK,
    I32,
    I64,
    PTR,
    PTR_OR_0,
    CudaKernel,
    Macro,
    ceil_div,
    cuda_kernel,
    inline_source,
)
from bolt_numba.kernels.cuda.elementwise.epilogue import ACTIVATION_FIELDS, activation, activation_args
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.division import fast_divide
from bolt_numba.kernels.cuda.language.lang import cuda, static, static_range
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.ops.layers.products.conv import Conv

u32, i32, i64 = np.uint32, np.int32, np.int64
BUSY = 1024
"""Threads of a multiprocessor from which a thread takes several pixels."""
_AXES, _NAMES = "dhw", ("size", "out", "stride", "dilation", "pad")
_NUMBERS: dict[str, Any] = {
    **ACTIVATION_FIELDS, **{f"by{what}": I64 for what in "cwhd"}, **{f"{n}{a}": I32 for a in _AXES for n in _NAMES},
}  # fmt: skip


@record(frozen=True)
class Sliding:
    """What a thread slides over a row: ``pixels`` results of ``columns`` taps, ``stride`` inputs from one to the next.

    columns: 0 stands for any filter, whose columns are met one after the other.
    """

    pixels: int
    columns: int = 0
    stride: int = 1

    @property
    def inputs(self) -> int:
        """Vectors of a row that are loaded at once."""
        return (self.pixels - 1) * self.stride + max(self.columns, 1)


def _helper(name: str, head: str, each: str, count: int, tail: str = "", **scope: Any) -> Inline:
    """A helper with one line for each element of a vector, where ``{k}`` is its number."""
    lines = [f"def {name}{head}", *(f"    {each.format(k=k)}" for k in range(count)), tail]
    return inline_source("\n".join(lines) + "\n", name, **scope)


@functools.cache
def vector_words(dtype: str, count: int, activate: Any) -> tuple[Any, Any, Any, Any]:
    """Helpers of vectors of ``count`` elements, which begin at place ``i`` of an array of f32.

    ``take(address, a, i)`` loads; ``add(address, a, i)`` adds what is there, nothing at 0; ``multiply(a, i, b, w, j)``
    adds b times w[j ...]; ``give(address, a, i, act0, act1)`` activates and stores.
    """
    n = "" if count == 1 else str(count)
    scope = {"load": getattr(lang, f"load{n}_{dtype}_nc"), "store": getattr(lang, f"store{n}_{dtype}"), "act": activate}
    index = "" if count == 1 else "[{k}]"
    given = ", ".join(f"act(a[i + {k}], act0, act1)" for k in range(count))
    return (
        _helper("take", "(address, a, i):\n    v = load(address)", f"a[i + {{k}}] = v{index}", count, **scope),
        _helper("add", "(address, a, i):\n  if address != 0:\n    v = load(address)", f"a[i + {{k}}] += v{index}",
                count, **scope),
        _helper("multiply", "(a, i, b, w, j):", "a[i + {k}] += b[{k}] * w[j + {k}]", count),
        _helper("give", "(address, a, i, act0, act1):", "", 0, f"    store(address, {given})", **scope),
    )  # fmt: skip


def _blocks(a: Numbers) -> int:
    return ceil_div(a.threads_in_all, BLOCK)


def _extents(size: int) -> Any:
    def extents(a: Numbers) -> dict[str, int]:
        images = a.threads_in_all // (a.across * a.outd * a.outh * (a.c // a.vector))
        out = size * images * a.outd * a.outh * a.outw * a.c
        taps = a.tapsd * a.tapsh * a.tapsw
        return {
            "x": size * images * a.sized * a.sizeh * a.sizew * a.c, "w": size * taps * a.c, "bias": size * a.c,
            "res": out, "y": out,
        }  # fmt: skip

    return extents


@functools.cache
def depthwise_kernel(dtype: str, vector: int, slide: Sliding, activate: Any) -> CudaKernel:  # budget: with its body
    """Fields.

    x, res, y: [images, d, h, w, c] · w: [taps, c] · bias: [c] · across: threads in a row of pixels · by: dividers (see
    `packed_divider`) by vectors of channels, threads across, and output sizes · the rest: see `ConvAxis`.
    """
    V, P, N, SIZE = vector, slide.pixels, slide.inputs, lang.SIZES[dtype]
    COLUMNS, STRIDE, ALL = max(slide.columns, 1), slide.stride, slide.pixels * vector
    WIDTH, fill = COLUMNS * vector, Macro("fill", ALL, 0.0)
    take, add, multiply, give = vector_words(dtype, vector, activate)

    @cuda_kernel(
        threads=BLOCK, blocks=_blocks, unrolled=True, extents=_extents(SIZE),
        x=PTR, w=PTR, bias=PTR_OR_0, res=PTR_OR_0, y=PTR, threads_in_all=I64, c=I32, vector=I32, across=I32, sweeps=I32,
        gap=I32, tapsd=I32, tapsh=I32, tapsw=I32, **_NUMBERS,
    )  # fmt: skip
    def depthwise(
        x, w, bias, res, y, threads_in_all, c, vector, across, sweeps, gap, tapsd, tapsh, tapsw, act0, act1, byc, byw,
        byh, byd, sized, outd, strided, dilationd, padd, sizeh, outh, strideh, dilationh, padh, sizew, outw, stridew,
        dilationw, padw,
    ):  # fmt: skip
        thread = u32(cuda.blockIdx.x * BLOCK + cuda.threadIdx.x)
        if thread >= u32(threads_in_all):
            return
        rest = fast_divide(thread, u32(byc), u32(byc >> 32))
        channel = i64(u32(thread - rest * u32(u32(c) // u32(V)))) * (V * SIZE)
        row = fast_divide(rest, u32(byw), u32(byw >> 32))
        ow = i32(u32(rest - row * u32(across)) * u32(P))
        plane = fast_divide(row, u32(byh), u32(byh >> 32))
        oh = i32(row - plane * u32(outh))
        image = fast_divide(plane, u32(byd), u32(byd >> 32))
        od = i32(plane - image * u32(outd))
        first, pitch = i32(ow * stridew - padw), i64(c) * SIZE
        acc, ws = cuda.local.array(ALL, np.float32), cuda.local.array(WIDTH, np.float32)
        seen = cuda.local.array(V, np.float32)
        fill(acc)
        at_w = w + channel
        for q in range(tapsd * tapsh):
            td, th = i32(u32(q) // u32(tapsh)), i32(u32(q) % u32(tapsh))
            d, h = i32(od * strided + td * dilationd - padd), i32(oh * strideh + th * dilationh - padh)
            inside = u32(d) < u32(sized) and u32(h) < u32(sizeh)
            line = x + channel + i64(i32((i32(image) * sized + d) * sizeh + h) * sizew) * pitch
            for t in range(sweeps):
                for s in static_range(COLUMNS):
                    take(at_w, ws, s * V)
                    at_w += pitch
                for i in static_range(N):
                    column = i32(first + i * gap + t * dilationw)
                    if inside and u32(column) < u32(sizew):
                        take(line + i64(column) * pitch, seen, 0)
                        for s in static_range(i % STRIDE, COLUMNS, STRIDE):
                            if static(i - s >= 0 and i - s <= (P - 1) * STRIDE):
                                multiply(acc, (i - s) // STRIDE * V, seen, ws, s * V)
        to = channel + (i64(row) * outw + ow) * pitch
        for p in static_range(P):
            if ow + p < outw:
                add(of_group(bias, channel), acc, p * V)
                add(of_group(res, to), acc, p * V)
                give(y + to, acc, p * V, act0, act1)
            to += pitch

    return depthwise


def accepts_depthwise(op: Conv, ins: Types) -> bool:
    """One filter for every channel, of floats."""
    if not accepts_channels_last(op, ins):
        return False
    x, w = ins[0], ins[1]
    return x.dtype in (F32, F16, BF16) and op.group == x.dims[-1] == w.dims[0] and 3 <= len(x.dims) <= 5


def pack_channels(w: Array) -> Array:
    """[c, 1, taps...] to [taps, c]."""
    return np.ascontiguousarray(w.reshape(w.shape[0], -1).T)


def choose_slide(columns: int, stride: int, dilation: int, threads_of: Any) -> Sliding:
    """Several pixels where there are threads enough; threads_of: of so many pixels a thread."""
    pixels = next((p for p in (4, 2) if threads_of(p) >= PROCESSORS * BUSY), 1)
    is_narrow = dilation == 1 and columns in (3, 5) and stride in (1, 2) and pixels > 1
    return Sliding(min(pixels, 2) if stride > 1 else pixels, columns, stride) if is_narrow else Sliding(pixels)


@kernel(Conv, device="cuda", accepts=accepts_depthwise, rank=10)
def depthwise(op: Conv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Vectors of channels."""
    x, w = ins[0], ins[1]
    bias, res = (*ins, None, None)[2:4]
    axes, c = axes_of(op, x, w.dims[2:], outs[0]), x.dims[-1]
    d, h, row = axes
    vector = next(v for v in (8, 4, 2, 1) if c % v == 0 and v * x.dtype.itemsize <= 16)
    lines = x.dims[0] * d.out * h.out * (c // vector)
    slide = choose_slide(row.kernel, row.stride, row.dilation, lambda p: lines * ceil_div(row.out, p))
    across = ceil_div(row.out, slide.pixels)
    args: dict[str, Argument] = {
        "x": In(0), "w": context.packed(w.known, "cuda depthwise", pack_channels),
        "bias": None if bias is None else In(2), "res": None if res is None else In(3), "y": Out(),
        "threads_in_all": lines * across, "c": c, "vector": vector, "across": across,
        "sweeps": 1 if slide.columns else row.kernel, "gap": 1 if slide.columns else row.stride,
        "tapsd": d.kernel, "tapsh": h.kernel, "tapsw": row.kernel,
        "byc": packed_divider(c // vector), "byw": packed_divider(across), "byh": packed_divider(h.out),
        "byd": packed_divider(d.out), **activation_args(op.activation),
    }  # fmt: skip
    for letter, a in zip(_AXES, axes, strict=True):
        numbers = (a.size, a.out, a.stride, a.dilation, a.pad)
        args |= {f"{name}{letter}": n for name, n in zip(_NAMES, numbers, strict=True)}
    return [Step(depthwise_kernel(dtype_name(x.dtype), vector, slide, activation(op.activation)), args)]
