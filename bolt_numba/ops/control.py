"""Control flow.  A branch is a graph that takes all captured values as inputs, so that it refers to nothing outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bolt_numba.errors import DTypeError
from bolt_numba.ops.registry import Op, fresh_dim, op, result_tuple, want_dtype
from bolt_numba.types import BOOL, Array, Dim, Shape, TensorType, dtype_name

if TYPE_CHECKING:  # operators know nothing of graphs at run time
    from bolt_numba.ir.graph import Graph


def _agreed(a: Dim, b: Dim) -> Dim:
    return a if a == b else fresh_dim("branch")


def _joined(owner: Op, a: TensorType, b: TensorType) -> TensorType:
    """What is true of both types; raises DTypeError."""
    if a.dtype != b.dtype:
        got = f"{dtype_name(a.dtype)} and {dtype_name(b.dtype)}"
        raise DTypeError(f"{owner.name}: dtypes of the branches' results: got {got}, wanted the same")
    shape: Shape | None = None
    if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape):
        shape = tuple(_agreed(x, y) for x, y in zip(a.shape, b.shape, strict=True))
    return TensorType(a.dtype, shape)


@op("If")
class If(Op):
    """The results of one of two graphs, chosen by cond.

    cond: bool of one element · captures: the inputs of both graphs -> the outputs of either; a dimension or rank on
    which the graphs do not agree is unknown.  Source: ONNX If-25.
    """

    then_branch: Graph
    else_branch: Graph
    value_inputs = (0,)

    def infer(self, cond: TensorType, *captures: TensorType | None) -> tuple[TensorType, ...]:
        want_dtype(self, "cond", cond.dtype, BOOL)
        branches = (self.then_branch, self.else_branch)
        for branch in branches:
            if len(branch.inputs) != len(captures):
                raise self.fail("number of captures", len(captures), len(branch.inputs))
        count = len(self.then_branch.outputs)
        if len(self.else_branch.outputs) != count:
            raise self.fail("outputs of else_branch", len(self.else_branch.outputs), count)
        first, second = ([v.type for v in branch.outputs] for branch in branches)
        if cond.known is not None:
            taken = first if cond.known.reshape(-1)[0] else second
            return tuple(TensorType(t.dtype, t.shape) for t in taken)
        return tuple(_joined(self, a, b) for a, b in zip(first, second, strict=True))

    def reference(self, cond: Array, *captures: Array | None) -> tuple[Array, ...]:
        branch = self.then_branch if cond.reshape(-1)[0] else self.else_branch
        arrays: dict[int, Any] = {id(v): a for v, a in zip(branch.inputs, captures, strict=True)}

        def read(value: Any) -> Any:
            if value is None:
                return None
            return value.const if value.const is not None else arrays[id(value)]

        for node in branch.nodes:
            results = result_tuple(node.op.reference(*map(read, node.inputs)))
            arrays.update(zip(map(id, node.outputs), results, strict=False))
        return tuple(read(v) for v in branch.outputs)
