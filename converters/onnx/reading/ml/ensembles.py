"""Readers of decision trees of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.types import F32, Array
from bolt_numba.converters.builder import NO_FLOATS, NO_INTS, Floats, Ints, ManyFloats, ManyInts, Texts
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.ml.forest import LEAF, MODES, NOWHERE, Entries, Nodes, forest
from bolt_numba.converters.onnx.reading.ml.scores import (
    ML,
    as_float,
    class_labels,
    pick_labels,
    post_transformed,
    two_scores,
)
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.shape import Concat
from bolt_numba.ops.data.trees import TreeEnsemble
from bolt_numba.ops.pointwise import Add, Cast, Mul

Trees: TypeAlias = tuple[Nodes, Array, Entries]
"""Nodes, the rows of the roots among them, and what leaves say."""
MAX_NUMBER = 1 << 62
"""Number of a node among those of all trees, which fits into i64."""
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""By the numbers that TreeEnsemble-5 gives them."""


def _same_length(b: NodeBuilder, what: str, lists: Sequence[Any], wanted: int) -> None:
    lengths = [len(v) for v in lists]
    b.invalid_if(any(n != wanted for n in lengths), f"lengths of {what}", lengths, f"{wanted} each")


def _summed(b: NodeBuilder, x: Value, trees: Trees, n_targets: int, aggregate: str, base: Array | None) -> Value:
    """What all trees say, with averages and base values."""
    if aggregate not in AGGREGATES or n_targets < 1:
        raise b.invalid("aggregate_function and targets", (aggregate, n_targets), f"one of {AGGREGATES} and a number")
    dtype = x.type.dtype
    offset = None if base is None or not base.size else np.broadcast_to(base, n_targets).astype(dtype)
    arrays = forest(*trees, dtype)
    if aggregate != "AVERAGE":
        return b(TreeEnsemble(n_targets, aggregate), x, *arrays, offset)
    made = b(Mul(), b(TreeEnsemble(n_targets), x, *arrays), np.array(1 / max(len(trees[1]), 1), dtype))
    return made if offset is None else b(Add(), made, offset)


def _within(b: NodeBuilder, what: str, numbers: Array, count: int) -> None:
    odd = (numbers < 0) | (numbers >= count)
    if odd.any():
        raise b.invalid(what, int(numbers[odd.argmax()]), f"0 to {count - 1}")


class _NodeRows:
    """Rows of nodes by the numbers of their trees and their own."""

    def __init__(self, b: NodeBuilder, trees: Array, nodes: Array) -> None:
        self.trees, first, tree = np.unique(trees, return_index=True, return_inverse=True)
        self.roots = np.sort(first)
        self.least, self.most = int(nodes.min(initial=0)), int(nodes.max(initial=0))
        if (self.most - self.least + 1) * max(len(self.trees), 1) >= MAX_NUMBER:
            raise b.invalid("nodes_nodeids", f"{self.least} to {self.most}", "numbers from 0 on")
        numbers = self._numbers(tree, nodes)
        self.order = np.argsort(numbers, kind="stable")
        self.numbers = numbers[self.order]
        twice = np.flatnonzero(self.numbers[1:] == self.numbers[:-1])
        if twice.size:
            row = self.order[twice[0]]
            raise b.invalid("node", (int(trees[row]), int(nodes[row])), "one of that number in its tree")

    def _numbers(self, tree: Array, nodes: Array) -> Array:
        return np.asarray(tree * (self.most - self.least + 1) + (nodes - self.least))

    def find(self, trees: Array, nodes: Array) -> Array:
        """Their rows, `NOWHERE` for those that are not there."""
        if not len(self.numbers):
            return np.full(len(nodes), NOWHERE)
        tree = np.searchsorted(self.trees[:-1], trees)
        wanted = self._numbers(tree, nodes)
        at = np.searchsorted(self.numbers[:-1], wanted)
        known = (self.trees[tree] == trees) & (nodes >= self.least) & (nodes <= self.most)
        return np.where(known & (self.numbers[at] == wanted), self.order[at], NOWHERE)


