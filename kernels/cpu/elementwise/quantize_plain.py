"""QuantizeLinear and DequantizeLinear of other integers than bytes, of blocks, and of narrow floats.

Integers of less than a byte and floats of 8 bits go through f32 and the tables of `kernels.common.tables`.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial

import numpy as np

from bolt_numba.base.types import F32, I8, I16, U8, U16, AnyDType, TensorType, dtype_name
from bolt_numba.kernels.common.tables import cast_step
from bolt_numba.kernels.cpu.elements import PARTS
from bolt_numba.kernels.cpu.language.lang import native_source
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.jit import I64, PTR, Native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.conversion import SUB_BYTE
from bolt_numba.ops.arrays.quantize import Conversion, DequantizeLinear, QuantizeLinear, limits
from bolt_numba.ops.pointwise import Cast
from bolt_numba.ops.registry import normalise_axis

PLAIN = (I8, U8, I16, U16)
_FIELDS = dict.fromkeys(("x", "y", "scale", "zero"), PTR) | dict.fromkeys(
    ("rows", "n", "inner", "block", "outer_step", "block_step", "inner_step", "scales"), I64
)

_SIZES = {"i8": 1, "u8": 1, "i16": 2, "u16": 2, "f32": 4}


def _reach(source: int, zero: int, target: int, a: Numbers) -> dict[str, Reach]:
    """Extents for elements, zero points and results of these bytes."""
    count = a.rows * a.inner
    last = (-(-a.rows // a.n) - 1) * a.outer_step + (a.n - 1) // a.block * a.block_step + (a.inner - 1) * a.inner_step
    scales = last + 1 if count else 0
    return {"x": source * count, "y": target * count, "scale": 4 * scales, "zero": zero * scales}


def _text(name: str, source: str, zero: str, target: str, formula: str) -> str:
    """Rows of ``inner`` elements, n to each outer index; the scale of an element is at a sum of steps."""
    return f"""
def {name}(p, tid, nthreads):
    lo, hi = split(p.rows, tid, nthreads)
    scale, zero = view(p.scale, p.scales, f32), view(p.zero, p.scales, {zero})
    inner, step = p.inner, p.inner_step
    for row in range(lo, hi):
        outer = row // p.n
        at = outer * p.outer_step + (row - outer * p.n) // p.block * p.block_step
        x = view(p.x + {_SIZES[source]} * row * inner, inner, {source})
        y = view(p.y + {_SIZES[target]} * row * inner, inner, {target})
        for j in range(inner):
            s, z = scale[at + j * step], f32(zero[at + j * step])
            y[j] = {target}({formula.format(x="f32(x[j])")})
"""


@lru_cache(maxsize=64)
def _kernel(source: str, zero: str, target: str, formula: str, label: str) -> Native:
    name = f"{label}_{source}_{target}"
    text = _text(name, source, zero, target, formula)
    extents = partial(_reach, _SIZES[source], _SIZES[zero], _SIZES[target])
    return native_source(text, name, _FIELDS, frozenset(), extents=extents, np_rint=np.rint, **scope_of(text))


def _places(op: Conversion, x: TensorType, scale: TensorType) -> dict[str, Argument]:
    """Rows and steps of `_FIELDS`."""
    steps = {"outer_step": 0, "block_step": 0, "inner_step": 0, "block": 1, "scales": scale.size}
    if scale.size == 1:
        return {"rows": -(-x.size // 1024) if x.size % 1024 == 0 else 1, "n": 1,
                "inner": 1024 if x.size % 1024 == 0 else x.size, **steps}  # fmt: skip
    axis = normalise_axis(op, op.axis, len(x.dims))
    outer, n, inner = math.prod(x.dims[:axis]), x.dims[axis], math.prod(x.dims[axis + 1 :])
    if op.block_size:
        steps |= {"outer_step": scale.dims[axis] * inner, "block_step": inner, "inner_step": 1, "block": op.block_size}
    elif inner == 1:
        return {"rows": outer, "n": 1, "inner": n, **steps, "inner_step": 1}
    else:
        steps |= {"block_step": 1}
    return {"rows": outer * n, "n": n, "inner": inner, **steps}


def _is_narrow(dtype: AnyDType) -> bool:
    return dtype.itemsize == 1 and dtype not in PLAIN


def _accepts(op: Conversion, ins: Types) -> bool:
    x, scale, zero = (*ins, None)[:3]
    if x is None or scale is None or scale.dtype != F32 or not (x.is_static and scale.is_static) or not x.dims:
        return False
    if isinstance(op, DequantizeLinear):
        return op.output_dtype in (None, F32) and (x.dtype in PLAIN or _is_narrow(x.dtype))
    target = op.infer(x, scale, *(() if zero is None else (zero,))).dtype
    return x.dtype == F32 and (target in PLAIN or _is_narrow(target))


@kernel(DequantizeLinear, accepts=_accepts, rank=-1)
def dequantize_any(op: DequantizeLinear, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """To f32."""
    x, scale, zero = ins[0], ins[1], (*ins, None)[2]
    if not x.size:
        return []
    before: list[Step] = []
    ends: dict[str, Argument] = {"x": In(0), "zero": In(2)}
    dtype = x.dtype
    if _is_narrow(x.dtype):
        for name, t, place in (("x", x, In(0)), ("zero", zero, In(2))):
            if t is not None:
                ends[name] = room = Scratch(4 * t.size)
                before.append(cast_step(Cast(F32), x.dtype, F32, place, room, t.size, PARTS))
        dtype = F32
    if zero is None:
        ends["zero"] = np.zeros(scale.size, dtype)
    name = dtype_name(dtype)
    args = ends | {"y": Out(0), "scale": In(1)} | _places(op, x, scale)
    return [*before, Step(_kernel(name, name, "f32", "({x} - z) * s", "dequantize"), args, x.size >= PAYS_ELEMENTS)]


@kernel(QuantizeLinear, accepts=_accepts, rank=-1)
def quantize_any(op: QuantizeLinear, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """From f32."""
    x, scale, zero = ins[0], ins[1], (*ins, None)[2]
    if not x.size:
        return []
    target, places = outs[0].dtype, _places(op, x, scale)
    whole = target in PLAIN or target.name in SUB_BYTE
    formula = "{x} / s"
    if whole:
        low, high = limits(target)
        formula = f"min(max(f32({float(low)}), np_rint({{x}} / s) + z), f32({float(high)}))"  # NaN gives low
    made = target if target in PLAIN else F32
    last: Argument = Out(0) if target in PLAIN else Scratch(4 * x.size)
    args: dict[str, Argument] = {"x": In(0), "y": last, "scale": In(1), "zero": In(2), **places}
    before: list[Step] = []
    kind = dtype_name(target) if target in PLAIN else "f32"
    if zero is None or not whole:
        args["zero"] = np.zeros(scale.size, target if target in PLAIN else F32)
    elif target not in PLAIN:
        args["zero"] = room = Scratch(4 * zero.size)
        before.append(cast_step(Cast(F32), target, F32, In(2), room, zero.size, PARTS))
    label = "quantize" if made != F32 else f"quantize_{target.name if whole else 'float'}"
    steps = [*before, Step(_kernel("f32", kind, dtype_name(made), formula, label), args, x.size >= PAYS_ELEMENTS)]
    if target not in PLAIN:
        steps.append(cast_step(Cast(target, op.saturate), F32, target, last, Out(0), x.size, PARTS))
    return steps
