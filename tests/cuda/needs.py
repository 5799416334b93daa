"""Which nodes of a model have a CUDA kernel: planned for concrete shapes, but neither compiled nor run."""

from __future__ import annotations

from collections.abc import Mapping

from bolt_numba.ir.build import infer_types
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.kernels import registry
from bolt_numba.kernels.registry import QueryContext
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.passes.quantised.all_halves import narrow_for
from bolt_numba.types import Array, TensorType, type_of


def _type(value: Value, types: Mapping[int, TensorType]) -> TensorType | None:
    return type_of(value.const) if value.const is not None else types.get(id(value))


def lacking(graph: Graph, feeds: Mapping[str, Array], precision: str = "f32") -> list[str]:
    """Nodes of numbers that would run on the CPU: operator and types of the operands, a line each.

    Left out are views, nodes whose results are known when a plan is made, and those behind shapes that depend on data.
    """
    made = run_pipeline(graph)
    narrow_for(made, precision, "default", halves=True)
    types: dict[int, TensorType] = {id(v): type_of(feeds[v.name]).with_value(None) for v in made.inputs}
    found, context = [], QueryContext(precision=precision)
    for node in made.nodes:
        ins = [None if v is None else _type(v, types) for v in node.inputs]
        if any(v is not None and t is None for v, t in zip(node.inputs, ins, strict=True)):
            continue
        outs = infer_types(node.op, ins)
        if not all(isinstance(t, TensorType) and t.is_static for t in outs):
            continue
        types |= {id(v): t for v, t in zip(node.outputs, outs, strict=True)}
        if node.op.is_view or all(t.value is not None for t in outs) or not any(t.size for t in outs):
            continue
        if registry.select(node.op, ins, context, "cuda") is None:
            found.append(f"{node.op}({', '.join(map(str, ins))})")
    return found
