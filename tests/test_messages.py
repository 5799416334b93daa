"""What a caller who is wrong is told: what to write instead, with a traceback that ends where he called."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import bolt_numba as bn
from bolt_numba import judges
from bolt_numba.base.options import not_among
from bolt_numba.base.types import STRING, Sym, TensorType, size_name, sizes_name
from bolt_numba.cli import console
from bolt_numba.converters.formats.others import OTHER_KINDS
from bolt_numba.kernels import compiles, precompile
from bolt_numba.sessions.outputs import Outputs
from tests.conftest import Done


def doubled(*names: str, size: str = "unk__214") -> onnx.ModelProto:
    """A model that adds its inputs; the first size has a name that an exporter made up."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, 3]) for name in names]
    y = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [size, 3])
    nodes = [helper.make_node("Sum", list(names), ["sum"]), helper.make_node("Relu", ["sum"], ["scores"])]
    graph = helper.make_graph(nodes, "g", inputs, [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = np.ones((2, 3), np.float32)


@pytest.fixture(scope="module")
def session() -> bn.Session:
    return bn.compile(doubled("bytes").SerializeToString(), threads=1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"other": X}, "inputs: 'other' is not one of ['bytes']; did you mean 'bytes'?"),
        ({"Bytes": X}, "inputs: 'Bytes' is not one of ['bytes']; did you mean 'bytes'?"),
        ({"bytes": X, "z": X}, "inputs: 'z' is not one of ['bytes']"),
        ({}, "inputs: got [], missing ['bytes']"),
        ({"bytes": X.astype("f8")}, "input 'bytes': got f64, wanted f32: bytes.astype(np.float32) makes it"),
        ({"bytes": X[:, :2]}, "input 'bytes': got shape (2, 2), wanted (any, 3)"),
        ({"bytes": X[0]}, "input 'bytes': got shape (3,), wanted (any, 3): bytes[None] makes it"),
        ({"bytes": X[0, 0]}, "input 'bytes': got shape (), wanted (any, 3)"),
        ({"bytes": None}, "input 'bytes': got None, wanted f32"),
        (
            {"bytes": np.array([["1", "2", "3"]])},
            "input 'bytes': got texts, wanted f32: bytes.astype(np.float32) makes it",
        ),
        (
            {"bytes": np.array([[1, 2.5, 3]], object)},
            "input 'bytes': got objects of float and int, wanted f32: bytes.astype(np.float32) makes it",
        ),
    ],
)
def test_inputs(session: bn.Session, given: dict[str, Any], said: str) -> None:
    for call in (lambda: session(given), lambda: session.run(None, given)):
        with pytest.raises(bn.BoltError) as told:
            call()
        assert str(told.value) == said


