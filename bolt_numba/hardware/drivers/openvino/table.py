"""The table of operators that OpenVINO gets: which dtypes, and the function that adds its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.hardware.drivers.alone import SMALL
from bolt_numba.hardware.drivers.buffers import borrowed
from bolt_numba.hardware.drivers.table import NotThereError, Site, Table, want_dtypes
from bolt_numba.ir.graph import Node
from bolt_numba.types import BOOL, F32, I8, I32, I64, U8, Array

__all__ = ["DATA", "FLOAT", "NUMBER", "TABLE", "NotThereError", "OvSite", "builds", "constant", "nodes_of"]
FLOAT = (F32,)
NUMBER = (F32, I32)
DATA = (F32, I32, BOOL, U8, I8)
TABLE = Table(f"{__name__.rpartition('.')[0]}.nodes")
builds = TABLE.builds


def constant(opset: Any, array: Array) -> Any:
    """A constant of the graph, which outlives the model: a large one stays where it is."""
    if array.size <= SMALL or not array.flags.c_contiguous:
        return opset.constant(array)
    return opset.constant(borrowed(array, array.ctypes.data), shared_memory=True)


class OvSite(Site):
    """Where a node of ours becomes nodes of OpenVINO.  v: the module of its operators."""

    def __init__(self, opset: Any, node: Node) -> None:
        super().__init__(node)
        self.v = opset

    def const(self, array: Any) -> Any:
        """A constant of its own."""
        return self.v.constant(np.asarray(array))

    def i64(self, *numbers: int) -> Any:
        """A vector of places or sizes."""
        return self.const(np.array(numbers, I64))

    def like(self, number: float, i: int = 0) -> Any:
        """A number of the dtype of an operand."""
        return self.const(np.array(number, self.type(i).dtype))


def nodes_of(opset: Any, node: Node, operands: Sequence[Any], wide: bool) -> list[Any]:
    """Outputs of OpenVINO for the results of a node; raises NotThereError.  wide: it may compute 64 bits in 32."""
    translation = TABLE.of(node)
    want_dtypes(node, translation, (I64,) if wide and I32 in translation.dtypes else (),
                ", which OpenVINO would compute in 32 bits")
    made = translation.build(OvSite(opset, node), node.op, *operands)
    if isinstance(made, (list, tuple)):
        return [x.output(0) if hasattr(x, "output") else x for x in made]
    return [made.output(i) for i in range(len(node.outputs))]
