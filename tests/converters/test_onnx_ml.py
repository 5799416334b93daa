"""Operators of ai.onnx.ml, node by node, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import bolt_numba as bn
from bolt_numba.converters.onnx.reading.ml.scores import ML
from bolt_numba.errors import BoltError, InvalidModelError, UnsupportedOpError
from bolt_numba.types import Array
from tests.near import assert_near

RNG = np.random.default_rng(11)
X = RNG.normal(size=(9, 4)).astype(np.float32)
WHOLE = RNG.integers(-3, 4, (9, 4))
TEXTS = np.array([["a", "b"], ["c", "x"]], object)
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")


def model(name: str, inputs: list[Array], outputs: int = 1, version: int = 3, **attributes: Any) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(inputs))]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(name, names, results, domain=ML, **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph([node], "one", infos, [onnx.ValueInfoProto(name=r) for r in results])
    imports = [helper.make_opsetid(ML, version), helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def check(name: str, *inputs: Array, outputs: int = 1, version: int = 3, rtol: float = 1e-5, **attributes: Any) -> None:
    """Our results are onnxruntime's, with shapes that the file declares and with ranks only."""
    declared = model(name, list(inputs), outputs, version, **attributes)
    data = declared.SerializeToString()
    theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    wanted = theirs.run(None, {f"x{i}": a for i, a in enumerate(inputs)})
    agree(bn.compile(data, threads=1)(*inputs), wanted, rtol)
    for info in declared.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            dim.Clear()
    agree(bn.compile(declared.SerializeToString(), threads=1)(*inputs), wanted, rtol)


def agree(results: Any, wanted: list[Any], rtol: float) -> None:
    for got, want in zip(results, wanted, strict=True):
        if isinstance(want, list):
            assert got == [pytest.approx(row) for row in want]
            continue
        assert got.shape == want.shape
        if want.dtype.kind == "f":
            assert_near(got, want, rtol, floor=0.1)
        else:
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("x", [X, WHOLE, X.astype(np.float64)], ids=["f32", "i64", "f64"])
def test_scalers(x: Array) -> None:
    check("Scaler", x, offset=[0.5, 1, 0, -1], scale=[2.0, 0.5, 1, 3])
    check("Scaler", x, offset=[0.5], scale=[2.0])
    for norm in ("L1", "L2"):
        check("Normalizer", x, norm=norm)
    check("Normalizer", np.abs(x) + 1, norm="MAX")
    check("Normalizer", x * 0, norm="L2")


def test_imputer_binarizer_features() -> None:
    x = X.copy()
    x[2, 1] = x[5, 3] = np.nan
    check("Imputer", x, imputed_value_floats=[1.0, 2, 3, 4], replaced_value_float=float("nan"))
    check("Imputer", np.round(x * 2), imputed_value_floats=[7.0], replaced_value_float=0.0)
    check("Imputer", WHOLE, imputed_value_int64s=[4, 3, 2, 1], replaced_value_int64=-1)
    check("Binarizer", X, threshold=0.25)
    for widths in ([4, 2], [3, 5], [6, 1]):
        check("FeatureVectorizer", X, X[:, :2], inputdimensions=widths)
    check("FeatureVectorizer", WHOLE[0], WHOLE[1], inputdimensions=[2, 6])
    check("ArrayFeatureExtractor", X, np.array([3, 0]))
    check("ArrayFeatureExtractor", X[0], np.array([[1, 1, 2]]))


def test_encoders() -> None:
    check("OneHotEncoder", TEXTS, cats_strings=["a", "c", "b"])
    check("OneHotEncoder", WHOLE, cats_int64s=[0, 1, -3, 2])
    check("OneHotEncoder", WHOLE.astype(np.float32), cats_int64s=[0, 1, -3, 2])
    check("LabelEncoder", TEXTS, keys_strings=["a", "b", "c"], values_int64s=[5, 6, 7], default_int64=-9)
    check("LabelEncoder", WHOLE, keys_int64s=[0, 1, 2], values_strings=["x", "y", "z"], default_string="?")
    check("LabelEncoder", np.round(X), keys_floats=[0.0, 1.0], values_floats=[0.5, 2.5], default_float=9.0)
    small = np.array([5, 6], np.int16)
    tensors = {"keys_tensor": helper.make_tensor("k", TensorProto.STRING, [2], ["a", "b"]),
               "values_tensor": numpy_helper.from_array(small, "v")}  # fmt: skip
    check("LabelEncoder", TEXTS, version=4, **tensors)  # the default of all integers is -1
    check("CategoryMapper", TEXTS, cats_strings=["a", "b", "c"], cats_int64s=[10, 20, 30])
    check("CategoryMapper", WHOLE, cats_strings=["a", "b", "c"], cats_int64s=[0, 1, 2], default_string="none")
    data = model("OneHotEncoder", [TEXTS], cats_strings=["a"], zeros=0).SerializeToString()
    with pytest.raises(BoltError, match="OneHotEncoder: x"):
        bn.compile(data)(TEXTS)


