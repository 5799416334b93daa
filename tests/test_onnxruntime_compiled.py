"""Names of onnxruntime's compiled part and its other modules, as clients and its own tests use them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as theirs
import pytest
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_inference_collection as their_collection
from onnxruntime.capi import onnxruntime_pybind11_state as their_state

import bolt_numba.onnxruntime as ours
from bolt_numba.onnxruntime.capi import onnxruntime_inference_collection as our_collection
from bolt_numba.onnxruntime.capi import onnxruntime_pybind11_state as our_state
from tests.test_onnxruntime import X, adding

both = pytest.mark.parametrize(
    ("ort", "state", "collection"),
    [(theirs, their_state, their_collection), (ours, our_state, our_collection)],
    ids=["theirs", "ours"],
)
CPU = ["CPUExecutionProvider"]
SUM = X + np.arange(4, dtype=np.float32)


@both
def test_values_of_the_compiled_session(ort: Any, state: Any, collection: Any) -> None:
    session = ort.InferenceSession(adding(), providers=CPU)
    value = ort.OrtValue.ortvalue_from_numpy(X)
    assert value._ortvalue.data_ptr() == value.data_ptr() == X.ctypes.data
    found = session._sess.run_with_ort_values({"x": value._get_c_value()}, ["y"], state.RunOptions())
    assert isinstance(found, state.OrtValueVector)
    assert len(found) == 1
    assert found.element_type_at(0) == onnx.TensorProto.FLOAT
    np.testing.assert_array_equal(found[0].numpy(), SUM)
    np.testing.assert_array_equal(session._sess.run(["y"], {"x": X}, None)[0], SUM)
    assert [arg.name for arg in session._sess.inputs_meta] == ["x"]
    assert len(session.get_input_epdevices()) == 1
    kept = state.OrtValueVector()
    kept.reserve(2)
    for i in range(2):
        kept.push_back(state.OrtValue.from_dlpack(found.dlpack_at(0)) if i else found[0])
    np.testing.assert_array_equal(kept[1].numpy(), SUM)


@both
def test_devices_and_memory_of_the_compiled_part(ort: Any, state: Any, collection: Any) -> None:
    kinds = [state.OrtDevice.cpu(), state.OrtDevice.cuda(), state.OrtDevice.default_memory()]
    assert kinds == [0, 1, 0]
    for numbers in ((1, 0, 3), (1, 0, 0x10DE, 3)):
        made = state.OrtDevice(*numbers)
        assert (made.device_type(), made.device_id()) == (1, 3)
    assert [ort.OrtDevice.make(n, 0).device_vendor_id() for n in ("cpu", "cuda", "cann")] == [0, 0x10DE, 0x19E5]
    kind, memory = ort.OrtMemoryInfoDeviceType.CPU, ort.OrtDeviceMemoryType.DEFAULT
    info = ort.OrtMemoryInfo.create_v2("mine", kind, 0, 0, memory, 128, ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR)
    assert (info.name, info.device_id, info.device_vendor_id) == ("mine", 0, 0)
    assert info.mem_type == ort.OrtMemType.DEFAULT
    assert info.device_mem_type == memory
    assert info.allocator_type == ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR


@both
@pytest.mark.filterwarnings("ignore:.*not in available")
def test_arguments_of_providers(ort: Any, state: Any, collection: Any) -> None:
    check = collection.check_and_normalize_provider_args
    names = ["a", "b", "c"]
    assert check(None, None, names) == ([], [])
    assert check([("a", {1: 2}), "b"], None, names) == (["a", "b"], [{"1": "2"}, {}])
    assert check(["a", "b"], [{1: 2}, {}], names) == (["a", "b"], [{"1": "2"}, {}])
    with pytest.warns(UserWarning, match="'a'"):
        assert check(["a", "b", "a"], [{"x": 1}, {}, {"y": 2}], names) == (["a", "b"], [{"x": "1"}, {}])
    for wrong in ((3, None), ([3], None), (["a"], 3), (["a"], ["b"]), (["a", "b"], [{}]), ([("a", {})], [{}])):
        with pytest.raises(ValueError, match=r"provider"):
            check(*wrong, names)
    session = ort.InferenceSession(adding(), providers=CPU)
    with pytest.raises(RuntimeError, match="Unknown Provider Type: Nope"):
        session.set_providers(["Nope"])
    with pytest.warns(UserWarning, match="not available|not in available"):
        session.set_providers(["CUDAExecutionProvider"])
    assert session.get_providers() == CPU


@pytest.mark.filterwarnings("ignore:onnx.version")
@pytest.mark.parametrize("name", ["onnxruntime", "bolt_numba.onnxruntime"])
def test_the_backend(name: str, tmp_path: Path) -> None:
    backend = importlib.import_module(f"{name}.backend")
    (tmp_path / "m.onnx").write_bytes(adding())
    assert backend.supports_device("CPU")
    assert backend.is_compatible(onnx.load_from_string(adding()))
    for model in (adding(), str(tmp_path / "m.onnx"), onnx.load_from_string(adding())):
        prepared = backend.prepare(model, "CPU")
        for given in (X, [X]):
            np.testing.assert_array_equal(prepared.run(given)[0], SUM)
    np.testing.assert_array_equal(backend.run(backend.prepare(adding()), [X])[0], SUM)


@both
@pytest.mark.parametrize("value", ["1", "0"])
def test_options_that_a_file_holds(
    ort: Any, state: Any, collection: Any, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load_from_string(adding())
    fields = {"inter_op_num_threads": 5, "intra_op_num_threads": 2, "graph_optimization_level": 99}
    model.metadata_props.add(key="ort_config", value=json.dumps({"session_options": fields}))
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", value)
    found = ort.InferenceSession(model.SerializeToString(), providers=CPU).get_session_options()
    wanted = (5, 2) if value == "1" else (0, 0)
    assert (found.inter_op_num_threads, found.intra_op_num_threads) == wanted
    own = ort.SessionOptions()
    own.inter_op_num_threads = 3
    again = ort.InferenceSession(model.SerializeToString(), own, providers=CPU).get_session_options()
    assert (again.inter_op_num_threads, own.inter_op_num_threads) == (wanted[0] or 3, 3)


def test_a_file_names_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sets what onnxruntime lets it set; a path would let it write anywhere."""
    model = onnx.load_from_string(adding())
    fields = {"optimized_model_filepath": str(tmp_path / "written.onnx"), "intra_op_num_threads": 2}
    model.metadata_props.add(key="ort_config", value=json.dumps({"session_options": fields}))
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    with pytest.warns(UserWarning, match="ort_config: 'optimized_model_filepath' is left out"):
        found = ours.InferenceSession(model.SerializeToString(), providers=CPU).get_session_options()
    assert (found.optimized_model_filepath, found.intra_op_num_threads) == ("", 2)
    assert not list(tmp_path.iterdir())


