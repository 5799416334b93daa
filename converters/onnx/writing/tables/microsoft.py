"""Writers of operators that only onnxruntime has (domain com.microsoft)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.types import TensorType, dtype_name
from bolt_numba.converters.onnx.writing.registry import MICROSOFT, Named, NoSpellingError, writer
from bolt_numba.ops.data.search import Between, BifurcationDetector
from bolt_numba.ops.data.tokens import Tokenizer
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention
from bolt_numba.ops.layers.attention.linear import CausalConvWithState, LinearAttention
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits
from bolt_numba.ops.layers.recurrent_quantized import DynamicQuantizeLSTM

if TYPE_CHECKING:
    from bolt_numba.converters.onnx.writing.graph import GraphWriter


@writer(DynamicQuantizeLSTM)
def dynamic_quantize_lstm(w: GraphWriter, op: DynamicQuantizeLSTM, *terms: Named) -> Any:
    """With weights as [d, i, 4 h] and [d, h, 4 h]."""
    if op.layout:
        raise NoSpellingError(f"layout = {op.layout}")
    names = [f.name for f in dataclasses.fields(op) if f.name != "layout"]
    given = {name: getattr(op, name) for name in names if getattr(op, name) not in ((), None, False)}
    weights = [_transposed(w, t) for t in terms[1:3]]
    types = [v.type for v in w.reading.outputs]
    return w.node(op.name, [terms[0], *weights, *terms[3:]], types, domain=MICROSOFT, **given)


def _transposed(w: GraphWriter, term: Named) -> Named:
    """The weights of each direction, columns for rows."""
    if term.known is not None:
        w.model.loose = True  # nobody reads the weights as they were any more
        return w.const(np.ascontiguousarray(term.known.swapaxes(1, 2)), "weights")
    shape = term.type.shape
    swapped = None if shape is None else (shape[0], shape[2], shape[1])
    (made,) = w.node("Transpose", [term], [TensorType(term.type.dtype, swapped)], perm=(0, 2, 1))
    return made


@writer(Tokenizer)
def tokenizer(w: GraphWriter, op: Tokenizer, x: Named) -> Any:
    given = {f.name: getattr(op, f.name) for f in dataclasses.fields(op)}
    given = {name: value for name, value in given.items() if value != ()} | {"mark": int(op.mark)}
    return w.node(op.name, [x], [v.type for v in w.reading.outputs], domain=MICROSOFT, **given)


@writer(BifurcationDetector)
def bifurcation_detector(w: GraphWriter, op: BifurcationDetector, *terms: Named) -> Any:
    types = [v.type for v in w.reading.outputs]
    return w.node(op.name, terms, types, domain=MICROSOFT, min_ngram_size=op.least, max_ngram_size=op.most)


@writer(Between)
def between(w: GraphWriter, op: Between, x: Named, low: Named, high: Named) -> Any:
    """Nothing is checked there: ONNX has no way to refuse what the run tells."""
    return w.node("Identity", [x], [x.type])


@writer(GroupQueryAttention)
def group_query_attention(w: GraphWriter, op: Any, *terms: Named) -> Any:
    """The queries and keys are rotated already."""
    if terms[3].name and terms[3].type.dtype != terms[0].type.dtype:
        raise NoSpellingError(f"a cache of {dtype_name(terms[3].type.dtype)}")
    attributes = {"num_heads": op.num_heads, "kv_num_heads": op.kv_num_heads}
    optional: dict[str, float] = {"scale": op.scale, "softcap": op.softcap, "local_window_size": op.local_window}
    optional["smooth_softmax"] = int(op.smooth)
    defaults = {"scale": 0.0, "softcap": 0.0, "local_window_size": -1, "smooth_softmax": 0}
    attributes |= {name: value for name, value in optional.items() if value != defaults[name]}
    nothing = Named("", terms[0].type)
    operands = [*terms[:7], nothing, nothing, nothing, *terms[7:]]
    return w.node(op.name, operands, [v.type for v in w.reading.outputs], domain=MICROSOFT, **attributes)


@writer(LinearAttention)
def linear_attention(w: GraphWriter, op: LinearAttention, *terms: Named) -> Any:
    """The standard's where a state has a key of its own, and a query or more."""
    (q, k), heads, states = (t.type.shape for t in terms[:2]), op.q_num_heads, op.kv_num_heads
    is_standard = q is not None and k is not None and heads % states == 0 and q[2] * states == k[2] * heads
    attributes = {name: getattr(op, name) for name in ("q_num_heads", "kv_num_heads", "scale", "update_rule")}
    types = [v.type for v in w.reading.outputs]
    return w.node(op.name, terms, types, domain="" if is_standard else MICROSOFT, **attributes)


@writer(CausalConvWithState)
def causal_convolution(w: GraphWriter, op: CausalConvWithState, *terms: Named) -> Any:
    more: dict[str, Any] = {} if op.dilation == 1 else {"domain": MICROSOFT, "dilation": op.dilation}
    activation = "silu" if op.swish else "none"
    return w.node(op.name, terms, [v.type for v in w.reading.outputs], activation=activation, **more)


@writer(MatMulNBits)
def matmul_bits(w: GraphWriter, op: MatMulNBits, x: Named, codes: Named, scales: Named, *optional: Named) -> Any:
    """With zero points as floats."""
    n = codes.type.dims[0]
    held = (scales, *optional[:1])
    flat = [t if not t.name or t.known is None else w.const(t.known.reshape(-1), t.name) for t in held]
    k = x.type.shape[-1] if x.type.shape else None
    if not isinstance(k, int):
        raise NoSpellingError("rows of a length that is not known")
    attributes = {"K": k, "N": n, "bits": op.bits, "block_size": op.block}
    attributes |= {"accuracy_level": 4} if op.rounded else {}
    operands = [x, codes, *flat]
    if len(optional) > 1:
        operands += [Named("", x.type), optional[1]]
    types = [v.type for v in w.reading.outputs]
    return w.node(op.name, operands, types, domain=MICROSOFT, **attributes)
