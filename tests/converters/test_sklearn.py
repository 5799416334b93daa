"""Estimators of scikit-learn, exported by skl2onnx, against onnxruntime."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest

import bolt_numba as bn
from bolt_numba.types import Array
from tests.near import assert_near


class Late:
    """A module of scikit-learn, imported when a test first asks for something of it: that takes a second."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        if not name[0].isupper() and not name.startswith(("load_", "make_")):  # pytest asks all things for its marks
            raise AttributeError(name)
        return getattr(importlib.import_module(f"sklearn.{self.name}"), name)


calibration, compose, datasets = Late("calibration"), Late("compose"), Late("datasets")
decomposition, ensemble, feature_selection = Late("decomposition"), Late("ensemble"), Late("feature_selection")
impute, linear_model, multiclass = Late("impute"), Late("linear_model"), Late("multiclass")
naive_bayes, neighbors, neural_network = Late("naive_bayes"), Late("neighbors"), Late("neural_network")
pipeline, preprocessing = Late("pipeline"), Late("preprocessing")
svm, tree = Late("svm"), Late("tree")

pytestmark = pytest.mark.filterwarnings("ignore")

Data = tuple[Array, Array]


def three_classes() -> Data:
    x, y = datasets.load_iris(return_X_y=True)
    return x.astype(np.float32), y


def two_classes() -> Data:
    """Every row but those that the scorers of two classes cannot tell apart after rounding."""
    x, y = datasets.make_classification(160, 7, n_informative=5, random_state=3)
    return x.astype(np.float32), y


def named_classes() -> Data:
    x, y = three_classes()
    return x, np.array(["setosa", "versicolor", "virginica"])[y]


def numbers() -> Data:
    x, y = datasets.make_regression(150, 6, n_informative=4, noise=1.0, random_state=5)
    return x.astype(np.float32), y / np.abs(y).max()


def holes() -> Data:
    """Numbers some of which are missing."""
    x, y = numbers()
    x[np.random.default_rng(0).random(x.shape) < 0.1] = np.nan
    return x, y


def pair_of_numbers() -> Data:
    x, y = numbers()
    return x, np.stack([y, 1 - y * y], 1)


def categories() -> Data:
    """Two columns of small whole numbers and two of reals."""
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.integers(0, 4, (120, 2)), rng.normal(size=(120, 2))], 1)
    return x.astype(np.float32), (x[:, 0] + x[:, 2] > 1.5).astype(int)


def encoded() -> Any:
    columns = [("kinds", preprocessing.OneHotEncoder(), [0, 1]), ("sizes", preprocessing.StandardScaler(), [2, 3])]
    return pipeline.make_pipeline(compose.ColumnTransformer(columns), linear_model.LogisticRegression())


FAMILIES: dict[str, Callable[[], list[tuple[Any, Any]]]] = {
    "linear": lambda: [
        (linear_model.LinearRegression(), numbers),
        (linear_model.Ridge(), pair_of_numbers),
        (linear_model.Lasso(0.01), numbers),
    ],
    "logistic": lambda: [
        (linear_model.LogisticRegression(max_iter=500), two_classes),
        (linear_model.LogisticRegression(max_iter=500), named_classes),
        (linear_model.RidgeClassifier(), three_classes),
    ],
    "svm": lambda: [
        (svm.SVC(), three_classes),
        (svm.SVC(kernel="poly", degree=2), two_classes),
        (svm.SVC(kernel="sigmoid"), named_classes),
        (svm.SVR(), numbers),
        (svm.LinearSVC(), three_classes),
        (svm.SVC(kernel="linear"), two_classes),
    ],
    "neighbours": lambda: [
        (neighbors.KNeighborsClassifier(), three_classes),
        (neighbors.KNeighborsRegressor(), numbers),
    ],
    "tree": lambda: [
        (tree.DecisionTreeClassifier(random_state=0), named_classes),
        (tree.DecisionTreeRegressor(max_depth=6, random_state=0), pair_of_numbers),
        (tree.ExtraTreeClassifier(random_state=0), two_classes),
    ],
    "forest": lambda: [
        (ensemble.RandomForestClassifier(17, random_state=0), three_classes),
        (ensemble.RandomForestRegressor(9, random_state=0), numbers),
        (ensemble.ExtraTreesClassifier(8, random_state=0), two_classes),
        (ensemble.ExtraTreesRegressor(8, random_state=0), pair_of_numbers),
    ],
    "boosting": lambda: [
        (ensemble.GradientBoostingClassifier(n_estimators=10), two_classes),
        (ensemble.GradientBoostingClassifier(n_estimators=10), named_classes),
        (ensemble.GradientBoostingRegressor(n_estimators=20), numbers),
        (ensemble.AdaBoostClassifier(n_estimators=5), three_classes),
    ],
    "histogram boosting": lambda: [
        (ensemble.HistGradientBoostingClassifier(max_iter=10), two_classes),
        (ensemble.HistGradientBoostingClassifier(max_iter=10), three_classes),
        (ensemble.HistGradientBoostingRegressor(max_iter=20), holes),
    ],
    "perceptron": lambda: [
        (neural_network.MLPClassifier((16,), max_iter=40, random_state=0), three_classes),
        (neural_network.MLPRegressor(hidden_layer_sizes=(8, 8), max_iter=40, random_state=0), numbers),
    ],
    "naive Bayes": lambda: [
        (naive_bayes.GaussianNB(), three_classes),
        (naive_bayes.BernoulliNB(binarize=1.5), three_classes),
        (naive_bayes.MultinomialNB(), named_classes),
    ],
    "scaled": lambda: [
        (pipeline.make_pipeline(preprocessing.StandardScaler(), svm.SVC()), three_classes),
        (pipeline.make_pipeline(preprocessing.MinMaxScaler(), linear_model.LogisticRegression()), two_classes),
        (pipeline.make_pipeline(preprocessing.Normalizer(), linear_model.LogisticRegression()), three_classes),
        (pipeline.make_pipeline(impute.SimpleImputer(), linear_model.Ridge()), holes),
        (pipeline.make_pipeline(preprocessing.PolynomialFeatures(2), linear_model.Ridge()), numbers),
    ],
    "encoded": lambda: [
        (encoded(), categories),
        (
            pipeline.make_pipeline(
                preprocessing.KBinsDiscretizer(3, encode="onehot-dense"), linear_model.LogisticRegression()
            ),
            three_classes,
        ),
    ],
}


