"""Writers of operators that only onnxruntime has (domain com.microsoft)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.converters.onnx.writing.registry import MICROSOFT, Named, NoSpellingError, writer
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Reshape, Transpose
from bolt_numba.ops.layers.cache import GroupQueryAttention
from bolt_numba.ops.layers.matmul_bits import MatMulNBits
from bolt_numba.ops.layers.quantize import DequantizeLinear
from bolt_numba.ops.layers.recurrent_quantized import DynamicQuantizeLSTM
from bolt_numba.ops.pointwise import Add, Cast, Mul, Sub
from bolt_numba.ops.registry import Op
from bolt_numba.types import F32, I8, U8, Array

if TYPE_CHECKING:
    from bolt_numba.converters.onnx.writing.graph import GraphWriter

COMPUTED_ELEMENTS = 1 << 16
"""Elements of the largest scale or zero point that is computed."""


@dataclasses.dataclass
class Codes:
    """Numbers stored in 8 bits: ``(stored - zero) * scale``, all of one shape (by broadcasting)."""

    stored: Array
    scale: Array
    zero: Array

    def moved(self, op: Op, *operands: Array) -> Codes:
        """After an operator that only moves elements."""
        parts = (np.broadcast_to(a, self.stored.shape) for a in (self.scale, self.zero))
        return Codes(op.reference(self.stored, *operands), *(op.reference(a, *operands) for a in parts))


def computed(value: Value | None) -> Array:
    """A small value that no input reaches."""
    if value is not None and value.const is not None:
        return value.const
    if value is None or value.node is None or not value.type.is_static or value.type.size > COMPUTED_ELEMENTS:
        raise NoSpellingError("weights whose scale is no constant")
    made: Array = np.asarray(value.node.op.reference(*(computed(v) for v in value.node.inputs)))
    return made


def codes_of(value: Value | None) -> Codes:
    """What float weights are made of; raises NoSpellingError where it is not 8 bits with scales and zero points."""
    if value is not None and value.const is not None and value.const.dtype in (I8, U8):
        return Codes(value.const, np.ones((), F32), np.zeros((), F32))
    node = None if value is None else value.node
    if node is None:
        raise NoSpellingError("weights that are not stored in 8 bits")
    if isinstance(node.op, DequantizeLinear):
        return _dequantized(node.op, *(computed(v) for v in node.inputs))
    inner = codes_of(node.inputs[0])
    match node.op:
        case Cast(to=to) if to == F32:
            return inner
        case Transpose():
            return inner.moved(node.op)
        case Reshape():
            return inner.moved(node.op, computed(node.inputs[1]))
        case Mul():
            return dataclasses.replace(inner, scale=inner.scale * computed(node.inputs[1]))
        case Sub() | Add() if np.all(inner.scale == 1):
            moved = computed(node.inputs[1]) * (1 if isinstance(node.op, Sub) else -1)
            return dataclasses.replace(inner, zero=inner.zero + moved)
        case _:
            raise NoSpellingError(f"weights made by {node.op.name}")


def _dequantized(op: DequantizeLinear, stored: Array, scale: Array, zero: Array | None = None) -> Codes:
    if op.block_size or stored.dtype not in (I8, U8):
        raise NoSpellingError("weights that are not stored in 8 bits")
    shape = [1] * stored.ndim
    if scale.size > 1:
        shape[op.axis] = -1
    points = np.zeros_like(scale) if zero is None else zero.astype(F32)
    return Codes(stored, scale.reshape(shape), points.reshape(shape))


@writer(DynamicQuantizeLSTM)
def dynamic_quantize_lstm(w: GraphWriter, op: Any, *terms: Named) -> Any:
    """With the weights in 8 bits that they are made from, [d, i, 4 h], and scales and zero points [d] or [d, 4 h]."""
    weights, scales = [], []
    for value in w.reading.inputs[1:3]:
        codes = codes_of(value).moved(Transpose((0, 2, 1)))
        weights.append(w.const(np.ascontiguousarray(codes.stored), "weights"))
        for array, dtype in ((codes.scale, F32), (codes.zero, codes.stored.dtype)):
            scales.append(w.const(_for_directions(array).astype(dtype), "scale"))
    names = [f.name for f in dataclasses.fields(op) if f.name != "layout"]
    given = {name: getattr(op, name) for name in names if getattr(op, name) not in ((), None, False)}
    if op.layout:
        raise NoSpellingError(f"layout = {op.layout}")
    w.model.loose = True  # what made floats of the weights is not read any more
    nothing = [Named("", terms[0].type)] * (8 - len(terms))
    operands = [terms[0], *weights, *terms[3:], *nothing, *scales]
    return w.node(op.name, operands, [v.type for v in w.reading.outputs], domain=MICROSOFT, **given)


@writer(GroupQueryAttention)
def group_query_attention(w: GraphWriter, op: Any, *terms: Named) -> Any:
    """The queries and keys are rotated already."""
    attributes = {"num_heads": op.num_heads, "kv_num_heads": op.kv_num_heads}
    optional: dict[str, float] = {"scale": op.scale, "softcap": op.softcap, "local_window_size": op.local_window}
    optional["smooth_softmax"] = int(op.smooth)
    defaults = {"scale": 0.0, "softcap": 0.0, "local_window_size": -1, "smooth_softmax": 0}
    attributes |= {name: value for name, value in optional.items() if value != defaults[name]}
    nothing = Named("", terms[0].type)
    operands = [*terms[:7], nothing, nothing, nothing, *terms[7:]]
    return w.node(op.name, operands, [v.type for v in w.reading.outputs], domain=MICROSOFT, **attributes)


@writer(MatMulNBits)
def matmul_bits(w: GraphWriter, op: Any, x: Named, codes: Named, scales: Named, *optional: Named) -> Any:
    """With zero points as floats."""
    n = codes.type.dims[0]
    held = (scales, *optional[:1])
    flat = [t if not t.name or t.known is None else w.const(t.known.reshape(-1), t.name) for t in held]
    k = x.type.shape[-1] if x.type.shape else None
    if not isinstance(k, int):
        raise NoSpellingError("rows of a length that is not known")
    attributes = {"K": k, "N": n, "bits": op.bits, "block_size": op.block}
    operands = [x, codes, *flat]
    if len(optional) > 1:
        operands += [Named("", x.type), optional[1]]
    types = [v.type for v in w.reading.outputs]
    return w.node(op.name, operands, types, domain=MICROSOFT, **attributes)


def _for_directions(array: Array) -> Array:
    """Numbers per direction, or per direction and gate; raises NoSpellingError when they vary otherwise."""
    if not np.all(array == array[:, :1]):
        raise NoSpellingError("weights whose scale varies along their inputs")
    rows = array[:, 0]
    return rows[:, 0] if np.all(rows == rows[:, :1]) else rows