def _trees(b: NodeBuilder, given: dict[str, Any], entries: Sequence[Array], single: bool = False) -> Trees:
    """Trees in the form of TreeEnsembleRegressor and TreeEnsembleClassifier: parallel lists over all nodes.

    single: of several weights of a leaf the first counts, else all do.
    """
    names = ("treeids", "nodeids", "truenodeids", "falsenodeids", "featureids", "modes")
    tree, node, true, false, feature, modes = (given[f"nodes_{name}"] for name in names)
    value = _either(given["nodes_values"], given["nodes_values_as_tensor"])
    missing = given["nodes_missing_value_tracks_true"]
    missing = missing if len(missing) else np.zeros(len(tree), bool)
    _same_length(b, "the lists of nodes", [tree, node, true, false, feature, modes, value, missing], len(tree))
    known = MODES[: MODES.index("BRANCH_MEMBER")]  # this form has no sets
    numbers = {**{mode: i for i, mode in enumerate(known)}, "LEAF": LEAF}
    mode = np.fromiter(map(numbers.get, modes, repeat(NOWHERE)), np.int8, len(modes))
    if mode.min(initial=0) < 0:
        raise b.invalid("nodes_modes", modes[int(mode.argmin())], f"LEAF or one of {known}")
    rows = _NodeRows(b, tree, node)
    said = Entries(rows.find(*entries[:2]), *entries[2:])
    odd = (said.node == NOWHERE) | (mode[said.node] != LEAF) if len(mode) else said.node == NOWHERE
    if odd.any():
        raise b.invalid("node with a weight", tuple(int(e[odd.argmax()]) for e in entries[:2]), "a leaf")
    nodes = Nodes(mode, feature, value, missing, rows.find(tree, true), rows.find(tree, false))
    return nodes, rows.roots, said.first() if single else said


def _either(listed: Array, tensor: Array | None) -> Array:
    return listed if tensor is None else tensor.reshape(-1)


@reader("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(
    b: NodeBuilder,
    x: Value,
    *,
    aggregate_function: str = "SUM",
    base_values: ManyFloats = NO_FLOATS,
    base_values_as_tensor: Array | None = None,
    n_targets: int = 1,
    nodes_treeids: ManyInts = NO_INTS, nodes_nodeids: ManyInts = NO_INTS, nodes_modes: Texts = (),
    nodes_featureids: ManyInts = NO_INTS,
    nodes_values: ManyFloats = NO_FLOATS, nodes_values_as_tensor: Array | None = None,
    nodes_truenodeids: ManyInts = NO_INTS, nodes_falsenodeids: ManyInts = NO_INTS,
    nodes_missing_value_tracks_true: ManyInts = NO_INTS,
    nodes_hitrates: ManyFloats = NO_FLOATS, nodes_hitrates_as_tensor: Array | None = None,
    post_transform: str = "NONE",
    target_ids: ManyInts = NO_INTS,
    target_nodeids: ManyInts = NO_INTS,
    target_treeids: ManyInts = NO_INTS,
    target_weights: ManyFloats = NO_FLOATS,
    target_weights_as_tensor: Array | None = None,
) -> Value:  # fmt: skip
    """A leaf may name the only target several times, as skl2onnx has it; the first time counts, as in onnxruntime."""
    given = locals()
    data = as_float(b, x)
    weights = _either(target_weights, target_weights_as_tensor)
    entries = (target_treeids, target_nodeids, target_ids, weights)
    _same_length(b, "the lists of targets", entries, len(weights))
    _within(b, "target_ids", target_ids, n_targets)
    base = _either(base_values, base_values_as_tensor)
    made = _summed(b, data, _trees(b, given, entries, n_targets == 1), n_targets, aggregate_function, base)
    return b(Cast(F32), post_transformed(b, made, post_transform))


@reader("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(
    b: NodeBuilder,
    x: Value,
    *,
    base_values: ManyFloats = NO_FLOATS,
    base_values_as_tensor: Array | None = None,
    class_ids: ManyInts = NO_INTS,
    class_nodeids: ManyInts = NO_INTS,
    class_treeids: ManyInts = NO_INTS,
    class_weights: ManyFloats = NO_FLOATS,
    class_weights_as_tensor: Array | None = None,
    classlabels_int64s: Ints = (),
    classlabels_strings: Texts = (),
    nodes_treeids: ManyInts = NO_INTS,
    nodes_nodeids: ManyInts = NO_INTS,
    nodes_modes: Texts = (),
    nodes_featureids: ManyInts = NO_INTS,
    nodes_values: ManyFloats = NO_FLOATS,
    nodes_values_as_tensor: Array | None = None,
    nodes_truenodeids: ManyInts = NO_INTS,
    nodes_falsenodeids: ManyInts = NO_INTS,
    nodes_missing_value_tracks_true: ManyInts = NO_INTS,
    nodes_hitrates: ManyFloats = NO_FLOATS,
    nodes_hitrates_as_tensor: Array | None = None,
    post_transform: str = "NONE",
) -> Any:
    """Two classes whose leaves speak of one class only have one score, whose sign or half decides.

    Of a single class the first weight of a leaf counts, as in `tree_ensemble_regressor`.
    """
    given = locals()
    data = as_float(b, x)
    labels = class_labels(b, classlabels_int64s, classlabels_strings)
    weights = _either(class_weights, class_weights_as_tensor)
    binary = len(labels) == 2 and len(np.unique(class_ids)) == 1
    places = np.zeros_like(class_ids) if binary else class_ids
    entries = (class_treeids, class_nodeids, places, weights)
    _same_length(b, "the lists of classes", entries, len(weights))
    count = 1 if binary else len(labels)
    _within(b, "class_ids", places, count)
    base = _either(base_values, base_values_as_tensor)
    scores = _summed(b, data, _trees(b, given, entries, len(labels) == 1), count, "SUM", base[-1:] if binary else base)
    if not binary:
        made = post_transformed(b, scores, post_transform)
        return pick_labels(b, scores, labels), b(Cast(F32), made)
    label, made = two_scores(b, scores, labels, post_transform, weights.min(initial=0.0) >= 0)
    if class_ids.any():  # the second class has the scores, and the first none
        made = post_transformed(b, b(Concat(1), b(Mul(), scores, 0.0), scores), post_transform)
    return label, b(Cast(F32), made)


