"""Cases of operators that hold graphs."""

from __future__ import annotations

import numpy as np

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.control import If
from bolt_numba.ops.foreign import Foreign
from bolt_numba.ops.pointwise import Add, Mul
from bolt_numba.ops.registry import Op
from bolt_numba.types import F32, TensorType
from tests.cases import Case, cases
from tests.cases.draw import Draw, flags, shapes, whole


def branch(dims: tuple[int, ...], op: Op, number: float) -> Graph:
    """A graph of two inputs that gives ``op(x, number)`` and y."""
    graph = Graph(op.name)
    x, y = (graph.add_input(name, TensorType(F32, dims)) for name in "xy")
    b = Builder(graph)
    graph.add_output(b(op, x, number))
    graph.add_output(y)
    return graph


@cases(If)
def if_(draw: Draw, op: type[If]) -> Case:
    dims = shapes(draw, 1, 3)
    made = op(branch(dims, Add(), 1.0), branch(dims, Mul(), 2.0))
    return Case(made, (np.array(draw(flags)), whole(draw, dims), whole(draw, dims)))


@cases(Foreign)
def foreign(draw: Draw, op: type[Foreign]) -> Case:
    dims = shapes(draw, 1, 3)
    return Case(op(branch(dims, Add(), 1.0), "npu"), (whole(draw, dims), whole(draw, dims)))
