"""Normalisations by channel: statistics of groups where none are given, then a pointwise chain."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, AnyDType, TensorType, dtype_name
from bolt_numba.kernels.cuda.declare import F32 as FLOAT
from bolt_numba.kernels.cuda.declare import I64, PTR, CudaKernel, cuda_kernel, inline
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.elementwise.chains import chain_steps
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.division import divider, fast_divide
from bolt_numba.kernels.cuda.language.lang import cuda, store_f32
from bolt_numba.kernels.cuda.language.warp import block_sum
from bolt_numba.kernels.cuda.reductions.fold import FLOATS
from bolt_numba.kernels.cuda.reductions.norm import spread_of
from bolt_numba.kernels.extents import Numbers
from bolt_numba.kernels.geometry.elements import DeviceParts, elements
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.layers.norm import (
    LRN,
    BatchNormalization,
    ChannelNorm,
    GroupNorm,
    GroupNormalization,
    InstanceNormalization,
)
from bolt_numba.ops.pointwise import Add, Cast, Div, Mul, Sqrt, Sub
from bolt_numba.ops.pointwise.chain import Chain, ChainStep

GROUP = 512
"""Threads of a block that makes the statistics of a group."""


def image_of(op: ChannelNorm | LRN, ins: Types) -> tuple[int, int, int] | None:
    """``[n, c, spatial]`` of a static float that is not empty, whatever its layout."""
    x = ins[0]
    floats = all(t is None or t.dtype in FLOATS for t in ins)
    if not x.is_static or not 0 < x.size <= MAX_I32 or not floats:
        return None
    c = x.dims[-1] if op.layout == "NHWC" else x.dims[1]
    return x.dims[0], c, x.size // (x.dims[0] * c)


def has_image(op: ChannelNorm | LRN, ins: Types) -> bool:
    return image_of(op, ins) is not None


def _by_channel(op: ChannelNorm, image: tuple[int, int, int], n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of x and of what has a number for each of ``n`` samples (1: the same for all) and channel."""
    batch, c, spatial = image
    return ((batch, spatial, c), (n, 1, c)) if op.layout == "NHWC" else ((batch, c, spatial), (n, c, 1))


class _Formula:
    """A chain that is written down step by step, in f32."""

    def __init__(self, *dtypes: AnyDType) -> None:
        self.dtypes, self.steps = dtypes, list[ChainStep]()
        self.values = [self.do(Cast(F32), k) if d != F32 else k for k, d in enumerate(dtypes)]

    def do(self, op: Any, *operands: int) -> int:
        self.steps.append((op, operands))
        return len(self.dtypes) + len(self.steps) - 1

    def chain(self, value: int, dtype: AnyDType) -> Chain:
        value = value if dtype == F32 else self.do(Cast(dtype), value)
        return Chain(tuple(self.steps), (value,))


