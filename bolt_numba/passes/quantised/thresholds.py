"""What compares the results of monotone arithmetic compares what goes in, by the graph's own rounding.

sign_without_zero(BinaryConv(BinaryPack(y))) -> BinaryConv(BinaryPack(y))         one pack, where no sum gives 0
binary_thresholds(BinaryPack(BinaryConv(x) * a + c)) -> BinaryConv(x, thresholds) behind BatchNormalization, Clip, too
binary_bounds(BinaryPack(x * a + c))      -> BinaryPack(x, bounds)                the same where x are floats

The arithmetic is computed for the numbers in question, as the references do.  So a tie is a tie as in the float graph,
which a batch norm in the weights would lose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import F32, I32, Array
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ops.arrays.shape import Concat
from bolt_numba.ops.layers.norm import BatchNormalization
from bolt_numba.ops.layers.products.binary import (
    COMPARES,
    PACKS,
    SIGN,
    BinaryConv,
    BinaryMatMul,
    BinaryPack,
    magnitudes,
    signs_of,
)
from bolt_numba.ops.pointwise import Add, Clip, Div, LeakyRelu, Mul, Neg, Relu, Sub
from bolt_numba.passes.quantised.binary import is_bare
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, const, rule

PRODUCTS = (BinaryConv, BinaryMatMul)
MONOTONE = (BatchNormalization, Add, Sub, Mul, Div, Neg, Clip, Relu, LeakyRelu)
"""Operators that keep or turn the order of numbers, beside constants."""


@record(frozen=True)
class Arithmetic:
    """Monotone operators in front of a pack, in running order.

    below: what the first one reads; axis: of the channels.
    """

    below: Value
    nodes: tuple[Node, ...]
    axis: int
    bound: Array

    @property
    def rank(self) -> int:
        return len(self.below.type.shape or ())

    def value(self, x: Array) -> Array:
        """What the graph makes of numbers [channels], with its own rounding."""
        shape = [1] * self.rank
        shape[self.axis] = -1
        made = x.reshape(shape)
        for node in self.nodes:
            operands = [None if v is None else made if v.const is None else v.const for v in node.inputs]
            made = np.asarray(node.op.reference(*operands))
        return np.broadcast_to(made.reshape(-1), x.shape)


def _chain(pack: Node, graph: Graph | None) -> Arithmetic | None:
    """The monotone operators in front of a pack; None where its bound is computed; graph: where others may not read."""
    op: Any = pack.op
    value, bound = pack.inputs
    if value is None or bound is None or bound.const is None or not value.type.shape:
        return None
    axis, nodes = op.axis % len(value.type.shape), []
    while (graph is None or graph.sole_use(value) is not None) and (inside := _monotone_in(value, axis)) is not None:
        assert value.node is not None
        nodes.append(value.node)
        value = inside
    return Arithmetic(value, tuple(nodes[::-1]), axis, bound.const)


def _monotone_in(value: Value, axis: int) -> Value | None:
    """What a monotone operator with constants along one axis reads; None: no such operator makes the value."""
    node = value.node
    if node is None or not isinstance(node.op, MONOTONE):
        return None
    inside = [v for v in node.inputs if v is not None and v.const is None]
    if len(inside) != 1 or inside[0].type.shape != value.type.shape or not _varies_along(node, axis):
        return None
    if isinstance(node.op, LeakyRelu) and not node.op.alpha >= 0:
        return None
    return None if isinstance(node.op, Div) and inside[0] is not node.inputs[0] else inside[0]


def _varies_along(node: Node, axis: int) -> bool:
    """Whether constants of a node differ along one axis at most."""
    rank = len(node.output.type.shape or ())
    if isinstance(node.op, BatchNormalization):
        return axis == (1 if node.op.layout == "NCHW" else rank - 1)
    for v in node.inputs:
        if v is not None and v.const is not None:
            whole = (1,) * (rank - v.const.ndim) + v.const.shape
            if len(whole) != rank or any(d != 1 for i, d in enumerate(whole) if i != axis):
                return False
    return True


# --------------------------------------------------------------------------------------------------------------- sums


@record(frozen=True)
class Sums:
    """A binary product below a chain."""

    base: Node
    chain: Arithmetic

    @property
    def weights(self) -> Array:
        w = self.base.inputs[1]
        assert w is not None
        assert w.const is not None
        return w.const

    @property
    def filters_axis(self) -> int:
        """Of the weights."""
        return 0 if isinstance(self.base.op, BinaryConv) else 1

    @property
    def count(self) -> int:
        return int(self.weights.shape[self.filters_axis])

    def value(self, sums: Array) -> Array:
        """What the graph makes of sums [count], with its own rounding."""
        y, bias = sums.astype(F32) * magnitudes(self.weights, self.filters_axis), (*self.base.inputs, None)[2]
        return self.chain.value(y if bias is None or bias.const is None else y + bias.const)

    def least(self, test: Any) -> tuple[Array, Array]:
        """The least sum of each filter whose value passes a test, and whether the sum is to be turned first.

        A test holds from some sum on, or up to one: then the sum is turned.
        """
        count, most = self.count, self.weights.size // self.count

        def holds(sums: Array) -> Array:
            return np.asarray(test(self.value(sums), self.chain.bound))

        first, last = (holds(np.full(count, end)) for end in (-most, most))
        turned = first & ~last
        least = _least(lambda sums: holds(np.where(turned, -sums, sums)), count, most)
        return least.astype(I32), turned

    @property
    def gives_zero(self) -> bool:
        """Whether a sum may be exactly at the bound of a sign."""
        over, not_under = (self.least(COMPARES[name]) for name in PACKS[SIGN])
        return not all(np.array_equal(one, other) for one, other in zip(over, not_under, strict=True))


def _least(holds: Callable[[Array], Array], count: int, most: int) -> Array:
    """The least whole number from -most on that passes a test, ``count`` times; most + 1 where none does.

    A test that holds for a number holds for the greater ones.
    """
    low, high = np.full(count, -most - 1), np.full(count, most + 1)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        true, is_open = holds(middle), high - low > 1
        high, low = np.where(is_open & true, middle, high), np.where(is_open & ~true, middle, low)
    return high


def _sums(pack: Node, graph: Graph | None) -> Sums | None:
    """What makes the sums that a pack compares; graph: where nobody else may read what is between."""
    chain = _chain(pack, graph)
    node = None if chain is None else chain.below.node
    if chain is None or node is None or not isinstance(node.op, PRODUCTS):
        return None
    if graph is not None and graph.sole_use(chain.below) is None:
        return None
    found = Sums(node, chain)
    return found if _is_plain(found) else None


def _is_plain(found: Sums) -> bool:
    """Whether the product gives sums times magnitudes plus a constant bias along the axis, finite for all sums."""
    op: Any = found.base.op
    constants = [v is not None and v.const is None for v in found.base.inputs[1:]]
    if not is_bare(op) or len(found.base.inputs) > 3 or any(constants):
        return False
    axis = 1 if getattr(op, "layout", "") == "NCHW" else found.chain.rank - 1
    if found.chain.axis != axis or getattr(op, "group", 1) > 1:
        return False
    most = found.weights.size // found.count
    return all(bool(np.all(np.isfinite(found.value(np.full(found.count, end))))) for end in (-most, most))


@rule(Pat(PRODUCTS, (Pat(BinaryPack, name="pack", where=lambda op: op.compare == SIGN),)))
def sign_without_zero(m: Match, b: Builder) -> Result:
    """One pack is enough where no sum is exactly at the bound."""
    found = _sums(m.node("pack"), None)
    if found is None or found.gives_zero:
        return m.refuse("no binary product below, or a sum may be exactly at the bound")
    pack: Any = m.op("pack")
    return b(m.root.op, b(BinaryPack(pack.axis, "gt"), *m.node("pack").inputs), *m.root.inputs[1:])


@rule(Pat(BinaryPack, (Pat((*PRODUCTS, *MONOTONE)), const("bound")), name="bits", where=lambda op: op.compare != SIGN))
def binary_thresholds(m: Match, b: Builder) -> Result:
    """Bits by the least sum that sets them; filters whose bits fall are turned."""
    found, op = _sums(m.root, m.graph), m.op("bits")
    if found is None:
        return m.refuse("no binary product with this reader alone below")
    least, turned = found.least(COMPARES[op.compare])
    shape = [1] * found.weights.ndim
    shape[found.filters_axis] = -1
    signs = signs_of(found.weights) * np.where(turned, np.float32(-1), np.float32(1)).reshape(shape)
    return b(found.base.op, found.base.inputs[0], signs, None, None, least)


# ------------------------------------------------------------------------------------------------------------- floats

FAR = np.float32(2.0**64)
FARTHEST = int(FAR.view(I32))
"""The greatest float that is looked at, and its place, see `_float_at`."""


def _float_at(place: Array) -> Array:
    """The f32 number at a place, counted from 0; the least positive one has place 1."""
    return np.abs(place).astype(I32).view(F32) * np.where(place < 0, np.float32(-1), np.float32(1))


def _bound(chain: Arithmetic, compare: str, turns: Array) -> Array | None:
    """What x * turns is compared with to give a bit of a chain; None where it may be beyond the farthest float."""
    above = compare.removeprefix("not_") in ("gt", "le")
    test = COMPARES["gt" if above else "ge"]
    place = _least(lambda at: test(chain.value(_float_at(at) * turns), chain.bound), len(turns), FARTHEST)
    some = np.abs(place) < FARTHEST
    if not np.all(some | (chain.value(turns * FAR) == chain.value(-turns * FAR))):
        return None
    return np.where(some, _float_at(place - above), np.where(place < 0, np.float32(-np.inf), np.float32(np.inf)))


@rule(Pat(BinaryPack, (Pat(MONOTONE), const("bound"))))
def binary_bounds(m: Match, b: Builder) -> Result:
    """Bits by the float from which on they are set; channels whose bits fall are turned first."""
    chain, pack = _chain(m.root, None), m.root.op
    assert isinstance(pack, BinaryPack)
    if chain is None or not chain.nodes or chain.below.type.dtype != F32 or _only_turns(chain):
        return m.refuse("no arithmetic with constants along the channels")
    sums = _sums(m.root, m.graph)
    if sums is not None and not (pack.compare == SIGN and sums.gives_zero):
        return m.refuse("a product gives the bits")
    shape = chain.below.type.shape
    channels = None if shape is None else shape[chain.axis]
    if not isinstance(channels, int):
        return m.refuse("any number of channels")
    ends = np.full(channels, FAR)
    first, last = chain.value(-ends), chain.value(ends)
    if not np.all(np.isfinite(first) & np.isfinite(last)):
        return m.refuse("the arithmetic overflows")
    turns = np.where(first > last, np.float32(-1), np.float32(1))
    names = PACKS[pack.compare]
    bounds = [at for compare in names if (at := _bound(chain, compare, turns)) is not None]
    if len(bounds) < len(names):
        return m.refuse("a bound is too far from 0")
    x = chain.below
    if np.any(turns < 0):
        x = b(Mul(), x, turns.reshape(-1, *[1] * (chain.rank - 1 - chain.axis)))
    if all(np.array_equal(bound, bounds[0]) for bound in bounds):
        return b(pack, x, bounds[0])
    packs = [b(BinaryPack(pack.axis, name), x, at) for name, at in zip(names, bounds, strict=True)]
    return b(Concat(pack.axis), *packs)


def _only_turns(chain: Arithmetic) -> bool:
    """Whether a chain is what `binary_bounds` leaves: a Neg, or a product with numbers of magnitude 1."""
    first, *more = chain.nodes
    constants = [v.const for v in first.operands if v is not None and v.const is not None]
    turns = isinstance(first.op, Neg) or (isinstance(first.op, Mul) and bool(np.all(np.abs(constants[0]) == 1)))
    return turns and not more


RULES: tuple[Rule, ...] = (sign_without_zero, binary_thresholds, binary_bounds)
