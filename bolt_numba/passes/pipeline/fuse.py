"""Fewer, larger steps: what follows a product runs on its tile, and pointwise neighbours run as one loop.

fuse_residual(Conv(x) + r)                 -> Conv(x, residual r)        also MatMul; r has the result's shape
fuse_activation(act(Conv(x)))              -> Conv(x, activation)        also ConvTranspose and MatMul
activation_before_move(act(Reshape(Conv))) -> Reshape(act(Conv))         also Transpose, Squeeze, Unsqueeze
fuse_chain(op(op(x), y))                   -> Chain(x, y)                the inner value: one reader, same shape;
                                                                         a DequantizeLinear of bytes: in any case
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bolt_numba.base.types import BOOL, F32, TensorType
from bolt_numba.codegen.chain import can_generate, is_vector_form, value_dtypes
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Node, Value
from bolt_numba.ops.arrays.quantize import DequantizeLinear
from bolt_numba.ops.arrays.shape import Reshape, Squeeze, Transpose, Unsqueeze
from bolt_numba.ops.layers.products.binary import BinaryConv, BinaryMatMul
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add
from bolt_numba.ops.pointwise.chain import CONVERSIONS, Chain, ChainStep
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.passes.quantised.conversions import CODES, is_per_tensor
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule

MAX_STEPS = 16
"""Steps of one chain: beyond, registers spill and compile time grows."""
MAX_OPERANDS = 8
"""Operands of one chain that run along; of numbers there may be `MAX_NUMBERS`."""
MAX_NUMBERS = 24
_ONES = frozenset({1})
WITH_RESIDUAL = (Conv, MatMul, BinaryConv, BinaryMatMul)
PRODUCTS = (ConvTranspose, *WITH_RESIDUAL)
MOVES = (Transpose, Reshape, Squeeze, Unsqueeze)


@rule(Pat(Add, (Pat(WITH_RESIDUAL, name="y", sole_use=True), Pat(name="r")), commutative=True))
def fuse_residual(m: Match, b: Builder) -> Result:
    node, r = m.node("y"), m["r"]
    op: Any = node.op
    if op.activation is not None or op.residual:
        return m.refuse("the operator is fused already")
    if r.type != m["y"].type or r.type.shape is None:
        return m.refuse("the residual has another shape")
    x, w, bias = (*node.inputs, None)[:3]
    return b(dataclasses.replace(op, residual=True), x, w, bias, r)


@rule(Pat(Pointwise, (Pat(PRODUCTS, name="y", sole_use=True),)))
def fuse_activation(m: Match, b: Builder) -> Result:
    act: Any = m.root.op
    node = m.node("y")
    op: Any = node.op
    if act.arity != 1 or m.root.output.type.dtype != m["y"].type.dtype:
        return None
    if not can_generate(act, [TensorType(F32, (1,))]):
        return m.refuse("there is no vector code for the activation")
    if op.activation is not None:
        return m.refuse("the operator has an activation already")
    return b(dataclasses.replace(op, activation=act), *node.inputs)


@rule(Pat(Pointwise, (Pat(MOVES, (Pat(name="x"),), name="moved", sole_use=True),)))
def activation_before_move(m: Match, b: Builder) -> Result:
    """Views and transposes between a product and its activation stand aside, one at a time."""
    act: Any = m.root.op
    below = m["x"]
    while below.node is not None and isinstance(below.node.op, MOVES) and m.sole(below):
        operand = below.node.inputs[0]
        if operand is None:
            return None
        below = operand
    op: Any = None if below.node is None else below.node.op
    if act.arity != 1 or not isinstance(op, PRODUCTS) or not m.sole(below):
        return m.refuse("no product with this reader alone below")
    if op.activation is not None:
        return m.refuse("the operator has an activation already")
    return b(m.op("moved"), b(act, m["x"]), *m.node("moved").inputs[1:])


def _in_chain(node: Node | None) -> bool:
    """Whether a node may be a step of a chain: pointwise over floats and booleans, not shape arithmetic."""
    if node is None or not isinstance(node.op, (Pointwise, Chain, *CONVERSIONS)) or len(node.outputs) != 1:
        return False
    if isinstance(node.op, CONVERSIONS):
        return _converts_bytes(node)
    for op, _ in node.op.steps if isinstance(node.op, Chain) else ():
        if isinstance(op, CONVERSIONS):
            return True
    for v in (*node.inputs, node.output):
        if v is not None and v.type.dtype is not F32 and v.type.dtype not in (F32, BOOL):
            return False
    return node.output.type.value is None or node.output.type.known is None


def _converts_bytes(node: Node) -> bool:
    """Whether a conversion is one between codes of 8 or 16 bits and f32 with one scale."""
    x, scale = node.inputs[0], node.inputs[1]
    if x is None or scale is None or scale.type.dtype != F32 or not is_per_tensor(node) or not x.type.shape:
        return False
    return {x.type.dtype, node.output.type.dtype} in [{F32, dtype} for dtype in CODES]


def _too_many(operands: Sequence[Value]) -> bool:
    """Whether a chain would read more operands than there are registers for."""
    if len(operands) <= min(MAX_NUMBERS, MAX_OPERANDS):
        return False
    numbers = sum([v.type.shape is not None and _ONES.issuperset(v.type.shape) for v in operands])
    return numbers > MAX_NUMBERS or len(operands) - numbers > MAX_OPERANDS


def _steps(node: Node) -> int:
    return len(node.op.steps) if isinstance(node.op, Chain) else 1


class FuseChain:
    """Merges the root with one producer; repeated by the engine until the chain is as long as it can be.

    A run of nodes that would so be merged one after the other is merged at its last node, at once.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget the runs of the last traversal.  waiting: nodes before the last of a run; runs: by the last node."""
        self.waiting: set[int] = set()
        self.runs: dict[int, list[Node]] = {}

    def __call__(self, m: Match, b: Builder) -> Result:
        root = m.root
        if id(root) in self.waiting:
            return None
        run = self.runs.pop(id(root), None)
        if run is not None:
            chain, operands = joined(run)
            return b(chain, *operands)
        if not _in_chain(root):
            return None
        shape = root.output.type.shape
        for v in root.inputs:
            if v is None or v.node is None or not _in_chain(v.node):
                continue
            widened = isinstance(v.node.op, DequantizeLinear)  # bytes cost less to read again than floats to write
            if shape is None or (v.type.shape != shape and not widened):
                m.refuse(f"%{v.name} has another shape")
            elif not widened and not self._only_reader(m, v):
                m.refuse(f"%{v.name} has another reader")
            elif _steps(root) + _steps(v.node) > MAX_STEPS:
                m.refuse(f"the chain would have more than {MAX_STEPS} steps")
            else:
                chain, operands = joined([v.node, root])
                if _too_many(operands):
                    m.refuse(f"the chain would read more than {MAX_OPERANDS} operands")
                elif not can_generate(chain, [w.type for w in operands]):
                    m.refuse("there is no code for the chain")
                else:
                    m.reason = ""  # what was said of another operand
                    return b(chain, *operands)
        self._begin_run(m)
        return None

    def _begin_run(self, m: Match) -> None:
        """Find the nodes that would take the root in, one after the other, whatever else is merged before."""
        run, steps = [m.root], _steps(m.root)
        operands = {id(v): v for v in m.root.inputs if v is not None}
        while (node := self._next(m, run[-1])) is not None:
            steps += _steps(node)
            operands |= {id(v): v for v in node.inputs if v is not None and v.node is not run[-1]}
            if steps > MAX_STEPS or _too_many(list(operands.values())):
                break
            run.append(node)
        if len(run) > 2:
            chain, values = joined(run)
            types = [v.type for v in values]
            # In vector form any part of a chain has code where the whole has.
            if is_vector_form(chain, value_dtypes(chain, [t.dtype for t in types])) and can_generate(chain, types):
                self.waiting.update(map(id, run[:-1]))
                self.runs[id(run[-1])] = run

    @staticmethod
    def _next(m: Match, node: Node) -> Node | None:
        """The only reader of a node, if it may be in its chain and reads nothing else that may be."""
        reader = m.graph.sole_use(node.output)
        if reader is None or not _in_chain(reader) or node.output.type.dtype is not F32:
            return None
        shape = reader.output.type.shape
        if shape is None or node.output.type.shape != shape:
            return None
        for v in reader.inputs:
            if v is not None and v.node is not None and v.node is not node and _in_chain(v.node):
                return None
        return reader

    @staticmethod
    def _only_reader(m: Match, v: Value) -> bool:
        return all(user is m.root for user in v.uses.times) and not m.graph.is_output(v)


def joined(nodes: Sequence[Node]) -> tuple[Chain, list[Value]]:
    """One chain for nodes of which each is the only reader of the one before, and its operands."""
    inner = {id(node.output) for node in nodes[:-1]}
    operands = list({id(v): v for node in nodes for v in node.inputs if v is not None and id(v) not in inner}.values())
    at = {id(v): i for i, v in enumerate(operands)}
    steps: list[ChainStep] = []
    for node in nodes:
        at[id(node.output)] = _append(node, at, len(operands), steps)
    return Chain(tuple(steps), (at[id(nodes[-1].output)],)), operands


def _append(node: Node, at: dict[int, int], count: int, steps: list[ChainStep]) -> int:
    """Add the node's steps; returns the index of its result in the new chain."""
    indices = [at[id(v)] for v in node.inputs if v is not None]
    op: Any = node.op
    if not isinstance(op, Chain):
        steps.append((op, tuple(indices)))
        return count + len(steps) - 1
    for step, args in op.steps:
        steps.append((step, tuple(indices[i] for i in args)))
        indices.append(count + len(steps) - 1)
    return indices[op.results[0]]



def chain_rules() -> tuple[Rule, ...]:
    """Rules that join pointwise neighbours; they run after everything else has taken what it can."""
    return (Rule("fuse_chain", Pat((Pointwise, Chain, *CONVERSIONS)), FuseChain()),)


RULES: tuple[Rule, ...] = (fuse_residual, fuse_activation, activation_before_move)
