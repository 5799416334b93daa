"""Convolution, channels last, any number of spatial axes: the `sweep` kernel over what filters see at output pixels.

No im2col buffer: a tile reads its rows straight from the image, through a table of input pixels.  Depthwise and
Winograd convolutions are separate kernels.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import pairwise
from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.follow import is_followed, pure
from bolt_numba.base.selects import MOST_ROWS, either, filled, greatest, least
from bolt_numba.base.selects import table as rows_of
from bolt_numba.base.types import F32, Array, TensorType
from bolt_numba.kernels.cpu.language.lang import LANES, copy_bytes, fill_bytes, load_u8, split
from bolt_numba.kernels.cpu.machine import L2, PAYS_BYTES
from bolt_numba.kernels.cpu.products.epilogue import bias_last, can_finish
from bolt_numba.kernels.cpu.products.matmul import (
    ONE_BLOCK,
    ORIGIN,
    PLAIN,
    PanelForm,
    conflicting,
    is_parallel,
    packed_bias,
    sweep_step,
    zero_bias,
)
from bolt_numba.kernels.cpu.products.pack import choose_terms, pack_b, pack_taps, panel_columns, source_rows
from bolt_numba.kernels.cpu.products.sweep import (
    COPIED,
    EDGE,
    INSIDE,
    MR,
    PATCHED,
    choose_span,
    pack_stride,
    scratch_bytes,
)  # fmt: skip
from bolt_numba.kernels.cpu.products.sweep_extents import hand_over
from bolt_numba.kernels.geometry.tables import TAP_AXES
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, native
from bolt_numba.kernels.registry import (
    Argument,
    Context,
    In,
    Outs,
    Pitch,
    Scratch,
    Step,
    Types,
    kernel,
    once,
    result_of,
)
from bolt_numba.ops.layers.products.conv import Conv, Convolution
from bolt_numba.ops.windows import Windows


@dataclass(frozen=True, slots=True)
class Taps:
    """Where filters look: see `sweep` for the fields.  outside: how many pixels have a tap outside the image."""

    table: Array
    edges: Array
    outside: int

    @property
    def inside(self) -> bool:
        """Whether no tap of any pixel is outside."""
        return self.outside == 0


NOWHERE = Taps(np.zeros((1, 0), np.int32), np.zeros(1, np.int32), 0)
"""Of a matrix: its rows need no table."""

THIN_CHANNELS, PATCH_BYTES = 16, L2
"""Channels under which pixels at an edge are copied (runs of single taps would be too short), and the room for that."""
MOST_PIXELS = (1 << 31) - 1
"""Pixels up to which `pixel_table` can number them."""
SMALL_IMAGE = 1024
"""Output pixels under which the images of a batch share the panels of filters."""


def along_batch(windows: Windows) -> Windows:
    """The same windows with the batch as a first spatial axis."""
    half = len(windows.pads) // 2
    begins, ends = windows.pads[:half], windows.pads[half:]
    return Windows(
        (1, *windows.kernel),
        (1, *windows.strides),
        (1, *windows.dilations),
        (0, *begins, 0, *ends),
        "NOTSET",
        windows.ceil,
    )


def pixel_table(windows: Windows, sizes: tuple[int, ...], outs: tuple[int, ...]) -> Taps:
    """Input row (pixel number) of every tap of every output pixel, -1 outside."""
    if not is_followed((sizes, outs)):
        ask(np.int32(0).nbytes * math.prod((*windows.kernel, *outs)), "input pixels of filters")
    if not is_followed((sizes, outs)) or len(sizes) > TAP_AXES:
        return _pixel_table(windows, sizes, outs)
    more, half = TAP_AXES - len(sizes), len(windows.pads) // 2
    columns = {
        "size": sizes, "out": outs, "kernel": windows.kernel, "stride": windows.strides, "dilation": windows.dilations,
        "pad": windows.pads[:half],
    }  # fmt: skip
    args: dict[str, Any] = {}
    for name, numbers in columns.items():
        padded = (*(0 if name == "pad" else 1,) * more, *numbers)
        args |= {f"{name}{axis}": number for axis, number in enumerate(padded)}
    last, inside, pixels = 0, 1, math.prod(outs)
    for size, out, taps, stride, dilation, pad in zip(*columns.values(), strict=True):
        reach = (taps - 1) * dilation
        first, end = greatest(-(-pad // stride), 0), least((size - 1 - reach + pad) // stride + 1, out)
        inside = inside * greatest(end - first, 0)
        behind = [tap * dilation - pad for tap in range(taps)]
        ends = [least(out - 1, (size - 1 - at) // stride) * stride + at for at in behind]
        furthest = greatest(reduce(greatest, ends), -1)
        last = either((last >= 0) & (furthest >= 0), last * size + furthest, -1)
    given = windows, sizes, outs
    table = filled("taps", args, (math.prod(windows.kernel), pixels), np.int32, (-1, last), (_rows_of, given))
    edges = filled("edges", args, (pixels + 1,), np.int32, (0, pixels - inside), (_edges_of, given))
    return Taps(table, edges, pixels - inside)


def _rows_of(*given: Any) -> Array:
    return _pixel_table(*given).table


def _edges_of(*given: Any) -> Array:
    return _pixel_table(*given).edges


@pure
@lru_cache(maxsize=512)
def _pixel_table(windows: Windows, sizes: tuple[int, ...], outs: tuple[int, ...]) -> Taps:
    """The same by NumPy."""
    rank, pixels, last = len(sizes), math.prod(sizes), 0
    narrow: Any = np.int32 if (rank + 1) * pixels < 1 << 31 else np.int64
    table, outside = np.zeros((1,) * (2 * rank), narrow), np.zeros((1,) * rank, bool)
    for axis in range(rank):
        tap = np.arange(windows.kernel[axis], dtype=narrow)[:, None] * windows.dilations[axis]
        at = tap + np.arange(outs[axis], dtype=narrow) * windows.strides[axis] - windows.pads[axis]
        inside = (at >= 0) & (at < sizes[axis])
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = at.shape
        # Outside of one axis is below 0 whatever is added for the others.
        table = table + np.where(inside, at * math.prod(sizes[axis + 1 :]), -pixels).astype(narrow).reshape(shape)
        outside = outside | ~inside.all(axis=0).reshape(shape[rank:])
        last = last * sizes[axis] + int(at.max(where=inside, initial=-1)) if last >= 0 and inside.any() else -1
    table = np.maximum(table, -1, out=table).astype(np.int32, copy=False)
    table = table.reshape(math.prod(windows.kernel), math.prod(outs))
    edges = np.zeros(outside.size + 1, np.int32)
    np.cumsum(outside, out=edges[1:])
    hand_over(table, last)
    return Taps(table, edges, int(edges[-1]))


def run_rows(windows: Windows, sizes: tuple[int, ...], merged: bool) -> Array:
    """Input rows from a pixel's first tap to the begin of each run; merged: a run is a whole row of the filter."""
    if not is_followed(sizes) or math.prod(windows.kernel) > MOST_ROWS:
        return _run_rows(windows, sizes, merged)
    rows: list[Any] = [0]
    for axis, size in enumerate(sizes):
        taps = range(1 if merged and axis == len(sizes) - 1 else windows.kernel[axis])
        rows = [(row * size if axis else 0) + tap * windows.dilations[axis] for row in rows for tap in taps]
    made: Array = rows_of(rows)
    return made