@kernel(BatchNormalization, device="cuda", accepts=has_image, inplace=(0,))
def batch_normalisation(op: BatchNormalization, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """(x - mean) / sqrt(var + epsilon) * scale + bias as a chain."""
    image = tested(image_of(op, ins))
    dtypes = [t.dtype for t in ins if t is not None]
    formula = _Formula(*dtypes, F32)
    x, scale, bias, mean, var, epsilon = formula.values
    factor = formula.do(Div(), scale, formula.do(Sqrt(), formula.do(Add(), var, epsilon)))
    y = formula.do(Add(), formula.do(Mul(), formula.do(Sub(), x, mean), factor), bias)
    shape, channel = _by_channel(op, image, 1)
    types = [TensorType(d, s) for d, s in zip((*dtypes, F32), (shape, *(channel,) * 4, ()), strict=True)]
    operands: list[Argument] = [*(In(k) for k in range(5)), np.array([op.epsilon], np.float32)]
    return chain_steps(formula.chain(y, outs[0].dtype), types, shape, operands, Out(0))


@functools.cache
def group_statistics(x_kind: str, kind: str) -> CudaKernel:
    """Mean, factor and addend of each sample and channel, [n, c] f32 each; a block for each group.

    Element i of a group g of sample s is at ``s * sample + g * group + i // run * step + i % run``.
    """
    load, load_factor = getattr(lang, f"load_{x_kind}"), getattr(lang, f"load_{kind}")
    x_unit, unit = lang.SIZES[x_kind], lang.SIZES[kind]

    def body(x, scale, mean, factor, samples, groups, channels, count, sample, group, run, step, magic, shift, epsilon):
        thread, block = np.int64(cuda.threadIdx.x), np.uint32(cuda.blockIdx.x)
        s = np.int64(np.uint32(block // np.uint32(groups)))
        g = np.int64(block) - s * groups
        start, share = x + (s * sample + g * group) * x_unit, np.float32(1) / np.float32(count)
        middle = np.float32(0)
        for i in range(thread, count, GROUP):
            q = np.int64(fast_divide(i, np.uint32(magic), np.uint32(shift)))
            middle += load(start + (q * step + i - q * run) * x_unit)
        middle = block_sum(middle) * share
        off, squares = np.float32(0), np.float32(0)
        for i in range(thread, count, GROUP):
            q = np.int64(fast_divide(i, np.uint32(magic), np.uint32(shift)))
            v = load(start + (q * step + i - q * run) * x_unit) - middle
            off += v
            squares += v * v
        off = block_sum(off) * share
        spread = spread_of(block_sum(squares) * share, off, epsilon)
        for c in range(thread, channels, GROUP):
            at = 4 * ((s * groups + g) * channels + c)
            store_f32(mean + at, middle + off)
            store_f32(factor + at, load_factor(scale + (g * channels + c) * unit) / spread)

    body.__name__ = f"group_statistics_{x_kind}_{kind}"
    fields: dict[str, Any] = dict.fromkeys(("x", "scale", "mean", "factor"), PTR)
    fields |= dict.fromkeys(
        ("samples", "groups", "channels", "count", "sample", "group", "run", "step", "magic", "shift"), I64
    )

    def reach(a: Numbers) -> dict[str, int]:
        made = 4 * a.samples * a.groups * a.channels
        return {
            "x": x_unit * a.samples * a.groups * a.count, "scale": unit * a.groups * a.channels,
            "mean": made, "factor": made,
        }  # fmt: skip

    return cuda_kernel(
        threads=GROUP, blocks=lambda a: a.groups * a.samples, extents=reach,
        **fields, epsilon=FLOAT,
    )(body)  # fmt: skip


@kernel(InstanceNormalization, GroupNormalization, device="cuda", accepts=has_image, inplace=(0,))
def group_normalisation(op: GroupNorm, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Statistics of the groups, then (x - mean) * factor + bias."""
    image, kinds = tested(image_of(op, ins)), [t.dtype for t in ins if t is not None]
    n, c, spatial = image
    groups = getattr(op, "num_groups", c)
    channels, is_last = c // groups, op.layout == "NHWC"
    mean, factor = Scratch(4 * n * c), Scratch(4 * n * c)
    run = channels if is_last else channels * spatial
    magic, shift = divider(run)
    args: dict[str, Argument] = {"x": In(0), "scale": In(1), "mean": mean, "factor": factor, "samples": n}
    args |= {"groups": groups, "channels": channels, "count": channels * spatial, "sample": c * spatial}
    args |= {"group": run, "run": run, "step": c if is_last else 0, "magic": magic, "shift": shift}
    statistics = group_statistics(dtype_name(kinds[0]), dtype_name(kinds[1]))
    formula = _Formula(kinds[0], F32, F32, kinds[2])
    x, centre, by, bias = formula.values
    y = formula.do(Add(), formula.do(Mul(), formula.do(Sub(), x, centre), by), bias)
    shape, sample = _by_channel(op, image, n)
    shapes = (shape, sample, sample, _by_channel(op, image, 1)[1])
    types = [TensorType(d, s) for d, s in zip(formula.dtypes, shapes, strict=True)]
    chain = formula.chain(y, outs[0].dtype)
    return [
        Step(statistics, {**args, "epsilon": op.epsilon}),
        *chain_steps(chain, types, shape, [In(0), mean, factor, In(2)], Out(0)),
    ]


def _whole(a: Numbers, kind: str) -> dict[str, Any]:
    return dict.fromkeys(("x", "y"), lang.SIZES[kind] * a.outer * a.channels * a.inner)


@elements(
    over={"o": "outer", "k": "channels", "j": "inner"}, extents=_whole, x=PTR, y=PTR, size=I64, alpha=FLOAT, beta=FLOAT,
    base=FLOAT,
)  # fmt: skip
def neighbour_norm(on: DeviceParts, kind: str):
    """Each of x [outer, channels, inner] over a power of the squares of ``size`` channels around -> y, alike."""
    load, store, unit = on.load(kind), on.store(kind), lang.SIZES[kind]

    @inline
    def element(k, t, x, y, channels, inner, size, alpha, beta, base):
        low, total = k - (size - 1) // 2, np.float32(0)
        first, at = max(low, 0), x + (t - (k - max(low, 0)) * inner) * unit
        for _ in range(first, min(low + size, channels)):
            v = load(at)
            total += v * v
            at += inner * unit
        store(y + t * unit, load(x + t * unit) / math.pow(base + alpha * total, beta))

    return element


@kernel(LRN, device="cuda", accepts=has_image)
def local_response_normalisation(op: LRN, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """A thread for each element; neighbours are in cache."""
    n, c, spatial = tested(image_of(op, ins))
    outer, inner = (n * spatial, 1) if op.layout == "NHWC" else (n, spatial)
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "size": op.size, "outer": outer, "channels": c}
    args |= {"inner": inner, "alpha": op.alpha / op.size, "beta": op.beta, "base": op.bias}
    return [PARTS.step(neighbour_norm, (dtype_name(outs[0].dtype),), args)]
