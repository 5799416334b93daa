"""The drop-in for onnxruntime against onnxruntime itself: the same calls, the same answers, errors of the same kind."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as theirs
import pytest
from onnx import TensorProto, helper, numpy_helper

import bolt_numba as bn
import bolt_numba.onnxruntime as ours
from bolt_numba.onnxruntime import errors

theirs.set_default_logger_severity(4)
ENGINES = (theirs, ours)
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
S = np.arange(6, dtype=np.float32).reshape(2, 3)
F = TensorProto.FLOAT
info = helper.make_tensor_value_info


def model(nodes: list[Any], ins: list[Any], outs: list[Any], inits: Any = (), ir_version: int = 8) -> bytes:
    graph = helper.make_graph(nodes, "the graph", ins, outs, initializer=list(inits), doc_string="of the graph")
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version, producer_name="prod",
        producer_version="1.2", domain="dom", model_version=7, doc_string="of the model",
    )  # fmt: skip
    helper.set_model_props(made, {"a": "b"})
    data: bytes = made.SerializeToString()
    return data


def adding(ir_version: int = 8) -> bytes:
    """y = x + w, where w is an initializer that may be fed."""
    w = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    ins = [info("x", F, ["batch", None, 4]), info("w", F, [4])]
    return model([helper.make_node("Add", ["x", "w"], ["y"])], ins, [info("y", F, ["batch", 3, "u"])], [w], ir_version)


def relu(ins: Any, outs: Any) -> bytes:
    return model([helper.make_node("Relu", ["x"], ["y"])], [info("x", F, ins)], [info("y", F, outs)])


def args(found: Any) -> list[Any]:
    return [(a.name, a.shape, a.type) for a in found]


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or the error that it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call()
        except Exception as error:
            return error


def agree(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, (list, tuple)):
        return len(got) == len(wanted) and all(map(agree, got, wanted))
    if isinstance(wanted, np.ndarray):
        return bool(got.dtype == wanted.dtype and np.array_equal(got, wanted))
    return bool(got == wanted)


def check(call: Callable[[Any], Any]) -> None:
    """The same result; or an error that onnxruntime's name, or Python's, catches."""
    wanted, got = (outcome(lambda ort=ort: call(ort)) for ort in ENGINES)  # type: ignore[misc]
    if not isinstance(wanted, Exception):
        assert not isinstance(got, Exception), got
        assert agree(got, wanted), (got, wanted)
        return
    assert isinstance(got, Exception), (got, wanted)
    assert isinstance(got, (bn.BoltError, OSError, AttributeError)), repr(got)
    names = {kind.__name__ for kind in type(got).__mro__}
    assert type(wanted).__name__ in names, (got, wanted)


def session(ort: Any, data: bytes | None = None, *given: Any, **options: Any) -> Any:
    return ort.InferenceSession(adding() if data is None else data, *given, **options)


def value(ort: Any, array: Any = S) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(array)


def options(ort: Any, change: Callable[[Any], Any]) -> Any:
    made = ort.SessionOptions()
    change(made)
    return made


RUNS: dict[str, Callable[[Any, Any], Any]] = {
    "all": lambda s, o: s.run(None, {"x": X}),
    "none named": lambda s, o: s.run([], {"x": X}),
    "named": lambda s, o: s.run(["y"], {"x": X}),
    "a tuple of names": lambda s, o: s.run(("y",), {"x": X}),
    "names that are read once": lambda s, o: s.run((name for name in ["y"]), {"x": X}),
    "twice": lambda s, o: s.run(["y", "y"], {"x": X}),
    "options": lambda s, o: s.run(None, {"x": X}, o.RunOptions()),
    "keywords": lambda s, o: s.run(output_names=None, input_feed={"x": X}, run_options=None),
    "overridden": lambda s, o: s.run(None, {"x": X, "w": np.full(4, 9, np.float32)}),
    "a list": lambda s, o: s.run(None, {"x": X.tolist()}),
    "strided": lambda s, o: s.run(None, {"x": X[:, ::2]}),
    "an OrtValue": lambda s, o: s.run(None, {"x": o.OrtValue.ortvalue_from_numpy(X)}),
    "OrtValues": lambda s, o: s.run_with_ort_values(["y"], {"x": o.OrtValue.ortvalue_from_numpy(X)})[0].numpy(),
    "OrtValues, all": lambda s, o: len(s.run_with_ort_values(None, {"x": o.OrtValue.ortvalue_from_numpy(X)})),
    "a text for names": lambda s, o: s.run("y", {"x": X}),
    "unknown output": lambda s, o: s.run(["z"], {"x": X}),
    "missing input": lambda s, o: s.run(None, {}),
    "missing OrtValue": lambda s, o: s.run_with_ort_values(["y"], {}),
    "unknown input": lambda s, o: s.run(None, {"x": X, "q": X}),
    "dtype": lambda s, o: s.run(None, {"x": X.astype(np.float64)}),
    "half": lambda s, o: s.run(None, {"x": X.astype(np.float16)}),
    "integers": lambda s, o: s.run(None, {"x": X.astype(np.int64)}),
    "rank": lambda s, o: s.run(None, {"x": X[0]}),
    "size": lambda s, o: s.run(None, {"x": X[..., :2]}),
    "overridden by another size": lambda s, o: s.run(None, {"x": X, "w": np.ones(5, np.float32)}),
    "no options": lambda s, o: s.run(None, {"x": X}, 1),
    "an output that is the input": lambda s, o: np.shares_memory(passing(o).run(["x"], {"x": X[0, 0]})[0], X),
    "terminated": lambda s, o: s.run(None, {"x": X}, terminated(o)),
    "unknown attribute": lambda s, o: s.inputs,
}


def passing(ort: Any) -> Any:
    """An input that is an output, too."""
    node = helper.make_node("Neg", ["x"], ["y"])
    return session(ort, model([node], [info("x", F, [4])], [info("y", F, [4]), info("x", F, [4])]))


def terminated(ort: Any) -> Any:
    options = ort.RunOptions()
    options.terminate = True
    return options


@pytest.mark.parametrize("name", RUNS)
def test_runs(name: str) -> None:
    check(lambda ort: RUNS[name](session(ort), ort))


ASKED: dict[str, Callable[[Any], Any]] = {
    "a shape that was changed": lambda s: (s.get_inputs()[0].shape.clear(), s.get_inputs()[0].shape),
    "inputs": lambda s: args(s.get_inputs()),
    "outputs": lambda s: args(s.get_outputs()),
    "overridable": lambda s: args(s.get_overridable_initializers()),
    "text of an input": lambda s: str(s.get_inputs()[0]),
    "providers": lambda s: s.get_providers(),
    "provider options": lambda s: s.get_provider_options(),
    "set providers": lambda s: s.set_providers(["CPUExecutionProvider"]),
    "profile": lambda s: s.end_profiling(),
    "profiling since": lambda s: s.get_profiling_start_time_ns(),
    "path": lambda s: (s._model_path, s._model_bytes),
    "fallback": lambda s: (s.enable_fallback(), s._enable_fallback, s.disable_fallback(), s._enable_fallback),
}
META = ("producer_name", "graph_name", "domain", "description", "graph_description", "version", "custom_metadata_map")


@pytest.mark.parametrize("ir_version", [3, 8])
@pytest.mark.parametrize("name", ASKED)
def test_questions(name: str, ir_version: int) -> None:
    check(lambda ort: ASKED[name](session(ort, adding(ir_version))))


@pytest.mark.parametrize("name", META)
def test_metadata_is_the_files_own(name: str) -> None:
    check(lambda ort: getattr(session(ort).get_modelmeta(), name))


def test_a_model_may_say_nothing_of_itself() -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [info("x", F, [4])], [info("y", F, [4])])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for name in META:
        check(lambda ort, name=name: getattr(session(ort, made.SerializeToString()).get_modelmeta(), name))  # type: ignore[misc]


TYPES = ("FLOAT8E8M0", "FLOAT8E4M3FN", "FLOAT8E5M2FNUZ", "INT4", "UINT4", "BFLOAT16", "FLOAT4E2M1", "DOUBLE")


@pytest.mark.parametrize("name", TYPES)
def test_types_are_spelled_as_there(name: str) -> None:
    code = getattr(TensorProto, name, None)
    if code is None:
        pytest.skip("this onnx does not know the type")
    node = helper.make_node("Cast", ["x"], ["y"], to=code)
    graph = helper.make_graph([node], "g", [info("x", F, [4])], [info("y", code, [4])])
    opset = min(onnx.defs.onnx_opset_version(), 25)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    judge = outcome(lambda: session(theirs, made.SerializeToString()))
    if isinstance(judge, Exception):
        pytest.skip("this onnxruntime cannot load it")
    check(lambda ort: args(session(ort, made.SerializeToString()).get_outputs()))


DIMS = ["n", None, -1, 3, "", "?", "None"]


@pytest.mark.parametrize(
    ("ins", "outs"),
    [
        (DIMS, ["a", "b", "c", 3, None, "e", "f"]), (DIMS[:5], None), (None, None), ([], []), (["n"], ["n"]),
        ([2, "k"], [2, 5]),
    ],
    ids=str,
)  # fmt: skip
def test_shapes_are_those_of_the_file_where_inference_knows_less(ins: Any, outs: Any) -> None:
    check(lambda ort: args(session(ort, relu(ins, outs)).get_inputs()))
    check(lambda ort: args(session(ort, relu(ins, outs)).get_outputs()))


@pytest.mark.parametrize("declared", [[1, "k"], None, [None, "k"]], ids=str)
def test_a_size_that_data_decide_has_the_declared_name(declared: Any) -> None:
    node = helper.make_node("NonZero", ["x"], ["y"])
    data = model([node], [info("x", F, ["n"])], [info("y", TensorProto.INT64, declared)])
    check(lambda ort: args(session(ort, data).get_outputs()))



def one(op: str, *names: str, inits: Any = ()) -> bytes:
    """A model of one node."""
    return model([helper.make_node(op, names, ["y"])], [info("x", F, [4])], [info("y", F, [4])], inits)


DOUBLES = numpy_helper.from_array(np.zeros(4), "w")
CPU = "CPUExecutionProvider"
LOADED: dict[str, Callable[[Any], Any]] = {
    "no file": lambda o: o.InferenceSession("/no/such/file.onnx"),
    "no bytes": lambda o: o.InferenceSession(b""),
    "garbage": lambda o: o.InferenceSession(b"garbage of no kind"),
    "cut off": lambda o: o.InferenceSession(adding()[:40]),
    "a number": lambda o: o.InferenceSession(1),
    "None": lambda o: o.InferenceSession(None),
    "wrong options": lambda o: o.InferenceSession(adding(), 1),
    "unknown operator": lambda o: session(o, one("Frob", "x")),
    "undefined tensor": lambda o: session(o, one("Add", "x", "q")),
    "two dtypes": lambda o: session(o, one("Add", "x", "w", inits=[DOUBLES])),
    "unknown provider": lambda o: session(o, None, providers=["CUDAExecutionProvider"]).get_providers(),
    "provider with options": lambda o: session(o, None, providers=[(CPU, {"a": 1})]).get_providers(),
    "options apart": lambda o: session(o, None, providers=[CPU], provider_options=[{}]).get_providers(),
    "no provider": lambda o: session(o, None, providers=[]).get_providers(),
    "twice": lambda o: session(o, None, providers=[CPU] * 2).get_providers(),
    "fallback off": lambda o: session(o, None, providers=[CPU], enable_fallback=False).get_providers(),
    "optimizers off": lambda o: session(o, None, disabled_optimizers=["ConstantFolding"]).get_providers(),
}


@pytest.mark.parametrize("name", LOADED)
def test_loading(name: str, capfd: Any) -> None:
    check(LOADED[name])


@pytest.mark.parametrize("providers", [["CUDAExecutionProvider"], ["CUDAExecutionProvider", CPU]])
def test_an_unknown_provider_is_warned_of(providers: list[str]) -> None:
    for ort in ENGINES:
        with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
            assert session(ort, None, providers=providers).get_providers() == [CPU]


SET: dict[str, Any] = {
    "the only one": [CPU],
    "one of another machine": ["CUDAExecutionProvider", CPU],
    "no name of any": ["Nope"],
    "such a name with options": [("Nope", {}), CPU],
    "a number": [1],
    "None": None,
}


@pytest.mark.parametrize("name", SET)
@pytest.mark.parametrize("is_fallback", [True, False])
def test_providers_are_set_or_refused(name: str, is_fallback: bool) -> None:
    def call(ort: Any) -> Any:
        made = session(ort, None, providers=[CPU])
        if not is_fallback:
            made.disable_fallback()
        made.set_providers(SET[name])
        return made.get_providers()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(call)


def test_a_name_of_no_provider_is_warned_of_or_refused() -> None:
    with pytest.warns(UserWarning, match=r"Unknown Provider Type: Nope, wanted .*; the CPU runs"):
        assert session(ours, None, providers=["Nope"]).get_providers() == [CPU]
    with pytest.raises(ValueError, match="wanted names of onnxruntime's providers"):
        session(ours, None, providers=["Nope"], enable_fallback=False)


def test_two_threads_find_at_once_that_a_scalar_has_axes() -> None:
    """The one whose inputs did not fit a moment before runs with the engine that the other has made the usual one."""
    session = ours.InferenceSession(relu([], []))
    feeds = {"x": S}
    engines = []

    def work(engine: Any) -> Any:
        engines.append(engine)
        session._loose = True  # the other thread
        return engine.run(None, feeds)

    (result,) = session._with_engine(feeds, work)
    assert np.array_equal(result, S)
    assert len(engines) == 2


def test_names_of_dimensions_bind_nothing() -> None:
    """One name with two sizes, an axis where a scalar is declared: onnxruntime runs both."""
    ins = [info("x", F, ["n", 4]), info("z", F, ["n", 4])]
    data = model([helper.make_node("Add", ["x", "z"], ["y"])], ins, [info("y", F, ["n", 4])])
    for rows in (2, 1, 2):
        check(lambda ort, rows=rows: session(ort, data).run(None, {"x": X[0, :2], "z": X[1, :rows]}))  # type: ignore[misc]
    for x in (np.array(3, np.float32), np.ones(1, np.float32), X):
        check(lambda ort, x=x: session(ort, relu([], [])).run(None, {"x": x}))  # type: ignore[misc]
    sess = ours.InferenceSession(data)
    for rows in (2, 1, 2):
        assert sess.run(None, {"x": X[0, :2], "z": X[1, :rows]})[0].shape == (2, 4)
    with pytest.raises(bn.ShapeError):
        sess.run(None, {"x": X[0, :2], "z": X[1, :3]})


def test_the_module_takes_the_name_and_its_modules_are_one(tmp_path: Path) -> None:
    code = """
