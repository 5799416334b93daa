"""What makers of pointwise chains ask of a node, whatever the device."""

from __future__ import annotations

from bolt_numba.codegen.chain import as_chain, value_dtypes
from bolt_numba.kernels.registry import Types, remember_last, result_of
from bolt_numba.ops.chain import Chain
from bolt_numba.ops.pointwise import Pointwise
from bolt_numba.ops.shapes import broadcast_shapes
from bolt_numba.types import AnyDType, TensorType


@remember_last
def seen_chain(op: Pointwise | Chain, ins: Types) -> tuple[Chain, list[TensorType], tuple[AnyDType, ...]] | None:
    """The chain, its operands, and the dtypes of all values; None when an operand is omitted or unknown."""
    known = [t for t in ins if t is not None and t.is_static]
    if len(known) != len(ins) or not known:
        return None
    chain = as_chain(op)
    return chain, known, value_dtypes(chain, [t.dtype for t in known])


@remember_last
def common_shape(op: Pointwise | Chain, ins: Types) -> tuple[int, ...] | None:
    """Of all results, to which the operands are broadcast; None where they differ."""
    seen = seen_chain(op, ins)
    assert seen is not None, "the caller has tested this"
    chain, known, _ = seen
    if len(chain.results) == 1:
        shapes = [result_of(op, ins).dims]
    else:
        types = chain.infer_all(*known)
        shapes = [types[i].dims for i in chain.results]
    whole = broadcast_shapes(op, *[t.dims for t in known])
    return None if any(shape != whole for shape in shapes) else shapes[0]
