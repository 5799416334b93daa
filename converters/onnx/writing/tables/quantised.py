"""Writers of operators on bytes, as far as ONNX has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bolt_numba.converters.onnx.writing.registry import Named, writer
from bolt_numba.converters.onnx.writing.tables.standard import convolution
from bolt_numba.ops.arrays.quantize import RangeRounded
from bolt_numba.ops.layers.products.integer_products import QLinearConv, QLinearMatMul, is_fused

if TYPE_CHECKING:
    from bolt_numba.converters.onnx.writing.graph import GraphWriter


@writer(QLinearConv, QLinearMatMul)
def integer_product(w: GraphWriter, op: QLinearConv | QLinearMatMul, *terms: Named) -> Any:
    """ONNX's operator, or the float one between conversions."""
    given: list[Any] = [t if t.name else None for t in terms] + [None] * (12 - len(terms))
    y_scale, bias = given[6], given[8]
    if not is_fused(op, y_scale, None if bias is None else bias.type):
        if isinstance(op, QLinearConv) and all(d == 1 for t in given[1:3] for d in t.type.shape or ()):
            return convolution(w, op, *terms)
        if bias is None and not isinstance(op, QLinearConv):
            return w.plain(op, terms, [op.infer(*(t.type for t in terms))])
    return w.apart(op, *terms)


@writer(RangeRounded)
def range_rounded(w: GraphWriter, op: RangeRounded, x: Named) -> Any:
    """The floats, as exact sessions compute: ONNX has no ranges of rows."""
    return w.node("Identity", [x], [x.type])
