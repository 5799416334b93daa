"""Computes at load time what does not depend on the inputs, and computes equal things once.

fold_known(f(x))            -> constant      the content follows from types alone (Shape of a static value)
fold_constant(f(constants)) -> constant      by the operator's reference, within a budget of memory
share_equal(f(x), f(x))     -> one f(x)      equal operators on the same operands
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from weakref import WeakValueDictionary

import numpy as np

from bolt_numba.base.budget import Budget, spend, within
from bolt_numba.base.errors import BoltError
from bolt_numba.base.types import STRING, Array, NestedType
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Node, Value, graph_attributes
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import ConstantOfShape, Expand, Transpose
from bolt_numba.ops.pointwise import Cast, Mul
from bolt_numba.ops.registry import result_tuple
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule

MIB = 1 << 20
ALWAYS = 64 * MIB
"""A folded result of at most this many bytes is always worth it; a larger one must not exceed twice its operands."""
WIDER = 8
"""Times its operands that a result may take which holds the same numbers: f64 of stored bytes."""
WORK = 1 << 28
"""Elementary operations that the folding of one model may take, beside `WORK_EACH` for every element it reads."""
WORK_EACH = 1 << 8
SECONDS = 5.0
"""What folding may last, beside `SECONDS_EACH` for every byte it reads: the end of work that nobody foresaw."""
SECONDS_EACH = 1 / (32 * MIB)
GROWTH = 1024 * MIB
"""Bytes that all folded results of one model may take together."""
_LEFT = "an integer constant stays one until the stage that may compute with integers"
SMALL_CONSTANT = 1024
"""Elements up to which constants are compared by content."""


def storage_bytes(array: Array) -> int:
    """Bytes of memory that an array really takes: axes of stride 0 count once."""
    size = array.itemsize
    for n, stride in zip(array.shape, array.strides, strict=True):
        size *= n if stride else min(n, 1)
    return size


class FoldConstant:
    """Folds nodes whose operands are all constants; owns the memory budget of one pipeline run.

    integers_stay: what turns integer constants into floats is left alone, as a later stage may compute with integers.
    """

    def __init__(self, growth: int = GROWTH, work: int = WORK, seconds: float = SECONDS) -> None:
        self.left, self.seconds = growth, seconds
        self.work = Budget(work)
        self.seen: WeakValueDictionary[int, Array] = WeakValueDictionary()
        self.integers_stay, self.left_alone = True, 0

    def __call__(self, m: Match, b: Builder) -> Result:
        node = m.root
        if node.op.has_side_state or graph_attributes(node.op) or not node.inputs:
            return None
        if any(isinstance(v.type, NestedType) for v in node.outputs):
            return None
        arrays = [None if v is None else v.const for v in node.inputs]
        if self._is_left(node):
            return m.refuse(_LEFT)
        if _narrow_table(node):
            return m.refuse("a narrow table is cast after the lookup")
        lazy = _broadcast(node, arrays)
        if lazy is not None:
            return self._made(b, lazy)
        wanted = sum(v.type.nbytes for v in node.outputs) if all(v.type.is_static for v in node.outputs) else 0
        times = WIDER if node.op.widens_integers else 2
        allowed = max(ALWAYS, times * sum(storage_bytes(a) for a in arrays if a is not None))
        if wanted > min(allowed, self.left):
            return m.refuse(f"result too large: got {wanted} bytes, wanted at most {min(allowed, self.left)}")
        if self.seconds <= 0:
            return m.refuse("folding has lasted as long as it may")
        self._allow(node.inputs)
        start = time.perf_counter()
        try:
            with within(self.work), np.errstate(all="ignore"):
                spend(_elements(node), node.op.name)
                results = [np.asarray(r) for r in result_tuple(node.op.reference(*arrays))]
        except (BoltError, ArithmeticError, ValueError, TypeError, IndexError, NotImplementedError) as error:
            return m.refuse(f"cannot be computed: {error}")
        finally:
            self.seconds -= time.perf_counter() - start
        self.left -= sum(storage_bytes(r) for r in results)
        return tuple(self._made(b, r) for r in results)

    def _made(self, b: Builder, array: Array) -> Value:
        """A result as a constant that adds nothing to what is left."""
        value = b.const(array)
        if value.const is not None:
            self.seen[id(value.const)] = value.const
        return value

    def known(self, m: Match, b: Builder) -> Result:
        """Folds nodes whose results follow from types alone."""
        node = m.root
        if node.op.has_side_state or graph_attributes(node.op):
            return None
        known = [v.type.known for v in node.outputs]
        if any(k is None for k in known):
            return None
        return m.refuse(_LEFT) if self._is_left(node) else tuple(b.const(k) for k in known)

    def _is_left(self, node: Node) -> bool:
        """Whether a constant stays in its integers for now, also behind moves; counts them."""
        below: Node | None = node
        while below is not None and (below.op.moves_memory or isinstance(below.op, Transpose)):
            below = None if below.operands[0] is None else below.operands[0].node
        if not self.integers_stay or below is None or not below.op.widens_integers:
            return False
        self.left_alone += 1
        return True

    def _allow(self, operands: Iterable[Value | None]) -> None:
        """A large model may take more: each constant that was not folded itself adds to what is left, once."""
        for value in operands:
            array = None if value is None else value.const
            if array is not None and self.seen.get(id(array)) is not array:
                self.seen[id(array)] = array
                nbytes = storage_bytes(array)
                self.work.work = (self.work.work or 0) + WORK_EACH * nbytes // array.itemsize
                self.seconds += SECONDS_EACH * nbytes


def _elements(node: Node) -> int:
    """What the reference visits at the least; an object takes Python as long as many numbers take NumPy."""
    operands = sum(v.const.size * _weight(v) for v in node.inputs if v is not None and v.const is not None)
    return operands + sum(v.type.size * _weight(v) for v in node.outputs if v.type.is_static)


def _weight(value: Value) -> int:
    return 64 if value.type.dtype == STRING else 1


def _narrow_table(node: Node) -> bool:
    """A cast of a table in 8 or 16 bits that is only looked up: cheaper to cast (and scale) the rows that are read."""
    table = node.inputs[0]
    if not isinstance(node.op, Cast) or table is None or table.type.size <= SMALL_CONSTANT:
        return False
    return table.type.dtype.itemsize < node.op.to.itemsize and _only_looked_up(node.output)


def _only_looked_up(table: Value) -> bool:
    """Whether all readers are lookups of rows, directly or behind a factor per row."""
    for reader in table.uses:
        if isinstance(reader.op, Mul) and reader.inputs[0] is table:
            if not all(_is_lookup(r, reader.output) for r in reader.output.uses):
                return False
        elif not _is_lookup(reader, table):
            return False
    return bool(table.uses)


def _is_lookup(node: Node, table: Value) -> bool:
    return isinstance(node.op, Gather) and node.op.axis == 0 and node.inputs[0] is table


def _broadcast(node: Node, arrays: list[Array | None]) -> Array | None:
    """A view of one element (or of a smaller constant) for operators that only repeat."""
    first = arrays[0]
    if isinstance(node.op, ConstantOfShape) and first is not None:
        return np.broadcast_to(np.array(node.op.value, node.op.dtype), tuple(map(int, first)))
    if isinstance(node.op, Expand) and first is not None and arrays[1] is not None:
        wanted = tuple(map(int, arrays[1]))
        return np.broadcast_to(first, np.broadcast_shapes(first.shape, wanted))
    return None


class ShareEqual:
    """Replaces a node by an earlier one with the same operator and operands (common subexpressions)."""

    def __init__(self) -> None:
        self.seen: dict[Hashable, Node] = {}

    def begin(self) -> None:
        """Forget: nodes of the last traversal may have moved behind their equals."""
        self.seen.clear()

    def __call__(self, m: Match, b: Builder) -> Result:
        node = m.root
        if node.op.has_side_state:
            return None
        key = _key(node)
        twin = self.seen.get(key)
        if twin is None or twin is node or len(twin.outputs) != len(node.outputs) or _key(twin) != key:
            self.seen[key] = node
            return None
        return None if graph_attributes(node.op) else tuple(twin.outputs)


def _key(node: Node) -> Hashable:
    operands = [None if v is None else id(v) if v.const is None else _constant_key(v.const) for v in node.operands]
    return type(node.op), node.op, tuple(operands)


def _constant_key(array: Array) -> Hashable:
    if array.size <= SMALL_CONSTANT and array.dtype != object:
        return array.dtype, array.shape, array.tobytes()
    return id(array), array.shape, array.strides


def let_integers_fold(rules: Iterable[Rule]) -> bool:
    """Have the folding rules fold what they left alone as integers; returns whether there was any."""
    found = [r.rewrite for r in rules if isinstance(r.rewrite, FoldConstant)]
    for folding in found:
        folding.integers_stay = False
    return any(folding.left_alone for folding in found)


def fold_rules(growth: int = GROWTH) -> tuple[Rule, ...]:
    """Fresh folding rules with a budget of ``growth`` bytes: one set for each run of the pipeline."""
    folding = FoldConstant(growth)
    return (
        Rule("fold_known", Pat(known=True), folding.known),
        Rule("fold_constant", Pat(all_const=True), folding),
        Rule("share_equal", Pat(), ShareEqual()),
    )
