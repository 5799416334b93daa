"""Columns of text before a model and names behind it: no plan ends there, and after `warmup` nothing compiles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import bolt_numba as bn
from bolt_numba.cli import app
from bolt_numba.cli.options import load_arrays
from bolt_numba.errors import BoltError, DTypeError
from bolt_numba.kernels.compiles import waited
from bolt_numba.ops.data.text import TfIdfVectorizer
from bolt_numba.sessions.guesses import known_texts, model_feeds
from bolt_numba.types import Array

ML = "ai.onnx.ml"
CITIES, JOBS = ["Rome", "Oslo", "Lima"], ["nurse", "pilot"]
WEIGHTS = np.random.default_rng(0).standard_normal((6, 3)).astype("f4")


def pipeline(zeros: int = 1, names: bool = True, mapped: bool = False) -> onnx.ModelProto:
    """Two columns of text and a number, a product, and the name of the greatest of three classes."""
    nodes = [
        helper.make_node("OneHotEncoder", ["city"], ["cities"], domain=ML, cats_strings=CITIES, zeros=zeros),
        helper.make_node("Reshape", ["cities", "flat"], ["c"]),
        helper.make_node(
            "LabelEncoder", ["job"], ["j"], domain=ML, keys_strings=JOBS, values_floats=[1.0, 2.0], default_float=-1.0
        ),
        helper.make_node("Concat", ["c", "j", "age", "age"], ["all"], axis=1),
        helper.make_node("MatMul", ["all", "w"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
        helper.make_node("ArrayFeatureExtractor", ["names", "best"], ["label"], domain=ML),
        helper.make_node("ZipMap", ["scores"], ["by_name"], domain=ML, classlabels_strings=["x", "y", "z"]),
    ]
    texts = TensorProto.STRING
    inputs = [helper.make_tensor_value_info(n, t, ["n", 1]) for n, t in (("city", texts), ("job", texts), ("age", 1))]
    outputs = [onnx.ValueInfoProto(name=n) for n in ("label",) * names + ("by_name",) * mapped + ("scores",)]
    constants = [
        onnx.numpy_helper.from_array(WEIGHTS, "w"), onnx.numpy_helper.from_array(np.array([-1, 3]), "flat"),
        helper.make_tensor("names", texts, [3], ["low", "middle", "high"]),
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "texts", inputs, outputs, constants)
    imports = [helper.make_opsetid(ML, 2), helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def feeds(n: int, *cities: str) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    city = list(cities) or rng.choice(CITIES, n)
    job = np.array(rng.choice([*JOBS, "other"], n), object)[:, None]
    return {"city": np.array(city, object)[:, None], "job": job, "age": rng.standard_normal((n, 1)).astype("f4")}


def wanted(given: dict[str, Any]) -> Array:
    cities = given["city"] == np.array(CITIES, object)
    jobs = np.array([[{"nurse": 1.0, "pilot": 2.0}.get(v, -1.0)] for v in given["job"][:, 0]])
    made: Array = np.concatenate([cities, jobs, given["age"], given["age"]], 1).astype("f4") @ WEIGHTS
    return made


@pytest.fixture(scope="module")
def session() -> bn.Session:
    return bn.compile(pipeline(mapped=True).SerializeToString(), threads=1)


@pytest.mark.parametrize("n", [1, 2, 17])
def test_results_are_those_of_the_references(session: bn.Session, n: int) -> None:
    given = feeds(n)
    label, by_name, scores = session.run(None, given)
    np.testing.assert_allclose(scores, wanted(given), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(label.reshape(-1), np.array(["low", "middle", "high"])[scores.argmax(1)])
    assert by_name == [dict(zip("xyz", row, strict=True)) for row in scores.tolist()]
    assert label.dtype == object


def test_a_text_that_is_no_category(session: bn.Session) -> None:
    given = feeds(2, "Rome", "Atlantis")
    np.testing.assert_allclose(session.run(["scores"], given)[0], wanted(given), rtol=1e-5, atol=1e-6)
    one = bn.compile(pipeline(zeros=0).SerializeToString(), threads=1)
    one.warmup(city=(1, 1), job=(1, 1), age=(1, 1))  # by categories: what is none is refused
    for city in (["Atlantis"], ["Rome", "Atlantis"]):
        with pytest.raises(BoltError, match="node 'cities': OneHotEncoder: x: got Atlantis"):
            one.run(None, feeds(len(city), *city))
    with pytest.raises(DTypeError, match=r"got 3 at .*, a int, wanted texts"):
        session.run(None, feeds(1) | {"city": np.array([[3]], object)})


def test_after_warmup_the_first_call_compiles_nothing() -> None:
    """Not even where nothing of the model was planned before, and one plan is the whole model."""
    made = bn.compile(pipeline(mapped=True).SerializeToString(), threads=1, stand_ins=False)
    made.warmup(city=(3, 1), job=(3, 1), age=(3, 1))
    plans = len(made._runner.prepared)
    with waited("texts") as compiled:
        made.run(None, feeds(3))
    assert not compiled
    assert (plans, len(made._runner.prepared)) == (1, 1)
    assert next(iter(made._runner.prepared.values())).cut is None


def test_report_and_profile_show_the_encoders(session: bn.Session) -> None:
    session.run(None, feeds(2))
    rows = [(row["op"], row["runner"]) for row in session.report()]
    assert rows[:2] == [("OneHotEncoder", "text"), ("LabelEncoder", "text")]
    assert {("Gather", "text"), ("ZipMap", "text")} < set(rows[-3:])
    profiled = [row.op for row in session.profile(feeds(2), runs=2).rows]
    assert profiled == [row["op"] for row in session.report()]


def test_results_belong_to_the_caller() -> None:
    """Encoded texts that are outputs themselves are no memory of the session."""
    proto = pipeline(names=False)
    proto.graph.output.extend([onnx.ValueInfoProto(name=n) for n in ("cities", "scores", "city")])
    made, given = bn.compile(proto.SerializeToString(), threads=1), feeds(1, "Rome")
    first = made.run(None, given)
    for array in first:
        array[...] = "" if array.dtype == object else 7
    given = feeds(1, "Rome")
    again = made.run(None, given)
    np.testing.assert_allclose(again[0], wanted(given), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(again[1].reshape(-1), [1, 0, 0])
    np.testing.assert_array_equal(again[2], again[0])
    np.testing.assert_array_equal(again[3], [["Rome"]])


def test_columns_of_one_array_of_texts() -> None:
    """They are taken apart before the plan, as the encoder behind them."""
    nodes = [
        helper.make_node("ArrayFeatureExtractor", ["x", "second"], ["job"], domain=ML),
        helper.make_node("LabelEncoder", ["job"], ["y"], domain=ML, keys_strings=JOBS, values_floats=[1.0, 2.0]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.STRING, ["n", "m"])
    second = onnx.numpy_helper.from_array(np.array([1]), "second")
    graph = helper.make_graph(nodes, "columns", [given], [onnx.ValueInfoProto(name="y")], [second])
    imports = [helper.make_opsetid(ML, 2), helper.make_opsetid("", 18)]
    made = bn.compile(helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString(), threads=1)
    x = np.array([["Rome", "pilot"], ["Oslo", "nurse"]], object)
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], [[2], [1]])
    assert [(row["op"], row["runner"]) for row in made.report()] == [("Gather", "text"), ("LabelEncoder", "text")]
    with pytest.raises(BoltError, match=r"Gather: indices.*got 1, wanted -1 to 0"):
        made.run(None, {"x": x[:, :1]})


@pytest.mark.parametrize("shape", [(1, 6), (5, 6), (6,), (0, 6), (3, 0)])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_n_grams_of_texts_are_counted_by_a_kernel(mode: str, shape: tuple[int, ...]) -> None:
    words, counts, columns = ["a", "b", "", "a", "b", "b", "a", "", "c"], [0, 3, 7], [0, 4, 2, 3, 1]
    weights = [0.5, 2.0, 3.0, 1.5, 0.25]
    texts = {"pool_strings": [*words, "a"], "ngram_counts": counts, "ngram_indexes": [*columns, 5], "mode": mode}
    sizes = {"min_gram_length": 1, "max_gram_length": 3, "max_skip_count": 2, "weights": [*weights, 7.0]}
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], **texts, **sizes)
    given = helper.make_tensor_value_info("x", TensorProto.STRING, ["n", "m"][: len(shape)])
    graph = helper.make_graph([node], "grams", [given], [onnx.ValueInfoProto(name="y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    made = bn.compile(proto.SerializeToString(), threads=1, stand_ins=False)
    x = np.random.default_rng(1).choice(np.array(["a", "b", "", "c", "none"], object), shape)
    op = TfIdfVectorizer(mode, 1, 3, 2, tuple(counts), (*columns, 5), (*words, "a"), (*weights, 7.0))
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], op.reference(x))
    if len(x):
        assert [row["runner"] for row in made.report()] == ["text", "tf_idf_vectorizer"]


def test_limits_hold(session: bn.Session) -> None:
    given = feeds(400_000)
    small = bn.compile(pipeline().SerializeToString(), threads=1, memory_limit=1 << 20)
    small.run(None, feeds(2))
    with pytest.raises(bn.BudgetError, match="encoded texts"):
        small.run(None, given)


def test_closed_sessions_and_clones_go_on(session: bn.Session) -> None:
    made = session.clone()
    made.close()
    for each in (made, session, session.clone(threads=2)):
        np.testing.assert_allclose(each.run(["scores"], feeds(2))[0], wanted(feeds(2)), rtol=1e-5, atol=1e-6)


def test_random_inputs_are_texts_that_the_model_knows() -> None:
    graph = bn.load(pipeline().SerializeToString())
    assert {name: found.tolist() for name, found in known_texts(graph).items()} == {"city": CITIES, "job": JOBS}
    drawn = model_feeds(graph, {"city": (50, 1), "job": (50, 1), "age": (50, 1)})
    assert set(drawn["city"].flat) == set(CITIES)
    np.testing.assert_array_equal(drawn["city"], model_feeds(graph, {"n": (50,)})["city"])


@pytest.fixture
def call(tmp_path: Path) -> Callable[..., str]:
    path = tmp_path / "texts.onnx"
    path.write_bytes(pipeline(mapped=True).SerializeToString())

    def run(command: str, *args: str) -> str:
        done = CliRunner().invoke(app.app, [*command.split(), str(path), *args])
        assert done.exit_code == 0, done.output
        return done.output

    return run


def test_texts_on_the_command_line(call: Callable[..., str], tmp_path: Path) -> None:
    """A text as it stands, a JSON list; a value gets the axes that it lacks."""
    told = [f"--input={text}" for text in ("city=Rome", "job=nurse", "age=2")]
    shown = call("run", *told, "--output-dir", str(tmp_path))
    given = {"city": np.array([["Rome"]], object), "job": np.array([["nurse"]], object), "age": np.array([[2]], "f4")}
    scores = np.load(tmp_path / "scores.npy")
    np.testing.assert_allclose(scores, wanted(given), rtol=1e-5, atol=1e-6)
    label = np.load(tmp_path / "label.npy").item()
    assert label == ["low", "middle", "high"][scores.argmax()]
    assert label in shown
    assert '"x":' in (tmp_path / "by_name.json").read_text()
    assert "[2, 3]" in call("run", "--input", 'city=["Rome", "Oslo"]')


def test_warm_compiles_all_and_bench_takes_texts(call: Callable[..., str]) -> None:
    call("cache warm", "--threads", "1", "--exact")
    assert "does not run" not in call("cache warm", "--threads", "1", "--exact")
    assert "city [1, 1]" in call("bench", "--input", "city=Rome", "--seconds", "0.1", "--no-processes")


class TestCommands:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """Columns whose rows have a symbol each, as skl2onnx gives them."""
        proto = pipeline()
        for i, given in enumerate(proto.graph.input):
            given.type.tensor_type.shape.dim[0].dim_param = f"rows_{i}"
        path = tmp_path / "columns.onnx"
        path.write_bytes(proto.SerializeToString())
        return path

    def run(self, *args: object) -> Any:
        return CliRunner().invoke(app.app, [str(a) for a in args])

    @pytest.mark.parametrize(
        "told", [("--shape", "city=3,1"), ("--shape", "rows_1=3"), ("--input", 'job=["a","b","c"]')]
    )
    def test_all_columns_have_the_rows_of_one(self, model: Path, told: tuple[str, str]) -> None:
        done = self.run("run", model, *told)
        assert done.exit_code == 0, done.output
        assert "[3, 3]" in done.output

    def test_random_inputs_are_named(self, model: Path) -> None:
        assert "random inputs: job, age\n" in self.run("run", model, "--input", "city=Rome").output
        every = ("--input", "city=Rome", "--input", "job=pilot", "--input", "age=3")
        assert "random" not in self.run("run", model, *every).output

    def test_files_of_texts(self, model: Path, tmp_path: Path) -> None:
        """NumPy's own are measured in processes of their own, too; arrays of objects are not read."""
        given = {name: a.astype(str) if a.dtype == object else a for name, a in feeds(2).items()}
        np.savez(tmp_path / "rows.npz", **given)
        done = self.run("bench", model, "--input", tmp_path / "rows.npz", "--seconds", 0.1, "--json")
        assert done.exit_code == 0, done.output
        (engine,) = json.loads(done.stdout)["engines"]
        assert engine["first_run_s"] > 0
        np.savez(tmp_path / "objects.npz", **feeds(2))
        with pytest.raises(
            BoltError, match=r"objects\.npz: got an array of Python's objects, .*: array\.astype\(str\)"
        ):
            load_arrays(tmp_path / "objects.npz")
