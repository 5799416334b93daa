"""Options of the drop-in against onnxruntime's: the same settings on both, and what they change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as theirs
import pytest
from onnx import helper, numpy_helper

import bolt_numba as bn
import bolt_numba.onnxruntime as ours
from tests.test_onnxruntime import F, S, X, adding, args, check, info, model, options, relu, session, value

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


@pytest.fixture
def apart(tmp_path: Path) -> tuple[Path, bytes]:
    """A folder with external data, and the bytes of a model that names them."""
    w = numpy_helper.from_array(np.arange(4000, dtype=np.float32), "w")
    node = helper.make_node("Add", ["x", "w"], ["y"])
    proto = onnx.load_from_string(model([node], [info("x", F, [4000])], [info("y", F, [4000])], [w]))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin")
    return tmp_path, (tmp_path / "m.onnx").read_bytes()


GIVEN: dict[str, Callable[[Any, Path, Any, bytes], Any]] = {
    "nothing": lambda o, folder, values, file: None,
    "the folder": lambda o, folder, values, file: o.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(folder)
    ),
    "the values": lambda o, folder, values, file: o.add_external_initializers(["w"], [values]),
    "the file": lambda o, folder, values, file: o.add_external_initializers_from_files_in_memory(
        ["w.bin"], [file], [16000]
    ),
    "half of the file": lambda o, folder, values, file: o.add_external_initializers_from_files_in_memory(
        ["w.bin"], [file], [8000]
    ),
}


@pytest.mark.parametrize("given", GIVEN)
def test_external_data_of_a_model_of_bytes(given: str, apart: tuple[Path, bytes]) -> None:
    folder, data = apart
    file = (folder / "w.bin").read_bytes()

    def call(ort: Any) -> Any:
        values = value(ort, np.full(4000, 2, np.float32))  # must live as long as the session there, as the file must
        made = options(ort, lambda o: GIVEN[given](o, folder, values, file))
        return session(ort, data, made).run(None, {"x": np.ones(4000, np.float32)})

    check(call)


def test_external_data_may_be_links(apart: tuple[Path, bytes]) -> None:
    """As caches of model hubs have them; onnxruntime follows those beside a model, but not those of a named folder."""
    folder, data = apart
    (folder / "net").mkdir()
    for name in ("m.onnx", "w.bin"):
        (folder / name).rename(folder / f"{name}-of-a-hash")
        (folder / "net" / name).symlink_to(f"../{name}-of-a-hash")
    made = options(ours, lambda o: GIVEN["the folder"](o, folder / "net", None, b""))
    for sess in (session(ours, data, made), ours.InferenceSession(folder / "net" / "m.onnx")):
        np.testing.assert_array_equal(sess.run(None, {"x": np.ones(4000, np.float32)})[0], np.arange(1, 4001))


@pytest.mark.parametrize(
    ("key", "text", "attribute"),
    [
        ("numerics", "strict", "strict"), ("precision", "bf16", "bf16"),
        ("max_plans", "3", 3), ("tune", "0", False), ("stand_ins", "0", False),
    ],
)
def test_entries_of_our_own_are_options_of_the_session(key: str, text: str, attribute: Any) -> None:
    made = options(ours, lambda o: o.add_session_config_entry(f"bolt_numba.{key}", text))
    assert getattr(ours.InferenceSession(adding(), made)._session.options, key) == attribute
    with pytest.raises(bn.BoltError, match=r"bolt_numba\.nothing"):
        made.add_session_config_entry("bolt_numba.nothing", "1")
    if key != "numerics" and key != "precision":
        with pytest.raises(bn.BoltError, match=rf"bolt_numba.{key}: got 'many', wanted a number"):
            made.add_session_config_entry(f"bolt_numba.{key}", "many")
    assert made.get_session_config_entry(f"bolt_numba.{key}") == text


def test_deterministic_sessions_have_no_stand_ins() -> None:
    made = ours.SessionOptions()
    made.use_deterministic_compute = True
    assert not ours.InferenceSession(adding(), made)._session.options.stand_ins


def test_threads_are_those_of_the_options() -> None:
    made = ours.SessionOptions()
    made.intra_op_num_threads = 1
    assert ours.InferenceSession(adding(), made)._session.threads == 1
    made.intra_op_num_threads = 10**6
    with pytest.raises(bn.BoltError, match="threads: got 1000000, wanted a whole number from 1 to"):
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


BESIDE = "session.optimized_model_external_initializers_file_name"


@pytest.mark.parametrize(
    ("written", "beside"), [("new.onnx", "m.data"), ("m.data", None), ("m.onnx", None), ("m.onnx", "w")]
)
def test_an_optimised_model_is_never_written_over_what_was_read(
    written: str, beside: str | None, tmp_path: Path
) -> None:
    weights = np.arange(1024, dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g",
        *([helper.make_tensor_value_info(name, 1, [1024])] for name in "xy"), [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    made = options(ours, lambda o: setattr(o, "optimized_model_filepath", str(tmp_path / "link" / written)))
    if beside is not None:
        made.add_session_config_entry(BESIDE, beside)
        made.add_session_config_entry(BESIDE.replace("file_name", "min_size_in_bytes"), "100")
    with pytest.raises(bn.BoltError, match=r"is what the session reads as .*wanted another"):
        ours.InferenceSession(tmp_path / "m.onnx", made)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("name", ["", "../w", "a/w", "/w", "new.onnx"])
def test_weights_of_an_optimised_model_lie_beside_it(name: str, tmp_path: Path) -> None:
    made = options(ours, lambda o: setattr(o, "optimized_model_filepath", str(tmp_path / "new.onnx")))
    made.add_session_config_entry(BESIDE, name)
    with pytest.raises(bn.BoltError, match=f"got {name!r}, wanted the name of another file beside 'new.onnx'"):
        ours.InferenceSession(adding(), made)
    assert not list(tmp_path.iterdir())
