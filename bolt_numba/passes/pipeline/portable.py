"""Rules for graphs that are written to a file again: fewer nodes, no larger, and only operators that ONNX has.

fold_within_size(f(constants))                  -> constant                unless the model grows by it
merge_slices(Slice(Slice(x)))                   -> Slice(x)                other axes, or known sizes
dequantize(Cast(c) * s)                         -> DequantizeLinear(c, s)  constants in 8 bits; also Cast(c) + z
move_into_dequantized(Transpose(Dequantize(c))) -> Dequantize(c')          also Reshape, where one scale is for all
drop_zero_state(LSTM(x, ..., zeros))            -> LSTM(x)                 zeros are the default; also GRU, RNN

Activations are recognised as `recognise` does, as far as opset 18 has them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.files.mapped import check_intact
from bolt_numba.base.types import F32, I8, U8, Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.quantize import DequantizeLinear
from bolt_numba.ops.arrays.shape import Expand, Identity, Reshape, Squeeze, Transpose, Unsqueeze
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.layers.products.matmul import Einsum, MatMul
from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN
from bolt_numba.ops.pointwise import Add, Cast, Mul
from bolt_numba.ops.registry import Op
from bolt_numba.passes.canonical import arithmetic, control, views
from bolt_numba.passes.canonical.fold import FoldConstant, fold_rules, let_integers_fold, storage_bytes
from bolt_numba.passes.pipeline import PipelineRun, Stage, absorbing, deep_clone, run_pipeline
from bolt_numba.passes.recognise import activations
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, const, rule, scalar_of
from bolt_numba.passes.trace import Trace

GROWN_BYTES = 16 << 10
"""Bytes up to which a folded constant may be larger than what it is made of."""
LONGER = frozenset({"pow_to_products", "split_batch_norm", "lookup_before_scale", "select_once"})
"""Rules of other stages that make two nodes of one, for the sake of kernels."""
RECOGNISED = frozenset(
    f"recognise_{name}"
    for name in (
        *("hard_swish", "hard_sigmoid", "mish", "clip", "relu", "leaky_relu", "prelu", "softplus", "safe_softplus"),
        *("softsign", "softmax", "log_softmax", "l2"),
    )
)
"""What is recognised: operators that ONNX has had since opset 18 or longer."""


class FoldWithinSize(FoldConstant):
    """Folds constants as long as the model does not grow: weights that are stored in 8 bits stay so.

    growth: bytes that it may grow nevertheless.
    """

    def __init__(self, growth: int) -> None:
        super().__init__()
        self.growth, self.integers_stay = growth, False

    def __call__(self, m: Match, b: Builder) -> Result:
        made, freed = _made(m.root), sum(_freed(m, v) for v in m.root.inputs if v is not None)
        grows = made > max(GROWN_BYTES, freed)
        if grows and made - freed > self.growth:
            return m.refuse(f"the model would grow by {made - freed} bytes")
        result = super().__call__(m, b)
        if grows and result is not None:
            self.growth -= made - freed
        return result


def _made(node: Node) -> int:
    """Bytes of a node's results, as far as they are known."""
    return sum(v.type.nbytes for v in node.outputs if v.type.is_static)


def _freed(m: Match, value: Value) -> int:
    """Bytes of a constant that nobody reads any more once all nodes that read nothing but constants are folded."""
    readers = {id(n): n for n in value.uses}.values()
    if value.const is None or m.graph.is_output(value):
        return 0
    if any(v is not None and v.const is None for n in readers for v in n.inputs):
        return 0
    held = storage_bytes(value.const)
    return held if len(readers) == 1 or sum(map(_made, readers)) <= held else 0


# --- slices ----------------------------------------------------------------------------------------------------------


def _cuts(operands: Sequence[Value | None], rank: int) -> dict[int, tuple[int, int, int]] | None:
    """Start, end and step of a Slice by axis; None when they are not known."""
    given = [None if v is None else v.type.known for v in (*operands[1:], None, None)[:4]]
    if any(v is not None and k is None for v, k in zip(operands[1:], given, strict=False)):
        return None
    starts, ends, axes, steps = (None if k is None else [int(n) for n in k.reshape(-1)] for k in given)
    if starts is None or ends is None:
        return None
    places = [a % rank for a in (range(len(starts)) if axes is None else axes)]
    return dict(zip(places, zip(starts, ends, steps or [1] * len(starts), strict=True), strict=True))


@rule(Pat(Slice, (Pat(Slice, (Pat(name="x"),), name="inner", sole_use=True),)))
def merge_slices(m: Match, b: Builder) -> Result:
    shape = m["x"].type.shape
    if shape is None:
        return m.refuse("the rank is not known")
    first, second = (_cuts(n.inputs, len(shape)) for n in (m.node("inner"), m.root))
    if first is None or second is None:
        return m.refuse("where it cuts is not known")
    for axis, cut in second.items():
        size = shape[axis]
        if axis not in first:
            first[axis] = cut
        elif isinstance(size, int):
            kept = range(size)[slice(*first[axis])][slice(*cut)]
            first[axis] = kept.start, kept.stop if kept.stop >= 0 else -size - 1, kept.step
        else:
            return m.refuse("both cut one axis of unknown size")
    places = sorted(first)
    starts, ends, steps = (np.array([first[a][i] for a in places], np.int64) for i in range(3))
    return b(Slice(), m["x"], starts, ends, np.array(places), None if np.all(steps == 1) else steps)


# --- weights in 8 bits -----------------------------------------------------------------------------------------------

_WIDENED = Pat(Cast, (const("c"),), name="cast", where=lambda op: op.to == F32)


