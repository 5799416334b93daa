"""Products and convolutions of bytes: where their operands stand, and which are plain, for makers of every device."""

from __future__ import annotations

from bolt_numba.base.records import record
from bolt_numba.base.types import F32, I8, I32, U8, TensorType
from bolt_numba.kernels.registry import In, Types
from bolt_numba.kernels.unseen import content
from bolt_numba.ops.layers.products.integer_products import ByteProduct, QLinearConv, QLinearMatMul, sums_fit

BYTE_TYPES = (U8, I8)


@record(frozen=True)
class OperandPlaces:
    """Positions of a node's inputs; None for what its operator does not have."""

    a: int
    b: int
    zero_a: int
    zero_b: int
    scale_a: int | None = None
    scale_b: int | None = None
    scale_y: int | None = None
    zero_y: int | None = None
    bias: int | None = None
    residual: int | None = None
    scale_r: int | None = None
    zero_r: int | None = None


_INTEGER = OperandPlaces(0, 1, 2, 3)
_QUANTISED = OperandPlaces(0, 3, 2, 5, 1, 4, 6, 7, 8, 9, 10, 11)


def places_of(op: ByteProduct) -> OperandPlaces:
    return _QUANTISED if isinstance(op, (QLinearConv, QLinearMatMul)) else _INTEGER


def given(ins: Types, index: int | None) -> TensorType | None:
    return None if index is None or index >= len(ins) else ins[index]


def operand(ins: Types, index: int | None) -> In | None:
    return None if index is None or given(ins, index) is None else In(index)


def sides(ins: Types, at: OperandPlaces) -> tuple[TensorType, TensorType]:
    """Both sides of the product: A or the image, B or the filters."""
    return ins[at.a], ins[at.b]


def are_plain(ins: Types, at: OperandPlaces) -> bool:
    """Static bytes, f32 scales, one scale and zero point of the result."""
    a, b, target = given(ins, at.a), given(ins, at.b), given(ins, at.zero_y)
    if a is None or b is None or not all(t.is_static for t in ins if t is not None):
        return False
    if a.dtype not in BYTE_TYPES or b.dtype not in BYTE_TYPES or not b.size:
        return False
    if target is not None and target.dtype not in BYTE_TYPES:
        return False
    if any(t is not None and t.dtype != F32 for t in (given(ins, i) for i in (at.scale_a, at.scale_b, at.scale_y))):
        return False
    return are_single(ins, at.scale_y, at.zero_y)


def are_single(ins: Types, *places: int | None) -> bool:
    """Whether operands are one number each, where they are there."""
    return all(t is None or t.size == 1 for t in (given(ins, i) for i in places))


def sums_are_exact(ins: Types, at: OperandPlaces, depth: int) -> bool:
    """Whether sums of ``depth`` products and the bias stay within i32; those of the Integer operators wrap around."""
    a, b, bias = given(ins, at.a), given(ins, at.b), given(ins, at.bias)
    zero_a, zero_b = given(ins, at.zero_a), given(ins, at.zero_b)
    if at.scale_y is None or a is None or b is None or zero_a is None or zero_b is None:
        return True
    if bias is not None and bias.dtype == I32 and bias.known is None:
        return False
    added = None if bias is None or bias.dtype != I32 else content(bias.known)
    return sums_fit(a.dtype, content(zero_a.known), b.dtype, content(zero_b.known), depth, added)