def _sets(b: NodeBuilder, modes: Array, values: Array | None) -> list[Floats]:
    """Members of the set of each node of that mode, in order; NaN ends one."""
    found: list[list[float]] = [[]]
    for value in [] if values is None else values.reshape(-1).tolist():
        if np.isnan(value):
            found.append([])
        else:
            found[-1].append(value)
    wanted = int((modes == MODES.index("BRANCH_MEMBER")).sum())
    sets = [tuple(s) for s in found]
    if len(sets) == wanted + 1 and not sets[-1]:
        sets.pop()
    b.invalid_if(len(sets) != wanted and wanted, "sets among membership_values", len(sets), wanted)
    return sets[:wanted]


@reader("TreeEnsemble", domain=ML)
def tree_ensemble(
    b: NodeBuilder,
    x: Value,
    *,
    leaf_targetids: ManyInts,
    leaf_weights: Array,
    nodes_falseleafs: ManyInts,
    nodes_falsenodeids: ManyInts,
    nodes_featureids: ManyInts,
    nodes_modes: Array,
    nodes_splits: Array,
    nodes_trueleafs: ManyInts,
    nodes_truenodeids: ManyInts,
    tree_roots: ManyInts,
    aggregate_function: int = 1,
    membership_values: Array | None = None,
    n_targets: int = 1,
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: ManyInts = NO_INTS,
    post_transform: int = 0,
) -> Value:
    """Each node has the leaves that it names for itself.  A root is a leaf if both of its branches are that leaf."""
    modes, splits, weights = nodes_modes.reshape(-1), nodes_splits.reshape(-1), leaf_weights.reshape(-1)
    missing = nodes_missing_value_tracks_true if len(nodes_missing_value_tracks_true) else np.zeros(len(modes), bool)
    branches = (nodes_truenodeids, nodes_trueleafs, nodes_falsenodeids, nodes_falseleafs)
    _same_length(b, "the lists of nodes", (nodes_featureids, splits, missing, *branches), len(modes))
    _same_length(b, "the lists of leaves", [weights], len(leaf_targetids))
    known = bool(((modes >= 0) & (modes < len(MODES))).all()) and 0 <= post_transform < len(TRANSFORMS)
    if not known or not 0 <= aggregate_function < len(AGGREGATES):
        raise b.invalid("modes or functions", (modes, post_transform, aggregate_function), "numbers of the standard")
    _within(b, "leaf_targetids", leaf_targetids, n_targets)
    data, inner = as_float(b, x), len(modes)
    is_leaf = np.append(nodes_trueleafs, nodes_falseleafs).astype(bool)
    wanted = np.append(nodes_truenodeids, nodes_falsenodeids)
    _within(b, "leaves", wanted[is_leaf], len(weights))
    _within(b, "tree_roots", tree_roots, inner)
    said = wanted[is_leaf]
    wanted = np.where((wanted >= 0) & (wanted < inner), wanted, NOWHERE)
    wanted[is_leaf] = np.arange(inner, inner + len(said))
    true, false = np.split(wanted, 2)
    alone = is_leaf[tree_roots] & is_leaf[inner + tree_roots] & (nodes_truenodeids == nodes_falsenodeids)[tree_roots]
    nothing, nowhere = np.zeros(len(said), np.int8), np.full(len(said), NOWHERE)
    feature, value, missing = (np.append(a, nothing.astype(a.dtype)) for a in (nodes_featureids, splits, missing))
    ways = np.append(true, nowhere), np.append(false, nowhere)
    mode = np.append(modes, np.full(len(said), LEAF, modes.dtype))
    nodes = Nodes(mode, feature, value, missing, *ways, _sets(b, modes, membership_values))
    entries = Entries(np.arange(inner, len(mode)), leaf_targetids[said], weights[said])
    trees = nodes, np.where(alone, true[tree_roots], tree_roots), entries
    made = _summed(b, data, trees, n_targets, AGGREGATES[aggregate_function], None)
    return b(Cast(x.type.dtype), post_transformed(b, made, TRANSFORMS[post_transform]))
