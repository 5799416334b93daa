"""Cases of models of ai.onnx.ml: trees, encoders, coupled votes; and of random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from bolt_numba.converters.onnx.reading.ml.forest import LEAF, MODES, NOWHERE, Entries, Nodes, forest
from bolt_numba.ops.arrays import random as r
from bolt_numba.ops.data import ml as m
from bolt_numba.ops.data.trees import TreeEnsemble
from bolt_numba.types import F16, F32, F64, I32, I64, STRING, Array
from tests.cases import Case, cases
from tests.cases.draw import Draw, flags, ints, maybe, pick, real, shapes, small, whole

Row = list[Any]
"""Mode, feature, value, missing, true, false, members of a node."""


def tree(draw: Draw, rows: list[Row], said: list[Row], depth: int, features: int, targets: int) -> int:
    """The row of a random tree, whose thresholds and weights are whole numbers."""
    rows.append([LEAF, 0, 0.0, False, NOWHERE, NOWHERE, []])
    place, row = len(rows) - 1, rows[-1]
    if depth == 0 or (depth < 3 and draw(flags)):
        count = draw(st.integers(0 if targets > 1 else 1, targets))
        said += [[place, pick(draw, *range(targets)), float(draw(st.integers(-8, 8)))] for _ in range(count)]
        return place
    members = list(map(float, draw(st.lists(st.integers(-3, 3), max_size=3, unique=True))))
    value = float(draw(st.integers(-3, 3)))
    row[:4] = pick(draw, *range(LEAF)), pick(draw, *range(features)), value, draw(flags)
    row[4:] = *(tree(draw, rows, said, depth - 1, features, targets) for _ in range(2)), members
    return place


@cases(TreeEnsemble)
def tree_ensemble(draw: Draw, op: type[TreeEnsemble]) -> Case:
    features, targets = pick(draw, 1, 3, 17), pick(draw, 1, 1, 2, 5)
    dtype = pick(draw, F32, F32, F32, F64)
    rows: list[Row] = []
    said: list[Row] = []
    roots = [tree(draw, rows, said, pick(draw, 0, 2, 4), features, targets) for _ in range(draw(st.integers(1, 12)))]
    columns = zip(*(row[:6] for row in rows), strict=True)
    nodes = Nodes(*map(np.array, columns), [row[6] for row in rows if row[0] == MODES.index("BRANCH_MEMBER")])
    entries = Entries(*(np.array([row[i] for row in said], t) for i, t in enumerate((I64, I64, F64))))
    arrays = forest(nodes, np.array(roots), entries, dtype)
    x = whole(draw, (pick(draw, 1, 2, 7, 8, 9, 33), features), -4, 4, dtype)
    if draw(flags):
        x[0, 0] = pick(draw, np.nan, np.inf, -np.inf)
    base = maybe(draw, whole(draw, (targets,), -5, 5, dtype))
    return Case(op(targets, pick(draw, "SUM", "SUM", "MIN", "MAX")), (x, *arrays, base))


@cases(m.LabelEncoder)
def label_encoder(draw: Draw, op: type[m.LabelEncoder]) -> Case:
    whole_ones = ints(pick(draw, (1, 5, 5, -2), (2**53 + 1, 2**53, -(2**62), 7)))
    broken = np.array(pick(draw, (0.5, np.nan, 2, 3), (2, -0.0, 0, 1)), pick(draw, F32, F64))
    words: list[Array] = [np.array(list(letters), STRING) for letters in ("abcd", "wxyz")]
    keys: Array = pick(draw, whole_ones, broken, words[0])
    values: Array = pick(draw, ints((4, 3, 2, 1)), np.array([0.25, 1, 2, 3], F32), words[1])
    x = keys[whole(draw, shapes(draw, 1, 3, 40), 0, 3, I64)]
    if keys.dtype != STRING:
        x = x + (x == keys[0]).astype(keys.dtype)
    return Case(op(), (x, keys, values, values[:1]))


@cases(m.OneHotEncoder)
def one_hot_encoder(draw: Draw, op: type[m.OneHotEncoder]) -> Case:
    categories: Array = pick(draw, ints((3, 1, 7)), ints((6, 4, 5)), np.array(["a", "b", ""], STRING))
    x = categories[whole(draw, shapes(draw, 1, 3, 40), 0, 2, I64)]
    if (zeros := draw(flags)) and categories.dtype != STRING:
        x = x + (x == categories[0])
    return Case(op(zeros), (x, categories))


@cases(m.PairwiseCoupling)
def pairwise_coupling(draw: Draw, op: type[m.PairwiseCoupling]) -> Case:
    classes = pick(draw, 2, 3, 5, 11)
    pairs = real(draw, (draw(small), classes * (classes - 1) // 2), 0.05, 0.95)
    return Case(op(classes), (pairs,), exact=False, rtol=1e-4)


@cases(r.RandomNormal)
def random_normal(draw: Draw, op: type[r.RandomNormal]) -> Case:
    return Case(op(1.0, 2.0, pick(draw, F32, F64, F16), pick(draw, None, 0.0, 0.5)), (ints(shapes(draw, 0, 3)),))


@cases(r.RandomUniform)
def random_uniform(draw: Draw, op: type[r.RandomUniform]) -> Case:
    seed = np.array(draw(small), I64) if draw(flags) else None
    return Case(op(-1.0, 2.0, pick(draw, F32, F64, F16), pick(draw, None, 0.0, 0.5)), (ints(shapes(draw, 0, 3)), seed))


@cases(r.Multinomial)
def multinomial(draw: Draw, op: type[r.Multinomial]) -> Case:
    return Case(op(draw(small), pick(draw, I32, I64), 1.0), (real(draw, (draw(small), draw(small))),))


@cases(r.Dropout)
def dropout(draw: Draw, op: type[r.Dropout]) -> Case:
    x, ratio = real(draw, shapes(draw, 1, 3)), np.array(pick(draw, 0.0, 0.5, 0.9), F32)
    return Case(op(pick(draw, None, 0, 7)), (x, ratio, np.array(draw(flags))))
