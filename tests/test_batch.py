"""Models over tables of rows: what columns may be, how rows are put together, what comes back, what errors say."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, save

import bolt_numba as bn
from bolt_numba import batch
from bolt_numba.base.errors import BoltError, DTypeError, OptionError, ShapeError
from tests.small import add, same, save_model, softmax

ROWS = 45


def soft(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return softmax(tmp_path_factory.mktemp("batch") / "softmax.onnx")


@pytest.fixture
def x() -> Any:
    return np.random.default_rng(0).normal(size=(ROWS, 8)).astype("f4")


def sizes_of(predictor: batch.Predictor, monkeypatch: pytest.MonkeyPatch, given: Any) -> list[Any]:
    """Shapes of the first input in each run of a call."""
    seen, run = [], predictor.session.run
    name = predictor.session.inputs[0].name

    def noting(names: Any, feeds: Any) -> Any:
        seen.append(np.shape(feeds[name]))
        return run(names, feeds)

    monkeypatch.setattr(predictor.session, "run", noting)
    predictor(given)
    monkeypatch.undo()
    return seen


# --- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    [
        lambda x: x, lambda x: x.astype("f8"), lambda x: list(x), lambda x: x.tolist(), lambda x: tuple(x.tolist()),
        lambda x: np.array([*x, None], object)[:-1], lambda x: [row.astype("f8") for row in x],
    ],
)  # fmt: skip
def test_columns_are_arrays_or_lists(path: Path, x: Any, column: Any) -> None:
    found = batch.predict({"x": column(x), "other": ["text"] * ROWS}, path)
    assert list(found) == ["y"]
    assert found["y"].dtype == np.float32
    np.testing.assert_allclose(found["y"], soft(x), rtol=1e-5)


def test_columns_together_are_the_features_of_one_input(path: Path, x: Any) -> None:
    columns = {f"f{i}": x[:, i] if i % 2 else x[:, i].tolist() for i in range(8)}
    np.testing.assert_allclose(batch.predict(columns, path)["y"], soft(x), rtol=1e-5)
    found = batch.Predictor(path, inputs={"x": ["f3", "f1"]}, outputs={"made": "y"}, keep=["f0"])(columns)
    assert list(found) == ["f0", "made"]
    assert found["f0"] == columns["f0"]
    np.testing.assert_allclose(found["made"], soft(x[:, [3, 1]]), rtol=1e-5)


def test_other_columns_may_be_kept_beside_the_features(path: Path, x: Any) -> None:
    columns = {"id": [str(i) for i in range(ROWS)], **{f"f{i}": x[:, i] for i in range(8)}}
    found = batch.predict(columns, path, keep=["id"])
    assert found["id"] == batch.predict(columns, path, keep="id")["id"] == columns["id"]
    np.testing.assert_allclose(found["y"], soft(x), rtol=1e-5)


def test_lists_may_have_different_lengths(path: Path, x: Any) -> None:
    rows = [row[: 1 + i % 5] for i, row in enumerate(x)]
    found = batch.predict({"x": rows}, path)["y"]
    assert found.dtype == object
    for row, y in zip(rows, found, strict=True):
        np.testing.assert_array_equal(y, bn.compile(path)(row[None])["y"][0])


def test_rows_of_one_shape_run_together_in_few_sizes(path: Path, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = batch.Predictor(path)
    assert sizes_of(predictor, monkeypatch, {"x": x}) == [(32, 8), (8, 8), (4, 8), (1, 8)]
    rows = [row[: 7 + i % 2] for i, row in enumerate(x)]
    assert sizes_of(predictor, monkeypatch, {"x": rows}) == [(16, 7), (4, 7), (2, 7), (1, 7), (16, 8), (4, 8), (2, 8)]
    assert sizes_of(batch.Predictor(path, max_batch=20), monkeypatch, {"x": x}) == [(20, 8), (16, 8), (8, 8), (1, 8)]


def test_a_model_may_fix_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = batch.Predictor(add(tmp_path / "add.onnx", rows=40))
    columns = {"a": np.arange(150, dtype="f4").reshape(50, 3), "b": np.ones((50, 3), "f4")}
    assert sizes_of(predictor, monkeypatch, columns) == [(40, 3), (40, 3)]
    np.testing.assert_array_equal(predictor(columns)["y"], columns["a"] + 1)


def test_scalars_of_rows_are_not_mixed(tmp_path: Path) -> None:
    path = save_model(
        tmp_path / "mul.onnx", "Mul", {"x": (TensorProto.FLOAT, ["n", 2]), "by": (TensorProto.FLOAT, [])}, 1
    )
    found = batch.predict({"x": np.ones((5, 2)), "by": [1.0, 2.0, 1.0, 3.0, 2.0]}, path)["y"]
    np.testing.assert_array_equal(found[:, 0], [1, 2, 1, 3, 2])


def test_a_number_may_stand_for_a_row_of_one(tmp_path: Path) -> None:
    found = batch.predict({"a": [1, 2, 3], "b": np.array([0.5, 0.5, 0.5])}, add(tmp_path / "add.onnx", columns=1))
    np.testing.assert_array_equal(found["y"], [1.5, 2.5, 3.5])


def test_texts(tmp_path: Path) -> None:
    path = same(tmp_path / "same.onnx", TensorProto.STRING)
    found = batch.predict({"x": [["a", "b"], ["c", "d"], ["e"]]}, path)["y"]
    assert [list(row) for row in found] == [["a", "b"], ["c", "d"], ["e"]]
    with pytest.raises(DTypeError, match=r"^row 1: .*got None"):
        batch.predict({"x": [["a"], [None]]}, path)


def test_not_a_number_stays_and_integers_stay_whole(tmp_path: Path) -> None:
    x = np.array([[1.0, np.nan], [np.inf, 2.0]])
    np.testing.assert_array_equal(batch.predict({"x": x}, same(tmp_path / "f.onnx", TensorProto.FLOAT))["y"], x)
    path = same(tmp_path / "i.onnx", TensorProto.INT64)
    found = batch.predict({"x": np.array([[1.0, 2.0]])}, path)["y"]
    assert found.dtype == np.int64
    for wrong in (0.5, np.nan):
        with pytest.raises(DTypeError, match=r"^row 1: input 'x': .*i64"):
            batch.predict({"x": np.array([[1.0, 2.0], [1.0, wrong]])}, path)


def test_no_rows(path: Path, tmp_path: Path) -> None:
    for empty in ([], np.empty((0, 8), "f4"), np.empty(0, object)):
        found = batch.predict({"x": empty}, path)["y"]
        assert found.dtype == np.float32
        assert len(found) == 0
    found = batch.predict({"a": [], "b": []}, add(tmp_path / "add.onnx"))["y"]
    assert found.shape == (0, 3)


def test_results_of_a_map_for_each_row(tmp_path: Path) -> None:
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["no", "yes"])
    y = helper.make_value_info(
        "y", helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING,
        helper.make_tensor_type_proto(TensorProto.FLOAT, []))),
    )  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    save(helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets), tmp_path / "zip.onnx")
    found = batch.predict({"x": [[0.25, 0.75], [0.5, 0.5], [1, 0]]}, tmp_path / "zip.onnx")["y"]
    assert found.tolist() == [{"no": 0.25, "yes": 0.75}, {"no": 0.5, "yes": 0.5}, {"no": 1.0, "yes": 0.0}]


# --- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "error", "said"),
    [
        ([[1.0], None, [2.0]], DTypeError, "row 1: input 'x': got None"),
        ([[1.0], [2.0], ["a"]], DTypeError, "row 2: input 'x'"),
        ([[1.0], [[2.0]]], ShapeError, "row 1: input 'x': got shape (1, 1), wanted"),
        ([[1.0], object()], DTypeError, "row 1: input 'x'"),
        ([[1.0], [2.0, None, "a"]], DTypeError, "row 1: input 'x'"),
        (3, DTypeError, "column 'x': got a int, wanted rows"),
        ("text", DTypeError, "column 'x': got a str, wanted rows"),
    ],
)
def test_errors_name_the_row(path: Path, column: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as found:
        batch.predict({"x": column}, path)
    assert str(found.value).startswith(said)


def test_errors_of_a_run_name_the_row(tmp_path: Path) -> None:
    table = helper.make_tensor("table", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    x, y = (helper.make_tensor_value_info(n, t, ["n"]) for n, t in (("x", TensorProto.INT64), ("y", TensorProto.FLOAT)))
    graph = helper.make_graph([helper.make_node("Gather", ["table", "x"], ["y"])], "g", [x], [y], [table])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "gather.onnx")
    np.testing.assert_array_equal(batch.predict({"x": [2, 0, 1]}, tmp_path / "gather.onnx")["y"], [3, 1, 2])
    with pytest.raises(BoltError, match=r"^row 5: "):
        batch.predict({"x": [0, 1, 2, 0, 1, 7, 0]}, tmp_path / "gather.onnx")


def test_a_model_that_gives_no_row_for_each_is_told(tmp_path: Path) -> None:
    nodes = [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, 2]) for n, rows in (("x", "n"), ("y", "m")))
    save(helper.make_model(helper.make_graph(nodes, "g", [x], [y])), tmp_path / "twice.onnx")
    with pytest.raises(ShapeError, match=r"^row 0: output 'y': got other than 1 rows"):
        batch.predict({"x": np.ones((3, 2))}, tmp_path / "twice.onnx")


def test_a_misspelt_column_of_the_only_input_is_told(path: Path) -> None:
    """It might be a feature of it."""
    said = r"^row 0: input 'x': got shape .*'x' is not one of \['X', 'id'\]; did you mean 'X'\?"
    with pytest.raises(ShapeError, match=said):
        batch.predict({"X": [[1.0, 2.0], [3.0]], "id": [1, 2]}, path, keep=["id"])
    with pytest.raises(BoltError, match=r"^columns: 'x' is not one of \[\]"):
        batch.predict({}, path)


def test_columns_and_names_are_checked(path: Path, tmp_path: Path) -> None:
    with pytest.raises(BoltError, match=r"^columns: 'b' is not one of \['a', 'bb'\]; did you mean 'bb'\?"):
        batch.predict({"a": np.ones((2, 3)), "bb": np.ones((2, 3))}, add(tmp_path / "add.onnx"))
    with pytest.raises(ShapeError, match=r"columns: got \[1, 2\] rows"):
        batch.predict({"a": np.ones((2, 3)), "b": np.ones((1, 3))}, add(tmp_path / "add.onnx"))
    with pytest.raises(BoltError, match=r"^columns: 'id' is not one of \['x'\]"):
        batch.predict({"x": np.ones((2, 3))}, path, keep=["id"])
    with pytest.raises(DTypeError, match="batch: got a ndarray, wanted columns"):
        batch.predict(np.ones((2, 3)), path)
    with pytest.raises(BoltError, match="inputs: 'X' is not one of"):
        batch.Predictor(path, inputs={"X": "x"})
    with pytest.raises(BoltError, match="outputs: 'z' is not one of"):
        batch.Predictor(path, outputs={"y": "z"})
    with pytest.raises(ShapeError, match=r"columns: got \[1, 2\] rows"):
        batch.predict({"x": np.ones((2, 3)), "no input": ["text"]}, path)
    for wrong in ("y", ["y"]):
        with pytest.raises(OptionError, match=r"^outputs: got .*'y'.*, wanted a name by each name"):
            batch.Predictor(path, outputs=wrong)  # type: ignore[arg-type]
    with pytest.raises(BoltError, match="max_batch: got 0"):
        batch.Predictor(path, max_batch=0)
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: .*none\.onnx"):
        batch.predict({"x": []}, tmp_path / "none.onnx")


# --- sessions --------------------------------------------------------------------------------------------------------


def test_a_process_has_one_session_for_a_file_and_its_options(path: Path, tmp_path: Path) -> None:
    one, same_one = batch.Predictor(path, threads=1), batch.Predictor(str(path), threads=1, keep=["x"])
    assert one.session is same_one.session
    assert batch.Predictor(path, threads=2).session is not one.session
    file = softmax(tmp_path / "m.onnx")
    first = batch.Predictor(file).session
    softmax(tmp_path / "other.onnx").replace(file)
    assert batch.Predictor(file).session is not first
    assert batch.Predictor(first).session is first


def test_threads_make_one_session(path: Path, x: Any) -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(batch.Predictor(path, max_batch=8))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(p.session) for p in found}) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_fork_while_a_session_is_made(path: Path, x: Any) -> None:
    predictor = batch.Predictor(path)
    with batch._lock:
        child = os.fork()
        if not child:  # nobody will release the parent's lock here
            ok = np.allclose(batch.predict({"x": x}, path)["y"], soft(x), rtol=1e-5)
            os._exit(0 if ok and batch.Predictor(path).session is predictor.session else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_predictor_is_pickled_by_what_it_was_made_of(path: Path, x: Any) -> None:
    predictor = batch.Predictor(path, outputs={"made": "y"}, max_batch=4)
    packed = pickle.dumps(predictor)
    assert len(packed) < 1000
    again = pickle.loads(packed)
    assert (again.session, again.max_batch) == (predictor.session, 4)
    assert list(again({"x": x})) == ["made"]


def test_prepare_writes_a_packed_file_and_compiles(path: Path, tmp_path: Path, x: Any) -> None:
    made = batch.prepare(path, tmp_path / "m.bolt", shapes={"x": (32, 8)})
    assert made == str(tmp_path / "m.bolt")
    assert bn.load(made).packed is not None
    np.testing.assert_allclose(batch.predict({"x": x}, made)["y"], soft(x), rtol=1e-5)
    with pytest.raises(ShapeError, match="z"):
        batch.prepare(path, tmp_path / "n.bolt", shapes={"z": (1,)})
    with pytest.raises(OptionError, match=r"m\.onnx: got another suffix, wanted \.bolt"):
        batch.prepare(path, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


# --- tables ----------------------------------------------------------------------------------------------------------


def test_tables_of_pandas(path: Path, tmp_path: Path, x: Any) -> None:
    pandas = pytest.importorskip("pandas", reason="make engines has it")
    table = pandas.DataFrame({f"f{i}": x[:, i] for i in range(8)}, index=[f"r{i}" for i in range(ROWS)])
    found = batch.predict(table, path)
    assert list(found.index) == list(table.index)
    np.testing.assert_allclose(np.stack(found["y"].to_numpy()), soft(x), rtol=1e-5)
    found = batch.predict(pandas.DataFrame({"x": list(x), "id": range(ROWS)}), path, keep=["id"])
    assert list(found.columns) == ["id", "y"]
    missing = pandas.DataFrame({"x": pandas.array([1, None], "Int64")})
    with pytest.raises(DTypeError, match="row 1"):
        batch.predict(missing.assign(a=1), same(tmp_path / "i.onnx", TensorProto.INT64), inputs={"x": ["x", "a"]})


def test_tables_of_arrow(path: Path, x: Any) -> None:
    arrow = pytest.importorskip("pyarrow", reason="make engines has it")
    rows = [row[: 7 + i % 2] for i, row in enumerate(x)]
    for table in (arrow.table({"x": rows}), arrow.record_batch({"x": rows})):
        found = batch.predict(table, path)["y"]
        np.testing.assert_allclose(found[2], soft(x[2, :7]), rtol=1e-5)
    found = batch.predict(arrow.table({f"f{i}": x[:, i] for i in range(8)}), path)["y"]
    np.testing.assert_allclose(found, soft(x), rtol=1e-5)