@both
def test_weights_of_an_optimised_model_beside_it(
    ort: Any, state: Any, collection: Any, tmp_path: Path
) -> None:
    w = numpy_helper.from_array(np.arange(64, dtype=np.float32), "w")
    info = [helper.make_tensor_value_info(n, 1, [64]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", info[:1], info[1:], [w])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    for least, apart in (("100", True), ("1000", False)):
        made = ort.SessionOptions()
        made.optimized_model_filepath = str(tmp_path / f"{least}.onnx")
        for key, text in (("file_name", f"{least}.bin"), ("min_size_in_bytes", least)):
            made.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", text)
        ort.InferenceSession(data, made, providers=CPU)
        assert ((tmp_path / f"{least}.bin").exists() and (tmp_path / f"{least}.bin").stat().st_size >= 256) is apart
        again = ort.InferenceSession(tmp_path / f"{least}.onnx", providers=CPU)
        np.testing.assert_array_equal(again.run(None, {"x": np.ones(64, np.float32)})[0], np.arange(1, 65))


@both
def test_a_logger_hears_of_new_sessions(ort: Any, state: Any, collection: Any) -> None:
    heard: list[Any] = []
    ort.set_default_logger_callback(lambda *said: heard.append(said), severity=0)
    ort.InferenceSession(adding(), providers=CPU)
    ort.set_default_logger_callback(None)
    ort.set_default_logger_severity(2)
    assert heard
    assert all(list(map(type, said)) == [int, str, str, str, str] for said in heard)


@both
def test_bindings_of_the_compiled_session(ort: Any, state: Any, collection: Any) -> None:
    inner = ort.InferenceSession(adding(), providers=CPU)._sess
    device = state.OrtDevice(state.OrtDevice.cpu(), state.OrtDevice.default_memory(), 0)
    bound = state.SessionIOBinding(inner)
    bound.bind_ortvalue_input("x", state.OrtValue.ortvalue_from_numpy(X, device))
    bound.bind_output("y", device)
    inner.run_with_iobinding(bound, None)
    np.testing.assert_array_equal(bound.get_outputs()[0].numpy(), SUM)


@both
def test_which_provider_runs_what(ort: Any, state: Any, collection: Any) -> None:
    made = ort.SessionOptions()
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    (part,) = ort.InferenceSession(adding(), made, providers=CPU).get_provider_graph_assignment_info()
    (node,) = part.get_nodes()
    assert (part.ep_name, node.domain, node.op_type) == (*CPU, "", "Add")
    with pytest.raises(state.Fail, match=r"'session.record_ep_graph_assignment_info' must be set to .1."):
        ort.InferenceSession(adding(), providers=CPU).get_provider_graph_assignment_info()


def test_what_clients_look_for_in_messages() -> None:
    session = ours.InferenceSession(adding())
    for call in (lambda: session.run([], {}), lambda: session.run_async(["y"], {}, print, None)):
        with pytest.raises(ValueError, match=r"Required inputs \(\['x'\]\) are missing from input feed \(\[\]\)"):
            call()
    with pytest.raises(RuntimeError, match="SessionOptions does not have configuration with key: k"):
        ours.SessionOptions().get_session_config_entry("k")
