"""Convolution, channels last, any number of spatial axes: the `sweep` kernel over what filters see at output pixels.

No im2col buffer: a tile reads its rows straight from the image, through a table of input pixels.  Depthwise and
Winograd convolutions are separate kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.epilogue import can_finish, finish, padded_bias
from bolt_numba.kernels.cpu.matmul import conflicting, is_parallel, zero_bias
from bolt_numba.kernels.cpu.sweep import (
    COPIED, EDGE, INSIDE, choose_share, choose_span, pack_panels, pack_stride, panel_columns, scratch_bytes, sweep,
)  # fmt: skip
from bolt_numba.kernels.registry import Argument, Context, In, Out, Pitch, Scratch, Step, Types, kernel
from bolt_numba.ops.conv import Conv
from bolt_numba.ops.spatial import Windows
from bolt_numba.types import F32, Array, TensorType


@dataclass(frozen=True, slots=True)
class Taps:
    """Where filters look: see `sweep` for the fields.  inside: no tap of any pixel is outside the image."""

    table: Array
    edges: Array
    inside: bool


@lru_cache(maxsize=512)
def pixel_table(windows: Windows, sizes: tuple[int, ...], outs: tuple[int, ...]) -> Taps:
    """Input row (pixel number) of every tap of every output pixel, -1 outside."""
    rank = len(sizes)
    row = np.zeros((1,) * (2 * rank), np.int64)
    valid = np.ones((1,) * (2 * rank), bool)
    for axis in range(rank):
        tap = np.arange(windows.kernel[axis])[:, None] * windows.dilations[axis]
        at = tap + np.arange(outs[axis])[None] * windows.strides[axis] - windows.pads[axis]
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = at.shape
        row = row * sizes[axis] + at.reshape(shape)
        valid = valid & ((at >= 0) & (at < sizes[axis])).reshape(shape)
    taps, pixels = math.prod(windows.kernel), math.prod(outs)
    table = np.where(valid, row, -1).astype(np.int32).reshape(taps, pixels)
    outside = (table < 0).any(axis=0)
    edges = np.concatenate([[0], np.cumsum(outside)]).astype(np.int32)
    return Taps(np.ascontiguousarray(table), edges, not outside.any())


@lru_cache(maxsize=512)
def run_rows(windows: Windows, sizes: tuple[int, ...], merged: bool) -> Array:
    """Input rows from a pixel's first tap to the begin of each run; merged: a run is a whole row of the filter."""
    rows = np.zeros(1, np.int64)
    for axis, size in enumerate(sizes):
        count = 1 if merged and axis == len(sizes) - 1 else windows.kernel[axis]
        rows = (rows[:, None] * size + np.arange(count) * windows.dilations[axis]).reshape(-1)
    return rows


@lru_cache(maxsize=1024)
def block_offsets(images: int, groups: int, rows: int, pixels: int, cg: int, kg: int, k: int) -> Array:
    """Entries of `sweep`'s blocks: every group of every image."""
    image, group = (i.reshape(-1) for i in np.mgrid[:images, :groups])
    width = panel_columns(kg)
    return np.stack(
        [image * rows, group * cg, group * (4 * k * width), group * (4 * width), image * pixels, group * kg], axis=1
    ).astype(np.int64)


def pack_filters(groups: int) -> Any:
    """[k, c/g, spatial...] to panels of each group: K is taps, then channels."""

    def pack(w: Array) -> Array:
        k, cg = w.shape[:2]
        by_tap = w.reshape(groups, k // groups, cg, -1).transpose(0, 3, 2, 1)
        return pack_panels(np.ascontiguousarray(by_tap).reshape(groups, -1, k // groups))

    return pack


def accepts_conv(op: Any, ins: Types) -> bool:
    """Channels last, f32, constant filters and bias, a residual of the result's shape."""
    if op.layout != "NHWC" or any(t is not None and (t.dtype != F32 or not t.is_static) for t in ins):
        return False
    x, w, bias, residual = (*ins, None, None)[:4]
    if x is None or w is None or w.known is None or (bias is not None and bias.known is None):
        return False
    if not can_finish(op.activation) or x.size == 0 or w.size == 0:
        return False
    return residual is None or residual.dims == op.infer(*ins).dims


@kernel(Conv, accepts=accepts_conv)
def conv(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Panels of filters under tiles of output pixels."""
    x, w, bias, _ = (*ins, None, None)[:4]
    assert x is not None
    assert w is not None
    assert w.known is not None
    (images, *size, c), (count, cg, *kernel_shape) = x.dims, w.dims
    sizes, groups, kg = tuple(size), op.group, count // op.group
    windows = op.windows(kernel_shape).resolved(sizes)
    pixels = tuple(outs[0].dims[1:-1])
    taps, m = math.prod(kernel_shape), math.prod(pixels)
    k = taps * cg
    is_matrix = taps == 1 and max(windows.strides) == 1 and not any(windows.pads)
    if is_matrix:
        images, m = 1, images * m
    seen = pixel_table(windows, sizes, pixels)
    merged = groups == 1 and windows.dilations[-1] == 1 and kernel_shape[-1] > 1
    run = run_rows(windows, sizes, merged)
    kind = INSIDE if seen.inside else EDGE
    if conflicting(4 * c * windows.strides[-1], m) and kg > 64:
        kind = COPIED
    span = choose_span(m, kg, k)
    threads = context.threads if is_parallel(context, 2 * images * m * count * k, w.nbytes) else 1
    per_thread = scratch_bytes(k, span, max(len(run), taps), kind == COPIED)
    width = panel_columns(kg)
    bias_at = zero_bias(groups * width)
    if bias is not None and bias.known is not None:
        bias_at = context.packed(bias.known, ("bias", groups, kg), padded_bias(count, kg, panel_columns))
    args: dict[str, Argument] = {
        "a": In(0), "lda": c if merged else Pitch(In(0)),
        "b": context.packed(w.known, ("filters", groups), pack_filters(groups)), "bias": bias_at,
        "c": Out(0), "ldc": Pitch(Out(0)),
        "res": In(3) if op.residual else None, "ldr": Pitch(In(3)) if op.residual else 0,
        "blocks": images * groups, "m": m, "n": kg, "k": k,
        "offsets": block_offsets(images, groups, math.prod(sizes), m, cg, kg, k),
        "table": None if is_matrix else seen.table, "edges": seen.edges,
        "taps": taps, "depth": cg, "runs": len(run), "length": k // len(run), "run_rows": run,
        "kind": kind, "zeros": zero_bias(cg), "scratch": Scratch(threads * per_thread), "pack_ld": pack_stride(k),
        "scratch_step": per_thread, "span": span, "share": choose_share(images * groups, m, kg, threads, kg > m), **finish(op.activation).args,
    }  # fmt: skip
    return [Step(sweep, args, threads > 1)]


__all__ = ["accepts_conv", "block_offsets", "conv", "pack_filters", "pixel_table"]
