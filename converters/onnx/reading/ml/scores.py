"""What readers of ai.onnx.ml share: scores to probabilities and labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, F64, I64, STRING, Array
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.ir.graph import Value
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.reduce import ArgMax, ReduceMax, ReduceSum, Softmax
from bolt_numba.ops.arrays.shape import Concat, Squeeze, Unsqueeze

ML = "ai.onnx.ml"
_LAST = np.array([-1])
_WINITZKI = 0.147
"""Constant of the approximation of the inverse error function that the standard's engines use."""


def as_float(b: NodeBuilder, x: Value) -> Value:
    """Operand of a model of ai.onnx.ml: integers become f32."""
    return x if x.type.dtype in (F32, F64) else b(p.Cast(F32), x)


def as_rows(b: NodeBuilder, x: Value) -> Value:
    """Operand of a model in rows, [n, features]: one axis is one row."""
    return b(Unsqueeze(), x, np.array([0])) if b.rank_of(x) == 1 else x


def class_labels(b: NodeBuilder, ints: tuple[int, ...], texts: tuple[str, ...]) -> Array:
    """Labels as i64 or strings."""
    if bool(ints) == bool(texts):
        raise b.invalid("class labels", f"{len(ints)} integers and {len(texts)} strings", "one of the two")
    return np.array(ints, I64) if ints else np.array(texts, STRING)


def pick_labels(b: NodeBuilder, scores: Value, labels: Array) -> Value:
    """The label of the greatest score of each row: [n, classes] -> [n]."""
    return b(Gather(0), labels, b(ArgMax(axis=1, keepdims=False), scores))


def post_transformed(b: NodeBuilder, scores: Value, name: str) -> Value:
    """Scores [n, m] after one of the standard's transforms."""
    match name:
        case "NONE":
            return scores
        case "LOGISTIC":
            return b(p.Sigmoid(), scores)
        case "SOFTMAX":
            return b(Softmax(axis=1), scores)
        case "SOFTMAX_ZERO":
            return _softmax_zero(b, scores)
        case "PROBIT":
            return _probit(b, scores)
    raise b.invalid("post_transform", name, "NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO or PROBIT")


def _softmax_zero(b: NodeBuilder, scores: Value) -> Value:
    """Softmax in which scores of 0 stay 0; a half everywhere when all are."""
    top = b(ReduceMax(), scores, _LAST)
    powers = b(p.Exp(), b(p.Sub(), scores, top))
    shrunk = b(p.Mul(), scores, b(p.Exp(), b(p.Neg(), top)))
    kept = b(p.Where(), b(p.Greater(), b(p.Abs(), scores), 1e-7), powers, shrunk)
    total = b(ReduceSum(), kept, _LAST)
    return b(p.Where(), b(p.Equal(), total, 0.0), np.array(0.5, scores.type.dtype), b(p.Div(), kept, total))


def _probit(b: NodeBuilder, scores: Value) -> Value:
    """sqrt(2) * erfinv(2 x - 1) by Winitzki's approximation."""
    x = b(p.Sub(), b(p.Mul(), scores, 2.0), 1.0)
    log = b(p.Log(), b(p.Mul(), b(p.Sub(), 1.0, x), b(p.Add(), 1.0, x)))
    half = b(p.Add(), b(p.Mul(), log, 0.5), 2 / (math.pi * _WINITZKI))
    inside = b(p.Sub(), b(p.Mul(), half, half), b(p.Mul(), log, 1 / _WINITZKI))
    root = b(p.Sqrt(), b(p.Sub(), b(p.Sqrt(), inside), half))
    return b(p.Mul(), b(p.Mul(), b(p.Sign(), x), root), math.sqrt(2))


def two_scores(b: NodeBuilder, score: Value, labels: Array, name: str, positive: bool) -> tuple[Any, Any]:
    """Label [n] and scores [n, 2] of one score [n, 1] for the second class.

    positive: the score is a probability that decides from a half on; else its sign decides.  As in onnxruntime, of the
    other transforms none applies.
    """
    column = b(Squeeze(), score, np.array([1]))
    second = b(p.Cast(I64), b(p.Greater(), column, 0.5 if positive else 0.0))
    label = b(Gather(0), labels, second)
    if name == "PROBIT":
        return label, _probit(b, score)
    if name == "LOGISTIC":
        return label, b(p.Sigmoid(), b(Concat(1), b(p.Neg(), score), score))
    return label, b(Concat(1), b(p.Sub(), 1.0, score) if positive else b(p.Neg(), score), score)
