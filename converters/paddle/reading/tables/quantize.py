"""Readers of quantised programs, which arrive as ONNX's do: integers between QuantizeLinear and DequantizeLinear.

Paddle's scale is the greatest value that is meant, ONNX's is the step: the first over 127 for 8 bits.  Paddle computes
with floats that hold whole numbers.  Here these are a DequantizeLinear of step 1 behind the integers.
Source: Paddle's fake_quantize_op, quantize_linear_op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import F32, I8, I16, AnyDType, Array
from bolt_numba.converters.builder import Ints, ints, known_scalar
from bolt_numba.converters.paddle.reading.binding import Values
from bolt_numba.converters.paddle.reading.graph import PaddleBuilder
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.arrays.reduce import ReduceMax
from bolt_numba.ops.arrays.shape import Reshape
from bolt_numba.ops.pointwise import Abs, Clip, Div, Max, Min, Mul, Neg

AWAY = 1
"""Rounding type of the older operators: values are clipped to the scale, and halves go away from zero."""
ZERO_SCALE = 1e-30
"""Scale of a tensor of zeros."""


def levels_of(bits: int) -> int:
    """The greatest stored number."""
    return int(2 ** (bits - 1) - 1)


def _stored(b: PaddleBuilder, bits: int) -> AnyDType:
    b.unsupported_if(not 1 < bits <= 16, f"numbers of {bits} bits")
    return I8 if bits <= 8 else I16


def _step(b: PaddleBuilder, scale: Value, bits: int) -> Value:
    return b(Div(), scale, float(levels_of(bits)))


def _clipped(b: PaddleBuilder, x: Value, scale: Value, axis: int, low: float, high: float) -> Value:
    """Values of x between multiples of the scale."""
    known = known_scalar(scale)
    if known is not None:
        return b(Clip(low * known, high * known), x)
    if axis >= 0 and scale.type.shape not in ((), (1,)):
        scale = b(Reshape(), scale, ints([-1, *[1] * (b.rank_of(x) - 1 - axis)]))
    limits = [b(Mul(), scale, v) if v != 1 else scale for v in (-low, high)]
    return b(Min(), b(Max(), x, b(Neg(), limits[0])), limits[1])


def quantised(b: PaddleBuilder, x: Value, scale: Value, bits: int, axis: int, kind: int) -> tuple[Value, Value]:
    """Integers and their step."""
    dtype, levels = _stored(b, bits), levels_of(bits)
    if kind == AWAY:
        x = _clipped(b, x, scale, axis, -1.0, 1.0)
    elif levels + 1 != 1 << (8 * dtype.itemsize - 1):
        x = _clipped(b, x, scale, axis, -(levels + 1) / levels, 1.0)
    step = _step(b, scale, bits)
    zero = np.zeros(() if axis < 0 else known_shape(b, scale), dtype)
    step = b(Reshape(), step, ints(())) if axis < 0 else step
    return b(QuantizeLinear(max(axis, 0)), x, step, zero), step


def known_shape(b: PaddleBuilder, scale: Value) -> tuple[int, ...]:
    b.unsupported_if(not scale.type.is_static, f"scale '{scale.name}' of unknown shape")
    return scale.type.dims


def _as_floats(b: PaddleBuilder, q: Value) -> Value:
    """Whole numbers as Paddle's floats."""
    return b(DequantizeLinear(0), q, np.array(1, F32))


def _integers(b: PaddleBuilder, x: Value, bits: int) -> Value | None:
    """The integers behind floats that hold whole numbers; None where it is not known that they do."""
    if x.type.dtype in (I8, I16):
        return x
    node = x.node
    if node is not None and isinstance(node.op, DequantizeLinear) and node.inputs[1] is not None:
        return node.inputs[0] if known_scalar(node.inputs[1]) == 1 else None
    if x.const is None or not _are_whole(x.const, bits):
        return None
    return b.const(x.const.astype(_stored(b, bits)), f"{x.name}/stored")


def _are_whole(array: Array, bits: int) -> bool:
    levels = levels_of(bits)
    return bool(np.all(np.rint(array) == array) and np.all(np.abs(array + 0.5) <= levels + 0.5))


@record(frozen=True)
class PaddleLevels:
    """How many levels there are, along which axis each has a scale, and what only training looks at."""

    quant_axis: int = -1
    bit_length: int = 8
    round_type: int = 0
    qmin: int = -128
    qmax: int = 127
    only_observer: bool = False
    moving_rate: float = 0.9


@PADDLE.reader("quantize_linear", results=["Y", "OutScale", "OutAccum", "OutState"])
def quantize_linear(
    b: PaddleBuilder,
    x: Value,
    scale: Value,
    zero_point: Value | None = None,
    in_accum: Value | None = None,
    in_state: Value | None = None,
    *,
    levels: PaddleLevels,
) -> tuple[Value, Value, None, None]:
    """Whole numbers in floats.  The zero point is always 0, and only training moves the scale."""
    if levels.only_observer:
        return x, scale, None, None
    q, _ = quantised(b, x, scale, levels.bit_length, levels.quant_axis, levels.round_type)
    return _as_floats(b, q), scale, None, None


