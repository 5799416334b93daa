"""The operators of SimNPU, each as the SDK says it."""

from __future__ import annotations

from typing import Any, cast

from simnpu_sdk import UnsupportedError

from bolt_numba.ir.graph import Node, Value
from bolt_numba.types import F32, I8, U8
from simnpu_driver.convert import (
    OPERATORS,
    TO_IMAGE,
    Conversion,
    known,
    operands,
    operator,
    scaled,
    sizes,
    unsigned,
    want,
)

__all__ = ["OPERATORS", "conversion_for"]

conversion_for = Conversion
"""A conversion that knows all operators of this module."""
SAME = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Sqrt")


def may_move(make: Conversion, y: Value) -> bool:
    """Whether elements of this type can be moved: f32, and bytes, which keep their scale, where a chip has these."""
    return y.type.dtype == F32 or (y.type.dtype in (U8, I8) and "Quantize" in make.chip.operators)


@operator(*SAME, "Clip")
def pointwise(make: Conversion, node: Node) -> None:
    """Where one operand is an image already, all are, unless their ranks differ."""
    ins = [v for v in node.inputs if v is not None]
    want(len(ins) <= 2 and all(v.type.dtype == F32 for v in ins), f"{node.op.name} is on one or two operands of f32")
    ranks = {len(sizes(v)) for v in ins if v.const is None}
    form = "image" if ranks == {4} and any((v, "image") in make.forms for v in ins) else "plain"
    op: Any = node.op
    limits = {"low": op.lo, "high": op.hi} if op.name == "Clip" else {}
    make.result(node.op.name, [make.operand(v, form) for v in ins], node.output, form, **limits)


# --- images ------------------------------------------------------------------------------------------------------


def places(make: Conversion, op: Any, windows: Any, x: Value) -> dict[str, list[int]]:
    """Attributes of what slides over an image."""
    want(op.layout == "NCHW" and len(windows.kernel) == 2, "SimNPU has images of two axes")
    size = sizes(x)[2:]
    if windows.auto_pad not in ("NOTSET", "VALID"):
        want(make.asks or None not in size, f"pads are those of {windows.auto_pad}, which needs sizes that are known")
    found = windows.resolved([d or 1 for d in size])
    return {"pads": list(found.pads or (0,) * 4), "strides": list(found.strides), "dilations": list(found.dilations)}


@operator("Conv")
def conv(make: Conversion, node: Node) -> None:
    op: Any = node.op
    x, w, bias = operands(node, 3)
    want(op.activation is None and not op.residual and op.to is None, "SimNPU fuses nothing to a Conv")
    want(x.type.dtype == F32, "Conv is on f32")
    filters = known(w).transpose(0, *range(2, known(w).ndim), 1)
    attributes = places(make, op, op.windows(known(w).shape[2:]), x)
    ins = [make.operand(x, "image"), make.constant(filters)]
    if bias is not None:
        ins.append(make.constant(known(bias)))
    make.result("Conv2D", ins, node.output, "image", groups=op.group, **attributes)


@operator("MaxPool", "AveragePool")
def pool(make: Conversion, node: Node) -> None:
    op: Any = node.op
    (x,) = operands(node, 1)
    want(len(node.outputs) == 1 and not op.ceil_mode, f"{op.name} has no places and no ceil mode")
    want(x.type.dtype == F32 or (op.name == "MaxPool" and may_move(make, x)), f"{op.name} is on f32")
    attributes: dict[str, Any] = {**places(make, op, op.windows, x), "kernel": list(op.kernel_shape)}
    kind = "MaxPool2D" if op.name == "MaxPool" else "AvgPool2D"
    if kind == "AvgPool2D":
        attributes["count_pads"] = op.count_include_pad
    make.result(kind, [make.operand(x, "image")], node.output, "image", **attributes)


@operator("ReduceMean")
def mean(make: Conversion, node: Node) -> None:
    op: Any = node.op
    x, axes = operands(node, 2)
    want(x.type.dtype == F32, "ReduceMean is on f32")
    shape = sizes(x)
    gone = op.reduced([] if axes is None else [int(a) for a in known(axes).flat], len(shape))
    form = "image" if (x, "image") in make.forms and {2, 3} <= set(gone) else "plain"
    kept = [None if d is None and i not in gone else 1 if i in gone else d for i, d in enumerate(shape)]
    order = TO_IMAGE if form == "image" else range(len(shape))
    out = make.temporary([kept[i] for i in order])
    make.append("Mean", [make.operand(x, form)], out, axes=[at for at, i in enumerate(order) if i in gone])
    reshaped(make, out, node.output)  # an image of one element has the same bytes in both orders


# --- products ----------------------------------------------------------------------------------------------------


@operator("MatMul")
def matmul(make: Conversion, node: Node) -> None:
    op: Any = node.op
    a, b, bias = operands(node, 3)
    want(
        op.activation is None and not op.residual and op.to is None and not op.trans_a,
        "SimNPU fuses nothing to a MatMul",
    )
    want(a.type.dtype == F32 and len(sizes(a)) >= 2, "MatMul is on matrices of f32")
    if b.const is not None and b.const.ndim == 2:
        w = b.const if op.trans_b else b.const.T
        ins = [make.operand(a), make.constant(w * F32.type(op.alpha))]
        if bias is not None:
            ins.append(make.constant(known(bias)))
        make.result("FullyConnected", ins, node.output)
        return
    want(op.alpha == 1 and not op.trans_b and bias is None and len(sizes(b)) >= 2, "a MatMul of two values is plain")
    make.result("MatMul", [make.operand(a), make.operand(b)], node.output)


