"""Quantized models as onnxruntime computes them exactly on every processor.

On x86 without VNNI onnxruntime multiplies u8 by i8 with an instruction that adds two products in 16 bits and saturates.
Where both are u8 it does not.  So the model that is given to it as an oracle holds u8 weights, with 128 added to them
and to their zero points: the meaning is the same.
"""

from __future__ import annotations

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


def _unsigned(array: Array) -> Array:
    return (array.astype(np.int16) + 128).astype(np.uint8)


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
            given = node.input[zero] if zero < len(node.input) else ""
            points = numpy_helper.to_array(held[given]) if given else np.zeros((), np.int8)
            for at, array in ((weight, numpy_helper.to_array(tensor)), (zero, points)):
                name = f"{node.output[0]}/unsigned{at}"
                made.graph.initializer.append(numpy_helper.from_array(_unsigned(array), name))
                node.input.extend([""] * (at + 1 - len(node.input)))
                node.input[at] = name
    return made