def test_arrays_without_a_name(session: bn.Session) -> None:
    call: Any
    for call in (lambda: session.run(None, X), lambda: session.run_into(X, {}), lambda: session.run(["sum"], X[0])):
        with pytest.raises(bn.BoltError) as told:
            call()
        assert not isinstance(told.value, bn.InternalError)
    with pytest.raises(bn.DTypeError, match=r"^inputs: got a ndarray, wanted arrays by name$"):
        session.run(None, X)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "shape"),
    [
        (("n", 3, "h", "w"), (2, 8, 6, 3)), (("n", 3, "h", "w"), (8, 6, 3)), (("n", 3, "h", "w"), (3, 8, 6)),
        (("n", "h", "w", 3), (2, 3, 8, 6)), (("n", "h", "w", 3), (3, 8, 6)), (("n", 1), (5,)), (("n", 4), (4,)),
    ],
)  # fmt: skip
def test_the_turn_is_one_that_works(wanted: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    """Images of channels elsewhere, an image alone, a column without its axis."""
    graph = bn.Graph("g")
    sizes = tuple(Sym(d) if isinstance(d, str) else d for d in wanted)
    graph.add_output(graph.add_input("x", TensorType(np.dtype("f4"), sizes)))
    session = bn.compile(graph)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    with pytest.raises(bn.ShapeError) as told:
        session(x)
    call = str(told.value).rpartition(": ")[2].removesuffix(" makes it")
    np.testing.assert_array_equal(session(eval(call, {"x": x}))[0], eval(call, {"x": x}))


def test_shapes_before_the_first_run() -> None:
    session = bn.compile(doubled("table", "mean radius").SerializeToString(), threads=1)
    session.warmup({"table": (2, 3), "mean radius": (2, 3)})  # as inputs: names may be no keywords
    session.warmup((4, 3), (4, 3))
    table, free = X, "(any, 3)"
    for given, said in [
        (
            table,
            f"input 'table': shape: got array([[1., 1., 1.], [1., 1., 1.]], dtype=float32), wanted sizes as {free}",
        ),
        ("2,3", f"input 'table': shape: got '2,3', wanted sizes as {free}"),
        ((2,), f"input 'table': got shape (2,), wanted {free}"),
        ((2, 4), f"input 'table': got shape (2, 4), wanted {free}"),
    ]:
        with pytest.raises(bn.ShapeError) as told:
            session.warmup({"table": given, "mean radius": (2, 3)})
        assert str(told.value) == said
    with pytest.raises(bn.ShapeError) as told:
        session.warmup({"table": (2, 3)})
    assert str(told.value) == "input 'mean radius': got no sizes, wanted (any, 3): x=(...) gives them"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (None, "None at [1, 0], a NoneType, wanted texts: fill in what is missing"),
        (float("nan"), "nan at [1, 0], a float, wanted texts: fill in what is missing"),
        (3, "3 at [1, 0], a int, wanted texts: str(...) makes one"),
    ],
)
def test_what_is_no_text(wrong: Any, said: str) -> None:
    graph = bn.Graph("g")
    graph.add_output(graph.add_input("city", TensorType(STRING, (Sym("n"), 1))))
    with pytest.raises(bn.DTypeError) as told:
        bn.compile(graph)(np.array([["Rome"], [wrong]], object))
    assert str(told.value) == f"input 'city': got {said}"


def test_numbers_that_are_texts() -> None:
    model = doubled("x").SerializeToString()
    call: Any
    for call, said in [
        (lambda: bn.verify(model, "reference", rtol="x"), "rtol: got 'x', wanted a number from 0"),  # type: ignore[arg-type]
        (lambda: bn.verify(model, "reference", atol=-1), "atol: got -1, wanted a number from 0"),
        (lambda: bn.surgery.to_onnx(bn.load(model), opset="17"), "opset: got '17', wanted "),  # type: ignore[arg-type]
        (lambda: bn.surgery.with_outputs(bn.load(model), "sum"), "names: got 'sum', wanted a list of names"),
        (lambda: bn.surgery.extract(bn.load(model), [], "sum"), "names: got 'sum', wanted a list of names"),
    ]:
        with pytest.raises(bn.BoltError) as told:
            call()
        assert str(told.value).startswith(said)


def test_one_of_several_inputs() -> None:
    session = bn.compile(doubled("ids", "mask", "types").SerializeToString(), threads=1)
    with pytest.raises(bn.ShapeError) as told:
        session(ids=X, mask=X, type=X)
    assert str(told.value) == "inputs: 'type' is not one of ['ids', 'mask', 'types']; did you mean 'types'?"
    with pytest.raises(bn.ShapeError) as told:
        session(id=X, mask=X, kinds=X)
    assert str(told.value) == "inputs: 'id' and 'kinds' are not of ['ids', 'mask', 'types']; did you mean 'ids'?"
    with pytest.raises(bn.ShapeError, match=r"inputs: got \['ids'\], missing \['mask', 'types'\]"):
        session(ids=X[:1, :1])
    for given in ((X[0, :1],), (X, X)):  # how many there are is said before what is wrong with one
        with pytest.raises(bn.ShapeError) as told:
            session(*given)
        assert str(told.value) == f"inputs: got {len(given)}, wanted 3: ['ids', 'mask', 'types']"


@pytest.mark.parametrize(("dtype", "cast"), [("i8", "np.int64"), ("?", "np.bool"), ("bfloat16", "ml_dtypes.bfloat16")])
def test_the_cast_is_one_that_works(dtype: str, cast: str) -> None:
    import ml_dtypes

    wanted = np.dtype(getattr(ml_dtypes, dtype, dtype))
    graph = bn.Graph("g")
    graph.add_output(graph.add_input("x", TensorType(wanted, (2, 3))))
    with pytest.raises(bn.DTypeError) as told:
        bn.compile(graph)(X)
    call = str(told.value).partition(": got")[2].partition(": ")[2].removesuffix(" makes it")
    assert cast in call
    assert eval(call, {"x": X, "np": np, "ml_dtypes": ml_dtypes}).dtype == wanted


