"""The drop-in's options, values, bindings and traces against onnxruntime's: the same calls on both."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as theirs
import pytest
from onnx import TensorProto, helper, numpy_helper

import bolt_numba as bn
import bolt_numba.onnxruntime as ours
from tests.test_onnxruntime import ENGINES, F, X, adding, args, check, info, model, relu, session

S = np.arange(6, dtype=np.float32).reshape(2, 3)


def value(ort: Any, array: Any = S) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(array)


def options(ort: Any, change: Callable[[Any], Any]) -> Any:
    made = ort.SessionOptions()
    change(made)
    return made


# --- options ---------------------------------------------------------------------------------------------------------

FIELDS = [name for name in dir(theirs.SessionOptions()) if not name.startswith("_")]


@pytest.mark.parametrize("name", [n for n in FIELDS if not callable(getattr(theirs.SessionOptions(), n))])
def test_every_field_of_the_options_has_its_default(name: str) -> None:
    check(lambda ort: str(getattr(ort.SessionOptions(), name)))
    check(lambda ort: options(ort, lambda o: setattr(o, name, object())))
    check(lambda ort: str(getattr(options(ort, lambda o: setattr(o, name, getattr(o, name))), name)))


SET: dict[str, Callable[[Any, Any], Any]] = {
    "a number": lambda o, ort: setattr(o, "intra_op_num_threads", 2),
    "True for a number": lambda o, ort: setattr(o, "intra_op_num_threads", True),
    "a text for a number": lambda o, ort: setattr(o, "intra_op_num_threads", "2"),
    "a fraction": lambda o, ort: setattr(o, "intra_op_num_threads", 2.5),
    "less than none": lambda o, ort: setattr(o, "intra_op_num_threads", -3),
    "1 for a flag": lambda o, ort: setattr(o, "enable_profiling", 1),
    "a text for a flag": lambda o, ort: setattr(o, "enable_profiling", "x"),
    "None for a text": lambda o, ort: setattr(o, "logid", None),
    "a number for a level": lambda o, ort: setattr(o, "graph_optimization_level", 1),
    "a level": lambda o, ort: setattr(o, "graph_optimization_level", ort.GraphOptimizationLevel.ORT_ENABLE_BASIC),
    "an unknown attribute": lambda o, ort: setattr(o, "no_such_option", 1),
    "an unknown attribute read": lambda o, ort: o.no_such_option,
    "an entry": lambda o, ort: o.add_session_config_entry("a", "b"),
    "an entry that is no text": lambda o, ort: o.add_session_config_entry("a", 1),
    "an entry without a key": lambda o, ort: o.add_session_config_entry("", "b"),
    "an unknown entry": lambda o, ort: o.get_session_config_entry("x"),
    "an entry read": lambda o, ort: (o.add_session_config_entry("a", "b"), o.get_session_config_entry("a")),
    "an entry twice": lambda o, ort: [o.add_session_config_entry("a", v) for v in "bc"],
    "a dimension": lambda o, ort: o.add_free_dimension_override_by_name("a", 2),
    "a dimension without a size": lambda o, ort: o.add_free_dimension_override_by_name("a", "s"),
    "a library": lambda o, ort: o.register_custom_ops_library("/no/such.so"),
    "an initializer": lambda o, ort: o.add_initializer("a", ort.OrtValue.ortvalue_from_numpy(S)),
    "an initializer that is none": lambda o, ort: o.add_initializer("a", 1),
    "providers": lambda o, ort: o.has_providers(),
    "an unknown provider": lambda o, ort: o.add_provider("CUDAExecutionProvider", {}),
}


@pytest.mark.parametrize("name", SET)
def test_setting_options(name: str) -> None:
    check(lambda ort: SET[name](ort.SessionOptions(), ort))


def test_options_take_no_arguments() -> None:
    for cls in ("SessionOptions", "RunOptions"):
        with pytest.raises(TypeError):
            getattr(ours, cls)(intra_op_num_threads=1)


@pytest.mark.parametrize("name", ["terminate", "logid", "log_severity_level", "only_execute_path_to_fetches", "foo"])
def test_run_options(name: str) -> None:
    check(lambda ort: getattr(ort.RunOptions(), name))
    check(lambda ort: setattr(ort.RunOptions(), name, object()))


def test_entries_of_run_options() -> None:
    def call(ort: Any) -> Any:
        made = ort.RunOptions()
        made.add_run_config_entry("a", "b")
        return made.get_run_config_entry("a")

    check(call)
    check(lambda ort: ort.RunOptions().get_run_config_entry("x"))


@pytest.mark.parametrize("enumeration", ["GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder", "OrtMemType"])
def test_enumerations(enumeration: str) -> None:
    check(lambda ort: {name: int(m) for name, m in getattr(ort, enumeration).__members__.items()})
    check(lambda ort: [(str(m), repr(m), m.value) for m in getattr(ort, enumeration).__members__.values()])


def test_a_dimension_may_be_fixed() -> None:
    def shapes(ort: Any) -> Any:
        made = options(ort, lambda o: o.add_free_dimension_override_by_name("batch", 2))
        sess = session(ort, None, made)
        return args(sess.get_inputs()), args(sess.get_outputs())

    check(shapes)
    check(lambda ort: session(ort, None, options(ort, lambda o: o.add_free_dimension_override_by_name("batch", 2))).run(
        None, {"x": X[:1]}))  # fmt: skip


def test_a_dimension_may_be_fixed_by_what_it_means() -> None:
    proto = onnx.load_from_string(relu(["n", 4], ["n", 4]))
    proto.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    data = proto.SerializeToString()
    check(lambda ort: args(session(ort, data, options(
        ort, lambda o: o.add_free_dimension_override_by_denotation("DATA_BATCH", 3))).get_inputs()))  # fmt: skip


@pytest.mark.parametrize("name", ["w", "no such name"])
def test_an_initializer_may_be_replaced(name: str) -> None:
    w = np.full(4, 5, np.float32)
    weight = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    add = helper.make_node("Add", ["x", "w"], ["y"])
    data = model([add], [info("x", F, ["n", None, 4])], [info("y", F, None)], [weight])

    def call(ort: Any) -> Any:
        given = value(ort, w)  # which must live as long as the session there
        return session(ort, data, options(ort, lambda o: o.add_initializer(name, given))).run(None, {"x": X})

    check(call)


@pytest.mark.parametrize(
    ("key", "text", "attribute"),
    [("numerics", "strict", "strict"), ("precision", "bf16", "bf16"), ("max_plans", "3", 3), ("tune", "0", False)],
)
def test_entries_of_our_own_are_options_of_the_session(key: str, text: str, attribute: Any) -> None:
    made = options(ours, lambda o: o.add_session_config_entry(f"bolt_numba.{key}", text))
    assert getattr(ours.InferenceSession(adding(), made)._session, key) == attribute
    with pytest.raises(bn.BoltError, match=r"bolt_numba\.nothing"):
        made.add_session_config_entry("bolt_numba.nothing", "1")
    if key != "numerics" and key != "precision":
        with pytest.raises(bn.BoltError, match="many"):
            made.add_session_config_entry(f"bolt_numba.{key}", "many")
    assert made.get_session_config_entry(f"bolt_numba.{key}") == text


def test_threads_are_those_of_the_options() -> None:
    made = ours.SessionOptions()
    made.intra_op_num_threads = 1
    assert ours.InferenceSession(adding(), made)._session.threads == 1
    made.intra_op_num_threads = 10**6
    with pytest.raises(bn.DeviceError):
        ours.InferenceSession(adding(), made)
    shared = options(ours, lambda o: setattr(o, "use_per_session_threads", False))
    ours.set_global_thread_pool_sizes(1, 1)
    try:
        assert ours.InferenceSession(adding(), shared)._session.threads == 1
    finally:
        ours.set_global_thread_pool_sizes()


@pytest.mark.parametrize("name", ["m.onnx", "m.bolt"])
def test_an_optimised_model_is_written_and_runs(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    ours.InferenceSession(adding(), options(ours, lambda o: setattr(o, "optimized_model_filepath", str(path))))
    again = ours.InferenceSession(path)
    np.testing.assert_array_equal(again.run(None, {"x": X})[0], X + np.arange(4, dtype=np.float32))


# --- values ----------------------------------------------------------------------------------------------------------

ASKED: dict[str, Callable[[Any, Any], Any]] = {
    "numpy": lambda v, ort: v.numpy(),
    "shape": lambda v, ort: v.shape(),
    "data_type": lambda v, ort: v.data_type(),
    "element_type": lambda v, ort: v.element_type(),
    "device_name": lambda v, ort: v.device_name(),
    "the address": lambda v, ort: v.data_ptr() == S.ctypes.data,
    "kinds": lambda v, ort: (v.has_value(), v.is_tensor(), v.is_tensor_sequence(), v.is_sparse_tensor()),
    "bytes": lambda v, ort: v.tensor_size_in_bytes(),
    "DLPack": lambda v, ort: (np.from_dlpack(v), v.__dlpack_device__()),
    "from DLPack": lambda v, ort: ort.OrtValue.from_dlpack(S).numpy(),
    "an array": lambda v, ort: (np.asarray(v), np.array(v, copy=True), v.__array__(np.float64)),
    "sparse": lambda v, ort: v.as_sparse_tensor(),
    "updated by too few": lambda v, ort: v.update_inplace(np.zeros(3, np.float32)),
}
MADE: dict[str, Callable[[Any], Any]] = {
    "a list": lambda v: v.ortvalue_from_numpy([1]),
    "a scalar": lambda v: v.ortvalue_from_numpy(np.float32(3)),
    "texts": lambda v: v.ortvalue_from_numpy(np.array(["a"])),
    "rank 0": lambda v: v.ortvalue_from_numpy(np.zeros(())).shape(),
    "strided": lambda v: v.ortvalue_from_numpy(S.T).numpy(),
    "another device": lambda v: v.ortvalue_from_numpy(S, "cuda", 0),
    "zeros": lambda v: v.ortvalue_from_shape_and_type([2, 3], np.float32).shape(),
    "of a dtype": lambda v: v.ortvalue_from_shape_and_type((2, 3), np.dtype("i8")).data_type(),
    "of a number": lambda v: v.ortvalue_from_shape_and_type((2, 3), 10).data_type(),
    "complex": lambda v: v.ortvalue_from_shape_and_type((2, 3), np.complex64),
    "bits of bfloat16": lambda v: v.ortvalue_from_numpy_with_onnx_type(np.zeros(3, np.uint16), 16).data_type(),
    "bits of another width": lambda v: v.ortvalue_from_numpy_with_onnx_type(np.zeros(3, np.uint8), 16),
    "of nothing": lambda v: v(1),
}


@pytest.mark.parametrize("name", ASKED)
def test_values_say_the_same(name: str) -> None:
    check(lambda ort: ASKED[name](value(ort), ort))


@pytest.mark.parametrize("name", MADE)
def test_values_are_made_the_same(name: str) -> None:
    check(lambda ort: MADE[name](ort.OrtValue))


def test_a_value_shares_memory_with_its_array() -> None:
    for ort in ENGINES:
        array = S.copy()
        made = value(ort, array)
        array[0, 0] = 9
        assert made.numpy()[0, 0] == 9
        made.update_inplace(S * 2)
        np.testing.assert_array_equal(array, S * 2)


def test_devices() -> None:
    asked = ("type", "id", "mem_type", "vendor_id")
    check(lambda ort: [getattr(ort.OrtDevice.make("cpu", 0), f"device_{what}")() for what in asked])
    check(lambda ort: ort.OrtDevice.make("cuda", 1).device_type())


# --- bindings --------------------------------------------------------------------------------------------------------

Step = Callable[[Any, Any, Any], Any]
BOUND: dict[str, list[Step]] = {
    "by name": [lambda b, s, o: b.bind_cpu_input("x", X), lambda b, s, o: b.bind_output("y")],
    "by address": [
        lambda b, s, o: b.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data),
        lambda b, s, o: b.bind_output("y", "cpu"),
    ],
    "by OrtValue": [
        lambda b, s, o: b.bind_ortvalue_input("x", value(o, X)),
        lambda b, s, o: b.bind_ortvalue_output("y", o.OrtValue.ortvalue_from_shape_and_type([2, 3, 4], np.float32)),
    ],
    "overridden": [
        lambda b, s, o: b.bind_cpu_input("x", X),
        lambda b, s, o: b.bind_cpu_input("w", np.ones(4, np.float32)),
        lambda b, s, o: b.bind_output("y"),
    ],
    "no output": [lambda b, s, o: b.bind_cpu_input("x", X)],
    "unknown input": [lambda b, s, o: b.bind_cpu_input("zz", X)],
    "no array": [lambda b, s, o: b.bind_cpu_input("x", [1.0])],
    "another dtype": [lambda b, s, o: b.bind_cpu_input("x", X.astype(np.float64)), lambda b, s, o: b.bind_output("y")],
    "another size": [
        lambda b, s, o: b.bind_cpu_input("x", X),
        lambda b, s, o: b.bind_ortvalue_output("y", o.OrtValue.ortvalue_from_shape_and_type([2, 3, 5], np.float32)),
    ],
    "cleared": [
        lambda b, s, o: b.bind_cpu_input("x", X),
        lambda b, s, o: b.bind_output("y"),
        lambda b, s, o: b.clear_binding_outputs(),
        lambda b, s, o: b.clear_binding_inputs(),
    ],
}


@pytest.mark.parametrize("name", BOUND)
def test_bindings(name: str) -> None:
    def call(ort: Any) -> Any:
        sess = session(ort)
        binding = sess.io_binding()
        for step in BOUND[name]:
            step(binding, sess, ort)
        binding.synchronize_inputs()
        sess.run_with_iobinding(binding)
        binding.synchronize_outputs()
        found = binding.get_outputs()[0]
        return binding.copy_outputs_to_cpu(), found.numpy(), found.shape(), found.data_type()

    check(call)


def test_an_output_is_written_where_it_is_bound() -> None:
    for ort in ENGINES:
        out = np.zeros((2, 3, 4), np.float32)
        sess = session(ort)
        binding = sess.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)
        sess.run_with_iobinding(binding)
        np.testing.assert_array_equal(out, X + np.arange(4, dtype=np.float32))
        assert binding.get_outputs()[0].data_ptr() == out.ctypes.data


def test_some_outputs_have_a_place_and_others_get_one() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    data = model(nodes, [info("x", F, ["n"])], [info("y", F, ["n"]), info("z", F, ["n"])])
    x, out = np.array([-1, 2], np.float32), np.zeros(2, np.float32)
    for ort in ENGINES:
        out[:] = 0
        sess = session(ort, data)
        binding = sess.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("z")
        binding.bind_output("y", "cpu", 0, np.float32, [2], out.ctypes.data)
        sess.run_with_iobinding(binding)
        first, second = binding.copy_outputs_to_cpu()
        assert (first.tolist(), second.tolist(), out.tolist()) == ([1, -2], [0, 2], [0, 2])


# --- the rest --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("feeds", "wrong"), [({"x": X}, False), ({"x": X[0]}, True)])
def test_a_run_beside_the_caller(feeds: Any, wrong: bool) -> None:
    for ort in ENGINES:
        done, got = threading.Event(), []

        def callback(results: Any, data: Any, error: str, got: Any = got, done: Any = done) -> None:
            got.append((results, data, error))
            done.set()

        session(ort).run_async(["y"], feeds, callback, 7)
        assert done.wait(20)
        results, data, error = got[0]
        assert data == 7
        assert bool(error) is wrong
        assert len(results) == (0 if wrong else 1)
    check(lambda ort: session(ort).run_async(["y"], {}, print, None))


def test_a_profile_has_events_of_onnxruntimes_form(tmp_path: Path) -> None:
    for ort in ENGINES:
        made = ort.SessionOptions()
        made.enable_profiling, made.profile_file_prefix = True, str(tmp_path / "p")
        sess = session(ort, None, made)
        assert sess.get_profiling_start_time_ns() > 1e18
        sess.run(None, {"x": X})
        path = sess.end_profiling()
        assert path.startswith(str(tmp_path / "p_"))
        assert path.endswith(".json")
        events = json.loads(Path(path).read_text())
        node = next(e for e in events if e["cat"] == "Node")
        assert (node["args"]["op_name"], node["args"]["provider"], node["ph"]) == ("Add", "CPUExecutionProvider", "X")
        assert node["name"].endswith("_kernel_time")
        assert {"model_run"} <= {e["name"] for e in events if e["cat"] == "Session"}
        assert sess.end_profiling() == ""


def test_a_seed_makes_a_process_repeat_what_it_draws() -> None:
    node = helper.make_node("RandomNormal", [], ["y"], shape=[8])
    sess = ours.InferenceSession(model([node], [], [info("y", F, [8])]))
    from bolt_numba.ops.arrays import random

    try:
        drawn = []
        for _ in range(2):
            ours.set_seed(5)
            drawn.append([sess.run(None, {})[0].tolist() for _ in range(2)])
        assert drawn[0] == drawn[1]
        assert drawn[0][0] != drawn[0][1]
    finally:
        random._process.clear()


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("bolt_numba")
    level = found.level
    yield found
    found.setLevel(level)
    ours.set_default_logger_callback(None)


def test_severity_is_the_level_of_our_logger(logger: logging.Logger) -> None:
    said: list[Any] = []
    ours.set_default_logger_callback(lambda *row: said.append(row), 2)
    logger.info("no")
    logger.error("yes")
    assert [(row[0], row[1], row[4]) for row in said] == [(3, "bolt_numba", "yes")]
    ours.set_default_logger_severity(0)
    assert logger.level == logging.DEBUG
    ours.set_default_logger_callback(None)
    assert not logger.handlers
    for severity in (9, -1, "x"):
        check(lambda ort, severity=severity: ort.set_default_logger_severity(severity))  # type: ignore[misc]


QUESTIONS = ["get_device", "has_collective_ops", "get_version_string", "disable_telemetry_events", "preload_dlls"]


@pytest.mark.parametrize("name", QUESTIONS)
def test_functions_of_the_process(name: str) -> None:
    check(lambda ort: getattr(ort, name)())
    check(lambda ort: (ort.__version__, ort.package_name, ort.version))


def test_tensors_are_copied() -> None:
    """On the CPU onnxruntime says that it cannot."""
    to = value(ours, np.zeros((2, 3), np.float32))
    ours.copy_tensors([value(ours)], [to])
    np.testing.assert_array_equal(to.numpy(), S)
    with pytest.raises(bn.BoltError, match="as many"):
        ours.copy_tensors([], [to])


def test_types_of_other_libraries() -> None:
    from bolt_numba.onnxruntime.transformers.io_binding_helper import TypeHelper

    sess = ours.InferenceSession(adding())
    assert TypeHelper.get_input_type(sess, "x") == TypeHelper.get_output_type(sess, "y") == "tensor(float)"
    assert TypeHelper.get_io_numpy_type_map(sess) == {"x": np.float32, "y": np.float32}
    assert TypeHelper.get_io_onnx_type_map(sess) == {"x": TensorProto.FLOAT, "y": TensorProto.FLOAT}
    assert TypeHelper.ort_type_to_numpy_type("tensor(bool)") is bool
    for wrong in ("tensor(bfloat16)", "tensor(string)", "x"):
        with pytest.raises(ValueError, match="got"):
            TypeHelper.ort_type_to_numpy_type(wrong)
    with pytest.raises(ValueError, match="no such"):
        TypeHelper.get_input_type(sess, "no such")