def _dequantized(m: Match, b: Builder, zero: float) -> Result:
    c, scale = m["c"].const, m["scale"].const
    if c is None or scale is None or c.dtype not in (I8, U8) or scale.dtype != F32:
        return m.refuse("not a constant in 8 bits")
    if m.root.output.type.shape != c.shape or scale.ndim > c.ndim:
        return m.refuse("the scale is broadcast over more than the constant")
    if _feeds(m.root.output, (Gather, MatMul, Einsum)):
        return m.refuse("a table, or a factor of a product, which engines would compute in fewer bits")
    point = np.array(-zero).astype(c.dtype)
    if float(point) != -zero:
        return m.refuse("the zero point is no number of the constant's dtype")
    axes = [i for i, d in enumerate((1,) * (c.ndim - scale.ndim) + scale.shape) if d != 1]
    if len(axes) > 1:
        return m.refuse("the scale has more than one axis")
    shape = scale.shape if not axes else (-1,)
    scales = scale.reshape(shape if axes else ())
    points = None if zero == 0 else np.broadcast_to(point, scales.shape).copy()
    return b(DequantizeLinear(axis=axes[0] if axes else 0), m["c"], scales, points)


def _feeds(value: Value, kinds: tuple[type[Op], ...]) -> bool:
    """Whether an operator of these kinds reads a value, also in another order or shape."""
    moved = (Transpose, Reshape)
    return any(isinstance(n.op, kinds) or (isinstance(n.op, moved) and _feeds(n.output, kinds)) for n in value.uses)


@rule(Pat(Mul, (_WIDENED, const("scale"))))
def dequantize(m: Match, b: Builder) -> Result:
    return _dequantized(m, b, 0.0)


@rule(Pat(Mul, (Pat(Add, (_WIDENED, const("zero"))), const("scale"))))
def dequantize_shifted(m: Match, b: Builder) -> Result:
    zero = scalar_of(m["zero"])
    return m.refuse("the zero point is no number") if zero is None else _dequantized(m, b, zero)


@rule(Pat((Transpose, Reshape), (Pat(DequantizeLinear, (const("c"), const("scale")), name="wide", sole_use=True),)))
def move_into_dequantized(m: Match, b: Builder) -> Result:
    op: Any = m.op("wide")
    c, scale = m["c"].const, m["scale"].const
    if c is None or scale is None or op.block_size or not m.sole(m["c"]):
        return m.refuse("scaled in blocks, or read elsewhere")
    one, shape = scale.size == 1, m.root.output.type.shape
    moved: Array
    if isinstance(m.root.op, Transpose):
        perm = m.root.op.perm
        moved = np.ascontiguousarray(np.transpose(c, perm))
        axis = 0 if one else perm.index(op.axis % c.ndim)
    elif one and m.root.output.type.is_static and shape is not None:
        moved, axis = c.reshape(m.root.output.type.dims), 0
    else:
        return m.refuse("a scale for each index of an axis")
    return b(dataclasses.replace(op, axis=axis), moved, *m.node("wide").inputs[1:])


# --- defaults --------------------------------------------------------------------------------------------------------

_KEEPS_ZEROS = (Slice, Expand, Reshape, Squeeze, Unsqueeze, Transpose, Identity, Cast, Gather)


def is_zeros(value: Value | None) -> bool:
    """Whether a value holds zeros only, whatever the run brings."""
    if value is None:
        return False
    if value.const is not None:
        return arithmetic.all_equal(value, 0)
    node = value.node
    if node is None:
        return False
    if isinstance(node.op, ConstantOfShape):
        return node.op.value == 0
    return isinstance(node.op, _KEEPS_ZEROS) and is_zeros(node.inputs[0])


@rule(Pat((LSTM, GRU, RNN)))
def drop_zero_state(m: Match, b: Builder) -> Result:
    """Initial states of zeros are what the layer begins with anyway."""
    operands = list(m.root.inputs)
    zeros = [i for i in (5, 6) if i < len(operands) and is_zeros(operands[i])]
    if not zeros:
        return None
    for i in zeros:
        operands[i] = None
    return tuple(b.node(m.root.op, *operands).outputs)


RULES: tuple[Rule, ...] = (merge_slices, dequantize, dequantize_shifted, move_into_dequantized, drop_zero_state)


def portable(graph: Graph, run: PipelineRun, growth: int = 0) -> None:
    """The stage: rules that keep to operators of ONNX, to a fixed point; see `FoldWithinSize` for ``growth``."""
    usual = fold_rules()
    let_integers_fold(usual)
    folding = [
        Rule("fold_within_size", r.pattern, FoldWithinSize(growth)) if isinstance(r.rewrite, FoldConstant) else r
        for r in usual
    ]
    known = [r for r in activations.RULES if r.name in RECOGNISED]
    clean = [r for r in (*folding, *control.RULES, *views.RULES, *arithmetic.RULES) if r.name not in LONGER]
    run.rewrite(graph, [*clean, *known])  # before weights take up a factor that belongs to an activation
    run.rewrite(graph, [*clean, *known, *(r for r in absorbing(run) if r.name not in LONGER), *RULES])


@border("simplify")
def simplify(graph: Graph, *, growth: int = 0, trace: Trace | None = None) -> Graph:
    """The same computation in fewer nodes.

    What is constant is computed as far as the model does not grow, equal nodes are shared, nodes that do nothing or
    that nobody reads are dropped, branches that are certain are inlined, arithmetic with constants goes into weights.
    More of it is possible when shapes are known; see `surgery.with_shapes`.

    growth: bytes by which computed constants may enlarge the model, for example where weights are stored in 8 bits.
    trace: receives every rewrite.  Raises DTypeError for what is no graph.
    """
    made = deep_clone(graph)
    check_intact(made.weights())
    stage = functools.partial(portable, growth=growth)
    return run_pipeline(made, trace=trace, stages=(Stage("canonical", (stage,)),))