def test_outputs(session: bn.Session) -> None:
    with pytest.raises(bn.BoltError) as told:
        session.run(["score"], {"bytes": X})
    assert str(told.value) == "output: 'score' is not one of ['scores' and 2 more]; did you mean 'scores'?"
    with pytest.raises(bn.ShapeError, match=r"^output: 'logits' is not one of \['scores'\]$"):
        session.run_into({"bytes": X}, {"logits": X})
    with pytest.raises(KeyError, match=r"output: 'score' is not one of \['scores'\]; did you mean 'scores'\?"):
        session(X)["score"]
    for index in (5, -2):
        with pytest.raises(IndexError, match=rf"^output: got index {index}, wanted below 1: \['scores'\]$"):
            session(X)[index]
    with pytest.raises(IndexError, match=r"^output: got index 547, wanted below 547: \['y0', .*, 'y19'\]$"):
        Outputs([f"y{i}" for i in range(547)], [X] * 547)[547]


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("providers", "device"), ("devices", "device"), ("num_threads", "threads"), ("provider_options", "properties"),
        ("intra_op_num_threads", "threads"), ("n_jobs", "threads"), ("dtype", "precision"), ("timeout", "time_limit"),
    ],
)  # fmt: skip
def test_options_of_other_libraries(given: str, ours: str) -> None:
    options: Any = {given: 1}
    with pytest.raises(
        bn.OptionError, match=rf"^compile: options: '{given}' is not one of .*; did you mean '{ours}'\?$"
    ):
        bn.compile(doubled("x").SerializeToString(), **options)


def test_threads_as_a_text() -> None:
    options: Any = {"threads": "2"}
    with pytest.raises(bn.OptionError) as told:
        bn.compile(doubled("x").SerializeToString(), **options)
    wanted = "threads: got the text '2', wanted a whole number from 1 to 1024: int(...) makes it of a text"
    assert str(told.value) == wanted


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0}, {"threads": "2"}, {"precision": "fp8"}, {"numerics": "none"}, {"tune": 1}, {"max_plans": 0},
        {"time_limit": -1}, {"memory_limit": 0}, {"device": "tpu"}, {"device": []}, {"fallback": "no"}, {"stages": 1},
        {"properties": 1}, {"properties": {"openvino": {}}}, {"providers": 1}, {"precision": "int8"},
        {"calibration": {}},
    ],
    ids=str,
)  # fmt: skip
def test_options_have_one_class_of_errors(options: Any) -> None:
    """Which is all that the classes before it were caught as."""
    with pytest.raises(bn.OptionError) as told:
        bn.compile(doubled("x").SerializeToString(), **options)
    assert isinstance(told.value, (bn.DeviceError, bn.DTypeError, TypeError, RuntimeError))


def test_a_precision_of_eight_bits() -> None:
    options: Any = {"precision": "fp8"}
    with pytest.raises(bn.OptionError, match=r"^precision: got 'fp8', .*precision='int8', calibration=.* quantize$"):
        bn.compile(doubled("x").SerializeToString(), **options)


def test_properties_of_a_device_that_is_not_named() -> None:
    with pytest.raises(bn.DeviceError, match=r"wanted its device named, as device=\['openvino', 'cpu'\]$"):
        bn.compile(doubled("x").SerializeToString(), properties={"openvino": {"device": "GPU"}})


class Module:
    """As a network of PyTorch: a class of the user's, below one of torch."""


def test_objects_of_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    given: Any = doubled("x")
    with pytest.raises(bn.DTypeError, match=r"^model: got a ModelProto, .*: model.SerializeToString\(\) gives bytes$"):
        bn.compile(given)
    for library, said in {"torch.nn.modules": r"torch\.onnx\.export\(", "sklearn.base": r"skl2onnx\.to_onnx\("}.items():
        monkeypatch.setattr(Module, "__module__", library)
        net: Any = type("Net", (Module,), {})()
        with pytest.raises(bn.DTypeError, match=rf"^model: got a Net, wanted a path, .*, as of ONNX: {said}"):
            bn.compile(net)


