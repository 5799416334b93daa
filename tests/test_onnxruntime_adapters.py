"""Adapters of the drop-in against onnxruntime's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import bolt_numba as bn
import bolt_numba.onnxruntime as ours
from bolt_numba.types import Array

theirs = pytest.importorskip("onnxruntime")
ARRAYS: dict[str, tuple[Array, int]] = {
    "a": (np.arange(10, dtype=np.float32).reshape(5, 2), 1), "ein längerer Name": (np.zeros((0, 3), np.float16), 10),
    "bytes": (np.arange(13, dtype=np.uint8), 2),
}  # fmt: skip
X = np.arange(6, dtype=np.float32).reshape(3, 2)


def adapter(engine: Any, arrays: dict[str, tuple[Array, int]], path: Path) -> Path:
    made = engine.AdapterFormat()
    made.set_adapter_version(3)
    made.set_model_version(-5)
    values = {n: engine.OrtValue.ortvalue_from_numpy_with_onnx_type(a, code) for n, (a, code) in arrays.items()}
    made.set_parameters(values)
    made.export_adapter(str(path))
    return path


@pytest.mark.parametrize("writer", [ours, theirs], ids=["ours", "theirs"])
@pytest.mark.parametrize("reader", [ours, theirs], ids=["ours", "theirs"])
def test_either_reads_what_either_writes(writer: Any, reader: Any, tmp_path: Path) -> None:
    read = reader.AdapterFormat.read_adapter(str(adapter(writer, ARRAYS, tmp_path / "x.onnx_adapter")))
    assert (read.get_format_version(), read.get_adapter_version(), read.get_model_version()) == (1, 3, -5)
    found = read.get_parameters()
    assert found.keys() == ARRAYS.keys()
    for name, (array, code) in ARRAYS.items():
        assert found[name].element_type() == code
        assert found[name].numpy().dtype == array.dtype
        assert np.array_equal(found[name].numpy(), array)
        assert found[name].shape() == list(array.shape)


def model() -> bytes:
    """X @ (A @ B), whose factors a caller may override."""
    nodes = [helper.make_node("MatMul", ["A", "B"], ["W"]), helper.make_node("MatMul", ["X", "W"], ["Y"])]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in
              (("X", ["n", 2]), ("A", [2, "rank"]), ("B", ["rank", 4]))]  # fmt: skip
    held = [numpy_helper.from_array(np.ones(d, np.float32), n) for n, d in (("A", (2, 1)), ("B", (1, 4)))]
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["n", 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def loaded(engine: Any, path: Path) -> tuple[Any, Any, Any]:
    """A session, options with an adapter, and the adapter, which onnxruntime's options do not keep."""
    held, options = engine.LoraAdapter(), engine.RunOptions()
    held.Load(str(path))
    options.add_active_adapter(held)
    return engine.InferenceSession(model(), providers=["CPUExecutionProvider"]), options, held


def test_a_run_takes_the_parameters_of_its_adapters(tmp_path: Path) -> None:
    factors = {"A": (np.full((2, 3), 2, np.float32), 1), "B": (np.arange(12, dtype=np.float32).reshape(3, 4), 1)}
    path = adapter(ours, factors, tmp_path / "both")
    results = []
    for engine in (ours, theirs):
        session, options, _held = loaded(engine, path)
        (plain,), (changed,) = session.run(None, {"X": X}), session.run(None, {"X": X}, options)
        value = engine.OrtValue.ortvalue_from_numpy(X)
        (again,) = session.run_with_ort_values(None, {"X": value}, options)
        assert np.array_equal(plain, X @ np.ones((2, 4), np.float32))
        assert np.array_equal(again.numpy(), changed)
        results.append(changed)
    assert np.array_equal(*results)
    assert np.array_equal(results[0], X @ (factors["A"][0] @ factors["B"][0]))


def test_adapters_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"no adapter at all")
    with pytest.raises(ours.errors.OrtOptionError, match="wanted an adapter's"):
        ours.LoraAdapter().Load(str(tmp_path / "text"))
    good = adapter(ours, ARRAYS, tmp_path / "good").read_bytes()
    for at in range(len(good)):
        for damaged in (good[:at], good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :]):
            (tmp_path / "bad").write_bytes(damaged)
            try:
                ours.AdapterFormat.read_adapter(tmp_path / "bad")
            except bn.BoltError:
                continue
    made = ours.AdapterFormat()
    with pytest.raises(bn.BoltError, match="wanted a number of 32 bits"):
        made.set_model_version(2**31)
    with pytest.raises(bn.BoltError, match="parameter 'x'"):
        made.set_parameters({"x": X})
    text = ours.OrtValue(np.array(["a"], object))  # as a run gives one
    with pytest.raises(bn.BoltError, match="wanted a tensor of numbers"):
        made.set_parameters({"x": text})
    with pytest.raises(bn.BoltError, match="add_active_adapter"):
        ours.RunOptions().add_active_adapter(made)
    other = adapter(ours, {"Z": ARRAYS["a"]}, tmp_path / "other")
    session, options, _ = loaded(ours, other)
    with pytest.raises(bn.BoltError, match="Z"):
        session.run(None, {"X": X}, options)


@pytest.mark.parametrize(
    "array", [np.array([1.5, -2], ml_dtypes.bfloat16), np.array(7, np.int64), np.array([True, False])], ids=str
)
def test_what_onnxruntime_cannot_keep_is_kept(array: Array, tmp_path: Path) -> None:
    made = ours.AdapterFormat()
    made.set_parameters({"x": ours.OrtValue.ortvalue_from_numpy(array)})
    made.export_adapter(tmp_path / "x")
    assert np.array_equal(ours.AdapterFormat.read_adapter(tmp_path / "x").get_parameters()["x"].numpy(), array)
