"""Operators of ai.onnx.ml that pointwise operators and products do not express: categories, maps, coupled votes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.errors import DTypeError
from bolt_numba.base.types import (
    F32,
    F64,
    I64,
    STRING,
    AnyDType,
    Array,
    MapType,
    TensorType,
    dtype_name,
    map_of,
    sequence_of,
)
from bolt_numba.ops.content import bounded, want_between
from bolt_numba.ops.dtypes import nothing
from bolt_numba.ops.registry import Op, fresh_dim, op, want_dtype
from bolt_numba.ops.shapes import shape_of, want_dims, want_one


def _comparable(x: Array) -> list[Any]:
    """Elements as dictionary keys; all NaNs are one."""
    return [None if v != v else v for v in x.reshape(-1).tolist()]


def _first_places(keys: Array) -> dict[Any, int]:
    """Where each key stands first."""
    return dict(zip(reversed(_comparable(keys)), range(len(keys) - 1, -1, -1), strict=True))


def _looked_up(keys: Array, rows: Array, refuse: Callable[[Array], Array] | None = None) -> Callable[[Array], Array]:
    """A function that gives of each text the row of its place among ``keys``, of others the row behind these.

    refuse: what is called instead where a text is no key.
    """
    get, last, inner = _first_places(keys).get, len(keys), rows.shape[1:]
    row_bytes = rows.dtype.itemsize * math.prod(inner)
    single: dict[tuple[tuple[int, ...], int], Array] = {}  # rows, by the shape of a single text and its place

    def find(x: Array) -> Array:
        if x.size == 1:
            at = get(x.item(), last)
            if at < last or refuse is None:
                made = single.get((x.shape, at))
                if made is None:
                    made = single[x.shape, at] = rows[at : at + 1].reshape(x.shape + inner)
                return made
        ask(x.size * row_bytes, "encoded texts")
        found = np.fromiter(map(get, x.reshape(-1).tolist(), itertools.repeat(last)), np.int64, x.size)
        if refuse is not None and (found == last).any():
            return refuse(x)
        return rows.take(found, 0).reshape(x.shape + inner)

    return find


@op("LabelEncoder")
class LabelEncoder(Op):
    """y = values[i] where x = keys[i], else the default.

    x: [...] string, integer or float · keys: [k] of x's dtype, NaN equals NaN · values: [k], default: [1] of one dtype
    -> y: [...].  Of equal keys the first counts.  Source: ONNX ai.onnx.ml LabelEncoder-4.
    """

    def infer(self, x: TensorType, keys: TensorType, values: TensorType, default: TensorType) -> TensorType:
        want_dtype(self, "keys", keys.dtype, x.dtype)
        want_dtype(self, "default", default.dtype, values.dtype)
        want_dims(self, "keys", keys, None)
        want_dims(self, "values", values, None if keys.shape is None else keys.shape[0])
        want_one(self, default=default)
        return TensorType(values.dtype, x.shape)

    def reference(self, x: Array, keys: Array, values: Array, default: Array) -> Array:
        places = _first_places(keys)
        found = np.array([places.get(v, len(keys)) for v in _comparable(x)], I64)
        return np.asarray(np.concatenate([values, default.reshape(-1)])[found]).reshape(x.shape)

    def quick(self, *known: Array | None) -> Callable[[Array], Array] | None:
        x, keys, values, default = known
        if x is not None or keys is None or values is None or default is None or keys.dtype != STRING:
            return None
        return _looked_up(keys, np.concatenate([values, default.reshape(-1)]))


@op("OneHotEncoder")
class OneHotEncoder(Op):
    """y = 1 at the place of x among the categories along a new last axis, else 0.

    x: [...] of categories' dtype · categories: [k] -> y: [..., k] f32.  zeros: whether what is no category gives zeros;
    else it is an error.  Source: ONNX ai.onnx.ml OneHotEncoder-1.
    """

    zeros: bool = True
    data_bounds = bounded(x="looked up among the categories; what is none is refused, or gives zeros")

    def infer(self, x: TensorType, categories: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, categories.dtype)
        shape = shape_of(self, "categories", categories, 1)
        if x.shape is None or shape is None:
            return TensorType(F32, None)
        return TensorType(F32, (*x.shape, shape[0]))

    def reference(self, x: Array, categories: Array) -> Array:
        y = np.asarray(x[..., None] == categories).astype(F32)
        if not self.zeros and x.size and not y.any(-1).all():
            if (bounds := whole_range(categories)) is not None:
                want_between(self, "x", x, *bounds)
            raise self.fail("x", x[~y.any(-1)][0], f"one of {categories.tolist()[:8]}")
        return y

    def quick(self, *known: Array | None) -> Callable[[Array], Array] | None:
        x, categories = known
        if x is not None or categories is None or categories.dtype != STRING:
            return None
        if len(categories) > MOST_ONE_HOT:
            return self._scattered(categories)
        rows = one_hot_rows(categories)
        return _looked_up(categories, rows, None if self.zeros else lambda x: self.reference(x, categories))

    def _scattered(self, categories: Array) -> Callable[[Array], Array]:
        """Without a table, which grows by the square of the categories."""
        columns: dict[Any, list[int]] = {}
        for place, name in enumerate(categories.tolist()):
            columns.setdefault(name, []).append(place)

        def encoded(x: Array) -> Array:
            ask(x.size * len(categories) * F32.itemsize, "encoded texts")
            y = np.zeros((x.size, len(categories)), F32)
            for row, name in zip(y, x.reshape(-1).tolist(), strict=True):
                if name in columns:
                    row[columns[name]] = 1
                elif not self.zeros:
                    return self.reference(x, categories)  # says what is wrong
            return y.reshape(*x.shape, len(categories))

        return encoded


MOST_ONE_HOT = 512
"""Categories up to which a table has a row for each: 1 MiB."""


def whole_range(categories: Array) -> tuple[int, int] | None:
    """The least and the greatest of categories that are all integers from one to the other."""
    if categories.dtype.kind != "i" or not categories.size:
        return None
    low, high = int(categories.min()), int(categories.max())
    return (low, high) if len(np.unique(categories)) == high - low + 1 else None


def one_hot_rows(categories: Array) -> Array:
    """What OneHotEncoder makes of each category, and behind that of what is none: [k + 1, k]."""
    rows = np.zeros((len(categories) + 1, len(categories)), F32)
    rows[:-1] = categories[:, None] == categories
    return rows


@op("ZipMap")
class ZipMap(Op):
    """A dictionary from label to score for each row.

    scores: [n, labels] or [labels] f32 · labels: [labels] i64 or string -> seq(map(label, f32)).
    Source: ONNX ai.onnx.ml ZipMap-1.
    """

    def infer(self, scores: TensorType, labels: TensorType) -> TensorType:
        want_dtype(self, "scores", scores.dtype, F32, F64)
        want_dtype(self, "labels", labels.dtype, I64, STRING)
        shape = shape_of(self, "scores", scores, 1, 2)
        want_dims(self, "labels", labels, None if shape is None else shape[-1])
        return sequence_of(map_of(labels.dtype, TensorType(scores.dtype, ())))

    def reference(self, scores: Array, labels: Array) -> Any:
        names = labels.tolist()
        rows = scores.reshape(1, -1) if scores.ndim == 1 else scores
        if rows.shape[1] != len(names):
            raise self.fail("columns of scores", rows.shape[1], len(names))
        return (list(map(dict, map(zip, itertools.repeat(names), rows.tolist()))),)

    def quick(self, *known: Array | None) -> Callable[[Array], Any] | None:
        _, labels = known
        if labels is None:
            return None
        names = labels.tolist()

        def zipped(scores: Array) -> Any:
            if scores.ndim != 2 or scores.shape[1] != len(names):
                return self.reference(scores, labels)[0]
            return [dict(zip(names, row, strict=False)) for row in scores.tolist()]

        return zipped


def _want_map(owner: Op, x: TensorType, *keys: AnyDType) -> MapType:
    if not isinstance(x, MapType) or x.key not in keys:
        names = " or ".join(map(dtype_name, keys))
        raise DTypeError(f"{owner.name}: type of x: got {x}, wanted map({names}, ...)")
    return x


@op("DictVectorizer")
class DictVectorizer(Op):
    """y = the values of a dictionary by the order of a vocabulary, 0 (or an empty string) for keys that it lacks.

    x: map(key, value) · vocabulary: [k] of the keys' dtype -> y: [1, k] of ``dtype``, which is the values'.
    Source: ONNX ai.onnx.ml DictVectorizer-1.
    """

    dtype: AnyDType = F32

    def infer(self, x: TensorType, vocabulary: TensorType) -> TensorType:
        want_dtype(self, "values", _want_map(self, x, vocabulary.dtype).element.dtype, self.dtype)
        shape = shape_of(self, "vocabulary", vocabulary, 1)
        return TensorType(self.dtype, None if shape is None else (1, shape[0]))

    def reference(self, x: dict[Any, Any], vocabulary: Array) -> Any:
        return np.array([x.get(k, nothing(self.dtype)) for k in vocabulary.tolist()], self.dtype).reshape(1, -1)


@op("CastMap")
class CastMap(Op):
    """y = the values of a dictionary in the order of its keys, converted.

    x: map(i64, value) -> y: [1, values], or with ``size`` [1, size] where a key is a place and the rest is 0.
    Source: ONNX ai.onnx.ml CastMap-1.
    """

    to: AnyDType = F32
    size: int | None = None

    def infer(self, x: TensorType) -> TensorType:
        _want_map(self, x, I64)
        want_dtype(self, "y", self.to, F32, I64, STRING)
        if self.size is not None and self.size < 0:
            raise self.fail("size", self.size, "at least 0")
        return TensorType(self.to, (1, fresh_dim("values") if self.size is None else self.size))

    def reference(self, x: dict[int, Any]) -> Array:
        convert: Any = {F32: float, I64: lambda v: int(float(v)), STRING: str}[self.to]
        pairs = [(k, convert(x[k])) for k in sorted(x)]
        if self.size is None:
            return np.array([v for _, v in pairs], self.to).reshape(1, -1)
        y = np.full(self.size, nothing(self.to), self.to)
        for k, v in pairs:
            self.fail_if(not 0 <= k < self.size, "key", k, f"0 to {self.size - 1}")
            y[k] = v
        return y.reshape(1, -1)


@op("PairwiseCoupling")
class PairwiseCoupling(Op):
    """y = probabilities of all classes that fit best to those of one class against another.

    pairs: [n, k (k - 1) / 2] f32, the probability of i against j for i < j, row by row -> y: [n, k].
    Source: Wu, Lin and Weng, "Probability estimates for multi-class classification by pairwise coupling", method 2,
    with libsvm's stopping rule.
    """

    classes: int

    def infer(self, pairs: TensorType) -> TensorType:
        want_dtype(self, "pairs", pairs.dtype, F32)
        shape = shape_of(self, "pairs", pairs, 2)
        want_dims(self, "pairs", pairs, None, self.classes * (self.classes - 1) // 2)
        return TensorType(F32, None if shape is None else (shape[0], self.classes))

    def reference(self, pairs: Array) -> Array:
        return np.array([self._row(row) for row in pairs], F32).reshape(len(pairs), self.classes)

    def _row(self, row: Array) -> Array:
        k = self.classes
        won = np.zeros((k, k), F32)
        won[np.triu_indices(k, 1)] = row
        won.T[np.triu_indices(k, 1)] = 1 - row
        q = -won.T * won
        np.fill_diagonal(q, (won * won).sum(0))
        p = np.full(k, 1 / k, F32)
        for _ in range(max(100, k)):
            slope = q @ p
            level = p @ slope
            if np.abs(slope - level).max() < 0.005 / k:
                break
            for t in range(k):
                move = (level - slope[t]) / q[t, t]
                p[t] += move
                level = (level + move * (move * q[t, t] + 2 * slope[t])) / (1 + move) ** 2
                slope = (slope + move * q[t]) / (1 + move)
                p /= 1 + move
        return p