@PADDLE.reader("dequantize_linear", results=["Y", "OutScale", "OutAccum", "OutState"])
def dequantize_linear(
    b: PaddleBuilder,
    x: Value,
    scale: Value,
    zero_point: Value | None = None,
    in_accum: Value | None = None,
    in_state: Value | None = None,
    *,
    levels: PaddleLevels,
) -> tuple[Value, None, None, None]:
    if levels.only_observer:
        return x, None, None, None
    axis = levels.quant_axis if known_shape(b, scale) not in ((), (1,)) else -1
    return real(b, x, _step(b, scale, levels.bit_length), levels.bit_length, axis), None, None, None


def real(b: PaddleBuilder, x: Value, step: Value, bits: int, axis: int) -> Value:
    """The real numbers of stored ones, which may stand in floats."""
    q = _integers(b, x, bits)
    step = b(Reshape(), step, ints(())) if axis < 0 else step
    if q is not None:
        return b(DequantizeLinear(max(axis, 0)), q, step)
    if axis >= 0:
        step = b(Reshape(), step, ints([-1, *[1] * (b.rank_of(x) - 1 - axis)]))
    return b(Mul(), x, step)


def greatest(b: PaddleBuilder, x: Value, axis: int = -1) -> Value:
    """The greatest size of x's elements as [1], or [d] along an axis."""
    others = [i for i in range(b.rank_of(x)) if i != axis]
    made = b(ReduceMax(keepdims=False), b(Abs(), x), ints(others))
    return b(Max(), b(Reshape(), made, ints([1])) if axis < 0 else made, ZERO_SCALE)


Fake: TypeAlias = Callable[[PaddleBuilder, Value, Value, int, int, int], Value]
"""What a fake quantisation gives for x, its scale, the bits, the axis and the rounding."""


def _whole(b: PaddleBuilder, x: Value, scale: Value, bits: int, axis: int, kind: int) -> Value:
    return _as_floats(b, quantised(b, x, scale, bits, axis, kind)[0])


def _there_and_back(b: PaddleBuilder, x: Value, scale: Value, bits: int, axis: int, kind: int) -> Value:
    return b(DequantizeLinear(max(axis, 0)), *quantised(b, x, scale, bits, axis, kind))


def _by_own_scale(made: Fake, axis: int) -> Any:
    def read(
        b: PaddleBuilder, x: Value, *, bit_length: int = 8, round_type: int = AWAY, quant_axis: int = axis
    ) -> tuple[Value, Value]:
        scale = greatest(b, x, quant_axis)
        return made(b, x, scale, bit_length, quant_axis, round_type), scale

    return read


def _by_moving_scale(made: Fake) -> Any:
    def read(
        b: PaddleBuilder,
        x: Value,
        in_scale: Value,
        in_accum: Value | None = None,
        in_state: Value | None = None,
        *,
        moving_rate: float = 0.9,
        bit_length: int = 8,
        round_type: int = AWAY,
    ) -> tuple[Value, Value, Value | None, Value | None]:
        return made(b, x, in_scale, bit_length, -1, round_type), in_scale, in_state, in_accum

    return read


_MOVING = ["Out", "OutScale", "OutState", "OutAccum"]
for _name, _made in (("quantize", _whole), ("quantize_dequantize", _there_and_back)):
    PADDLE.reader(f"fake_{_name}_abs_max", results=["Out", "OutScale"])(_by_own_scale(_made, -1))
    PADDLE.reader(f"fake_channel_wise_{_name}_abs_max", results=["Out", "OutScale"])(_by_own_scale(_made, 0))
    PADDLE.reader(f"fake_{_name}_moving_average_abs_max", results=_MOVING)(_by_moving_scale(_made))
_RANGE = PADDLE.reader(
    "fake_quantize_range_abs_max", results=["Out", "OutScale", "OutScales"], slots={"Iter": "in_accum"}
)
_RANGE(_by_moving_scale(_whole))


@PADDLE.reader("moving_average_abs_max_scale", results=["Out", "OutScale", "OutState", "OutAccum"])
def moving_average_abs_max_scale(
    b: PaddleBuilder, x: Value, in_accum: Value | None = None, in_state: Value | None = None
) -> tuple[Value, None, Value | None, Value | None]:
    """Give x itself: only training watches it."""
    return x, None, in_state, in_accum


@PADDLE.reader("fake_dequantize_max_abs", "dequantize_abs_max")
def fake_dequantize_max_abs(b: PaddleBuilder, x: Value, scale: Value, *, max_range: float) -> Value:
    step = b(Div(), scale, float(max_range))
    return real(b, x, step, 8, -1)


@PADDLE.reader("fake_channel_wise_dequantize_max_abs")
def fake_channel_wise_dequantize_max_abs(
    b: PaddleBuilder, x: Value, scales: Values, *, quant_bits: Ints = (8,), quant_axis: int = 0, x_num_col_dims: int = 1
) -> Value:
    """Weights by a scale of a channel, or the sums of a product by those of its weights and of its input."""
    if len(scales) == 1:
        return real(b, x, _step(b, scales[0], quant_bits[0]), quant_bits[0], quant_axis)
    if len(scales) != 2 or len(quant_bits) != 2:
        raise b.invalid("scales and quant_bits", (len(scales), len(quant_bits)), "one or two of both")
    each = _step(b, scales[0], quant_bits[0])
    axis = x_num_col_dims
    each = b(Reshape(), each, ints([-1, *[1] * (b.rank_of(x) - 1 - axis)]))
    return b(Mul(), b(Mul(), x, each), _step(b, scales[1], quant_bits[1]))