@operator("Softmax")
def softmax(make: Conversion, node: Node) -> None:
    rank, op = len(sizes(node.output)), cast(Any, node.op)
    want(op.axis in (-1, rank - 1) and node.output.type.dtype == F32, "Softmax is along the last axis, on f32")
    make.result("Softmax", [make.operand(*operands(node, 1))], node.output)


# --- what only moves elements ---------------------------------------------------------------------------------------


def reshaped(make: Conversion, x: int, y: Value) -> None:
    shape = sizes(y)
    want(make.asks or shape.count(None) <= 1, f"%{y.name} has two axes of unknown size")
    make.result("Reshape", [x], y, shape=[-1 if d is None else d for d in shape])


@operator("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(make: Conversion, node: Node) -> None:
    want(may_move(make, node.output), f"{node.op.name} is on f32")
    reshaped(make, make.operand(*operands(node, 1)), node.output)


@operator("Transpose")
def transpose(make: Conversion, node: Node) -> None:
    want(may_move(make, node.output), "Transpose is on f32")
    make.result("Transpose", [make.operand(*operands(node, 1))], node.output, perm=list(cast(Any, node.op).perm))


@operator("Concat")
def concat(make: Conversion, node: Node) -> None:
    want(may_move(make, node.output), "Concat is on f32")
    rank, ins = len(sizes(node.output)), operands(node, len(node.inputs))
    form = "image" if rank == 4 and any((v, "image") in make.forms for v in ins) else "plain"
    axis = cast(Any, node.op).axis % rank
    tensors = [make.operand(v, form) for v in ins]
    make.result("Concat", tensors, node.output, form, axis=TO_IMAGE.index(axis) if form == "image" else axis)


# --- bytes: the SDK has unsigned ones alone --------------------------------------------------------------------------


def filters_of(make: Conversion, w: Value, scale: Value, zero: Value, order: tuple[int, ...]) -> int:
    """Constant weights as unsigned bytes, filters first."""
    zeros = known(zero).reshape(-1)
    want(bool((zeros == zeros[0]).all()), "SimNPU has one zero point for all filters")
    signed = w.type.dtype == I8
    array = known(w).transpose(order)
    return make.constant(unsigned(array) if signed else array, known(scale).reshape(-1), int(zeros[0]) + 128 * signed)


def product_of_bytes(
    make: Conversion, node: Node, kind: str, order: tuple[int, ...], form: str, **attributes: Any
) -> None:
    op: Any = node.op
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = operands(node, 9)
    want(not op.residual, "SimNPU adds nothing to a product of bytes")
    if op.activation is not None:
        want(op.activation.name in ("Relu", "Clip"), f"SimNPU has no product with {op.activation.name}")
        attributes["low"], attributes["high"] = getattr(op.activation, "lo", 0.0), getattr(op.activation, "hi", None)
    ins = [
        make.operand(x, form, *pair(scaled(x_scale, x_zero, x.type.dtype == I8))),
        filters_of(make, w, w_scale, w_zero, order),
    ]
    if bias is not None:
        ins.append(make.constant(known(bias)))
    if y_scale is None:
        make.result(kind, ins, node.output, form, **attributes)
    else:
        scale, zero = scaled(y_scale, y_zero, node.output.type.dtype == I8)
        make.bytes_result(kind, ins, node.output, form, scale, zero, **attributes)


def pair(found: tuple[float, int]) -> tuple[tuple[float], int]:
    return (found[0],), found[1]


@operator("QLinearConv")
def byte_conv(make: Conversion, node: Node) -> None:
    op: Any = node.op
    w = known(operands(node, 4)[3])
    want(w.ndim == 4, "SimNPU has images of two axes")
    attributes = places(make, op, op.windows(w.shape[2:]), operands(node, 1)[0])
    product_of_bytes(make, node, "QConv2D", (0, 2, 3, 1), "image", groups=op.group, **attributes)


@operator("QLinearMatMul")
def byte_matmul(make: Conversion, node: Node) -> None:
    want(known(operands(node, 4)[3]).ndim == 2, "a product of bytes has a constant matrix")
    product_of_bytes(make, node, "QFullyConnected", (1, 0), "plain")


@operator("QuantizeLinear")
def quantise(make: Conversion, node: Node) -> None:
    x, scale, zero = operands(node, 3)
    want(x.type.dtype == F32 and node.output.type.dtype in (U8, I8), "Quantize is from f32 to bytes")
    form = "image" if (x, "image") in make.forms else "plain"
    found = scaled(scale, zero, node.output.type.dtype == I8)
    make.bytes_result("Quantize", [make.operand(x, form)], node.output, form, *found)


@operator("DequantizeLinear")
def dequantise(make: Conversion, node: Node) -> None:
    x, scale, zero = operands(node, 3)
    if x.type.dtype not in (U8, I8) or node.output.type.dtype != F32 or x.const is not None:
        raise UnsupportedError("Dequantize is from bytes to f32")
    form = "image" if (x, "image") in make.forms else "plain"
    ins = [make.operand(x, form, *pair(scaled(scale, zero, x.type.dtype == I8)))]
    make.result("Dequantize", ins, node.output, form)
