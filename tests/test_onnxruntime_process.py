"""What the drop-in does beside runs: threads, profiles, seeds, logging, types, functions of the process."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import bolt_numba as bn
import bolt_numba.onnxruntime as ours
from tests.test_onnxruntime import ENGINES, F, S, X, adding, check, info, model, outcome, session, value


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


def run_bound(sess: Any) -> None:
    binding = sess.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    sess.run_with_iobinding(binding)
    binding.clear_binding_inputs()


@pytest.mark.parametrize("run", [lambda sess: sess.run(None, {"x": X}), run_bound])
def test_a_profile_has_events_of_onnxruntimes_form(tmp_path: Path, run: Callable[[Any], None]) -> None:
    for ort in ENGINES:
        made = ort.SessionOptions()
        made.enable_profiling, made.profile_file_prefix = True, str(tmp_path / "p")
        sess = session(ort, None, made)
        assert sess.get_profiling_start_time_ns() > 1e18
        run(sess)
        path = sess.end_profiling()
        assert path.startswith(str(tmp_path / "p_"))
        assert re.fullmatch(r".*_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(_\d{3})?\.json", path)
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
    assert not [h for h in logger.handlers if type(h) is not logging.NullHandler]
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


def memory(ort: Any) -> Any:
    return ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)


def test_descriptions_of_memory() -> None:
    names = ("name", "allocator_type", "device_id", "mem_type", "device_mem_type", "device_vendor_id")
    check(lambda ort: [str(getattr(memory(ort), name)) for name in names])
    check(lambda ort: ort.OrtMemoryInfo("No", ort.OrtAllocatorType.INVALID, 0, ort.OrtMemType.CPU))


def test_where_inputs_and_outputs_are() -> None:
    def call(ort: Any) -> Any:
        sess = session(ort)  # which owns the descriptions there
        return [[i.name for i in infos] for infos in (sess.get_input_memory_infos(), sess.get_output_memory_infos())]

    check(call)
    check(lambda ort: session(ort).create_ortvalue_from_shape_and_type([2], np.float32, "cpu").shape())


@pytest.mark.parametrize("given", [(1, 2, 3, 4), ({"max_mem": 1},), ({"x": 1},)], ids=str)
def test_descriptions_of_arenas(given: tuple[Any, ...]) -> None:
    check(lambda ort: [getattr(ort.OrtArenaCfg(*given), n) for n in ("max_mem", "initial_chunk_size_bytes")])
    made = outcome(lambda: ours.OrtArenaCfg(*given))
    if isinstance(made, ours.OrtArenaCfg):
        assert ours.create_and_register_allocator(memory(ours), made) is None
        assert ours.create_and_register_allocator_v2("CPUExecutionProvider", memory(ours), {}, made) is None


def test_versions_are_told(capsys: Any) -> None:
    ours.print_debug_info()
    assert f"onnxruntime {ours.__version__} by " in capsys.readouterr().out
    check(lambda ort: "Build Info" in ort.get_build_info())
    assert ours.get_ep_devices() == []


def test_loading_may_be_cancelled() -> None:
    def call(ort: Any) -> Any:
        made = ort.SessionOptions()
        made.set_load_cancellation_flag(True)
        return session(ort, None, made)

    check(call)


@pytest.mark.parametrize("level", [-1, 4, 5, -2])
def test_severities_of_sessions_have_bounds(level: int) -> None:
    def call(ort: Any) -> Any:
        made = ort.SessionOptions()
        made.log_severity_level = level
        return session(ort, None, made).get_providers()

    check(call)
