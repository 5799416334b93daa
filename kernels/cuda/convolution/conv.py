"""Makers of Conv and ConvTranspose for products of tiles, channels last."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BF16, F16, F32, Array, TensorType, dtype_name
from bolt_numba.kernels.cuda.convolution.axes import ConvAxis, axes_of
from bolt_numba.kernels.cuda.convolution.reading import (
    MOST_TAPS,
    Phase,
    count_taps,
    first_pixel,
    reading_args,
    transposed_phases,
    window_phase,
)
from bolt_numba.kernels.cuda.convolution.simt import PLAIN_TILES, TERMS, conv_f32, pack_terms
from bolt_numba.kernels.cuda.convolution.tail import BYTE_TAIL
from bolt_numba.kernels.cuda.convolution.tensor import (
    ROW,
    WARP_TILES,
    halves,
    halves_in_parts,
    pack_lines,
    widened_channels,
)
from bolt_numba.kernels.cuda.declare import ceil_div
from bolt_numba.kernels.cuda.elementwise.epilogue import activation, activation_args, can_activate
from bolt_numba.kernels.cuda.products.combine import combine
from bolt_numba.kernels.cuda.products.finish import tail_args
from bolt_numba.kernels.cuda.products.tail import TailForm
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel, result_of
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose

IMAGE = In(0)
PROCESSORS = 132
"""Multiprocessors of an H100 or H200."""


def accepts_channels_last(op: Conv | ConvTranspose, ins: Types) -> bool:
    """Channels last, one dtype, constant filters, sizes that 32 bits can number."""
    given = [t for t in ins if t is not None]
    x, w = ins[:2]
    if op.layout != "NHWC" or getattr(op, "to", None) is not None or x is None or w is None or w.known is None:
        return False
    if any(t.dtype != x.dtype or not t.is_static for t in given) or not can_activate(op.activation):
        return False
    return len(w.dims) <= 5 and all(0 < t.size <= MAX_I32 for t in (*given, result_of(op, ins)))


def accepts_product(op: Conv | ConvTranspose, ins: Types) -> bool:
    """Few taps beside that."""
    w = ins[1]
    return accepts_channels_last(op, ins) and math.prod(w.dims[2:]) <= MOST_TAPS


def is_wide_enough(group: int, cg: int, kg: int) -> bool:
    """Whether groups of so many channels and filters are worth tiles of their own."""
    return group == 1 or (kg > 1 and cg * kg >= 8)


def is_worth(op: Conv | ConvTranspose, ins: Types) -> bool:
    w = ins[1]
    sides = w.dims[1], w.dims[0] // op.group
    return is_wide_enough(op.group, *(reversed(sides) if isinstance(op, ConvTranspose) else sides))


def accepts_f32(op: Conv | ConvTranspose, ins: Types) -> bool:
    return accepts_product(op, ins) and ins[0].dtype == F32 and is_worth(op, ins)


def phases_of(
    op: Conv | ConvTranspose, x: TensorType, w: TensorType, y: TensorType
) -> tuple[tuple[ConvAxis, ...], list[Phase]]:
    axes = axes_of(op, x, w.dims[2:], y)
    return axes, transposed_phases(axes) if isinstance(op, ConvTranspose) else [window_phase(axes)]


def filters_of(op: Conv | ConvTranspose, w: Array, phase: Phase) -> tuple[Array, list[int]]:
    """Filters [k, c/g, taps], and which of the taps a phase has."""
    kernel_shape = (1,) * (5 - w.ndim) + w.shape[2:]
    places = [[t for t, _ in axis] for axis in phase.taps]
    mesh = np.meshgrid(*places, indexing="ij")
    taps = np.ravel_multi_index([m.reshape(-1) for m in mesh], kernel_shape).tolist() if count_taps(phase) else []
    flat = w.reshape(*w.shape[:2], -1)
    if isinstance(op, ConvTranspose):
        c, kg, n = flat.shape
        flat = flat.reshape(op.group, c // op.group, kg, n).swapaxes(1, 2).reshape(op.group * kg, c // op.group, n)
    return flat, taps


def plain_tile(m: int, n: int, blocks: int) -> Any:
    """The largest tile of which there are enough for all multiprocessors; narrow results take narrow tiles."""
    for tile in PLAIN_TILES[:-1]:
        if n > tile.n // 2 and ceil_div(m, tile.m) * ceil_div(n, tile.n) * blocks >= PROCESSORS:
            return tile
    return PLAIN_TILES[-1]


LEAST_TILES, MOST_PARTS = 8, 16
"""Tiles of terms from which a sum is divided, and the most parts of one."""


def count_parts(tile: Any, args: dict[str, Any], terms: int) -> int:
    """Parts of each sum, so that all multiprocessors are busy; terms: of a tile."""
    m, n, k, groups = (int(args[name]) for name in ("m", "n", "k", "groups"))
    blocks = ceil_div(m, tile.m) * ceil_div(n, tile.n) * groups
    return max(min(PROCESSORS // blocks, ceil_div(k, terms) // LEAST_TILES, MOST_PARTS), 1)


@record(frozen=True)
class Tiles:
    """Kernels of a maker.

    tile: of so many rows and columns · whole: the kernel for a tile, many taps or few, and rows that are scattered ·
    part: the kernel whose results are f32, for a tile and many taps or few · terms: of a tile.
    """

    tile: Any
    whole: Any
    part: Any
    terms: int


def product_steps(
    op: Conv | ConvTranspose, ins: Types, y: TensorType, context: Context,
    pack: Callable[[Array, int, list[int]], Array], tiles: Tiles, image: Argument = IMAGE, channels: int = 0,
    more: dict[str, Argument] | None = None,
) -> list[Step]:  # fmt: skip
    """A step for each phase, or two where sums are divided.

    pack: of filters, groups and taps.  image: of so many ``channels`` a group, or of those of the operand.
    more: arguments.
    """
    x, w = ins[0], ins[1]
    bias, res = (*ins, None, None)[2:4]
    axes, phases = phases_of(op, x, w, y)
    groups, k = op.group, y.dims[-1]
    steps = []
    for phase in phases:

        def packed(array: Array, phase: Phase = phase) -> Array:
            filters, taps = filters_of(op, array, phase)
            return pack(filters, groups, taps)

        args: dict[str, Argument] = {
            "x": image, "w": context.packed(w.known, ("cuda", pack.__name__, groups, channels, phase), packed),
            "bias": None if bias is None else In(2), "res": None if res is None else In(3),
            "y": Out(0, first_pixel(phase, axes) * k * y.dtype.itemsize), "ldy": k, **activation_args(op.activation),
            **reading_args(phase, axes, x.dims[0], channels or x.dims[-1] // groups, k // groups, groups),
        }  # fmt: skip
        args |= more or {}
        tile, wide = tiles.tile(args["m"], args["n"], groups), count_taps(phase) > 31
        parts = count_parts(tile, args, tiles.terms) if len(phases) == 1 else 1
        if parts > 1:
            return _in_parts(op, y, args, tiles.part(tile, wide), parts)
        steps.append(Step(tiles.whole(tile, wide, len(phases) > 1), args))
    return steps


def _in_parts(op: Conv | ConvTranspose, y: TensorType, args: dict[str, Argument], part: Any, splits: int) -> list[Step]:
    """The steps of sums that are divided: the parts, then their sum and what follows it."""
    k, rows = y.dims[-1], y.size // y.dims[-1]
    parts, dtype = Scratch(4 * splits * y.size), dtype_name(y.dtype)
    own: dict[str, Argument] = {"bias": None, "res": None, "y": parts, "splits": splits, "split_bytes": 4 * y.size}
    act = tail_args(op.activation)
    last: dict[str, Argument] = {"bias": args["bias"], "residual": args["res"], "y": args["y"], "ldy": k, "alpha": 1.0}
    last |= {"parts": parts, "rows": rows, "n": k, "splits": splits, **act.numbers}
    return [Step(part, args | own), Step(combine(TailForm(dtype, dtype, dtype, act.act)), last)]


@kernel(Conv, ConvTranspose, device="cuda", accepts=accepts_f32)
def plain_product(op: Conv | ConvTranspose, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """f32, on plain cores."""
    act, plain = activation(op.activation), activation(None)
    tiles = Tiles(
        plain_tile, lambda tile, wide, scattered: conv_f32(tile, wide, scattered, act),
        lambda tile, wide: conv_f32(tile, wide, False, plain), TERMS,
    )  # fmt: skip
    return product_steps(op, ins, outs[0], context, pack_terms, tiles)


def warp_tile(m: int, n: int, blocks: int) -> Any:
    """As `plain_tile`."""
    for tile in WARP_TILES[:-1]:
        if n > tile.n // 2 and ceil_div(m, tile.m) * ceil_div(n, tile.n) * blocks >= PROCESSORS:
            return tile
    return WARP_TILES[2 if n > 32 else 3]


def accepts_halves(op: Conv | ConvTranspose, ins: Types) -> bool:
    return accepts_product(op, ins) and ins[0].dtype in (F16, BF16) and is_worth(op, ins)


@kernel(Conv, ConvTranspose, device="cuda", accepts=accepts_halves)
def tensor_product(op: Conv | ConvTranspose, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """f16 and bf16, on tensor cores.  Channels that are no multiple of 8 are copied into some that are, first."""
    x = ins[0]
    cg, dtype = x.dims[-1] // op.group, dtype_name(x.dtype)
    wide, runs = ceil_div(cg, 8) * 8, x.size // cg
    image: Argument = In(0)
    steps = []
    if wide != cg:
        image = Scratch(2 * runs * wide)
        steps.append(Step(widened_channels(dtype), {"x": In(0), "y": image, "runs": runs, "cg": cg, "wide": wide}))

    def pack_lines_of(w: Array, groups: int, taps: list[int]) -> Array:
        return pack_lines(w, groups, taps, wide)

    act = activation(op.activation)
    tiles = Tiles(
        warp_tile, lambda tile, many, scattered: halves(tile, dtype, many, scattered, act),
        lambda tile, many: halves_in_parts(tile, dtype, many), ROW // 2,
    )  # fmt: skip
    no_bytes: dict[str, Argument] = dict.fromkeys(BYTE_TAIL)
    return steps + product_steps(op, ins, outs[0], context, pack_lines_of, tiles, image, wide, no_bytes)
