"""Ensembles of decision trees, all of whose tests are spelled ``x <= threshold``."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F32, F64, I32, Array, TensorType
from bolt_numba.ops.content import bounded
from bolt_numba.ops.registry import Op, op, want_among, want_dtype, want_dtypes
from bolt_numba.ops.shapes import shape_of, want_dims

AGGREGATES = ("SUM", "MIN", "MAX")
FOLLOWED = "where a walk goes; `is_sound` tests all when planning, else it is refused"
_NODE_OPERANDS = ("feature", "child", "leaf", "roots", "starts", "targets")


@op("TreeEnsemble")
class TreeEnsemble(Op):
    """y = what the leaves that a row reaches say together.

    x: [n, features] f32 or f64 -> y: [n, ``n_targets``] of x's dtype.  A target without any leaf gives 0; base,
    [n_targets] of x's dtype, is added.

    Nodes, [nodes] each: at an inner node, go to ``child`` when x[feature] <= threshold (or is NaN and ``missing``
    holds), else to the node after ``child``.  A leaf has threshold NaN, child = its own place - 1, no ``missing``, and
    its number in ``leaf``, which is -1 at inner nodes.  roots: [trees].  Leaf i adds (SUM; or takes the extreme)
    ``weights`` to ``targets``, both [entries], from entry starts[i] to starts[i + 1].
    feature, child, leaf, roots, starts, targets: i32 · missing: bool · threshold, weights: x's dtype.
    Source: ONNX ai.onnx.ml TreeEnsemble-5, whose other tests are rewritten by the converter.
    """

    n_targets: int = 1
    aggregate: str = "SUM"
    data_bounds = bounded(
        feature=FOLLOWED,
        child=FOLLOWED,
        leaf=FOLLOWED,
        roots=FOLLOWED,
        starts=FOLLOWED,
        targets=FOLLOWED,
        missing=FOLLOWED,
    )

    def infer(
        self,
        x: TensorType,
        feature: TensorType,
        threshold: TensorType,
        child: TensorType,
        missing: TensorType,
        leaf: TensorType,
        roots: TensorType,
        starts: TensorType,
        targets: TensorType,
        weights: TensorType,
        base: TensorType | None = None,
    ) -> TensorType:
        want_dtype(self, "x", x.dtype, F32, F64)
        want_dtype(self, "threshold", threshold.dtype, x.dtype)
        want_dtype(self, "weights", weights.dtype, x.dtype)
        want_dtype(self, "missing", missing.dtype, BOOL)
        self.fail_if(self.n_targets < 1, "n_targets", self.n_targets, "at least 1")
        want_dtypes(self, (x.dtype,), base=base)
        want_dims(self, "base", base, self.n_targets)
        for what, t in zip(_NODE_OPERANDS, (feature, child, leaf, roots, starts, targets), strict=True):
            want_dtype(self, what, t.dtype, I32)
        for what, t in (("feature", feature), ("roots", roots), ("starts", starts), ("targets", targets)):
            want_dims(self, what, t, None)
        for what, t in (("threshold", threshold), ("child", child), ("missing", missing), ("leaf", leaf)):
            want_dims(self, what, t, None if feature.shape is None else feature.shape[0])
        want_dims(self, "weights", weights, None if targets.shape is None else targets.shape[0])
        want_among(self, AGGREGATES, aggregate=self.aggregate)
        shape = shape_of(self, "x", x, 2)
        return TensorType(x.dtype, None if shape is None else (shape[0], self.n_targets))

    def reference(
        self,
        x: Array,
        feature: Array,
        threshold: Array,
        child: Array,
        missing: Array,
        leaf: Array,
        roots: Array,
        starts: Array,
        targets: Array,
        weights: Array,
        base: Array | None = None,
    ) -> Array:
        arrays = (feature, threshold, child, missing, leaf, roots, starts, targets, weights)
        if not is_sound(x.shape[1], arrays, self.n_targets):
            raise self.fail("nodes", f"{len(feature)} that lead outside", "children, leaves and entries that are there")
        at = np.broadcast_to(roots, (len(x), len(roots))).astype(np.int64)
        rows = np.arange(len(x))[:, None]
        for _ in range(len(feature)):
            limit = threshold[at]
            if np.isnan(limit).all():
                break
            value = x[rows, feature[at]]
            left = (value <= limit) | (np.isnan(value) & missing[at])
            at = child[at] + ~left
        reached = leaf[at]
        counts = (starts[1:] - starts[:-1])[reached].reshape(-1)
        row = np.repeat(np.repeat(np.arange(len(x)), len(roots)), counts)
        first = np.repeat(starts[reached].reshape(-1), counts)
        within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        y = self._combined(len(x), row, targets[first + within], weights[first + within])
        return y if base is None else np.asarray(y + base)

    def _combined(self, n: int, row: Array, target: Array, weight: Array) -> Array:
        """Entries combined in order, which is that of the trees for each row."""
        add: Any = {"SUM": np.add, "MIN": np.minimum, "MAX": np.maximum}[self.aggregate]
        start = {"SUM": 0.0, "MIN": np.inf, "MAX": -np.inf}[self.aggregate]
        y = np.full((n, self.n_targets), start, weight.dtype)
        add.at(y, (row, target), weight)
        return y if self.aggregate == "SUM" else np.where(np.isinf(y) & (y == start), y.dtype.type(0), y)


def is_sound(n_features: int, arrays: tuple[Array, ...], n_targets: int) -> bool:
    """Whether the operands after x lead nowhere outside of themselves, so that native code may follow them."""
    feature, threshold, child, missing, leaf, roots, starts, targets, weights = arrays
    places = np.arange(len(feature))
    inner = ~np.isnan(threshold)
    forward = (child[inner] > places[inner]) & (child[inner] < len(feature) - 1)
    return bool(
        len(feature)
        and forward.all()
        and (child[~inner] == places[~inner] - 1).all()
        and not missing[~inner].any()  # NaN would walk on from there
        and _within(feature, n_features)
        and _within(leaf[~inner], len(starts) - 1)
        and (leaf[inner] == -1).all()
        and _within(roots, len(feature))
        and _within(targets, n_targets)
        and starts[0] == 0
        and (np.diff(starts) >= 0).all()
        and starts[-1] <= len(targets) == len(weights)
    )


def _within(values: Array, count: int) -> bool:
    return bool(((values >= 0) & (values < count)).all())