@pure
@lru_cache(maxsize=512)
def _run_rows(windows: Windows, sizes: tuple[int, ...], merged: bool) -> Array:
    """The same by NumPy."""
    rows = np.zeros(1, np.int64)
    for axis, size in enumerate(sizes):
        count = 1 if merged and axis == len(sizes) - 1 else windows.kernel[axis]
        rows = (rows[:, None] * size + np.arange(count) * windows.dilations[axis]).reshape(-1)
    return rows


def block_offsets(images: int, groups: int, rows: int, pixels: int, cg: int, kg: int, column: int) -> Array:
    """Entries of `sweep`'s blocks: every group of every image; column: bytes of a column of a group's panels."""
    return ONE_BLOCK if images * groups == 1 else _block_table(images, groups, rows, pixels, cg, kg, column)


@pure
@lru_cache(maxsize=1024)
def _block_table(images: int, groups: int, rows: int, pixels: int, cg: int, kg: int, column: int) -> Array:
    """What `block_offsets` gives for several blocks."""
    image, group = (i.reshape(-1) for i in np.mgrid[:images, :groups])
    width = panel_columns(kg)
    return np.stack(
        [image * rows, group * cg, group * (column * width), group * (4 * width), image * pixels, group * kg], axis=1
    ).astype(np.int64)


@once
def accepts_rows(op: Conv, ins: Types) -> bool:
    """Channels last, f32, a residual of the result's shape."""
    if op.layout != "NHWC" or op.to is not None:
        return False
    if any(t is not None and (t.dtype != F32 or not t.is_static) for t in ins):
        return False
    x, w, _, residual = (*ins, None, None)[:4]
    if x is None or w is None or not can_finish(op.activation) or x.size == 0 or w.size == 0:
        return False
    if math.prod(x.dims[:-1]) > MOST_PIXELS:
        return False
    return residual is None or residual.dims == result_of(op, ins).dims


