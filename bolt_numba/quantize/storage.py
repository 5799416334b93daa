"""Weights stored in fewer bits than they are computed with: the file is smaller, the model computes in f32 as before.

The graph holds the narrow weights behind a Cast or a DequantizeLinear.  Compiling folds these: weights are expanded
when a session is made.  Products may keep weights of 4 and 8 bits as they are (`passes.quantised.weights`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.errors import BoltError, OptionError
from bolt_numba.base.types import BF16, F16, F32, Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Cast
from bolt_numba.passes.pipeline import deep_clone
from bolt_numba.passes.rewrite import nested
from bolt_numba.quantize.blocks import nearest
from bolt_numba.quantize.sensitivity import sqnr
from bolt_numba.quantize.weights import STORED, NarrowModel, NarrowWeight, dequantised

FORMS = ("f16", "bf16", "int8", "int4")
LEAST_ELEMENTS = 1 << 10
"""Elements of a weight under which it stays as it is."""
LEAST_HALF = 2.0**-13
"""Greatest magnitude of a weight under which f16 would lose most digits of its numbers."""
BLOCK = 32
"""Numbers of 4 or 8 bits that share a scale."""


@border("store")
def with_stored_weights(graph: Graph, form: str) -> NarrowModel:
    """A copy whose constants of f32 are stored as ``form``: "f16", "bf16", or "int8" and "int4" with a scale a block.

    Bodies of control flow are part of it.
    Constants of few elements stay, and of integers those of one axis, which are biases mostly.  So do weights that f16
    cannot hold.  Raises OptionError for another form, and BoltError where nothing is left to store.
    """
    if form not in FORMS:
        raise OptionError(f"store: got {form!r}, wanted one of {', '.join(FORMS)}")
    made = deep_clone(graph)
    rows = [row for each in nested(made) for row in _store(each, form)]
    if not rows:
        raise BoltError(f"{graph.called}: store: got no weights of f32 with at least {LEAST_ELEMENTS} elements")
    return NarrowModel(made, rows)


def _store(graph: Graph, form: str) -> list[NarrowWeight]:
    """Store the constants of one graph, in place."""
    wide = [(v, v.const) for v in graph.constants() if v.const is not None and _is_wide(v.const, form)]
    nodes, graph.nodes = graph.nodes, []
    b, rows = Builder(graph), []
    for value, array in wide:
        narrow, real, nbytes = _stored(b, value, array, form)
        for node in list(value.uses.times):
            if node is not narrow.node:
                node.replace_input(value, narrow, node.inputs.count(value))
        rows.append(NarrowWeight(value.name, array.shape, array.nbytes, nbytes, sqnr(array, real)))
    graph.nodes += nodes
    return rows


def _is_wide(array: Array, form: str) -> bool:
    if array.dtype != F32 or array.size < LEAST_ELEMENTS or not np.isfinite(array).all():
        return False
    if form in ("int8", "int4"):
        return array.ndim >= 2 and min(array.shape[:2]) > 1
    top = float(np.abs(array).max())
    return form == "bf16" or top == 0 or LEAST_HALF <= top <= float(np.finfo(np.float16).max)


def _stored(b: Builder, value: Value, array: Array, form: str) -> tuple[Any, Array, int]:
    """The value in the place of a constant, what it holds, and its bytes in a file."""
    if form in ("f16", "bf16"):
        stored = array.astype(F16 if form == "f16" else BF16)
        return b(Cast(F32), b.const(stored, f"{value.name}/stored")), stored.astype(F32), stored.nbytes
    bits, along = int(form[3:]), _along(value)
    rows = np.moveaxis(array, along, -1)
    flat = np.ascontiguousarray(rows.reshape(-1, rows.shape[-1]))
    found = nearest(flat, bits, BLOCK, symmetric=True, search=True)
    made = dequantised(b, found, STORED[bits, True], along, BLOCK, f"{value.name}/stored", rows.shape[:-1])
    real = np.moveaxis(found.real.reshape(rows.shape), -1, along)
    return made, real, found.codes.size * bits // 8 + found.scale.nbytes


def _along(value: Value) -> int:
    """The axis of blocks: that which a product sums over, else the second."""
    for node in value.uses.times:
        if isinstance(node.op, MatMul) and value.type.dims and len(value.type.dims) == 2 and node.inputs[1] is value:
            return 1 if node.op.trans_b else 0
    return 1