import bolt_numba.onnxruntime as ort
ort.install()
import onnxruntime, onnxruntime.capi.onnxruntime_pybind11_state as state
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
assert onnxruntime is ort and InferenceSession is ort.InferenceSession and C.InferenceSession is InferenceSession
assert state.Fail is onnxruntime.capi.onnxruntime_pybind11_state.Fail
try:
    onnxruntime.InferenceSession(b"no model")
except state.InvalidProtobuf as error:
    assert isinstance(error, __import__("bolt_numba").InvalidModelError)
try:
    import onnxruntime.quantization
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("there is no quantization here")
ort.install()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_shim_gives_its_place_to_the_drop_in() -> None:
    code = """
import sys
import tomllib
sys.path.insert(0, "shim")
import onnxruntime as ort, sys
from onnxruntime.capi.onnxruntime_pybind11_state import NoSuchFile
assert ort.__name__ == "bolt_numba.onnxruntime", ort
assert [m for m in ("numba", "llvmlite", "bolt_numba.sessions.session") if m in sys.modules] == []
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)


def test_a_name_that_no_file_can_have_is_no_file() -> None:
    with pytest.raises(ours.capi.onnxruntime_pybind11_state.NoSuchFile):
        ours.InferenceSession("m" * 5000)


def test_install_comes_first() -> None:
    with pytest.raises(bn.BoltError, match="imported already"):
        ours.install()


def test_the_file_is_not_needed_twice(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.load_from_string(adding()), path)
    sess = ours.InferenceSession(path)
    assert sess._model_path == str(path)
    np.testing.assert_array_equal(sess.run(None, {"x": X})[0], X + np.arange(4, dtype=np.float32))


@pytest.mark.parametrize("kind", [*errors.KINDS.values(), errors.OrtRefusedError])
def test_errors_cross_processes(kind: type[Exception]) -> None:
    made = kind("model", ["Frob"]) if issubclass(kind, bn.UnsupportedOpError) else kind("got this, wanted that")
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is kind
    assert str(again) == str(made)


def test_every_error_of_ours_has_a_kind() -> None:
    made = {c for c in vars(bn.errors).values() if isinstance(c, type) and issubclass(c, bn.BoltError)}
    assert made == errors.KINDS.keys()


def test_the_shim_has_the_version_of_the_interface() -> None:
    root = Path(__file__).parent.parent
    project = tomllib.loads((root / "shim" / "pyproject.toml").read_text())["project"]
    assert project["version"].split("+")[0] == ours.__version__
    assert project["name"] == ours.NAME
    assert project["dependencies"] == [tomllib.loads((root / "pyproject.toml").read_text())["project"]["name"]]