def test_encoders_of_numbers() -> None:
    """Of equal keys the first counts, NaN and both zeros are keys, integers are exact, and few or many are found."""
    far = np.array([[2**53, 2**53 + 1, 2**53 + 2, -(2**62), 2**62]])
    check("LabelEncoder", far, keys_int64s=[2**62, 2**53 + 1, -(2**62), 2**53 + 1], values_int64s=[1, 2, 3, 4])
    odd = np.array([np.nan, -0.0, 0.0, np.inf, -np.inf, 0.5, 1.0], np.float32)
    keys = [1.0, float("nan"), 0.5, float("inf"), -2.0, 1.0]
    check("LabelEncoder", odd, version=4, keys_floats=keys, values_int64s=[1, 2, 3, 4, 5, 6], default_int64=-7)
    check("LabelEncoder", odd, version=4, keys_floats=keys, values_strings=[*"abcdef"], default_string="?")
    check("LabelEncoder", odd, keys_floats=[-0.0, 2.0], values_floats=[3.0, 5.0], default_float=9.0)
    many = np.random.default_rng(3).permutation(1000)
    check("LabelEncoder", np.arange(-3, 1003), keys_int64s=many, values_floats=[float(i) for i in range(1000)])
    for count in (1, 100, 600):
        check("OneHotEncoder", np.arange(-3, 1003, 7), cats_int64s=many[:count].tolist())
        check("OneHotEncoder", many[:10].astype(str).astype(object), cats_strings=[str(i) for i in many[:count]])
    check("OneHotEncoder", WHOLE, cats_int64s=[3, 0, 1, -3, -1, -2, 2], zeros=0)
    strict = model("OneHotEncoder", [WHOLE], cats_int64s=[0, 1, -3, -1, -2], zeros=0)
    with pytest.raises(BoltError, match=r"OneHotEncoder: x\[2, 0\]: got 9, wanted -3 to 1"):
        bn.compile(strict.SerializeToString())(np.repeat([0, 1, 9] * 3, 4).reshape(9, 4))


@pytest.mark.parametrize("count", [3, 600])
@pytest.mark.parametrize("kind", ["ints", "strings"])
def test_a_category_that_comes_twice_has_two_columns(kind: str, count: int) -> None:
    numbers = [*range(count), 1]
    categories: list[Any] = numbers if kind == "ints" else [str(i) for i in numbers]
    x = np.array([[1], [0], [5000]]) if kind == "ints" else np.array([["1"], ["0"], ["none"]], object)
    suffix = "int64s" if kind == "ints" else "strings"
    made = bn.compile(model("OneHotEncoder", [x], **{f"cats_{suffix}": categories}).SerializeToString(), threads=1)
    (y,) = made(x)
    assert [np.flatnonzero(row).tolist() for row in y[:, 0]] == [[1, count], [0], []]


def test_zip_map() -> None:
    check("ZipMap", X, classlabels_int64s=[1, 2, 4, 8])
    check("ZipMap", X, classlabels_strings=["a", "b", "c", "d"])


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_linear_models(transform: str) -> None:
    x = X / 8 if transform == "PROBIT" else X
    coefficients = (0.1 * np.random.default_rng(0).normal(size=12)).tolist()
    offset = [0.4, 0.51, 0.6]  # near 0.5 PROBIT leaves few digits, here and there
    labels = {"classlabels_strings": ["r", "g", "b"]}
    check("LinearRegressor", x, coefficients=coefficients, intercepts=offset, targets=3, post_transform=transform)
    given = {"coefficients": coefficients, "intercepts": offset, "post_transform": transform}
    check("LinearClassifier", x, outputs=2, **labels, **given)
    check("LinearClassifier", x[:1], outputs=2, classlabels_ints=[4, 2, 9], **given)
    check("LinearClassifier", x[0], outputs=2, classlabels_ints=[4, 2, 9], **given)
    two = {"coefficients": coefficients[:8], "intercepts": offset[:2], "post_transform": transform}
    check("LinearClassifier", x, outputs=2, classlabels_strings=["n", "y"], **two)


