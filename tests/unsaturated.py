"""Quantized models as onnxruntime computes them exactly on every processor.

On x86 without VNNI onnxruntime multiplies u8 by i8 with an instruction that adds two products in 16 bits and saturates.
Where both are u8 it does not.  So the model that is given to it as an oracle holds u8 weights, with 128 added to them
and to their zero points: the meaning is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from bolt_numba.types import Array

WEIGHTS = {
    "MatMulInteger": ((1, 3),),
    "ConvInteger": ((1, 3),),
    "MatMulIntegerToFloat": ((1, 5),),
    "DynamicQuantizeMatMul": ((1, 3),),
    "QLinearMatMul": ((3, 5),),
    "QLinearConv": ((3, 5),),
    "QGemm": ((3, 5),),
    "QAttention": ((1, 7),),
    "DynamicQuantizeLSTM": ((1, 9), (2, 11)),
}
"""Operands of each operator that hold weights, each with the operand that is its zero point."""


def _unsigned(array: Array | None) -> Array:
    """128 more as u8; a zero point that is left out is 0."""
    return np.asarray(np.asarray(0 if array is None else array, np.int16) + 128, np.uint8)


def unsaturated_operands(op: str, operands: Sequence[Array | None]) -> list[Array | None]:
    """Operands of one node, with i8 weights as u8; products of i8 with i8 stay, which do not saturate."""
    made = list(operands)
    for weight, zero in WEIGHTS.get(op, ()):
        if made[weight].dtype == np.int8 != made[0].dtype:  # type: ignore[union-attr]
            made += [None] * (zero + 1 - len(made))
            made[weight], made[zero] = _unsigned(made[weight]), _unsigned(made[zero])
    return made


def unsaturated(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose i8 weights, where a product reads them, are u8."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    held = {w.name: w for w in made.graph.initializer}
    for node in made.graph.node:
        for weight, zero in WEIGHTS.get(node.op_type, ()):
            tensor = held.get(node.input[weight])
            if tensor is None or tensor.data_type != onnx.TensorProto.INT8:
                continue
            given = held.get(node.input[zero]) if zero < len(node.input) else None
            node.input.extend([""] * (zero + 1 - len(node.input)))
            for at, old in ((weight, tensor), (zero, given)):
                array = None if old is None else numpy_helper.to_array(old)
                node.input[at] = f"{node.output[0]}/unsigned{at}"
                made.graph.initializer.append(numpy_helper.from_array(_unsigned(array), node.input[at]))
    return made
