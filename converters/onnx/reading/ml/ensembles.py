"""Readers of decision trees of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, AnyDType, Array
from bolt_numba.converters.builder import Floats, Ints, Texts
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.ml.forest import LEAF, MODES, Branch, Forest, Key, Leaf
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
from bolt_numba.ops.data.trees import TreeEnsemble
from bolt_numba.ops.pointwise import Add, Cast, Mul

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""By the numbers that TreeEnsemble-5 gives them."""


def _same_length(b: NodeBuilder, what: str, lists: Sequence[Any], wanted: int) -> None:
    lengths = [len(v) for v in lists]
    if any(n != wanted for n in lengths):
        raise b.invalid(f"lengths of {what}", lengths, f"{wanted} each")


def _summed(b: NodeBuilder, x: Value, forest: Forest, n_targets: int, aggregate: str, base: Array | None) -> Value:
    """What all trees say, with averages and base values."""
    if aggregate not in AGGREGATES or n_targets < 1:
        raise b.invalid("aggregate_function and targets", (aggregate, n_targets), f"one of {AGGREGATES} and a number")
    dtype = x.type.dtype
    offset = None if base is None or not base.size else np.broadcast_to(base, n_targets).astype(dtype)
    if aggregate != "AVERAGE":
        return b(TreeEnsemble(n_targets, aggregate), x, *forest.arrays(), offset)
    made = b(Mul(), b(TreeEnsemble(n_targets), x, *forest.arrays()), np.array(1 / len(forest.roots), dtype))
    return made if offset is None else b(Add(), made, offset)


class OldForest:
    """Trees in the form of TreeEnsembleRegressor and TreeEnsembleClassifier: parallel lists over all nodes.

    single: of several weights of a leaf the first counts, else all do.
    """

    def __init__(
        self,
        b: NodeBuilder,
        given: dict[str, Any],
        entries: Sequence[Sequence[Any]],
        dtype: AnyDType,
        single: bool = False,
    ) -> None:
        lists = [given[f"nodes_{name}"] for name in ("treeids", "nodeids", "featureids", "modes")]
        values = given["nodes_values_as_tensor"]
        values = given["nodes_values"] if values is None else values.reshape(-1).tolist()
        lists += [given["nodes_truenodeids"], given["nodes_falsenodeids"], values]
        count = len(lists[0])
        missing = given["nodes_missing_value_tracks_true"] or (0,) * count
        _same_length(b, "the lists of nodes", [*lists, missing], count)
        self.nodes: dict[Key, Branch | Leaf] = {}
        self.roots: dict[int, Key] = {}
        for tree, node, feature, mode, true, false, value, tracks in zip(*lists, missing, strict=True):
            key = (tree, node)
            if key in self.nodes:
                raise b.invalid("node", key, "one of that number in its tree")
            self.roots.setdefault(tree, key)
            branch = Branch(mode, feature, value, bool(tracks), (tree, true), (tree, false))
            self.nodes[key] = Leaf() if mode == LEAF else branch
        for tree, node, target, weight in zip(*entries, strict=True):
            leaf = self.nodes.get((tree, node))
            if not isinstance(leaf, Leaf):
                raise b.invalid("node with a weight", (tree, node), "a leaf")
            if not (single and leaf.entries):
                leaf.entries.append((target, weight))
        self.forest = Forest(self.nodes, dtype)
        for root in self.roots.values():
            self.forest.add_tree(root)


def _either(listed: Floats, tensor: Array | None) -> Floats:
    return listed if tensor is None else tuple(tensor.reshape(-1).tolist())


@reader("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(
    b: NodeBuilder,
    x: Value,
    *,
    aggregate_function: str = "SUM",
    base_values: Floats = (),
    base_values_as_tensor: Array | None = None,
    n_targets: int = 1,
    nodes_treeids: Ints = (), nodes_nodeids: Ints = (), nodes_modes: Texts = (), nodes_featureids: Ints = (),
    nodes_values: Floats = (), nodes_values_as_tensor: Array | None = None,
    nodes_truenodeids: Ints = (), nodes_falsenodeids: Ints = (), nodes_missing_value_tracks_true: Ints = (),
    nodes_hitrates: Floats = (), nodes_hitrates_as_tensor: Array | None = None,
    post_transform: str = "NONE",
    target_ids: Ints = (),
    target_nodeids: Ints = (),
    target_treeids: Ints = (),
    target_weights: Floats = (),
    target_weights_as_tensor: Array | None = None,
) -> Value:  # fmt: skip
    """A leaf may name the only target several times, as skl2onnx has it; the first time counts, as in onnxruntime."""
    given = locals()
    data = as_float(b, x)
    weights = _either(target_weights, target_weights_as_tensor)
    entries = (target_treeids, target_nodeids, target_ids, weights)
    _same_length(b, "the lists of targets", entries, len(weights))
    if any(not 0 <= t < n_targets for t in target_ids):
        raise b.invalid("target_ids", max(target_ids), f"0 to {n_targets - 1}")
    old = OldForest(b, given, entries, data.type.dtype, single=n_targets == 1)
    base = np.array(_either(base_values, base_values_as_tensor))
    made = _summed(b, data, old.forest, n_targets, aggregate_function, base)
    return b(Cast(F32), post_transformed(b, made, post_transform))