def test_linear_classifier_of_one_row() -> None:
    for transform in ("LOGISTIC", "SOFTMAX"):
        given = {"coefficients": [0.5, -1.0, 0.25, 2.0], "intercepts": [0.125], "post_transform": transform}
        data = model("LinearClassifier", [X], 2, classlabels_ints=[0, 1], **given).SerializeToString()
        label, scores = bn.compile(data, threads=1)(X)
        assert scores.shape == (9, 2)
        np.testing.assert_array_equal(label, scores.argmax(1))
        np.testing.assert_allclose(scores.sum(1), 1, rtol=1e-5)


NODES = {
    "nodes_treeids": [0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2, 0, 1, 2], "nodes_featureids": [0, 0, 0, 2, 0, 0],
    "nodes_values": [0.25, 0, 0, -0.5, 0, 0], "nodes_truenodeids": [1, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
}  # fmt: skip


def modes(mode: str) -> list[str]:
    return [mode, "LEAF", "LEAF"] * 2


@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"])
@pytest.mark.parametrize("missing", [0, 1])
def test_branch_modes(mode: str, missing: int) -> None:
    x = X.copy()
    x[0, 0], x[1, 0], x[2, 2], x[3, 0], x[4, 2] = 0.25, np.nan, -0.5, np.inf, -np.inf
    leaves = {
        "target_treeids": [0, 0, 0, 0, 1, 1, 1, 1], "target_nodeids": [1, 1, 2, 2, 1, 1, 2, 2],
        "target_ids": [0, 1] * 4, "target_weights": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0],
    }  # fmt: skip
    for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
        check(
            "TreeEnsembleRegressor", x, n_targets=2, aggregate_function=aggregate, base_values=[0.5, -1.0],
            nodes_modes=modes(mode), nodes_missing_value_tracks_true=[missing] * 6, **NODES, **leaves,
        )  # fmt: skip


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 2])
def test_leaves_that_name_a_target_twice(aggregate: str, targets: int) -> None:
    """Of one target the first weight counts, as skl2onnx needs it; of several all do."""
    leaves = {
        "target_treeids": [0, 0, 0, 1, 1, 1], "target_nodeids": [1, 1, 2, 2, 1, 2],
        "target_ids": [0] * 5 + [targets - 1], "target_weights": [1.0, 20.0, 300.0, 4000.0, 50000.0, 600000.0],
    }  # fmt: skip
    check(
        "TreeEnsembleRegressor", X, n_targets=targets, aggregate_function=aggregate, nodes_modes=modes("BRANCH_LEQ"),
        **NODES, **leaves,
    )  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS[:4])
@pytest.mark.parametrize("weights", [[0.125, 0.25, 0.5, 0.0625], [1.0, -2.0, 0.5, -0.25]], ids=["positive", "mixed"])
@pytest.mark.parametrize("classes", [2, 3])
def test_tree_classifiers(transform: str, weights: list[float], classes: int) -> None:
    """Of two classes whose leaves speak of one only, and of three."""
    each = 1 if classes == 2 else 3
    leaves = {
        "class_treeids": [0] * 2 * each + [1] * 2 * each, "class_nodeids": ([1] * each + [2] * each) * 2,
        "class_ids": [*range(each)] * 4, "class_weights": (np.outer(weights, [1, -2, 0.5][:each])).reshape(-1).tolist(),
    }  # fmt: skip
    given = {"nodes_modes": modes("BRANCH_LEQ"), "post_transform": transform, **NODES, **leaves}
    check("TreeEnsembleClassifier", X, outputs=2, classlabels_int64s=[3, 5, 7][:classes], **given)
    check("TreeEnsembleClassifier", X, outputs=2, classlabels_strings=["u", "v", "w"][:classes], **given)