WRAPPED: dict[str, Callable[[], list[tuple[Any, Any]]]] = {
    "several": lambda: [
        (ensemble.BaggingClassifier(linear_model.LogisticRegression(), 3, random_state=0), three_classes),
        (ensemble.AdaBoostClassifier(linear_model.LogisticRegression(), n_estimators=3), named_classes),
        (ensemble.StackingRegressor([("a", linear_model.Ridge()), ("b", svm.SVR())]), numbers),
        (multiclass.OneVsOneClassifier(linear_model.LogisticRegression()), three_classes),
        (multiclass.OneVsRestClassifier(svm.LinearSVC()), named_classes),
        (calibration.CalibratedClassifierCV(svm.LinearSVC()), two_classes),
    ],
    "chosen": lambda: [
        (pipeline.make_pipeline(decomposition.PCA(2), linear_model.LogisticRegression()), three_classes),
        (pipeline.make_pipeline(feature_selection.SelectKBest(k=2), linear_model.LogisticRegression()), named_classes),
        (pipeline.make_union(preprocessing.MaxAbsScaler(), decomposition.TruncatedSVD(2)), three_classes),
    ],
}  # fmt: skip


def _plain(value: Any) -> Any:
    """Attributes as onnx takes them: skl2onnx gives NumPy's scalars and bools where integers belong."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    return value.item() if isinstance(value, np.generic) else value


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Any:
    skl2onnx = pytest.importorskip("skl2onnx")
    _container = importlib.import_module("skl2onnx.common._container")
    make_node = _container.make_node

    def patched(*args: Any, **attributes: Any) -> Any:
        return make_node(*args, **{key: _plain(value) for key, value in attributes.items()})

    monkeypatch.setattr(_container, "make_node", patched)
    return skl2onnx.to_onnx


def loose() -> list[tuple[str, Any]]:
    """An input of which the file declares dtype and rank alone, as in skl2onnx's own examples."""
    return [("X", importlib.import_module("skl2onnx.common.data_types").FloatTensorType([None, None]))]


def agree(got: Any, wanted: Any) -> None:
    if isinstance(wanted, list):  # a dictionary from class to probability for each row
        assert [list(row) for row in got] == [list(row) for row in wanted]
        got, wanted = (np.array([list(row.values()) for row in rows]) for rows in (got, wanted))
    assert np.shape(got) == wanted.shape
    if wanted.dtype.kind == "f":
        assert_near(got, wanted, 2e-5, floor=1)
    else:
        np.testing.assert_array_equal(got, wanted)


def hold(model: Any, x: Array) -> None:
    """Check a model on all rows, one row, and some."""
    data = model.SerializeToString()
    theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    session = bn.compile(data, threads=1)
    for rows in (x, x[:1], x[:11]):
        wanted = theirs.run(None, {theirs.get_inputs()[0].name: rows})
        for got, want in zip(session(rows), wanted, strict=True):
            agree(got, want)


@pytest.mark.parametrize("family", [*FAMILIES, *WRAPPED])
def test_export_means_what_onnxruntime_computes(exporter: Any, family: str) -> None:
    for estimator, data in {**FAMILIES, **WRAPPED}[family]():
        x, y = data()
        estimator.fit(x, y)
        if family in FAMILIES:
            hold(exporter(estimator, x[:1]), x)
        if family != "encoded":  # skl2onnx wants numbers of columns there
            hold(exporter(estimator, initial_types=loose()), x)


def test_leaves_of_a_tree_with_two_targets(exporter: Any) -> None:
    """Each leaf of such an export names its number once per target of the tree; it is not their sum."""
    x, y = pair_of_numbers()
    trees = ensemble.RandomForestRegressor(3, max_depth=4, random_state=0).fit(x, y)
    hold(exporter(trees, initial_types=loose(), options={"decision_leaf": True}), x)


def test_trees_run_natively(exporter: Any) -> None:
    for estimator, data in FAMILIES["forest"]() + FAMILIES["boosting"]()[:3] + FAMILIES["histogram boosting"]():
        x, y = data()
        session = bn.compile(exporter(estimator.fit(x, y), x[:1]).SerializeToString(), threads=1)
        session(x)
        runners = {row["op"]: row["runner"] for row in session.report()}
        assert runners["TreeEnsemble"] == "tree_ensemble", estimator


def test_threads_do_not_change_a_bit(exporter: Any) -> None:
    x, y = numbers()
    x = np.tile(x, (10, 1))
    model = exporter(ensemble.RandomForestRegressor(12, random_state=0).fit(x, np.tile(y, 10)), x[:1])
    one, two = (bn.compile(model.SerializeToString(), threads=n)(x)[0] for n in (1, 2))
    np.testing.assert_array_equal(one, two)
