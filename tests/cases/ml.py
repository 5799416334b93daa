"""Cases of models of ai.onnx.ml: trees, encoders, coupled votes; and of random numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from bolt_numba.converters.onnx.reading.ml.forest import MODES, Branch, Forest, Key, Leaf
from bolt_numba.ops.arrays import random as r
from bolt_numba.ops.data import ml as m
from bolt_numba.ops.data.trees import TreeEnsemble
from bolt_numba.types import F16, F32, F64, I32, I64, STRING, Array
from tests.cases import Case, cases
from tests.cases.draw import Draw, flags, ints, maybe, pick, real, shapes, small, whole


def tree(draw: Draw, nodes: dict[Key, Branch | Leaf], key: Key, depth: int, features: int, targets: int) -> None:
    """A random tree below ``key`` whose thresholds and weights are whole numbers."""
    if depth == 0 or (depth < 3 and draw(flags)):
        count = draw(st.integers(0 if targets > 1 else 1, targets))
        nodes[key] = Leaf([(pick(draw, *range(targets)), float(draw(st.integers(-8, 8)))) for _ in range(count)])
        return
    mode = pick(draw, *MODES)
    members = tuple(map(float, draw(st.lists(st.integers(-3, 3), max_size=3, unique=True))))
    ways = ((*key, True), (*key, False))
    value = float(draw(st.integers(-3, 3)))
    nodes[key] = Branch(mode, pick(draw, *range(features)), value, draw(flags), *ways, members)
    for way in ways:
        tree(draw, nodes, way, depth - 1, features, targets)


@cases(TreeEnsemble)
def tree_ensemble(draw: Draw, op: type[TreeEnsemble]) -> Case:
    features, targets = pick(draw, 1, 3, 17), pick(draw, 1, 1, 2, 5)
    dtype = pick(draw, F32, F32, F32, F64)
    nodes: dict[Key, Branch | Leaf] = {}
    forest = Forest(nodes, dtype)
    for number in range(draw(st.integers(1, 12))):
        tree(draw, nodes, (number,), pick(draw, 0, 2, 4), features, targets)
        forest.add_tree((number,))
    x = whole(draw, (pick(draw, 1, 2, 7, 8, 9, 33), features), -4, 4, dtype)
    if draw(flags):
        x[0, 0] = pick(draw, np.nan, np.inf, -np.inf)
    base = maybe(draw, whole(draw, (targets,), -5, 5, dtype))
    return Case(op(targets, pick(draw, "SUM", "SUM", "MIN", "MAX")), (x, *forest.arrays(), base))


@cases(m.LabelEncoder)
def label_encoder(draw: Draw, op: type[m.LabelEncoder]) -> Case:
    keys: Array = pick(draw, ints((1, 5, 5, -2)), np.array([0.5, np.nan, 2, 3], F32), np.array(list("abcd"), STRING))
    values: Array = pick(draw, ints((4, 3, 2, 1)), np.array([0.25, 1, 2, 3], F32), np.array(list("wxyz"), STRING))
    x = keys[whole(draw, shapes(draw, 1, 3, 40), 0, 3, I64)]
    if keys.dtype != STRING:
        x = x + (x == keys[0]).astype(keys.dtype)
    return Case(op(), (x, keys, values, values[:1]))


@cases(m.OneHotEncoder)
def one_hot_encoder(draw: Draw, op: type[m.OneHotEncoder]) -> Case:
    categories: Array = pick(draw, ints((3, 1, 7)), np.array(["a", "b", ""], STRING))
    x = categories[whole(draw, shapes(draw, 1, 3, 40), 0, 2, I64)]
    return Case(op(draw(flags)), (x, categories))


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