@pytest.mark.parametrize("transform", TRANSFORMS[:4])
@pytest.mark.parametrize("weights", [[0.125, 0.5, 0.25, 0.375], [1.0, -2.0, 0.5, -0.25]], ids=["positive", "mixed"])
def test_trees_of_the_second_class_alone(transform: str, weights: list[float]) -> None:
    """The first class has a score of 0; half or the sign of the second's decides."""
    leaves = {"class_treeids": [0, 0, 1, 1], "class_nodeids": [1, 2, 1, 2], "class_ids": [1] * 4}
    given = {"nodes_modes": modes("BRANCH_LEQ"), "class_weights": weights, "post_transform": transform}
    check("TreeEnsembleClassifier", X, outputs=2, classlabels_int64s=[3, 5], **given, **leaves, **NODES)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX"])
def test_trees_of_one_class(transform: str) -> None:
    """As many scores as classes, and its label; onnxruntime has 1 for the label.  Of two weights the first counts."""
    leaves = {"class_treeids": [0, 0, 0, 1, 1], "class_nodeids": [1, 1, 2, 1, 2], "class_ids": [0] * 5}
    given = {"class_weights": [1.0, 20.0, -2.0, 0.5, -0.25], "post_transform": transform, **leaves, **NODES}
    made = model("TreeEnsembleClassifier", [X], 2, nodes_modes=modes("BRANCH_LEQ"), classlabels_int64s=[3], **given)
    label, scores = bn.compile(made.SerializeToString(), threads=1)(X)
    np.testing.assert_array_equal(label, [3] * 9)
    wanted = np.where(X[:, 0] <= 0.25, 1.0, -2.0) + np.where(X[:, 2] <= -0.5, 0.5, -0.25)
    np.testing.assert_array_equal(scores, np.ones((9, 1)) if transform == "SOFTMAX" else wanted[:, None])
    if transform == "NONE":
        theirs = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
        np.testing.assert_array_equal(scores, theirs.run(None, {"x0": X})[1])


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_no_trees(aggregate: str) -> None:
    """Base values are all there is."""
    given = {"aggregate_function": aggregate, "n_targets": 2, "base_values": [1.0, -2.0]}
    (y,) = bn.compile(model("TreeEnsembleRegressor", [X], **given).SerializeToString(), threads=1)(X)
    np.testing.assert_array_equal(y, [[1.0, -2.0]] * 9)


def test_each_node_says_where_nan_goes() -> None:
    """Of equalities of one feature, too; targets without a leaf have their base."""
    given = {
        "nodes_treeids": [0] * 5, "nodes_nodeids": [*range(5)], "nodes_featureids": [0] * 5,
        "nodes_modes": ["BRANCH_EQ", "LEAF", "BRANCH_EQ", "LEAF", "LEAF"], "nodes_values": [1.0, 0, 2.0, 0, 0],
        "nodes_truenodeids": [1, 0, 3, 0, 0], "nodes_falsenodeids": [2, 0, 4, 0, 0],
        "nodes_missing_value_tracks_true": [0, 0, 1, 0, 0], "target_treeids": [0] * 3, "target_nodeids": [1, 3, 4],
        "target_ids": [0] * 3, "target_weights": [8.0, 8.0, 4.0], "n_targets": 2, "base_values": [0.5, 0.25],
    }  # fmt: skip
    x = np.array([[1], [2], [np.nan], [3]], np.float32)
    (y,) = bn.compile(model("TreeEnsembleRegressor", [x], **given).SerializeToString(), threads=1)(x)
    np.testing.assert_array_equal(y, [[8.5, 0.25], [8.5, 0.25], [8.5, 0.25], [4.5, 0.25]])


def test_of_two_classes_with_scores_the_greater_has_the_label() -> None:
    leaves = {"class_treeids": [0, 0, 0, 0, 1, 1], "class_nodeids": [1, 1, 2, 2, 1, 2], "class_ids": [0, 1, 0, 1, 0, 1]}
    given = {"class_weights": [4.0, 2.0, 1.0, 3.0, 0.5, 0.5], "nodes_modes": modes("BRANCH_LEQ"), **leaves, **NODES}
    made = model("TreeEnsembleClassifier", [X], 2, classlabels_int64s=[3, 5], **given)
    label, scores = bn.compile(made.SerializeToString(), threads=1)(X)
    np.testing.assert_array_equal(label, np.where(X[:, 0] <= 0.25, 3, 5))
    np.testing.assert_array_equal(label, np.array([3, 5])[scores.argmax(1)])


