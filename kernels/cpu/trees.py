"""Ensembles of decision trees without branches: several walks go on side by side, and none depends on another.

A node is two words: its threshold, and bits that hold the feature, whether NaN goes left, and how far its children are.
A leaf leads to itself, so walks that have arrived wait for the others.  Of many rows, eight go through one tree
together; of the few left over, each goes through eight trees at once.  Vector gathers are slower than this.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Hashable
from functools import cache, partial
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, Array
from bolt_numba.kernels.cpu.language.lang import (
    I64,
    LANES,
    PTR,
    any_lane,
    copy_bytes,
    inline,
    load_f32,
    load_i32,
    load_u32,
    native,
    split,
    store_f32,
    vload_n,
)
from bolt_numba.kernels.cpu.machine import L2, PAYS_ELEMENTS
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import Native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel
from bolt_numba.kernels.unseen import Making, Packed, content, is_unseen, tested
from bolt_numba.ops.data.trees import TreeEnsemble, is_sound

WALKS = 8
"""Walks side by side."""
CHUNK_BYTES = L2 // 8
"""Bytes of rows that stay in the second-level cache while all trees are walked."""
FASTMATH = {"contract", "nsz"}
PARALLEL_WALKS = PAYS_ELEMENTS * 3 // 32
"""Walks, one row through one tree, from which a second thread pays."""


@cache
def walker(nan: bool) -> Any:
    """Helpers that make eight walks to leaves: of eight rows, and through eight trees.

    nan: whether a value may be NaN, which goes left where a node says so.
    """

    @inline
    def step(nodes, x, at, bits):
        limit = load_f32(nodes + 8 * at)
        word = np.int64(load_u32(nodes + 8 * at + 4))
        value = load_f32(x + 4 * (word & ((1 << bits) - 1)))
        left = np.int64(value <= limit)
        if nan:
            left = left | (np.int64(value != value) & (word >> bits))
        return at + (word >> (bits + 1)) - left

    @inline
    def walk(nodes, bits, x0, x1, x2, x3, x4, x5, x6, x7, a0, a1, a2, a3, a4, a5, a6, a7):
        moved = 1
        while moved != 0:
            b0, b1 = step(nodes, x0, a0, bits), step(nodes, x1, a1, bits)
            b2, b3 = step(nodes, x2, a2, bits), step(nodes, x3, a3, bits)
            b4, b5 = step(nodes, x4, a4, bits), step(nodes, x5, a5, bits)
            b6, b7 = step(nodes, x6, a6, bits), step(nodes, x7, a7, bits)
            a0, a1 = step(nodes, x0, b0, bits), step(nodes, x1, b1, bits)
            a2, a3 = step(nodes, x2, b2, bits), step(nodes, x3, b3, bits)
            a4, a5 = step(nodes, x4, b4, bits), step(nodes, x5, b5, bits)
            a6, a7 = step(nodes, x6, b6, bits), step(nodes, x7, b7, bits)
            moved = (a0 ^ b0) | (a1 ^ b1) | (a2 ^ b2) | (a3 ^ b3) | (a4 ^ b4) | (a5 ^ b5) | (a6 ^ b6) | (a7 ^ b7)
        return a0, a1, a2, a3, a4, a5, a6, a7

    @inline
    def rows(nodes, bits, x, ld, root):
        """Eight rows, ``ld`` bytes apart, through one tree."""
        x4 = x + 4 * ld
        return walk(
            nodes, bits, x, x + ld, x + 2 * ld, x + 3 * ld, x4, x4 + ld, x4 + 2 * ld, x4 + 3 * ld,
            root, root, root, root, root, root, root, root,
        )  # fmt: skip

    @inline
    def trees(nodes, bits, x, roots):
        """One row through eight trees."""
        return walk(
            nodes, bits, x, x, x, x, x, x, x, x,
            np.int64(load_i32(roots)), np.int64(load_i32(roots + 4)), np.int64(load_i32(roots + 8)),
            np.int64(load_i32(roots + 12)), np.int64(load_i32(roots + 16)), np.int64(load_i32(roots + 20)),
            np.int64(load_i32(roots + 24)), np.int64(load_i32(roots + 28)),
        )  # fmt: skip

    return rows, trees


@inline
def holds_nan(x, count):
    """Whether any of ``count`` f32 is NaN."""
    i = 0
    while i < count:
        v = vload_n(x + 4 * i, count - i)
        if any_lane(v != v):
            return True
        i += LANES
    return False


_FIELDS = dict.fromkeys(("x", "y", "nodes", "weights", "roots", "base"), PTR) | dict.fromkeys(
    ("n", "features", "trees", "room", "bits", "chunk", "outs"), I64
)


@inline
def start_rows(y, base, first, last, outs):
    """Set rows ``first`` to ``last`` of y to the base values."""
    for i in range(first, last):
        copy_bytes(y + 4 * outs * i, base, 4 * outs)


@inline
def add_to(y, weights, leaf):
    store_f32(y, load_f32(y) + load_f32(weights + 4 * leaf))


@cache
def sums(nan: bool) -> Any:
    """Helpers of one target: blocks of eight rows from ``first`` to ``end``, and single rows."""
    rows, trees = walker(nan)

    @inline
    def blocks(p, first, end):
        y, nodes, weights, bits, ld = p.y, p.nodes, p.weights, p.bits, 4 * p.features
        for t in range(p.trees):
            root = np.int64(load_i32(p.roots + 4 * t))
            for block in range(first, end):
                out = y + 4 * block * WALKS
                a, b, c, d, e, f, g, h = rows(nodes, bits, p.x + block * WALKS * ld, ld, root)
                add_to(out, weights, a)
                add_to(out + 4, weights, b)
                add_to(out + 8, weights, c)
                add_to(out + 12, weights, d)
                add_to(out + 16, weights, e)
                add_to(out + 20, weights, f)
                add_to(out + 24, weights, g)
                add_to(out + 28, weights, h)

    @inline
    def singles(p, first, last):
        weights, ld = p.weights, 4 * p.features
        for i in range(first, last):
            total = load_f32(p.base)
            for t in range(0, p.room, WALKS):
                a, b, c, d, e, f, g, h = trees(p.nodes, p.bits, p.x + i * ld, p.roots + 4 * t)
                low = (load_f32(weights + 4 * a) + load_f32(weights + 4 * b)) + (
                    load_f32(weights + 4 * c) + load_f32(weights + 4 * d)
                )
                high = (load_f32(weights + 4 * e) + load_f32(weights + 4 * f)) + (
                    load_f32(weights + 4 * g) + load_f32(weights + 4 * h)
                )
                total += low + high
            store_f32(p.y + 4 * i, total)

    return blocks, singles


@inline
def add_leaf(y, place, leaf_of, starts, targets, weights):
    """Add the entries of a leaf, given by its place among the nodes, to a row of y."""
    leaf = np.int64(load_i32(leaf_of + 4 * place))
    for e in range(load_i32(starts + 4 * leaf), load_i32(starts + 4 * leaf + 4)):
        out = y + 4 * np.int64(load_i32(targets + 4 * e))
        store_f32(out, load_f32(out) + load_f32(weights + 4 * e))


@cache
def votes(nan: bool) -> Any:
    """Helpers of many targets, as those of `sums`."""
    rows, trees = walker(nan)

    @inline
    def add_leaves(p, y, step, places):
        """The leaves of eight walks, whose rows of y are ``step`` bytes apart."""
        leaf, starts, targets, weights = p.leaf, p.starts, p.targets, p.weights
        a, b, c, d, e, f, g, h = places
        add_leaf(y, a, leaf, starts, targets, weights)
        add_leaf(y + step, b, leaf, starts, targets, weights)
        add_leaf(y + 2 * step, c, leaf, starts, targets, weights)
        add_leaf(y + 3 * step, d, leaf, starts, targets, weights)
        add_leaf(y + 4 * step, e, leaf, starts, targets, weights)
        add_leaf(y + 5 * step, f, leaf, starts, targets, weights)
        add_leaf(y + 6 * step, g, leaf, starts, targets, weights)
        add_leaf(y + 7 * step, h, leaf, starts, targets, weights)

    @inline
    def blocks(p, first, end):
        nodes, bits, ld, row = p.nodes, p.bits, 4 * p.features, 4 * p.outs
        for t in range(p.trees):
            root = np.int64(load_i32(p.roots + 4 * t))
            for block in range(first, end):
                places = rows(nodes, bits, p.x + block * WALKS * ld, ld, root)
                add_leaves(p, p.y + block * WALKS * row, row, places)

    @inline
    def singles(p, first, last):
        ld, row = 4 * p.features, 4 * p.outs
        start_rows(p.y, p.base, first, last, p.outs)
        for i in range(first, last):
            for t in range(0, p.room, WALKS):
                add_leaves(p, p.y + i * row, 0, trees(p.nodes, p.bits, p.x + i * ld, p.roots + 4 * t))

    return blocks, singles


def _walked(single: bool, a: Any) -> dict[str, Reach]:
    """Extents of `ensemble`: nodes, leaves and targets are what those before lead to."""
    word = a.nodes.view(np.uint32)[:, 1].astype(np.int64)
    child = np.arange(len(word)) + (word >> (a.bits + 1))
    places = 1 + max(int(child.max(initial=0)), int(a.roots.max(initial=0)))
    feature = 1 + int((word & ((1 << a.bits) - 1)).max(initial=0))
    reach: dict[str, Reach] = {
        "x": 4 * ((a.n - 1) * a.features + max(feature, a.features)) if a.n else 0,
        "y": 4 * a.n * a.outs,
        "nodes": 8 * places,
        "roots": 4 * max(a.room, a.trees),
        "base": 4 * a.outs,
    }
    if single:
        return {**reach, "weights": 4 * places}
    leaves = 1 + int(a.leaf.max(initial=0))
    entries = int(a.starts.max(initial=0))
    outs = 1 + int(a.targets.max(initial=0))
    reach["y"] = 4 * ((a.n - 1) * a.outs + max(outs, a.outs)) if a.n else 0
    return {**reach, "leaf": 4 * places, "starts": 4 * (leaves + 1), "targets": 4 * entries, "weights": 4 * entries}


@cache
def ensemble(flagged: bool, single: bool) -> Native:
    """Kernel of one target (weights: [nodes] f32, those of leaves) or of many.

    flagged: whether NaN ever goes left, so that rows with NaN need walks of their own.  roots: [room] i32, filled up
    with an empty leaf.  Of many targets, weights and targets: [entries], starts: [leaves + 1], leaf: [nodes] i32.
    """
    blocks, singles = (sums if single else votes)(False)
    blocks_of_nan, singles_of_nan = (sums if single else votes)(flagged)

    def body(p, tid, nthreads):
        ld = 4 * p.features
        first, last = split(p.n // WALKS, tid, nthreads)
        while first < last:
            end = min(last, first + p.chunk)
            start_rows(p.y, p.base, first * WALKS, end * WALKS, p.outs)
            if flagged and holds_nan(p.x + first * WALKS * ld, (end - first) * WALKS * p.features):
                blocks_of_nan(p, first, end)
            else:
                blocks(p, first, end)
            first = end
        done = p.n // WALKS * WALKS
        first, last = split(p.n - done, tid, nthreads)
        first, last = first + done, last + done
        if flagged and holds_nan(p.x + first * ld, (last - first) * p.features):
            singles_of_nan(p, first, last)
        else:
            singles(p, first, last)

    body.__name__ = f"tree_{'sums' if single else 'votes'}{'_nan' * flagged}"
    fields = _FIELDS if single else _FIELDS | dict.fromkeys(("leaf", "starts", "targets"), PTR)
    return native(fastmath=FASTMATH, extents=partial(_walked, single), **fields)(body)


# --- at plan time ----------------------------------------------------------------------------------------------------


def _reach(threshold: Array, child: Array) -> Array:
    """Distance from each node to its first child, plus 1; 0 for a leaf."""
    reach = child - np.arange(len(child), dtype=np.int64) + 1
    return np.where(np.isnan(threshold), 0, reach)


def feature_bits(feature: Array, threshold: Array, child: Array) -> int | None:
    """Bits for the number of a feature; None where the words of nodes are too short for this ensemble."""
    bits = max(int(feature.max(initial=0)).bit_length(), 1)
    room = int(_reach(threshold, child).max(initial=0)).bit_length()
    return bits if bits + 1 + room <= 32 else None


def words(feature: Array, threshold: Array, child: Array, missing: Array, bits: int) -> Array:
    """[nodes, 2] f32: threshold, bits."""
    packed = feature.astype(np.int64) | (missing.astype(np.int64) << bits)
    packed |= _reach(threshold, child) << (bits + 1)
    nodes = np.empty((len(feature), 2), np.float32)
    nodes[:, 0] = threshold
    nodes[:, 1] = packed.astype(np.uint32).view(np.float32)
    return nodes


def _padded(roots: Array, threshold: Array, child: Array) -> Array:
    """Roots by the depth of their trees, so that eight walks end together; the last node, an empty leaf, fills up."""
    made = np.full(-(-len(roots) // WALKS) * WALKS, len(threshold) - 1, np.int32)
    made[: len(roots)] = roots[np.argsort(_depths(roots, threshold, child), kind="stable")]
    return made


def _depths(roots: Array, threshold: Array, child: Array) -> Array:
    """Tests on the longest way through each tree."""
    below, ways = [0] * len(threshold), child.tolist()  # lists: of an array, Python takes a number ten times as long
    for node in np.flatnonzero(~np.isnan(threshold))[::-1].tolist():  # children come after their parents
        left, right = below[ways[node]], below[ways[node] + 1]
        below[node] = 1 + (left if left > right else right)
    return np.array(below)[roots]


def _node_weights(leaf: Array, starts: Array, weights: Array) -> Array:
    """[nodes]: the weight of each leaf, 0 where it has none."""
    sums = np.concatenate([weights, np.zeros(1, F32)])[starts[:-1]] * (np.diff(starts) > 0)
    return np.where(leaf >= 0, sums[leaf], 0).astype(np.float32)


def _known(ins: Types) -> tuple[Array, ...] | None:
    """Contents of the operands from feature to weights, None unless all are constant."""
    found = tuple(content(t.known) for t in ins[1:10] if t is not None and t.known is not None)
    return found if len(found) == 9 else None


def _accepts(op: TreeEnsemble, ins: Types) -> bool:
    arrays, x = _known(ins), ins[0]
    if op.aggregate != "SUM" or x.dtype != F32 or arrays is None:
        return False
    if not is_sound(x.dims[1], arrays, op.n_targets) or feature_bits(*arrays[:3]) is None:
        return False
    leaf, starts = arrays[4], arrays[6]
    return bool(starts[leaf[-1]] == starts[leaf[-1] + 1])  # the trees are filled up by the last leaf


def _content_of(context: Context, known: list[Any], key: Hashable, make: Making) -> Array:
    """What is packed of constants, as an array: how far walks reach follows from what it holds."""
    node: Any = next((k.node for k in known if is_unseen(k)), None)
    made = make(*known) if node is None else context.packed(tuple(known), key, make)
    return node.content(made) if type(made) is Packed else made


@kernel(TreeEnsemble, accepts=_accepts)
def tree_ensemble(op: TreeEnsemble, ins: Types, outs: Outs, context: Context) -> list[Step]:
    arrays = tested(_known(ins))
    feature, threshold, child, missing, leaf, roots, starts, targets, weights = arrays
    n, features = ins[0].dims
    bits = feature_bits(feature, threshold, child) or 1
    flagged = bool(missing.any())
    held = [t.known for t in ins[1:10] if t is not None]
    nodes = _content_of(context, held[:4], ("nodes", bits), partial(words, bits=bits))
    padded = _content_of(context, [held[5], *held[1:3]], "roots", _padded)
    args: dict[str, Argument] = {
        "x": In(0), "y": Out(0), "nodes": nodes, "roots": padded, "n": n, "features": features, "trees": len(roots),
        "room": len(padded), "bits": bits, "chunk": max(CHUNK_BYTES // (4 * WALKS * max(features, 1)), 1),
        "outs": op.n_targets, "base": np.zeros(op.n_targets, F32) if len(ins) < 11 or ins[10] is None else In(10),
    }  # fmt: skip
    parallel = (n > 1) & (n * len(roots) > PARALLEL_WALKS)
    if op.n_targets == 1 and np.diff(starts).max(initial=0) <= 1:
        args["weights"] = _content_of(context, [held[4], held[6], held[8]], "by node", _node_weights)
        return [Step(ensemble(flagged, True), args, parallel)]
    args |= {"leaf": leaf, "starts": starts, "targets": targets, "weights": weights}
    return [Step(ensemble(flagged, False), args, parallel)]
