"""GridSample: a thread for each point, which finds its taps once and then goes through some channels."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from bolt_numba.base.types import BF16, F16, F32, dtype_name
from bolt_numba.kernels.cuda.declare import BLOCK, I64, PTR, CudaKernel, ceil_div
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.division import divider
from bolt_numba.kernels.cuda.movement.index import SCOPE
from bolt_numba.kernels.declare import Source
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import MOST_LAUNCHED
from bolt_numba.kernels.geometry.sampling import MODES, PADDINGS, grid_taps
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.ops.layers.resize import EXACT, GridSample

CHANNELS = 8
"""Channels of a thread."""
FLOATS = (F32, F16, BF16)
_ZERO, _ONE = np.float32(0), np.float32(1)


def _text(
    name: str, fields: Sequence[str], rank: int, form: tuple[bool, int, int], units: tuple[int, int]
) -> str:  # fmt: skip
    """Body: element offsets and weights of all axes in arrays that become registers, then channels."""
    unit, point = units
    taps, how = form[1], ", ".join(str(int(n)) for n in form)  # align, taps, padding
    text = (
        f"def {name}({', '.join(fields)}):\n"
        f"    t = np.uint32(cuda.blockIdx.x * {BLOCK} + cuda.threadIdx.x)\n"
        "    if t < count:\n"
        f"        offsets = cuda.local.array({rank * taps}, np.int64)\n"
        f"        weights = cuda.local.array({rank * taps}, np.float32)\n"
        "        image = np.int64(fast_divide(t, mp, hp))\n"
        "        place = np.int64(t) - image * points\n"
    )
    for axis in range(rank):
        number = f"{rank} * np.int64(t) + {rank - 1 - axis}"
        text += (
            f"        at = place_point(load_point(grid + {point} * ({number})), z{axis}, {how})\n"
            f"        for k in range({taps}):\n"
            f"            element, w = tap_of(at, k, z{axis}, {how})\n"
            f"            offsets[{axis * taps} + k], weights[{axis * taps} + k] = element * s{axis}, w\n"
        )
    text += (
        f"        first = np.int64(cuda.blockIdx.y) * {CHANNELS}\n"
        f"        for c in range(first, min(first + {CHANNELS}, channels)):\n"
        "            plane = image * channels + c\n"
        f"            at0, w0, total = x + {unit} * plane * size, one, zero\n"
    )
    indent = "            "
    for axis in range(rank):
        text += f"{indent}for k{axis} in range({taps}):\n"
        indent += "    "
        text += f"{indent}at{axis + 1} = at{axis} + {unit} * offsets[{axis * taps} + k{axis}]\n"
        text += f"{indent}w{axis + 1} = w{axis} * weights[{axis * taps} + k{axis}]\n"
    text += f"{indent}if w{rank} != zero:\n{indent}    total += w{rank} * load(at{rank})\n"
    return text + f"            store(y + {unit} * (plane * points + place), total)\n"


@cache
def sample_points(dtypes: tuple[str, str], rank: int, taps: int, padding: str, align: bool) -> CudaKernel:
    """Kernel from x [images, channels, size] at grid [images, points, rank] to y [images, channels, points].

    dtypes: of x and of the grid.  z: length of an axis; s: elements from one index along it to the next.
    """
    of, grid = dtypes
    unit, point = lang.SIZES[of], lang.SIZES[grid]
    name = f"grid_sample_{of}_{grid}_{rank}d{taps}_{padding}{'_corners' * align}"
    numbers = ("count", "points", "mp", "hp", "channels", "size", *(f"{w}{a}" for a in range(rank) for w in "zs"))
    fields = dict.fromkeys(("x", "grid", "y"), PTR) | dict.fromkeys(numbers, I64)
    place_point, tap_of = grid_taps(PARTS)
    scope = {**SCOPE, "place_point": place_point, "tap_of": tap_of}
    scope |= {"load": getattr(lang, f"load_{of}_nc"), "store": getattr(lang, f"store_{of}"), "one": _ONE, "zero": _ZERO}
    scope |= {"load_point": getattr(lang, f"load_{grid}_nc")}

    def reach(a: Numbers) -> dict[str, Reach]:
        planes = a.count // a.points * a.channels
        return {"x": unit * planes * a.size, "grid": point * rank * a.count, "y": unit * planes * a.points}

    text = _text(name, list(fields), rank, (align, taps, PADDINGS[padding]), (unit, point))
    return CudaKernel(
        Source(text, name, scope), name, fields, threads=BLOCK,
        blocks=lambda a: (ceil_div(a.count, BLOCK), ceil_div(a.channels, CHANNELS)), extents=reach,
    )  # fmt: skip


def _accepts(op: GridSample, ins: Types) -> bool:
    x, grid = ins[0], ins[1]
    if not x.is_static or not x.size or x.size > MOST_LAUNCHED or not grid.is_static:
        return False
    fits = len(x.dims) in (3, 4, 5) and max(x.dims[2:]) <= EXACT and grid.size <= MOST_LAUNCHED
    return fits and x.dtype in FLOATS and grid.dtype in FLOATS


@kernel(GridSample, device="cuda", accepts=_accepts)
def grid_sample(op: GridSample, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """1 to 3 spatial axes, all modes and paddings; sums in f32."""
    x, grid, out = ins[0], ins[1], outs[0]
    if not out.size:
        return []
    images, channels, *sizes = x.dims
    points = math.prod(out.dims[2:])
    args: dict[str, Argument] = {"x": In(0), "grid": In(1), "y": Out(0), "count": images * points, "points": points}
    args["mp"], args["hp"] = divider(points)
    args |= {"channels": channels, "size": math.prod(sizes)}
    for axis, size in enumerate(sizes):
        args |= {f"z{axis}": size, f"s{axis}": math.prod(sizes[axis + 1 :])}
    dtypes = dtype_name(x.dtype), dtype_name(grid.dtype)
    made = sample_points(dtypes, len(sizes), MODES[op.mode], op.padding_mode, op.align_corners)
    return [Step(made, args)]


def samples() -> list[CudaKernel]:
    """A kernel of each kind, for the table of resources."""
    plane = [sample_points(("f32", "f32"), 2, taps, "zeros", False) for taps in (1, 2, 4)]
    return [*plane, sample_points(("f16", "f32"), 3, 2, "border", True)]