@once
def accepts_conv(op: Conv, ins: Types) -> bool:
    """What `conv` accepts, with constant filters and bias."""
    _, w, bias, _ = (*ins, None, None)[:4]
    return accepts_rows(op, ins) and w is not None and w.known is not None and (bias is None or bias.known is not None)


def packed_filters(
    w: TensorType, groups: int, context: Context, form: PanelForm = PLAIN
) -> tuple[Argument, list[Step]]:
    """Panels of filters and the steps that make them at run time, which are f32."""
    if w.known is not None:

        def pack(w: Array) -> Array:
            return pack_taps(w, groups, context.threads, form.pack)

        return context.packed(w.known, ("filters", groups, *form.key), pack), []
    count, cg, *kernel_shape = w.dims
    kg, taps = count // groups, math.prod(kernel_shape)
    to = Scratch(4 * groups * taps * cg * panel_columns(kg))
    args: dict[str, Argument] = {
        "b": In(1), "to": to, "blocks": groups, "block": 4 * kg * cg * taps, "rows": source_rows(taps, cg),
        "k": taps * cg, "n": kg, "row": 4, "column": 4 * cg * taps, "alpha": 1.0,
    }  # fmt: skip
    return to, [Step(pack_b, args, is_parallel(context, 0, 2 * w.nbytes))]


@dataclass(frozen=True, slots=True)
class ConvBlocks:
    """A convolution as blocks of rows: see `sweep`.

    images: blocks, times groups; a small image is not a block of its own, its batch is one more spatial axis.
    rows: input pixels of a block; m: output pixels.
    """

    images: int
    rows: int
    m: int
    taps: Taps
    run: Array
    is_matrix: bool
    merged: bool


def geometry(op: Convolution, x: TensorType, w: TensorType, out: TensorType) -> ConvBlocks:
    """Where filters look."""
    (images, *size, _), kernel_shape = x.dims, w.dims[2:]
    sizes, pixels = tuple(size), tuple(out.dims[1:-1])
    windows = op.windows(kernel_shape).resolved(sizes)
    is_matrix = math.prod(kernel_shape) == 1 and max(windows.strides) == 1 and not any(windows.pads)
    if is_matrix or (images > 1 and math.prod(pixels) < SMALL_IMAGE):
        windows = along_batch(windows)
        sizes, pixels, images = (images, *sizes), (images, *pixels), 1
    merged = op.group == 1 and windows.dilations[-1] == 1 and kernel_shape[-1] > 1
    run = ORIGIN if math.prod(kernel_shape) == 1 else run_rows(windows, sizes, merged)
    seen = NOWHERE if is_matrix else pixel_table(windows, sizes, pixels)
    return ConvBlocks(images, math.prod(sizes), math.prod(pixels), seen, run, is_matrix, merged)


def _least_gap(run: Array, length: int) -> int:
    rows = run.tolist()
    return reduce(least, [after - before for before, after in pairwise(rows)], length)


def choose_kind(g: ConvBlocks, channels: int, cg: int, kg: int, span: int, stride: int) -> tuple[int, int]:
    """How `sweep` reads the image (see `INSIDE`), and bytes between copied rows."""
    length = cg * g.taps.table.shape[0] // len(g.run)
    if conflicting(4 * channels * stride, g.m) and kg > 64:
        return COPIED, pack_stride(4 * length * len(g.run))
    if g.taps.inside:
        return INSIDE, 0
    extent = pack_stride(4 * (channels * g.run[-1].item() + length + LANES))
    apart = channels * _least_gap(g.run, length) >= length  # else copied runs would overlap
    if g.merged and apart and cg < THIN_CHANNELS and (span + MR) * extent <= PATCH_BYTES:
        return PATCHED, extent
    return EDGE, 0


