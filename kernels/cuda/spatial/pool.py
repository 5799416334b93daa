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
from bolt_numba.kernels.cuda.declare import BLOCK, I64, PTR, CudaKernel, ceil_div
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import divide_exact, maximum, sqrt_exact
from bolt_numba.kernels.cuda.movement.index import SCOPE, axis_args, axis_fields
from bolt_numba.kernels.declare import Source
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import MOST_LAUNCHED
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
    """Statements that find pixel and window of thread t, and how many elements count."""
    last = len(axes) + 1
    text = f"        above = fast_divide(t, m{last}, h{last})\n"
    text += f"        lane_at = np.uint32(t - above * np.uint32(n{last}))\n"
    text += "        base, count = x + np.int64(lane_at) * lane, np.int32(1)\n"
    up = "{0} + dilation_{1} - 1) // dilation_{1}"
    for k, axis in reversed(list(enumerate(axes, 1))):
        index = f"np.uint32(rest - above * np.uint32(n{k}))"
        before, inside, room = f"max(-first_{axis}, 0)", f"size_{axis} - first_{axis}", f"room_{axis} - first_{axis}"
        if dilated:
            before, inside, room = (f"({up.format(part, axis)}" for part in (before, inside, room))
        text += f"        rest = above\n        above = fast_divide(rest, m{k}, h{k})\n"
        text += f"        first_{axis} = np.int32({index} * stride_{axis} - pad_{axis})\n"
        text += f"        low_{axis} = np.int32({before})\n"
        text += f"        taken_{axis} = np.int32(max(min({inside}, taps_{axis}) - low_{axis}, 0))\n"
        counted = f"max(min({room}, taps_{axis}), 0)"
        text += f"        count = np.int32(count * ({counted} if padded else taken_{axis}))\n"
        text += f"        start_{axis} = np.int64(first_{axis} + low_{axis} * dilation_{axis})\n"
        text += f"        base += start_{axis} * step_{axis}\n"
    text += "        base += np.int64(above) * image\n        count = max(count, np.int32(1))\n"
    return text + (f"        q = {' + '.join(f'start_{a} * p_{a}' for a in axes)}\n" if places else "")


def _loops(axes: str, lines: Sequence[str], places: bool) -> str:
    """The lines for every tap ``at`` (address) of the window, which is ``q`` in the plane."""
    text, indent, at, q = "", "        ", "base", "q"
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
def pool(
    kind: str, dtype: AnyDType, rank: int, vector: int, dilated: bool = False, power: int = 0, places: bool = False
) -> CudaKernel:
    """Kernel of one kind of pool over x [images, spatial.., c], a thread for ``vector`` channels.

    Axes from n1 on are those of the result behind the images: spatial ones, and the vectors of the channels, ``lane``
    bytes apart.  image: bytes of x[0].  padded: whether elements of the pads count.  where: places of the maxima, i64,
    in which an element along an axis counts ``p``; plane: elements of a channel.
    """
    of, unit, axes = dtype_name(dtype), dtype.itemsize, _AXES[3 - rank :]
    name = f"pool_{kind}{power or ''}_{of}x{vector}_{rank}d{'_dilated' * dilated}{'_places' * places}"
    numbers = [f"{word}_{axis}" for axis in axes for word in _WINDOW]
    fields = {"x": PTR, "y": PTR} | ({"where": PTR} if places else {}) | dict.fromkeys(("count_all", *numbers), I64)
    fields |= axis_fields(rank + 2) | dict.fromkeys(("image", "lane", "padded"), I64)
    fields |= dict.fromkeys(("plane", *(f"p_{axis}" for axis in axes)), I64) if places else {}
    lines, results = _taken(kind, dtype, power, vector, places)
    text = (
        f"def {name}({', '.join(fields)}):\n"
        f"    t = np.uint32(cuda.blockIdx.x * {BLOCK} + cuda.threadIdx.x)\n"
        "    if t < count_all:\n"
        + _window_text(axes, dilated, places)
        + "".join(f"        a{i} = start\n" for i in range(vector))
        + ("        place = np.int64(-1)\n" if places else "")
        + _loops(axes, lines, places)
        + f"        store(y + {unit * vector} * np.int64(t), {results})\n"
    )
    if places:
        text += f"        channel = np.int64(above) * n{rank + 1} + np.int64(lane_at)\n"
        text += "        store_i64(where + 8 * np.int64(t), max(place, 0) + channel * plane)\n"

    def reach(a: Numbers) -> dict[str, Reach]:
        made: dict[str, Reach] = {"x": a.n0 * a.image, "y": unit * vector * a.count_all}
        return made | ({"where": 8 * a.count_all} if places else {})

    return CudaKernel(
        Source(text, name, _scope(kind, dtype, vector, power)), name, fields, threads=BLOCK,
        blocks=lambda a: ceil_div(a.count_all, BLOCK), extents=reach,
    )  # fmt: skip


def _scope(kind: str, dtype: AnyDType, vector: int, power: int) -> dict[str, Any]:
    """What the text of `pool` names."""
    of, many = dtype_name(dtype), "" if vector == 1 else str(vector)
    register: Any = np.float32 if dtype in SHORTS else dtype.type
    scope = {**SCOPE, "math": math, "store_i64": lang.store_i64, "maximum": maximum, "divide_exact": divide_exact}
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
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "count_all": out.size // vector}
    for i, axis in enumerate(_AXES[3 - rank :]):
        numbers = {"stride": windows.strides[i], "pad": windows.pads[i], "dilation": windows.dilations[i]}
        numbers |= {"taps": windows.kernel[i], "size": sizes[i], "step": unit * c * math.prod(sizes[i + 1 :])}
        numbers["room"] = sizes[i] + windows.pads[rank + i]
        args |= {f"{word}_{axis}": number for word, number in numbers.items()}
    args |= axis_args([images, *outs, c // vector])
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
    made = pool(kind, x.dtype, len(op.kernel_shape), vector, dilated, power)
    return [Step(made, pool_args(op, x, outs[0], vector))]


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
    return [Step(pool("max", x.dtype, len(sizes), 1, any(d > 1 for d in op.dilations), places=True), args)]


@kernel(AveragePool, device="cuda", accepts=_accepts)
def average_pool(op: AveragePool, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Sums and quotients in f32."""
    return _steps("mean", op, ins, outs)


@kernel(LpPool, device="cuda", accepts=lambda op, ins: op.p <= 8 and _accepts(op, ins))
def lp_pool(op: LpPool, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Powers are products."""
    return _steps("lp", op, ins, outs, op.p)


def samples() -> list[CudaKernel]:
    """A kernel of each kind, for the table of resources."""
    wide = [pool(kind, dtype, 2, WIDTH // dtype.itemsize) for kind in ("max", "mean") for dtype in (F32, F16)]
    return [*wide, pool("max", F32, 3, 1, True, places=True), pool("lp", F32, 2, 4, power=2)]
