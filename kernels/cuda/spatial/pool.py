"""MaxPool, AveragePool and LpPool: a thread for each pixel of the result and a few channels, in either layout.

A channel of an image with channels first is an image of one channel, so there is one kernel for both layouts.  It is
made for 3 spatial axes; missing ones have length 1.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.kernels.cuda.declare import I64, PTR, CudaKernel, ceil_div
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import divide_exact, maximum, sqrt_exact
from bolt_numba.kernels.cuda.movement.index import MOST, SCOPE, axis_args, axis_fields
from bolt_numba.kernels.declare import Source, inline
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types, kernel
from bolt_numba.ops.layers.pool import AveragePool, LpPool, MaxPool, lowest
from bolt_numba.types import BF16, F16, F32, F64, AnyDType, TensorType, dtype_name

THREADS = 128
WIDTH = 16
"""Bytes of the channels of a thread."""
SHORTS = (F32, F16, BF16)
"""Numbers that are f32 in registers."""
_AXES = "dhw"
_WINDOW = ("stride", "pad", "dilation", "taps", "size", "step", "room")
"""Numbers of an axis: of the windows, elements of x, bytes from one to the next, elements that count for means."""


@inline
def first_tap(first, dilation, dilated):
    """The first tap that is not before the image; ``first``: where the window begins."""
    before = max(-first, np.int64(0))
    return (before + dilation - 1) // dilation if dilated else before


@inline
def end_of_taps(first, dilation, taps, size, low, dilated):
    """Behind the last tap inside; at least ``low``."""
    inside = (size - first + dilation - 1) // dilation if dilated else size - first
    return max(min(inside, taps), low)


def _joined(kind: str, dtype: AnyDType, power: int) -> tuple[str, str]:
    """Statement that takes ``v`` into the total ``{a}``, and the expression of the result."""
    if kind == "max":
        if dtype in SHORTS:
            return "{a} = maximum({a}, v)", "{a}"
        return "{a} = v if v > {a} or v != v else {a}", "{a}"
    if kind == "mean":
        return "{a} += v", "divide_exact({a}, np.float32(count))" if dtype in SHORTS else "{a} / count"
    if power == 1:
        return "{a} += abs(v)", "{a}"
    if power == 2:
        return "{a} += v * v", "sqrt_exact({a})" if dtype in SHORTS else "math.sqrt({a})"
    return f"{{a}} += abs({' * '.join(['v'] * power)})", "math.pow({a}, root)"


def _loops(lines: Sequence[str], indent: str) -> str:
    """The lines for every tap ``at`` (address) of the window."""
    text, inner = "", indent
    for axis, outer in zip(_AXES, ("base", "at_d", "at_h"), strict=True):
        text += f"{inner}for k{axis} in range(low_{axis}, end_{axis}):\n"
        inner += "    "
        text += f"{inner}at_{axis} = {outer} + (first_{axis} + k{axis} * dilation_{axis}) * step_{axis}\n"
    return text + "".join(f"{inner}{line}\n" for line in lines)


def _places_text(dilated: bool) -> str:
    """Statements that find pixel and window of thread t, and how many elements count."""
    text = "        rest, base, count = t, x, np.int64(1)\n"
    text += "        above = fast_divide(rest, m4, h4)\n"
    text += "        base += np.int64(np.uint32(rest - above * np.uint32(n4))) * lane\n"
    for k, axis in ((3, "w"), (2, "h"), (1, "d")):
        text += f"        rest = above\n        above = fast_divide(rest, m{k}, h{k})\n"
        index = f"np.int64(np.uint32(rest - above * np.uint32(n{k})))"
        text += f"        first_{axis} = {index} * stride_{axis} - pad_{axis}\n"
        window = f"first_{axis}, dilation_{axis}"
        text += f"        low_{axis} = first_tap({window}, {dilated})\n"
        text += f"        end_{axis} = end_of_taps({window}, taps_{axis}, size_{axis}, low_{axis}, {dilated})\n"
        counted = f"end_of_taps({window}, taps_{axis}, room_{axis}, np.int64(0), {dilated})"
        text += f"        count *= {counted} if padded else end_{axis} - low_{axis}\n"
    return text + "        base += np.int64(above) * image\n        count = max(count, 1)\n"


@cache
def pool(kind: str, dtype: AnyDType, vector: int, dilated: bool, power: int = 0, places: bool = False) -> CudaKernel:
    """Kernel of one kind of pool over x [images, d, h, w, c], a thread for ``vector`` channels.

    Axes n1 to n4 are those of the result behind the images: d, h, w, and the vectors of the channels, ``lane`` bytes
    apart.  image: bytes of x[0].  padded: whether elements of the pads count.  where: places of the maxima, i64, in
    which an element along an axis counts ``p``; plane: elements of a channel.
    """
    of, unit = dtype_name(dtype), dtype.itemsize
    name = f"pool_{kind}{power or ''}_{of}x{vector}{'_dilated' * dilated}{'_places' * places}"
    numbers = [f"{word}_{axis}" for axis in _AXES for word in _WINDOW]
    fields = {"x": PTR, "y": PTR} | ({"where": PTR} if places else {}) | dict.fromkeys(("count_all", *numbers), I64)
    fields |= axis_fields(5) | dict.fromkeys(("image", "lane", "padded"), I64)
    fields |= dict.fromkeys(("plane", "p_d", "p_h", "p_w"), I64) if places else {}
    join, result = _joined(kind, dtype, power)
    totals = [f"a{i}" for i in range(vector)]
    many = "" if vector == 1 else str(vector)
    taken = [f"{', '.join(f'v{i}' for i in range(vector))} = load(at_w)"]
    for i, total in enumerate(totals):
        taken += [f"v = v{i}", join.format(a=total)]
    if places:
        indices = " + ".join(f"(first_{axis} + k{axis} * dilation_{axis}) * p_{axis}" for axis in _AXES)
        better = "v > a0 or place < 0 or (v != v and a0 == a0)"
        taken = ["v = load(at_w)", f"if {better}:", "    a0 = v", f"    place = {indices}"]
    text = (
        f"def {name}({', '.join(fields)}):\n"
        f"    t = np.uint32(cuda.blockIdx.x) * np.uint32({THREADS}) + np.uint32(cuda.threadIdx.x)\n"
        "    if t < count_all:\n"
        + _places_text(dilated)
        + "".join(f"        {total} = start\n" for total in totals)
        + ("        place = np.int64(-1)\n" if places else "")
        + _loops(taken, "        ")
        + f"        store(y + {unit * vector} * np.int64(t), {', '.join(result.format(a=a) for a in totals)})\n"
    )
    if places:
        text += (
            "        channel = np.int64(above) * n4 + np.int64(t) - np.int64(fast_divide(t, m4, h4)) * n4\n"
            "        store_i64(where + 8 * np.int64(t), max(place, 0) + channel * plane)\n"
        )
    register: Any = np.float32 if dtype in SHORTS else dtype.type
    scope = {**SCOPE, "math": math, "first_tap": first_tap, "end_of_taps": end_of_taps, "store_i64": lang.store_i64}
    scope |= {"maximum": maximum, "divide_exact": divide_exact, "sqrt_exact": sqrt_exact}
    scope |= {"start": register(lowest(dtype) if kind == "max" else 0), "root": register(1 / power if power else 0)}
    scope |= {"load": getattr(lang, f"load{many}_{of}_nc"), "store": getattr(lang, f"store{many}_{of}")}

    def reach(a: Any) -> dict[str, int]:
        y = unit * vector * a.count_all
        return {"x": a.n0 * a.image, "y": y} | ({"where": 8 * a.count_all} if places else {})

    return CudaKernel(
        Source(text, name, scope), name, fields, threads=THREADS, blocks=lambda a: ceil_div(a.count_all, THREADS),
        extents=reach,
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- makers


def _seen(op: Any, x: TensorType, out: TensorType) -> tuple[list[int], list[int], int, int]:
    """Spatial sizes of x and of the result, images, and channels as the kernel sees them."""
    if op.layout == "NHWC":
        return list(x.dims[1:-1]), list(out.dims[1:-1]), x.dims[0], x.dims[-1]
    return list(x.dims[2:]), list(out.dims[2:]), x.dims[0] * x.dims[1], 1


def pool_args(op: Any, x: TensorType, out: TensorType, vector: int) -> dict[str, Argument]:
    """Arguments of the kernels but for the places: In(0) to Out(0)."""
    sizes, outs, images, c = _seen(op, x, out)
    windows, rank, unit = op.windows.resolved(sizes), len(sizes), x.dtype.itemsize
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "count_all": out.size // vector}
    for i, axis in enumerate(_AXES, rank - 3):
        numbers = dict.fromkeys(_WINDOW, 1) | {"pad": 0, "step": 0}
        if i >= 0:
            numbers = {"stride": windows.strides[i], "pad": windows.pads[i], "dilation": windows.dilations[i]}
            numbers |= {"taps": windows.kernel[i], "size": sizes[i], "step": unit * c * math.prod(sizes[i + 1 :])}
            numbers["room"] = sizes[i] + windows.pads[rank + i]
        args |= {f"{word}_{axis}": number for word, number in numbers.items()}
    args |= axis_args([images, *[1] * (3 - rank), *outs, c // vector])
    args |= {"image": unit * c * math.prod(sizes), "lane": unit * vector}
    return args | {"padded": int(getattr(op, "count_include_pad", False))}


def _vector(op: Any, x: TensorType) -> int:
    """Channels of a thread."""
    most = WIDTH // x.dtype.itemsize
    return most if x.dtype in SHORTS and op.layout == "NHWC" and x.dims[-1] % most == 0 else 1


def _accepts(op: Any, ins: Types) -> bool:
    x = ins[0]
    if x is None or not x.is_static or x.size > MOST or len(op.kernel_shape) > 3:
        return False
    return x.dtype in (*SHORTS, F64) or (op.name == "MaxPool" and x.dtype.kind in "iu")


def _steps(kind: str, op: Any, ins: Types, outs: Sequence[TensorType], power: int = 0) -> list[Step]:
    x = ins[0]
    assert x is not None
    if not outs[0].size:
        return []
    vector, dilated = _vector(op, x), any(d > 1 for d in op.dilations)
    return [Step(pool(kind, x.dtype, vector, dilated, power), pool_args(op, x, outs[0], vector))]


@kernel(MaxPool, device="cuda", accepts=_accepts, by_types=True)
def max_pool(op: MaxPool, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Any number, with or without the places of the maxima."""
    x = ins[0]
    assert x is not None
    if not op.indices or not outs[0].size:
        return _steps("max", op, ins, outs)
    sizes = _seen(op, x, outs[0])[0]
    args = pool_args(op, x, outs[0], 1) | {"where": Out(1), "plane": math.prod(sizes)}
    each = [math.prod(sizes[i + 1 :] if op.storage_order == 0 else sizes[:i]) for i in range(len(sizes))]
    args |= dict(zip(("p_d", "p_h", "p_w"), [0] * (3 - len(sizes)) + each, strict=True))
    return [Step(pool("max", x.dtype, 1, any(d > 1 for d in op.dilations), 0, True), args)]


@kernel(AveragePool, device="cuda", accepts=_accepts, by_types=True)
def average_pool(op: AveragePool, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Sums and quotients in f32."""
    return _steps("mean", op, ins, outs)


@kernel(LpPool, device="cuda", accepts=lambda op, ins: op.p <= 8 and _accepts(op, ins), by_types=True)
def lp_pool(op: LpPool, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Powers are products."""
    return _steps("lp", op, ins, outs, op.p)