def tree_of(roots: list[int], ways: list[tuple[int, int]], features: list[int]) -> dict[str, Any]:
    """TreeEnsemble-5 of two leaves: ways of each node for true and false, of leaves less 10."""
    true, false = ([w % 10 for w in way] for way in zip(*ways, strict=True))
    is_true, is_false = ([int(w < 0) for w in way] for way in zip(*ways, strict=True))
    count = len(ways)
    return {
        "nodes_modes": helper.make_tensor("m", TensorProto.UINT8, (count,), [0] * count), "tree_roots": roots,
        "nodes_splits": helper.make_tensor("s", TensorProto.FLOAT, (count,), [0.25] * count), "n_targets": 2,
        "leaf_weights": helper.make_tensor("w", TensorProto.FLOAT, (2,), [4.0, 8.0]), "leaf_targetids": [0, 1],
        "nodes_featureids": features, "nodes_truenodeids": true, "nodes_trueleafs": is_true,
        "nodes_falsenodeids": false, "nodes_falseleafs": is_false,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("roots", "ways"),
    [
        ([0], [(1, -9), (-10, -9)]), ([0, 1], [(-10, -9), (-10, -9)]), ([0, 1], [(-10, -10), (2, -10), (-9, -9)]),
        ([1, 0, 1], [(-10, -9), (-9, -10)]),
    ],
    ids=["in a tree", "between trees", "in both branches", "a tree twice"],
)  # fmt: skip
def test_nodes_that_share_a_leaf(roots: list[int], ways: list[tuple[int, int]]) -> None:
    check("TreeEnsemble", X, version=5, **tree_of(roots, ways, [0, 1, 2][: len(ways)]))


@pytest.mark.parametrize(
    ("roots", "ways", "told"),
    [
        ([0], [(1, 1), (-10, -9)], "missing or shared"), ([0], [(1, -10), (5, -9)], "missing or shared"),
        ([0], [(-10, -8)], "leaves: got 2, wanted 0 to 1"), ([1], [(-10, -9)], "tree_roots: got 1, wanted 0 to 0"),
    ],
)  # fmt: skip
def test_damaged_branches_are_refused(roots: list[int], ways: list[tuple[int, int]], told: str) -> None:
    with pytest.raises(InvalidModelError, match=told):
        bn.load(model("TreeEnsemble", [X], version=5, **tree_of(roots, ways, [0] * len(ways))).SerializeToString())


