"""Ensembles of decision trees without branches: several walks go on side by side, and none depends on another.

A node is two words: its threshold, and bits that hold the feature, whether NaN goes left, and how far its children are.
A leaf leads to itself, so walks that have arrived wait for the others.  Of many rows, eight go through one tree
together; of the few left over, each goes through eight trees at once.  Vector gathers are slower than this.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.lang import (
    I64,
    PTR,
    copy_bytes,
    inline,
    load_f32,
    load_i32,
    load_u32,
    native,
    split,
    store_f32,
)
from bolt_numba.kernels.jit import Native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types, kernel
from bolt_numba.ops.tree import TreeEnsemble, is_sound
from bolt_numba.types import F32, Array, TensorType

WALKS = 8
"""Walks side by side."""
CHUNK = 1 << 17
"""Bytes of rows that stay in the second-level cache while all trees are walked."""
FASTMATH = {"contract", "nsz"}
PARALLEL = 3000
"""Walks, one row through one tree, from which a second thread pays."""


@cache
def walker(flagged: bool) -> Any:
    """Helpers that make eight walks to leaves: of eight rows, and through eight trees.

    flagged: whether NaN ever goes left.
    """

    @inline
    def step(nodes, x, at, bits):
        limit = load_f32(nodes + 8 * at)
        word = np.int64(load_u32(nodes + 8 * at + 4))
        value = load_f32(x + 4 * (word & ((1 << bits) - 1)))
        left = np.int64(value <= limit)
        if flagged:
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
            moved = (a0 ^ b0) | (a1 ^ b1) | (a2 ^ b2) | (a3 ^ b3) | (a4 ^ b4) | (a5 ^ b5) | (a6 ^ b6) | (a7 ^ b7)
            a0, a1, a2, a3, a4, a5, a6, a7 = b0, b1, b2, b3, b4, b5, b6, b7
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
def single_target(flagged: bool) -> Native:
    """Kernel of one target; weights: [nodes] f32, those of leaves; roots: [room] i32, filled up with an empty leaf."""
    rows, trees = walker(flagged)

    def body(p, tid, nthreads):
        y, nodes, weights, roots, bits, ld = p.y, p.nodes, p.weights, p.roots, p.bits, 4 * p.features
        first, last = split(p.n // WALKS, tid, nthreads)
        while first < last:
            end = min(last, first + p.chunk)
            start_rows(y, p.base, first * WALKS, end * WALKS, 1)
            for t in range(p.trees):
                root = np.int64(load_i32(roots + 4 * t))
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
            first = end
        done = p.n // WALKS * WALKS
        first, last = split(p.n - done, tid, nthreads)
        for i in range(done + first, done + last):
            total = load_f32(p.base)
            for t in range(0, p.room, WALKS):
                a, b, c, d, e, f, g, h = trees(nodes, bits, p.x + i * ld, roots + 4 * t)
                low = (load_f32(weights + 4 * a) + load_f32(weights + 4 * b)) + (
                    load_f32(weights + 4 * c) + load_f32(weights + 4 * d)
                )
                high = (load_f32(weights + 4 * e) + load_f32(weights + 4 * f)) + (
                    load_f32(weights + 4 * g) + load_f32(weights + 4 * h)
                )
                total += low + high
            store_f32(y + 4 * i, total)

    body.__name__ = f"tree_sums{'_nan' * flagged}"
    return native(fastmath=FASTMATH, **_FIELDS)(body)


@inline
def add_leaf(y, place, leaf_of, starts, targets, weights):
    """Add the entries of a leaf, given by its place among the nodes, to a row of y."""
    leaf = np.int64(load_i32(leaf_of + 4 * place))
    for e in range(load_i32(starts + 4 * leaf), load_i32(starts + 4 * leaf + 4)):
        out = y + 4 * np.int64(load_i32(targets + 4 * e))
        store_f32(out, load_f32(out) + load_f32(weights + 4 * e))


@cache
def many_targets(flagged: bool) -> Native:
    """Kernel of any number of targets; weights and targets: [entries], starts: [leaves + 1], leaf: [nodes] i32."""
    rows, trees = walker(flagged)

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

    def body(p, tid, nthreads):
        nodes, roots, bits, ld, row = p.nodes, p.roots, p.bits, 4 * p.features, 4 * p.outs
        first, last = split(p.n // WALKS, tid, nthreads)
        while first < last:
            end = min(last, first + p.chunk)
            start_rows(p.y, p.base, first * WALKS, end * WALKS, p.outs)
            for t in range(p.trees):
                root = np.int64(load_i32(roots + 4 * t))
                for block in range(first, end):
                    places = rows(nodes, bits, p.x + block * WALKS * ld, ld, root)
                    add_leaves(p, p.y + block * WALKS * row, row, places)
            first = end
        done = p.n // WALKS * WALKS
        first, last = split(p.n - done, tid, nthreads)
        start_rows(p.y, p.base, done + first, done + last, p.outs)
        for i in range(done + first, done + last):
            for t in range(0, p.room, WALKS):
                add_leaves(p, p.y + i * row, 0, trees(nodes, bits, p.x + i * ld, roots + 4 * t))

    body.__name__ = f"tree_votes{'_nan' * flagged}"
    return native(fastmath=FASTMATH, **_FIELDS, **dict.fromkeys(("leaf", "starts", "targets"), PTR))(body)


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


def _padded(roots: Array, empty: int) -> Array:
    made = np.full(-(-len(roots) // WALKS) * WALKS, empty, np.int32)
    made[: len(roots)] = roots
    return made


def _node_weights(leaf: Array, starts: Array, weights: Array) -> Array:
    """[nodes]: the weight of each leaf, 0 where it has none."""
    sums = np.concatenate([weights, np.zeros(1, F32)])[starts[:-1]] * (np.diff(starts) > 0)
    return np.where(leaf >= 0, sums[leaf], 0).astype(np.float32)


def _known(ins: Types) -> tuple[Array, ...] | None:
    """Contents of the operands from feature to weights, None unless all are constant."""
    found = tuple(t.known for t in ins[1:10] if t is not None and t.known is not None)
    return found if len(found) == 9 else None


def _accepts(op: TreeEnsemble, ins: Types) -> bool:
    arrays, x = _known(ins), ins[0]
    if op.aggregate != "SUM" or x is None or x.dtype != F32 or arrays is None:
        return False
    return is_sound(x.dims[1], arrays, op.n_targets) and feature_bits(*arrays[:3]) is not None


@kernel(TreeEnsemble, accepts=_accepts)
def tree_ensemble(op: TreeEnsemble, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    arrays = _known(ins)
    assert arrays is not None, "accepts() has tested this"
    assert ins[0] is not None
    feature, threshold, child, missing, leaf, roots, starts, targets, weights = arrays
    n, features = ins[0].dims
    bits = feature_bits(feature, threshold, child) or 1
    flagged = bool(missing.any())
    nodes = context.packed(threshold, "nodes", lambda t: words(feature, t, child, missing, bits))
    padded = context.packed(roots, "roots", lambda r: _padded(r, len(feature) - 1))
    args: dict[str, Argument] = {
        "x": In(0), "y": Out(0), "nodes": nodes, "roots": padded, "n": n, "features": features, "trees": len(roots),
        "room": len(padded), "bits": bits, "chunk": max(CHUNK // (4 * WALKS * max(features, 1)), 1),
        "outs": op.n_targets, "base": np.zeros(op.n_targets, F32) if len(ins) < 11 or ins[10] is None else In(10),
    }  # fmt: skip
    parallel = n > 1 and n * len(roots) > PARALLEL
    if op.n_targets == 1 and np.diff(starts).max(initial=0) <= 1:
        args["weights"] = context.packed(weights, "by node", lambda w: _node_weights(leaf, starts, w))
        return [Step(single_target(flagged), args, parallel)]
    args |= {"leaf": leaf, "starts": starts, "targets": targets, "weights": weights}
    return [Step(many_targets(flagged), args, parallel)]
