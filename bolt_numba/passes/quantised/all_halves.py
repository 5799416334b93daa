"""Values become f16 or bf16 throughout, for devices that compute on them: half the bytes, and tensor cores.

    every f32 value that a node makes from f32 values  ->  a half, constants too

Kernels round once, when they store; sums are f32.  Inputs, outputs and states keep their dtype, and so do nodes of
quantised numbers, operands whose content decides a shape, and constants that are too large for f16.
"""

from __future__ import annotations

import numpy as np

from bolt_numba.base.types import BF16, F16, F32, VALUES_WERE, AnyDType
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.pointwise import Cast
from bolt_numba.passes.quantised.halves import Retyping
from bolt_numba.passes.quantised.narrow import narrow_values
from bolt_numba.passes.rewrite import nested


class _Narrowing(Retyping):
    """From f32 to a half."""

    def takes(self, node: Node) -> bool:
        if isinstance(node.op, (DequantizeLinear, QuantizeLinear)) or node.op.name.startswith(("QLinear", "DynamicQ")):
            return False
        if node.op.opaque:  # a part for another device, which has the types that it was cut out with
            return False
        if any(v is not None and not self._fits(v) for v in node.inputs):
            return False
        return super().takes(node) or (any(map(self.is_old, node.inputs)) and not isinstance(node.op, Cast))

    def changes(self, node: Node) -> list[bool]:
        return [self.is_old(v) and i not in node.op.value_inputs for i, v in enumerate(node.inputs)]

    def _fits(self, value: Value) -> bool:
        if value.const is None or self.new != F16 or value.const.dtype != F32 or not value.const.size:
            return True
        largest = np.abs(value.const[np.isfinite(value.const)])
        return not largest.size or float(largest.max()) <= float(np.finfo(np.float16).max)


def narrow_all(graph: Graph, dtype: AnyDType) -> None:
    """Make values of a graph and its subgraphs halves."""
    for each in nested(graph):
        _Narrowing(each, (F32,), dtype).run()


def narrow_for(graph: Graph, precision: str, numerics: str, halves: bool) -> None:
    """Give values the dtypes that a session's precision asks for; halves: whether a device computes on them.

    Without a precision the values are what they were in the model.  Strict sessions keep the dtypes of the model.
    """
    if numerics == "strict":
        return
    if halves:
        wanted = graph.metadata.get(VALUES_WERE, "") if precision == "f32" else precision
        if wanted in _DTYPES:
            narrow_all(graph, _DTYPES[wanted])
    elif precision == "bf16":
        narrow_values(graph)


_DTYPES = {"f16": F16, "bf16": BF16}