def random_tree(rng: np.random.Generator, depth: int, features: int) -> dict[str, Any]:
    """TreeEnsemble-5 of one tree; every inner node has two inner nodes or leaves."""
    nodes: list[list[Any]] = []
    leaves: list[tuple[int, float]] = []
    members: list[float] = []

    def grow(level: int) -> tuple[int, bool]:
        if level == 0 or rng.random() < 0.2 * bool(nodes):
            leaves.append((int(rng.integers(2)), float(rng.integers(-8, 8))))
            return len(leaves) - 1, True
        place = len(nodes)
        mode = int(rng.integers(7))
        nodes.append([mode, int(rng.integers(features)), float(rng.integers(-2, 3)), int(rng.integers(2))])
        if mode == 6:
            members.extend([*map(float, rng.permutation(5)[:2] - 2), float("nan")])
        nodes[place] += [*grow(level - 1), *grow(level - 1)]
        return place, False

    grow(depth)
    mode_, feature, split, missing, true, true_leaf, false, false_leaf = zip(*nodes, strict=True)
    count = len(nodes)
    made = {
        "nodes_modes": helper.make_tensor("m", TensorProto.UINT8, (count,), mode_), "nodes_featureids": feature,
        "nodes_splits": helper.make_tensor("s", TensorProto.FLOAT, (count,), split), "tree_roots": [0],
        "nodes_missing_value_tracks_true": missing, "nodes_truenodeids": true, "nodes_trueleafs": map(int, true_leaf),
        "nodes_falsenodeids": false, "nodes_falseleafs": map(int, false_leaf), "n_targets": 2,
        "leaf_targetids": [t for t, _ in leaves],
        "leaf_weights": helper.make_tensor("w", TensorProto.FLOAT, (len(leaves),), [w for _, w in leaves]),
    }  # fmt: skip
    if members:
        made["membership_values"] = helper.make_tensor("v", TensorProto.FLOAT, (len(members),), members)
    return {k: list(v) if isinstance(v, (map, tuple)) else v for k, v in made.items()}


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1 << 16), st.integers(1, 5))
def test_random_trees(seed: int, depth: int) -> None:
    """The nodes of every mode, sets and missing values, decoded by a walk over the attributes."""
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, depth, 3)
    x = rng.integers(-3, 4, (40, 3)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    (got,) = bn.compile(model("TreeEnsemble", [x], version=5, **tree).SerializeToString(), threads=1)(x)
    np.testing.assert_array_equal(got, [walked(tree, row) for row in x])
    if "membership_values" not in tree:
        check("TreeEnsemble", x, version=5, **tree)


def walked(tree: dict[str, Any], row: Array) -> list[float]:
    mode_of, split_of, weight_of = (
        onnx.numpy_helper.to_array(tree[f]) for f in ("nodes_modes", "nodes_splits", "leaf_weights")
    )
    sets: list[set[float]] = [set()]
    if "membership_values" in tree:
        for value in onnx.numpy_helper.to_array(tree["membership_values"]).tolist():
            if np.isnan(value):
                sets.append(set())
            else:
                sets[-1].add(value)
    place, leaf = 0, False
    while not leaf:
        value, split = row[tree["nodes_featureids"][place]], split_of[place]
        mode = int(mode_of[place])
        held = sets[int((mode_of[:place] == 6).sum())] if mode == 6 else set()
        tests = (value <= split, value < split, value >= split, value > split, value == split, value != split)
        true = value in held if mode == 6 else bool(tests[mode])
        true = true or bool(np.isnan(value) and tree["nodes_missing_value_tracks_true"][place])
        way = "true" if true else "false"
        place, leaf = tree[f"nodes_{way}nodeids"][place], bool(tree[f"nodes_{way}leafs"][place])
    sums = [0.0, 0.0]
    sums[tree["leaf_targetids"][place]] = float(weight_of[place])
    return sums


REGRESSOR: dict[str, Any] = {
    "nodes_modes": modes("BRANCH_LEQ"), "target_treeids": [0, 0, 1, 1], "target_nodeids": [1, 2, 1, 2],
    "target_ids": [0, 0, 0, 0], "target_weights": [1.0, 2.0, 3.0, 4.0], "n_targets": 1, **NODES,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"nodes_truenodeids": [0, 0, 0, 1, 0, 0]}, {"nodes_truenodeids": [9, 0, 0, 1, 0, 0]},
        {"nodes_modes": ["BRANCH_ODD", *modes("BRANCH_LEQ")[1:]]}, {"nodes_values": [1.0]},
        {"target_ids": [0, 0, 0, 7]}, {"target_nodeids": [0, 2, 1, 2]}, {"n_targets": 0},
        {"nodes_nodeids": [0, 1, 1, 0, 1, 2]}, {"nodes_featureids": [1 << 32, 0, 0, 2, 0, 0]},
        {"nodes_nodeids": [0, 1, 2, 0, 1, 1 << 62]}, {"target_nodeids": [1, 9, 1, 2]},
    ],
    ids=[
        "cycle", "missing", "mode", "short", "target", "no leaf", "no targets", "twice", "feature", "number", "no node",
    ],
)  # fmt: skip
def test_damaged_trees_are_refused(change: dict[str, Any]) -> None:
    check("TreeEnsembleRegressor", X, **REGRESSOR)
    with pytest.raises((InvalidModelError, UnsupportedOpError)):
        bn.load(model("TreeEnsembleRegressor", [X], **{**REGRESSOR, **change}).SerializeToString())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"nodes_modes": modes("BRANCH_MEMBER")}, "nodes_modes: got BRANCH_MEMBER, wanted LEAF or one of"),
        ({"nodes_featureids": [-(1 << 63), 0, 0, 2, 0, 0]}, "features: got -9223372036854775808, wanted numbers"),
    ],
    ids=["sets", "lowest"],
)
def test_what_is_wrong_with_trees_is_told(change: dict[str, Any], told: str) -> None:
    """Sets are of TreeEnsemble alone."""
    with pytest.raises(InvalidModelError, match=told):
        bn.load(model("TreeEnsembleRegressor", [X], **{**REGRESSOR, **change}).SerializeToString())