HUAWEI = b"\x90\x3c\x34\x01" + (1141119).to_bytes(4, "little") + b"resnet50".ljust(128, b"\0")
NODE = b"\n\x1a\n\x05input\x12\x0bPlaceholder*\x0b\n\x05dtype\x12\x020\x01"
FILES: dict[str, tuple[bytes, str]] = {
    "net.bolt": (HUAWEI, "a model of Huawei's Bolt, wanted the model that it was made of by X2bolt"),
    "net.nb": (b"\x02\x00\x01\x00", "a model of Paddle Lite, wanted the model that it was made of by opt: .pdmodel"),
    "net.ms": (b"\x18\0\0\0MSL2", "a model of MindSpore, wanted ONNX: mindspore.export("),
    "net.mindir": (b"\n\x050.1.0\x12\x09", "a model of MindSpore, wanted ONNX: mindspore.export("),
    "frozen.pb": (NODE, "a graph of TensorFlow, wanted ONNX: python -m tf2onnx.convert --graphdef"),
    "saved_model.pb": (
        b"\x08\x01\x12\x10",
        "a SavedModel of TensorFlow, wanted ONNX: python -m tf2onnx.convert --saved",
    ),
    "net.h5": (b"\x89HDF\r\n\x1a\n", "an HDF5 file, mostly a model of Keras, wanted ONNX: model.export(FOLDER), then"),
    "net.keras": (b"PK\x03\x04\x14\0metadata.json", "a model of Keras, wanted ONNX: model.export(FOLDER), then"),
    "net.pth": (b"\x80\x02\x8a\nl\xfc\x9cF", "a model of PyTorch, wanted ONNX: torch.onnx.export(model, (x,),"),
    "net.safetensors": (b"@\0\0\0\0\0\0\0{}", "safetensors, weights without operators, wanted ONNX: optimum-cli"),
    "net.xml": (b'<?xml version="1.0"?>\n<net name="m" version="11">', "a model of OpenVINO, wanted the model that"),
    "other.xml": (b'<?xml version="1.0"?>\n<a/>', "a model of OpenVINO, wanted the model that"),
    "net.mlmodel": (b"\x08\x05\x12\x10", "a model of Core ML, wanted the model that it was made of: of PyTorch"),
    "net.param": (b"7767517\n75 83\n", "a net of ncnn, wanted the model that it was made of: of PyTorch"),
    "net.engine": (b"ftrt\0\0", "an engine of TensorRT, for one GPU, wanted the model that it was made of"),
    "x.npy": (b"\x93NUMPY\x01\0", "arrays of NumPy, wanted a model; these may be its inputs"),
    "forest.pkl": (b"\x80\x04\x95\x06\0\0\0", "a pickle, mostly of scikit-learn, wanted ONNX: skl2onnx.to_onnx("),
    "any": (b"PK\x03\x04\x14\0", "a zip archive, wanted the model in it: unpack it"),
    "page.xml.gz": (b"\x1f\x8b\x08", "a gzip archive, wanted the model in it: unpack it"),
    "x.data": (b"<?xml version", "an XML document, wanted a model"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_others(tmp_path: Path, name: str) -> None:
    content, said = FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(bn.InvalidModelError) as told:
        bn.compile(tmp_path / name)
    assert str(told.value).startswith(f"{name}: got {said}")


def test_every_kind_of_others_has_a_file_here() -> None:
    said = {text for _, text in FILES.values()}
    assert not [kind.what for kind in OTHER_KINDS if not any(text.startswith(f"{kind.what}, ") for text in said)]


def test_a_damaged_model_in_a_folder_is_told_whatever_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "inference.pdmodel").write_bytes(b"abc")
    (tmp_path / "example.npy").write_bytes(b"abc")
    with pytest.raises(bn.InvalidModelError, match="got 3 bytes that are no protobuf"):
        bn.load(tmp_path)


def test_many_and_long_names_are_not_compared_for_ever() -> None:
    """It took 20 s of 1000 names that are near to 1000 others, and minutes of two that are long."""
    many, others = [f"key.{i}" for i in range(1000)], [f"keys.{i}" for i in range(1000)]
    told = not_among("inputs", many, others)
    assert "'key.19' and 980 more are not of ['keys.0', " in told
    assert "'keys.19'" in told
    assert "'keys.20'" not in told
    long = "".join(map(chr, range(0x4E00, 0x9F00)))
    assert len(not_among("inputs", [long + "a"], [long])) < 400


def test_folders_of_others_and_what_has_no_name(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    (saved / "variables").mkdir(parents=True)
    (saved / "saved_model.pb").write_bytes(b"\x08\x01")
    with pytest.raises(bn.InvalidModelError, match=r"^saved: got a SavedModel of TensorFlow, wanted ONNX: .* FOLDER"):
        bn.compile(saved)
    with zipfile.ZipFile(tmp_path / "checkpoint", "w") as file:
        file.writestr("net/data.pkl", b"x")
    for source in (tmp_path / "checkpoint", (tmp_path / "checkpoint").read_bytes()):
        with pytest.raises(bn.InvalidModelError, match=r"^\w+: got a model of PyTorch, wanted ONNX"):
            bn.compile(source)


def test_a_model_in_a_folder_is_named(tmp_path: Path) -> None:
    """Whatever of other libraries lies beside it."""
    for name in ("weights.pt", "model.onnx", "a.txt"):
        (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(bn.InvalidModelError) as told:
        bn.compile(tmp_path)
    assert str(told.value) == f"{tmp_path.name}: got a folder, wanted a model in it: {tmp_path / 'model.onnx'}"


def test_a_model_is_called_by_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its exporter may have called what is inside after itself."""
    (tmp_path / "det.onnx").write_bytes(doubled("x").SerializeToString())
    session = bn.compile(tmp_path / "det.onnx", threads=1)
    assert repr(session) == "Session('det.onnx', device='cpu', threads=1)"
    with caplog.at_level("INFO", "bolt_numba"):
        session.clone().warmup(x=(2, 3))
        session.warmup(x=(2, 3))
    assert "det.onnx: planned in" in caplog.text
    for graph in (session.graph, session.graph.clone()):
        with pytest.raises(bn.BoltError, match=r"^det\.onnx: input: got 'y', wanted 'x'$"):
            bn.surgery.with_shapes(graph, {"y": (1,)})


def test_a_tensor_of_onnx_is_no_graph_of_tensorflow(tmp_path: Path) -> None:
    """The tests of ONNX keep inputs and results in such files."""
    (tmp_path / "input_0.pb").write_bytes(onnx.numpy_helper.from_array(X, "x").SerializeToString())
    with pytest.raises(bn.InvalidModelError) as told:
        bn.compile(tmp_path / "input_0.pb")
    assert "TensorFlow" not in str(told.value)


def test_damaged_files_of_ours_are_not_huaweis(tmp_path: Path) -> None:
    (tmp_path / "net.bolt").write_bytes(b"\x89BOLX".ljust(200, b"\0"))
    with pytest.raises(bn.InvalidModelError, match=r"header: got 200 bytes that do not begin as a \.bolt file"):
        bn.compile(tmp_path / "net.bolt")


def test_made_up_names_of_sizes(call: Any, tmp_path: Path) -> None:
    assert sizes_name(("unk__5", "batch", 3)) == "(any, batch, 3)"
    assert sizes_name(("x_dynamic_axes_1",)) == "(any,)"
    assert [*map(size_name, ("unknown", "unknown_7", "?", "DynamicDimension.0", "n", "seq_len", 4))] == [
        "any", "any", "any", "any", "n", "seq_len", "4"
    ]  # fmt: skip
    (tmp_path / "m.onnx").write_bytes(doubled("x").SerializeToString())
    done: Done = call("inspect", tmp_path / "m.onnx")
    assert "[any, 3]" in done.out
    assert "unk__" not in done.out


def test_sizes_computed_of_made_up_names() -> None:
    made = Sym("DynamicDimension.1") * 2 + 1
    assert [*map(size_name, map(str, (made, made // 4, Sym("unk__5") * Sym("batch"), Sym("n") * 2)))] == [
        "any", "any", "any", "2*n"
    ]  # fmt: skip


def test_sizes_that_data_decide_have_no_name_of_ours(call: Any, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[n, 3] x) => (int64[k, m] y) { y = NonZero(x) }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    done: Done = call("inspect", tmp_path / "m.onnx")
    assert done.out.splitlines()[6:8] == ["input   x     f32    [n, 3]", "output  y     i64    [2, any]"]


@pytest.mark.parametrize("command", ["run", "profile"])
@pytest.mark.parametrize(("given", "said"), [("y=1", "inputs: 'y' is not one of ['x']"), ("x=no.npy", "no.npy: No")])
def test_inputs_are_looked_at_before_anything_is_compiled(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, given: str, said: str
) -> None:
    (tmp_path / "m.onnx").write_bytes(doubled("x").SerializeToString())
    monkeypatch.setattr(bn, "compile", lambda *args, **kwargs: pytest.fail("it is compiled"))
    done: Done = call(command, tmp_path / "m.onnx", "--input", given)
    assert done.code == 1
    assert said in done.err


def test_verify_without_onnxruntime(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.onnx").write_bytes(doubled("x").SerializeToString())
    monkeypatch.setattr(judges.importlib.util, "find_spec", lambda name: None)
    done: Done = call("verify", tmp_path / "m.onnx")
    assert done.code == 1
    assert "verify: onnxruntime is not installed, wanted it (pip install onnxruntime), or" in done.err


class Compiled:
    """A kernel that says that it is compiled."""

    is_ready, can_compile, name = False, True, "made"

    def compile(self) -> None:
        compiles.begins(self.name)
        self.is_ready = True
        compiles.ended(compiles.Compile(self.name, 0.1, "here"))


def test_kernels_are_counted_of_all_that_lack() -> None:
    shown: list[tuple[int, int]] = []
    with console._kernel_compiles(lambda done, total: shown.append((done, total))):
        compiles.expect(3)
        for name in "abc":  # by three processes at once
            compiles.begins(name)
        for name in "abc":
            compiles.ended(compiles.Compile(name, 0.1, "there"))
        precompile.compile_later([Compiled(), Compiled()], lambda: None)  # behind a stand-in
        assert precompile.idle()
    assert shown == [(0, 3), (0, 3), (0, 3), (1, 3), (2, 3), (3, 3), (3, 5), (4, 5), (4, 5), (5, 5)]


TRACED = """
import sys, traceback, numpy as np, bolt_numba as bn
session = bn.compile(sys.argv[1])
def frames(call):
    try:
        call()
    except Exception as error:
        return "".join(traceback.format_exception(error)).count("  File ") - 2  # this function's and the lambda's
x = np.ones((2, 3), np.float32)
print(*map(frames, [
    lambda: session(other=x), lambda: session.run(None, {"x": x[0]}), lambda: session.run(["no"], {"x": x}),
    lambda: bn.compile("no.onnx"), lambda: bn.compile(b"no model"), lambda: bn.compile(sys.argv[1], providers=1),
    lambda: bn.InferenceSession("no.onnx"), lambda: session.warmup(y=(1,))]))
"""


def test_tracebacks_end_where_the_caller_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.onnx").write_bytes(doubled("x").SerializeToString())
    command = [sys.executable, "-c", TRACED, str(tmp_path / "m.onnx")]
    monkeypatch.setenv("BOLT_NUMBA_TRACEBACKS", "0")
    short = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout.split()
    assert max(map(int, short)) <= 2, short
    monkeypatch.setenv("BOLT_NUMBA_TRACEBACKS", "1")
    long = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout.split()
    assert sum(map(int, long)) > 3 * sum(map(int, short)), (long, short)


def test_verify_without_the_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says first is why; then what does without."""

    def make(*args: object) -> None:
        raise bn.BoltError("onnxruntime: does not load the model: Fail")

    monkeypatch.setattr(judges, "make", make)
    with pytest.raises(bn.BoltError, match=r"^onnxruntime: .* Fail; against 'reference' no other engine is needed$"):
        bn.verify(doubled("x").SerializeToString(), "onnxruntime", shapes={"x": (1, 3)})


def test_many_that_are_alike_have_one_line() -> None:
    told = [f"MatMulForm at node 'n{i}'" for i in range(5)] + [f"Few at node 'f{i}': of f16" for i in range(4)]
    error = bn.UnsupportedOpError("m", [*told, "architecture 'x'"])
    assert error.items == (*told, "architecture 'x'")
    assert str(error).splitlines() == [
        "m: 10 unsupported:", "  MatMulForm at node 'n0', and 4 more like it", *(f"  {item}" for item in told[5:]),
        "  architecture 'x'",
    ]  # fmt: skip
