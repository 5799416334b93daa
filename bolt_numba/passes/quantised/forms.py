"""Weights of GGUF files that are floats, for devices that compute on halves: as other operators have them."""

from __future__ import annotations

from bolt_numba.base.types import VALUES_WERE, dtype_name
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.decomposed import decompose as d
from bolt_numba.ops.layers.products.forms import FORMS
from bolt_numba.ops.layers.products.matmul_forms import GatherForm, MatMulForm
from bolt_numba.passes.quantised.halves import HALVES
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, nested, rewrite


def take_forms_apart(graph: Graph) -> None:
    """Notes what weights are of, as `halves.widen_halves` does: then values are narrow again on such a device."""
    products = [n.op for each in nested(graph) for n in each.nodes if isinstance(n.op, MatMulForm)]
    narrow = [dtype for dtype in {FORMS[op.form].plain for op in products} if dtype in HALVES]
    if len(narrow) == 1 and narrow[0] is not None:
        graph.metadata[VALUES_WERE] = dtype_name(narrow[0])
    for each in nested(graph):
        rewrite(each, [Rule("forms_apart", Pat((MatMulForm, GatherForm)), _apart)])


def _apart(m: Match, b: Builder) -> Result:
    try:
        return d.decompose(m.root.op, b, *m.root.inputs)
    except d.WholeError as error:
        return m.refuse(str(error))
