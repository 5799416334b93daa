"""Writers of operators whose name, operands or attributes are not those of ONNX."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.types import BOOL, F32, I64, Sym, TensorType, sequence_of
from bolt_numba.converters.onnx.types import CODES, proto_of_type
from bolt_numba.converters.onnx.writing.registry import Named, NoSpellingError, writer
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.generate import ConstantOfShape, Range
from bolt_numba.ops.arrays.shape import Reshape, Split
from bolt_numba.ops.arrays.signal import MelWeightMatrix
from bolt_numba.ops.control import If, Loop, Scan
from bolt_numba.ops.data.sequence import OptionalEmpty, SequenceEmpty, SequenceInsert
from bolt_numba.ops.foreign import Foreign
from bolt_numba.ops.layers.detection.regions import DeformConv
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.products.integer_products import ConvInteger
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN
from bolt_numba.ops.layers.resize import Resize
from bolt_numba.ops.pointwise import Clip
from bolt_numba.ops.pointwise.row import Pointwise

if TYPE_CHECKING:
    from bolt_numba.converters.onnx.writing.graph import GraphWriter


@writer(Clip)
def clip(w: GraphWriter, op: Pointwise, x: Named) -> Any:
    """The bounds become operands; open on both sides it is the identity."""
    bounds = [None if b is None else w.const(np.array(b, x.type.dtype)) for b in (op.lo, op.hi)]
    if bounds == [None, None]:
        return w.node("Identity", [x], [x.type])
    terms = [Named("", x.type) if b is None else b for b in bounds]
    return w.node("Clip", [x, *terms], [x.type])


@writer(MatMul)
def matmul(w: GraphWriter, op: MatMul, a: Named, b: Named, bias: Named | None = None) -> Any:
    """Gemm where both operands are matrices."""
    bias = bias if bias is not None and bias.name else None
    plain = not (op.trans_a or op.trans_b) and op.alpha == 1
    shapes = a.type.shape, b.type.shape
    if all(s is not None and len(s) == 2 for s in shapes) and not (plain and bias is None):
        rows, columns = (s[i] for s, i in zip(shapes, (op.trans_a, not op.trans_b), strict=True) if s is not None)
        flags = {"transA": int(op.trans_a), "transB": int(op.trans_b), "alpha": op.alpha}
        given = {k: v for k, v in flags.items() if v != (1 if k == "alpha" else 0)}
        terms = [a, b] if bias is None else [a, b, bias]
        return w.node("Gemm", terms, [TensorType(a.type.dtype, (rows, columns))], **given)
    if plain and bias is None:
        return w.node("MatMul", [a, b], [op.infer(a.type, b.type)])
    return w.apart(op, a, b, *([] if bias is None else [bias]))


@writer(ConstantOfShape)
def constant_of_shape(w: GraphWriter, op: ConstantOfShape, shape: Named) -> Any:
    value = w.tensor(np.array([op.value], op.dtype))
    return w.node("ConstantOfShape", [shape], [op.infer(shape.type)], value=value)


@writer(Range)
def range_(w: GraphWriter, op: Range, *terms: Named) -> Any:
    """The bounds as scalars: ours may also be vectors of one element."""
    scalars = [t if t.type.shape in ((), None) else w.write(Reshape(), t, w.const(np.zeros(0, I64))) for t in terms]
    return w.node("Range", scalars, [op.infer(*(t.type for t in terms))])


@writer(MelWeightMatrix)
def mel_weight_matrix(w: GraphWriter, op: MelWeightMatrix, *terms: Named) -> Any:
    code = {} if op.dtype == F32 else {"output_datatype": CODES[op.dtype]}
    return w.node("MelWeightMatrix", terms, [op.infer(*(t.type for t in terms))], **code)


@writer(OptionalEmpty)
def optional_empty(w: GraphWriter, op: Any) -> Any:
    made = op.infer()
    return w.node("Optional", [], [made], type=proto_of_type(made.element))


@writer(Split)
def split(w: GraphWriter, op: Any, x: Named, sizes: Named | None = None) -> Any:
    """The number of parts is told by the sizes or by the attribute, not by both."""
    given = sizes is not None and sizes.name
    types = op.infer(x.type, sizes.type if given and sizes is not None else None)
    types = types if isinstance(types, tuple) else (types,)
    terms = [x, sizes] if given and sizes is not None else [x]
    return w.plain(op, terms, types, num_outputs=None if given else op.num_outputs)


@writer(Conv, ConvTranspose, DeformConv, ConvInteger)
def convolution(w: GraphWriter, op: Any, *terms: Named) -> Any:
    """The size of the filters is an attribute too, which other tools rely on."""
    shape = terms[op.filters_at].type.shape
    static = shape is not None and not any(isinstance(d, Sym) for d in shape)
    kernel = shape[2:] if static and shape is not None else None
    made = op.infer(*(t.type if t.name else None for t in terms))
    assert isinstance(made, TensorType)
    return w.plain(op, terms, [made], kernel_shape=kernel)


@writer(LSTM, GRU, RNN)
def recurrent(w: GraphWriter, op: Any, *terms: Named) -> Any:
    """The size of the states is an attribute too, which other tools rely on."""
    size = None if terms[2].type.shape is None else terms[2].type.shape[-1]
    types = op.infer(*(t.type if t.name else None for t in terms))
    return w.plain(op, terms, types, hidden_size=size if isinstance(size, int) else op.hidden_size)


@writer(Resize)
def resize(w: GraphWriter, op: Any, *terms: Named) -> Any:
    """Paddle's coordinates are those of pixels' centres where no axis becomes a single element."""
    made = op.infer(*(t.type if t.name else None for t in terms))
    if op.coordinate_transformation_mode == "edge_half_pixel":
        sizes = list(zip(terms[0].type.shape or (), made.shape or (), strict=True))
        if not sizes or any(new != old and (new == 1 or isinstance(new, Sym)) for old, new in sizes):
            raise NoSpellingError("coordinates of edge_half_pixel with a size of 1, or one that is not known")
        op = dataclasses.replace(op, coordinate_transformation_mode="half_pixel")
    return w.plain(op, terms, [made])


@writer(If)
def if_(w: GraphWriter, op: If, cond: Named, *captures: Named) -> Any:
    branches = {key: w.subgraph(getattr(op, key), captures, ()) for key in ("then_branch", "else_branch")}
    return w.node("If", [cond], op.infer(cond.type, *(t.type for t in captures)), **branches)


@writer(Foreign)
def foreign(w: GraphWriter, op: Foreign, *terms: Named) -> Any:
    return w.inline(op.graph, terms)


@writer(Loop)
def loop(w: GraphWriter, op: Any, *terms: Named) -> Any:
    """Results that are lists are sequences that the loop carries, from empty ones on."""
    if op.listed:
        count, kinds = op.carried, [v.type.dtype for v in op.body.outputs[len(op.body.outputs) - op.listed :]]
        empty = [w.write(SequenceEmpty(kind)) for kind in kinds]
        made = loop(w, _carrying_lists(op), *terms[: 2 + count], *empty, *terms[2 + count :])
        return *made[:count], *made[count + op.listed :], *made[count : count + op.listed]
    own = [TensorType(I64, ()), TensorType(BOOL, ()), *(v.type for v in op.body.inputs[2 : 2 + op.carried])]
    operands, captures = terms[: 2 + op.carried], terms[2 + op.carried :]
    body = w.subgraph(op.body, captures, own)
    types = op.infer(*(t.type if t.name else None for t in terms))
    return w.node("Loop", operands, types, body=body)


def _carrying_lists(op: Loop) -> Loop:
    """The same loop with each list as a carried sequence behind the other carried values."""
    body, last = op.body.clone(), 1 + op.carried
    b, first = Builder(body), len(body.outputs) - op.listed
    lists = []
    for number, value in enumerate(body.outputs[first:]):
        kind = sequence_of(TensorType(value.type.dtype, None))
        body.inputs.insert(1 + last + number, Value(body.unique_name(f"list{number}"), kind))
        lists.append(b(SequenceInsert(), body.inputs[1 + last + number], value))
    names = body.output_names
    body.outputs = [*body.outputs[:last], *lists, *body.outputs[last:first]]
    body.output_names = [*names[:last], *names[first:], *names[last:first]]
    return Loop(body, op.carried + op.listed)


@writer(Scan)
def scan(w: GraphWriter, op: Scan, *terms: Named) -> Any:
    count = op.states + op.scans
    body = w.subgraph(op.body, terms[count:], [v.type for v in op.body.inputs[:count]])
    names = ("input_axes", "input_directions", "output_axes", "output_directions")
    more = {f"scan_{n}": getattr(op, n) for n in names if any(getattr(op, n))}
    types = op.infer(*(t.type for t in terms))
    return w.node("Scan", terms[:count], types, body=body, num_scan_inputs=op.scans, **more)