@native(
    x=PTR, to=PTR, zero=PTR_OR_0, zeros=I64, images=I64, d=I64, slices=I64, front=I64, h=I64, rows=I64,
    top=I64, row=I64, left=I64, width=I64, extents=lambda a: {
        "x": a.images * a.d * a.h * a.row, "to": a.images * a.slices * a.rows * a.width, "zero": a.zeros,
    },
)  # fmt: skip
def pad_images(p, tid, nthreads):
    """Copy images of ``d`` slices of ``h`` rows of ``row`` bytes into zeros, or into zero points.

    zeros: how many bytes there are at ``zero``, 1 or one for each image.  What is around has ``slices`` of ``rows`` of
    ``width`` bytes, with ``front``, ``top`` and ``left`` before what is copied.
    x: [images][d][h][row] bytes · to: [images][slices][rows][width].
    """
    x, to, d, slices, h, rows, row, left, width = p.x, p.to, p.d, p.slices, p.h, p.rows, p.row, p.left, p.width
    front, top, zero = p.front, p.top, np.uint8(0)
    lo, hi = split(p.images * slices * rows, tid, nthreads)
    for unit in range(lo, hi):
        at, y, z = to + width * unit, unit % rows - top, unit // rows % slices - front
        if p.zero != 0:
            zero = np.uint8(load_u8(p.zero + min(unit // (rows * slices), p.zeros - 1)))
        if y < 0 or y >= h or z < 0 or z >= d:
            fill_bytes(at, zero, width)
        else:
            fill_bytes(at, zero, left)
            copy_bytes(at + left, x + row * ((unit // (rows * slices) * d + z) * h + y), row)
            fill_bytes(at + left + row, zero, width - left - row)


def has_wide_edges(op: Conv, x: TensorType, g: ConvBlocks) -> bool:
    """Whether it is cheaper to copy the images into zeros than the pixels at their edges: few channels, many edges."""
    few = op.group == 1 and x.dims[-1] < THIN_CHANNELS and len(x.dims) in (3, 4, 5)
    return few and 5 * g.taps.outside > g.m


def padded(
    op: Convolution, x: TensorType, w: TensorType, zero: Argument = None, zeros: int = 0
) -> tuple[Any, TensorType, Step]:
    """The same convolution of images with zeros or zero points around them, and the step that makes these."""
    images, *sizes, c = x.dims
    pads = op.windows(w.dims[2:]).resolved(sizes).pads
    rank = len(sizes)
    around = [begin + size + end for begin, size, end in zip(pads[:rank], sizes, pads[rank:], strict=True)]
    made = TensorType(x.dtype, (images, *around, c))
    (d, h, _), (slices, rows, _), (front, top, _) = (
        (*(first,) * (3 - rank), *last) for first, last in ((1, sizes), (1, around), (0, pads[:rank]))
    )
    c *= x.dtype.itemsize
    args: dict[str, Argument] = {
        "x": In(0), "to": Scratch(made.nbytes), "zero": zero, "zeros": zeros, "images": images, "d": d,
        "slices": slices, "front": front, "h": h, "rows": rows, "top": top, "row": c * sizes[-1],
        "left": c * pads[rank - 1], "width": c * around[-1],
    }  # fmt: skip
    return replace(op, pads=(), auto_pad="NOTSET"), made, Step(pad_images, args, made.nbytes > PAYS_BYTES // 2)


@kernel(Conv, accepts=accepts_rows)
def conv(op: Conv, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Panels of filters under tiles of output pixels."""
    return filter_steps(op, ins, outs, context, PLAIN)


def filter_steps(op: Conv, ins: Types, outs: Outs, context: Context, form: PanelForm) -> list[Step]:
    """The steps of a convolution with panels of a form: constants, unless it is `PLAIN`."""
    x, w, bias = ins[0], ins[1], (*ins, None)[2]
    count, cg = w.dims[:2]
    groups, kg, taps = op.group, count // op.group, math.prod(w.dims[2:])
    g, k = geometry(op, x, w, outs[0]), taps * cg
    filters, steps = packed_filters(w, groups, context, form)
    source: Argument = In(0)
    lda: Argument = x.dims[-1] if g.merged else Pitch(In(0))
    if has_wide_edges(op, x, g):
        op, x, step = padded(op, x, w)
        g, source, lda = geometry(op, x, w, outs[0]), step.args["to"], x.dims[-1]
        steps.append(step)
    last = bias_last(op, bias, groups * kg, context)
    bias_at, bias_steps = packed_bias(None if last else bias, 2, kg, context, groups)
    span = choose_span(g.m, kg, k)
    kind, pack_ld = choose_kind(g, x.dims[-1], cg, kg, span, op.strides[-1] if op.strides else 1)
    threads = either(is_parallel(context, 2 * g.images * g.m * count * k, w.nbytes), context.threads, 1)
    args: dict[str, Argument] = {
        "a": source, "lda": lda, "b": filters, "bias": bias_at, "blocks": g.images * groups,
        "offsets": block_offsets(g.images, groups, g.rows, g.m, cg, kg, form.unit * k),
        "table": None if g.is_matrix else g.taps.table, "edges": g.taps.edges,
        "taps": taps, "depth": cg, "runs": len(g.run), "length": k // len(g.run), "run_rows": g.run,
        "kind": kind, "zeros": zero_bias(cg), "pack_ld": pack_ld, "span": span, "terms": choose_terms(context),
        "scratch_step": scratch_bytes(span, len(g.run), taps, pack_ld), **({"res": In(2)} if last else {}),
    }  # fmt: skip
    return [*steps, *bias_steps, sweep_step(form.sweep, op, args, (g.m, kg, k), threads)]
