"""Readers of support vector machines of ai.onnx.ml: kernels, sums and votes become products."""

from __future__ import annotations

import itertools

import numpy as np

from bolt_numba.base.types import F32, F64, I64, Array
from bolt_numba.converters.builder import Floats, Ints
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.ml.scores import ML, as_rows, class_labels, pick_labels, post_transformed
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.reduce import ReduceSumSquare
from bolt_numba.ops.arrays.shape import Concat, Reshape
from bolt_numba.ops.data.ml import PairwiseCoupling
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Cast, Clip, Exp, Greater, Mul, Neg, Pow, Sigmoid, Sub, Tanh, Where


def _kernel(b: NodeBuilder, x: Value, vectors: Array, kind: str, params: Floats) -> Value:
    """Values of the kernel between rows of x [n, features] and the vectors [m, features]: [n, m]."""
    gamma, coef0, degree = (*params, 0.0, 0.0, 0.0)[:3]
    if kind == "RBF":
        return _gaussian(b, x, vectors, gamma)
    dot = b(MatMul(), x, np.ascontiguousarray(vectors.T))
    if kind == "LINEAR":
        return dot
    scaled = b(Add(), b(Mul(), dot, gamma), coef0)
    if kind == "POLY":
        return b(Pow(), scaled, float(int(degree)))
    if kind == "SIGMOID":
        return b(Tanh(), scaled)
    raise b.invalid("kernel_type", kind, "LINEAR, POLY, RBF or SIGMOID")


def _gaussian(b: NodeBuilder, x: Value, vectors: Array, gamma: float) -> Value:
    """exp(-gamma |x - v|^2), by products; both are centred first, or a common offset would cancel digits."""
    centre = vectors.astype(np.float64).mean(0)
    moved = (vectors - centre).astype(F32)
    data = b(Sub(), x, centre.astype(F32))
    squares = (moved.astype(np.float64) ** 2).sum(1).astype(F32)
    own = b(ReduceSumSquare(), data, np.array([1]))
    dot = b(MatMul(alpha=-2.0), data, np.ascontiguousarray(moved.T), squares)
    return b(Exp(), b(Mul(), b(Clip(lo=0.0), b(Add(), dot, own)), -gamma))


def _combined(b: NodeBuilder, values: Value, weights: Array, offsets: Array) -> Value:
    """Products plus offsets, [n, pairs], in f64: dual coefficients may be large and nearly cancel."""
    return b(Cast(F32), b(MatMul(), b(Cast(F64), values), weights.astype(F64), offsets.astype(F64)))


def _vectors(b: NodeBuilder, values: Floats, count: int) -> Array:
    b.invalid_if(count < 1 or not values or len(values) % count, "support_vectors", len(values), f"{count} rows")
    return np.array(values, F32).reshape(count, -1)


@reader("SVMRegressor", domain=ML)
def svm_regressor(
    b: NodeBuilder,
    x: Value,
    *,
    coefficients: Floats = (),
    kernel_params: Floats = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Floats = (),
    support_vectors: Floats = (),
) -> Value:
    data = as_rows(b, b(Cast(F32), x))
    weights = np.array(coefficients, F32).reshape(-1, 1)
    offset = np.array(rho[:1] or (0.0,), F32)
    if n_supports:
        data = _kernel(b, data, _vectors(b, support_vectors, n_supports), kernel_type, kernel_params)
    y = _combined(b, data, weights, offset)
    if one_class:
        y = b(Where(), b(Greater(), y, 0.0), np.array(1, F32), np.array(-1, F32))
    return post_transformed(b, y, post_transform)


@reader("SVMClassifier", domain=ML)
def svm_classifier(
    b: NodeBuilder,
    x: Value,
    *,
    classlabels_ints: Ints = (),
    classlabels_strings: tuple[str, ...] = (),
    coefficients: Floats = (),
    kernel_params: Floats = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Floats = (),
    prob_b: Floats = (),
    rho: Floats = (),
    support_vectors: Floats = (),
    vectors_per_class: Ints = (),
) -> tuple[Value, Value]:
    """Every pair of classes votes; scores are those of the pairs, or probabilities coupled from them."""
    labels = class_labels(b, classlabels_ints, classlabels_strings)
    data, total = as_rows(b, b(Cast(F32), x)), sum(vectors_per_class)
    if not total:
        weights = np.ascontiguousarray(np.array(coefficients, F32).reshape(len(labels), -1).T)
        scores = b(Add(), b(MatMul(), data, weights), np.array(rho[:1] or (0.0,), F32))
        return pick_labels(b, scores, labels), post_transformed(b, scores, post_transform)
    values = _kernel(b, data, _vectors(b, support_vectors, total), kernel_type, kernel_params)
    classes = len(vectors_per_class)
    pairs = classes * (classes - 1) // 2
    if classes != len(labels) or len(rho) != pairs or len(coefficients) != (classes - 1) * total:
        raise b.invalid("classes", (classes, len(rho), len(coefficients)), f"{len(labels)} labels and their pairs")
    weights = _pair_weights(np.array(coefficients, F32).reshape(classes - 1, total), vectors_per_class)
    scores = _combined(b, values, weights, np.array(rho))
    first, second = _votes(classes)
    won = b(Cast(F32), b(Greater(), scores, 0.0))
    chosen = pick_labels(b, b(MatMul(), won, first - second, second.sum(0)), labels)
    if prob_a and prob_b:
        return chosen, post_transformed(b, _probabilities(b, scores, classes, prob_a, prob_b), post_transform)
    if pairs == 1:
        scores = b(Concat(1), b(Neg(), scores), scores)
        if min(coefficients) >= 0:
            chosen = _always(b, scores, labels[1:2])
    return chosen, post_transformed(b, scores, post_transform)


def _always(b: NodeBuilder, scores: Value, label: Array) -> Value:
    """The second label for every row: weights that are all positive name it whatever the vote."""
    rows = b(Mul(), b(Cast(I64), b(Greater(), scores, np.array(np.inf, F32))), 0)
    return b(Gather(0), label, b(Reshape(), b(Gather(1), rows, np.array([0])), np.array([-1])))


def _pair_weights(coefficients: Array, counts: Ints) -> Array:
    """[vectors, pairs]: what each kernel value counts in the score of each pair."""
    ends = np.cumsum((0, *counts))
    columns = []
    for i, j in itertools.combinations(range(len(counts)), 2):
        column = np.zeros(ends[-1], F32)
        column[ends[i] : ends[i + 1]] = coefficients[j - 1, ends[i] : ends[i + 1]]
        column[ends[j] : ends[j + 1]] = coefficients[i, ends[j] : ends[j + 1]]
        columns.append(column)
    return np.ascontiguousarray(np.array(columns, F32).T)


def _votes(classes: int) -> tuple[Array, Array]:
    """[pairs, classes] with a 1 at the first class of each pair, and at the second."""
    pairs = list(itertools.combinations(range(classes), 2))
    eye = np.eye(classes, dtype=F32)
    return eye[[i for i, _ in pairs]], eye[[j for _, j in pairs]]


def _probabilities(b: NodeBuilder, scores: Value, classes: int, a: Floats, c: Floats) -> Value:
    """Platt's sigmoid of every pair, coupled."""
    scaled = b(Add(), b(Mul(), scores, np.array(a, F32)), np.array(c, F32))
    pairs = b(Clip(1e-7, 1 - 1e-7), b(Sigmoid(), b(Neg(), scaled)))
    return b(PairwiseCoupling(classes), pairs)
