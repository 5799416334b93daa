"""MaxPool, AveragePool and LpPool: a thread for each pixel of the result and a few channels, in either layout.

A channel of an image with channels first is an image of one channel, so there is one kernel for both layouts.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.types import BF16, F16, F32, F64, AnyDType, TensorType, dtype_name
from bolt_numba.kernels.cuda.declare import I64, PTR, inline_source
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import divide_exact, maximum, sqrt_exact
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import MOST_LAUNCHED, DeviceParts, Elements
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.ops.dtypes import lowest
from bolt_numba.ops.layers.pool import AveragePool, LpPool, MaxPool, Pool

WIDTH = 16
"""Bytes of the channels of a thread."""
SHORTS = (F32, F16, BF16)
"""Numbers that are f32 in registers."""
_AXES = "dhw"
_WINDOW = ("stride", "pad", "dilation", "taps", "size", "step", "room")
"""Numbers of an axis: of the windows, elements of x, bytes from one to the next, elements that count for means."""


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


def _window_text(axes: str, dilated: bool, places: bool) -> str:
    """Statements that find the window of a pixel, and how many elements count."""
    up = "{0} + dilation_{1} - 1) // dilation_{1}"
    text = "    base, count = x + image_at * image + lane_at * lane, np.int32(1)\n"
    for axis in reversed(axes):
        before, inside, room = f"max(-first_{axis}, 0)", f"size_{axis} - first_{axis}", f"room_{axis} - first_{axis}"
        if dilated:
            before, inside, room = (f"({up.format(part, axis)}" for part in (before, inside, room))
        text += f"    first_{axis} = np.int32(o_{axis} * stride_{axis} - pad_{axis})\n"
        text += f"    low_{axis} = np.int32({before})\n"
        text += f"    taken_{axis} = np.int32(max(min({inside}, taps_{axis}) - low_{axis}, 0))\n"
        counted = f"max(min({room}, taps_{axis}), 0)"
        text += f"    count = np.int32(count * ({counted} if padded else taken_{axis}))\n"
        text += f"    start_{axis} = np.int64(first_{axis} + low_{axis} * dilation_{axis})\n"
        text += f"    base += start_{axis} * step_{axis}\n"
    text += "    count = max(count, np.int32(1))\n"
    return text + (f"    q = {' + '.join(f'start_{a} * p_{a}' for a in axes)}\n" if places else "")


def _loops(axes: str, lines: Sequence[str], places: bool) -> str:
    """The lines for every tap ``at`` (address) of the window, which is ``q`` in the plane."""
    text, indent, at, q = "", "    ", "base", "q"
    for axis in axes:
        text += f"{indent}at_{axis} = {at}\n" + (f"{indent}q_{axis} = {q}\n" if places else "")
        text += f"{indent}for k{axis} in range(taken_{axis}):\n"
        at, q, indent = f"at_{axis}", f"q_{axis}", indent + "    "
    text += "".join(f"{indent}{line.format(at=at, q=q)}\n" for line in lines)
    for axis in reversed(axes):
        text += f"{indent}at_{axis} += dilation_{axis} * step_{axis}\n"
        text += f"{indent}q_{axis} += dilation_{axis} * p_{axis}\n" if places else ""
        indent = indent[4:]
    return text


def _taken(kind: str, dtype: AnyDType, power: int, vector: int, places: bool) -> tuple[list[str], str]:
    """What is done with a tap, and the totals as they are stored."""
    if places:
        return ["v = load({at})", "if v > a0 or place < 0 or (v != v and a0 == a0):", "    a0, place = v, {q}"], "a0"
    join, result = _joined(kind, dtype, power)
    lines = [f"{', '.join(f'v{i}' for i in range(vector))} = load({{at}})"]
    for i in range(vector):
        lines += [f"v = v{i}", join.format(a=f"a{i}")]
    return lines, ", ".join(result.format(a=f"a{i}") for i in range(vector))


@cache
def pool(rank: int, places: bool) -> Elements:
    """Kernels of all kinds of pools over x [images, spatial.., c], a thread for ``vector`` channels.

    Axes from n1 on are those of the result behind the images: spatial ones, and the vectors of the channels, ``lane``
    bytes apart.  image: bytes of x[0].  padded: whether elements of the pads count.  where: places of the maxima, i64,
    in which an element along an axis counts ``p``; plane: elements of a channel.
    """
    axes = _AXES[3 - rank :]
    over = {"image_at": "n0", **{f"o_{axis}": f"n{k}" for k, axis in enumerate(axes, 1)}, "lane_at": f"n{rank + 1}"}
    fields = dict.fromkeys(("x", "y", *["where"] * places), PTR)
    fields |= dict.fromkeys([f"{word}_{axis}" for axis in axes for word in _WINDOW], I64)
    fields |= dict.fromkeys(("image", "lane", "padded"), I64)
    fields |= dict.fromkeys(("plane", *(f"p_{axis}" for axis in axes)), I64) if places else {}

    def make(on: DeviceParts, kind: str, dtype: AnyDType, vector: int, dilated: bool, power: int) -> Inline:
        lines, results = _taken(kind, dtype, power, vector, places)
        text = (
            f"def element({', '.join((*over, 't', f'n{rank + 1}', *fields))}):\n"
            + _window_text(axes, dilated, places)
            + "".join(f"    a{i} = start\n" for i in range(vector))
            + ("    place = np.int64(-1)\n" if places else "")
            + _loops(axes, lines, places)
            + f"    store(y + {dtype.itemsize * vector} * t, {results})\n"
        )
        if places:
            text += f"    store_i64(where + 8 * t, max(place, 0) + (image_at * n{rank + 1} + lane_at) * plane)\n"
        return inline_source(text, "element", **_scope(kind, dtype, vector, power))

    def reach(a: Numbers, kind: str, dtype: AnyDType, vector: int, *_: Any) -> dict[str, Reach]:
        count = math.prod(getattr(a, size) for size in over.values())
        made: dict[str, Reach] = {"x": a.n0 * a.image, "y": dtype.itemsize * vector * count}
        return made | ({"where": 8 * count} if places else {})

    return Elements(f"pool_{rank}d{'_places' * places}", over, "", fields, reach, make)


def _scope(kind: str, dtype: AnyDType, vector: int, power: int) -> dict[str, Any]:
    """What the text of `pool` names."""
    of, many = dtype_name(dtype), "" if vector == 1 else str(vector)
    register: Any = np.float32 if dtype in SHORTS else dtype.type
    scope = {"np": np, "math": math, "store_i64": lang.store_i64, "maximum": maximum, "divide_exact": divide_exact}
    scope |= {"start": register(lowest(dtype) if kind == "max" else 0), "root": register(1 / power if power else 0)}
    scope |= {"load": getattr(lang, f"load{many}_{of}_nc"), "store": getattr(lang, f"store{many}_{of}")}
    return scope | {"sqrt_exact": sqrt_exact}


# -------------------------------------------------------------------------------------------------------------- makers


def _seen(op: Pool, x: TensorType, out: TensorType) -> tuple[list[int], list[int], int, int]:
    """Spatial sizes of x and of the result, images, and channels as the kernel sees them."""
    if op.layout == "NHWC":
        return list(x.dims[1:-1]), list(out.dims[1:-1]), x.dims[0], x.dims[-1]
    return list(x.dims[2:]), list(out.dims[2:]), x.dims[0] * x.dims[1], 1


def pool_args(op: Pool, x: TensorType, out: TensorType, vector: int) -> dict[str, Argument]:
    """Arguments of the kernels but for the places: In(0) to Out(0)."""
    sizes, outs, images, c = _seen(op, x, out)
    windows, rank, unit = op.windows.resolved(sizes), len(sizes), x.dtype.itemsize
    args: dict[str, Argument] = {"x": In(0), "y": Out(0)}
    for i, axis in enumerate(_AXES[3 - rank :]):
        numbers = {"stride": windows.strides[i], "pad": windows.pads[i], "dilation": windows.dilations[i]}
        numbers |= {"taps": windows.kernel[i], "size": sizes[i], "step": unit * c * math.prod(sizes[i + 1 :])}
        numbers["room"] = sizes[i] + windows.pads[rank + i]
        args |= {f"{word}_{axis}": number for word, number in numbers.items()}
    args |= {f"n{k}": n for k, n in enumerate((images, *outs, c // vector))}
    args |= {"image": unit * c * math.prod(sizes), "lane": unit * vector}
    return args | {"padded": int(getattr(op, "count_include_pad", False))}


def _vector(op: Pool, x: TensorType) -> int:
    """Channels of a thread."""
    most = WIDTH // x.dtype.itemsize
    return math.gcd(most, x.dims[-1]) if x.dtype in SHORTS and op.layout == "NHWC" else 1


def _accepts(op: MaxPool | AveragePool, ins: Types) -> bool:
    x = ins[0]
    if not x.is_static or x.size > MOST_LAUNCHED or len(op.kernel_shape) > 3:
        return False
    return x.dtype in (*SHORTS, F64) or (op.name == "MaxPool" and x.dtype.kind in "iu")


def _steps(kind: str, op: Pool, ins: Types, outs: Outs, power: int = 0) -> list[Step]:
    x = ins[0]
    if not outs[0].size:
        return []
    vector, dilated = _vector(op, x), any(d > 1 for d in op.dilations)
    settings = kind, x.dtype, vector, dilated, power
    return [PARTS.step(pool(len(op.kernel_shape), False), settings, pool_args(op, x, outs[0], vector))]


@kernel(MaxPool, device="cuda", accepts=_accepts)
def max_pool(op: MaxPool, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Any number, with or without the places of the maxima."""
    x = ins[0]
    if not op.indices or not outs[0].size:
        return _steps("max", op, ins, outs)
    sizes = _seen(op, x, outs[0])[0]
    args = pool_args(op, x, outs[0], 1) | {"where": Out(1), "plane": math.prod(sizes)}
    each = [math.prod(sizes[i + 1 :] if op.storage_order == 0 else sizes[:i]) for i in range(len(sizes))]
    args |= {f"p_{axis}": p for axis, p in zip(_AXES[3 - len(sizes) :], each, strict=True)}
    return [PARTS.step(pool(len(sizes), True), ("max", x.dtype, 1, any(d > 1 for d in op.dilations), 0), args)]


@kernel(AveragePool, device="cuda", accepts=_accepts)
def average_pool(op: AveragePool, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Sums and quotients in f32."""
    return _steps("mean", op, ins, outs)


@kernel(LpPool, device="cuda", accepts=lambda op, ins: op.p <= 8 and _accepts(op, ins))
def lp_pool(op: LpPool, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Powers are products."""
    return _steps("lp", op, ins, outs, op.p)