@reader("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(
    b: NodeBuilder,
    x: Value,
    *,
    base_values: Floats = (),
    base_values_as_tensor: Array | None = None,
    class_ids: Ints = (),
    class_nodeids: Ints = (),
    class_treeids: Ints = (),
    class_weights: Floats = (),
    class_weights_as_tensor: Array | None = None,
    classlabels_int64s: Ints = (),
    classlabels_strings: Texts = (),
    nodes_treeids: Ints = (), nodes_nodeids: Ints = (), nodes_modes: Texts = (), nodes_featureids: Ints = (),
    nodes_values: Floats = (), nodes_values_as_tensor: Array | None = None,
    nodes_truenodeids: Ints = (), nodes_falsenodeids: Ints = (), nodes_missing_value_tracks_true: Ints = (),
    nodes_hitrates: Floats = (), nodes_hitrates_as_tensor: Array | None = None,
    post_transform: str = "NONE",
) -> Any:
    """Two classes whose leaves speak of one class only have one score, whose sign or half decides."""
    given = locals()
    data = as_float(b, x)
    labels = class_labels(b, classlabels_int64s, classlabels_strings)
    weights = _either(class_weights, class_weights_as_tensor)
    binary = len(labels) <= 2 and len(set(class_ids)) == 1
    places = (0,) * len(class_ids) if binary else class_ids
    entries = (class_treeids, class_nodeids, places, weights)
    _same_length(b, "the lists of classes", entries, len(weights))
    count = 1 if binary else len(labels)
    if any(not 0 <= c < count for c in places):
        raise b.invalid("class_ids", max(class_ids), f"0 to {count - 1}")
    old = OldForest(b, given, entries, data.type.dtype)
    base = np.array(_either(base_values, base_values_as_tensor))
    scores = _summed(b, data, old.forest, count, "SUM", base[-1:] if binary else base)
    if not binary:
        made = post_transformed(b, scores, post_transform)
        return pick_labels(b, scores, labels), b(Cast(F32), made)
    label, made = two_scores(b, scores, labels, post_transform, min(weights, default=0.0) >= 0)
    return label, b(Cast(F32), made)


def _sets(b: NodeBuilder, modes: Sequence[int], values: Array | None) -> list[Floats]:
    """Members of the set of each node of that mode, in order; NaN ends one."""
    found: list[list[float]] = [[]]
    for value in [] if values is None else values.reshape(-1).tolist():
        if np.isnan(value):
            found.append([])
        else:
            found[-1].append(value)
    wanted = sum(m == MODES.index("BRANCH_MEMBER") for m in modes)
    sets = [tuple(s) for s in found]
    if len(sets) == wanted + 1 and not sets[-1]:
        sets.pop()
    if len(sets) != wanted and wanted:
        raise b.invalid("sets among membership_values", len(sets), wanted)
    return sets[:wanted]


@reader("TreeEnsemble", domain=ML)
def tree_ensemble(
    b: NodeBuilder,
    x: Value,
    *,
    leaf_targetids: Ints,
    leaf_weights: Array,
    nodes_falseleafs: Ints,
    nodes_falsenodeids: Ints,
    nodes_featureids: Ints,
    nodes_modes: Array,
    nodes_splits: Array,
    nodes_trueleafs: Ints,
    nodes_truenodeids: Ints,
    tree_roots: Ints,
    aggregate_function: int = 1,
    membership_values: Array | None = None,
    n_targets: int = 1,
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: Ints = (),
    post_transform: int = 0,
) -> Value:
    """A root both of whose branches are the same leaf is that leaf."""
    modes = nodes_modes.reshape(-1).astype(int).tolist()
    missing = nodes_missing_value_tracks_true or (0,) * len(modes)
    branches = (nodes_truenodeids, nodes_trueleafs, nodes_falsenodeids, nodes_falseleafs)
    lists = (nodes_featureids, nodes_splits.reshape(-1).tolist(), missing, *branches)
    weights = leaf_weights.reshape(-1).tolist()
    _same_length(b, "the lists of nodes", lists, len(modes))
    _same_length(b, "the lists of leaves", [weights], len(leaf_targetids))
    known = all(0 <= m < len(MODES) for m in modes) and 0 <= post_transform < len(TRANSFORMS)
    if not known or not 0 <= aggregate_function < len(AGGREGATES):
        raise b.invalid("modes or functions", (modes, post_transform, aggregate_function), "numbers of the standard")
    if any(not 0 <= t < n_targets for t in leaf_targetids):
        raise b.invalid("leaf_targetids", max(leaf_targetids), f"0 to {n_targets - 1}")
    data = as_float(b, x)
    nodes = _nodes(modes, lists, _sets(b, modes, membership_values))
    nodes.update(((True, i), Leaf([entry])) for i, entry in enumerate(zip(leaf_targetids, weights, strict=True)))
    forest = Forest(nodes, data.type.dtype)
    for root in tree_roots:
        node = nodes.get((False, root))
        alone = isinstance(node, Branch) and node.true == node.false and node.true[0]
        forest.add_tree(node.true if alone and isinstance(node, Branch) else (False, root))
    made = _summed(b, data, forest, n_targets, AGGREGATES[aggregate_function], None)
    return b(Cast(x.type.dtype), post_transformed(b, made, TRANSFORMS[post_transform]))


def _nodes(modes: Sequence[int], lists: Sequence[Any], sets: Sequence[Floats]) -> dict[Key, Branch | Leaf]:
    """Inner nodes by (False, number); leaves are (True, number)."""
    left = iter(sets)
    nodes: dict[Key, Branch | Leaf] = {}
    rows = zip(modes, *lists, strict=True)
    for i, (mode, feature, split, tracks, true, true_leaf, false, false_leaf) in enumerate(rows):
        members = next(left) if MODES[mode] == "BRANCH_MEMBER" else ()
        ways = (bool(true_leaf), true), (bool(false_leaf), false)
        nodes[False, i] = Branch(MODES[mode], feature, split, bool(tracks), *ways, members)
    return nodes