def test_leaves_have_no_feature() -> None:
    check("TreeEnsembleRegressor", X, **{**REGRESSOR, "nodes_featureids": [0, 1 << 31, 0, 2, 0, 0]})


def test_trees_and_nodes_in_any_order() -> None:
    """The first node of a tree is its root; numbers may be missing."""
    check(
        "TreeEnsembleRegressor", X, n_targets=1, nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
        nodes_treeids=[9, 9, 9, 4, 4, 4], nodes_nodeids=[4, 3, 2, 3, 5, 0], nodes_featureids=[0, 0, 0, 1, 0, 0],
        nodes_values=[0.25, 0, 0, -0.5, 0, 0], nodes_truenodeids=[3, 0, 0, 5, 0, 0],
        nodes_falsenodeids=[2, 0, 0, 0, 0, 0], target_treeids=[4, 9, 4, 9], target_nodeids=[0, 2, 5, 3],
        target_ids=[0] * 4, target_weights=[1.0, 2.0, 4.0, 8.0],
    )  # fmt: skip


VECTORS = RNG.normal(size=(6, 4)).astype(np.float32)


@pytest.mark.parametrize("kind", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vectors(kind: str) -> None:
    given = {
        "kernel_type": kind, "kernel_params": [0.5, 0.25, 3.0], "support_vectors": VECTORS.reshape(-1).tolist(),
    }  # fmt: skip
    far = X + 100 if kind == "RBF" else X
    if kind == "RBF":
        given["support_vectors"] = (VECTORS + 100).reshape(-1).tolist()
    weights = RNG.normal(size=12).tolist()
    for one_class in (0, 1):
        check(
            "SVMRegressor", far, coefficients=weights[:6], rho=[0.3], n_supports=6, one_class=one_class, rtol=1e-3,
            **given,
        )  # fmt: skip
    three = {"vectors_per_class": [2, 3, 1], "rho": [0.1, -0.2, 0.3], "classlabels_ints": [5, 6, 7]}
    check("SVMClassifier", far, outputs=2, coefficients=weights, rtol=1e-3, **three, **given)
    # PairwiseCoupling
    sigmoids = {"prob_a": [-1.0, -2.0, -0.5], "prob_b": [0.1, 0.0, -0.1]}
    check("SVMClassifier", far, outputs=2, coefficients=weights, rtol=1e-3, **three, **given, **sigmoids)
    two = {"vectors_per_class": [2, 4], "rho": [0.1], "classlabels_strings": ["n", "y"]}
    check("SVMClassifier", far, outputs=2, coefficients=weights[:6], rtol=1e-3, **two, **given)


@pytest.mark.parametrize("transform", TRANSFORMS[:4])
def test_support_vector_machines_of_coefficients_alone(transform: str) -> None:
    """Of offsets the first counts, whatever their number."""
    weights, kernel = RNG.normal(size=12).tolist(), {"kernel_type": "LINEAR", "kernel_params": [0.4, 0.0, 3.0]}
    check("SVMRegressor", X, coefficients=weights[:4], rho=[0.3], n_supports=0, **kernel)
    for rho in ([0.5], [0.5, 0.25, -1.0]):
        given = {"coefficients": weights, "rho": rho, "post_transform": transform, **kernel}
        check("SVMClassifier", X, outputs=2, classlabels_ints=[5, 6, 7], **given)
        check("SVMClassifier", X[0], outputs=2, classlabels_strings=["a", "b", "c"], **given)


def test_unknown_values_are_named() -> None:
    for name, attributes in (
        ("Normalizer", {"norm": "L7"}), ("LinearRegressor", {"coefficients": [1.0] * 4, "post_transform": "ODD"}),
        ("OneHotEncoder", {}), ("LabelEncoder", {"keys_int64s": [1]}),
    ):  # fmt: skip
        with pytest.raises(InvalidModelError, match=name):
            bn.load(model(name, [X], **attributes).SerializeToString())  # type: ignore[arg-type]
