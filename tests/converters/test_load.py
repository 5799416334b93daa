"""`load`: sources, formats, and what is said of files that are no models."""

from __future__ import annotations

import io
import re
from pathlib import Path

import onnx
import pytest

from bolt_numba.converters.formats import FORMATS, Format, load
from bolt_numba.converters.onnx.writing.write import save_onnx
from bolt_numba.errors import InvalidModelError
from bolt_numba.ir import store
from bolt_numba.ir.graph import Graph

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 18], producer_name: "test"> net (float[2] x) => (float[2] y) { y = Relu(x) }'
)
DATA: bytes = MODEL.SerializeToString()


def test_every_kind_of_source(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(DATA)
    with path.open("rb") as file:
        graphs = [load(path), load(str(path)), load(DATA), load(bytearray(DATA)), load(io.BytesIO(DATA)), load(file)]
    for graph in graphs:
        assert graph.name == "net"
        assert [n.op.name for n in graph.nodes] == ["Relu"]
        assert graph.metadata["format"] == "onnx"
        assert graph.metadata["opset"] == "ai.onnx 18"


def test_suffix_or_content_tells_the_format(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(DATA)
    assert load(path).name == "net"
    stored = tmp_path / "other.bin"
    store.save(load(DATA), stored)
    assert load(stored).name == "net"
    assert load(stored.read_bytes()).name == "net"


def test_a_format_can_be_named_and_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        FORMATS, "mine", Format(lambda head, path: head == b"mine", lambda content: Graph(content.name))
    )
    assert load(b"mine").name == "model"
    assert load(b"", format="mine").nodes == []
    with pytest.raises(ValueError, match="format: got 'theirs', wanted one of"):
        load(DATA, format="theirs")


@pytest.mark.parametrize(
    "data", [b"", b"garbage", b"\x08", b"\x08\x07" + b"\xff" * 20, DATA[:-3], DATA[: len(DATA) // 2]]
)
def test_garbage_is_refused_by_name(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(data)
    with pytest.raises(InvalidModelError, match=r"^broken\.onnx: "):
        load(path)


def test_unknown_format_shows_how_the_file_begins(tmp_path: Path) -> None:
    path = tmp_path / "x.dat"
    path.write_bytes(b"PQ\x03\x04 something")
    with pytest.raises(InvalidModelError, match=r"x\.dat: format: got a file that starts with b'PQ"):
        load(path)


def test_missing_files_and_text_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.onnx")
    with pytest.raises(TypeError, match="opened as binary"):
        load(io.StringIO("text"))  # type: ignore[arg-type]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:2ad68ed2\nsize 1234567\n"


@pytest.mark.parametrize("suffix", ["onnx", "tflite", "pdmodel", "prototxt", "caffemodel", "bolt", "pdiparams"])
def test_a_pointer_of_git_lfs_is_told(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / (name := f"m.{suffix}")
    path.write_bytes(POINTER)
    with pytest.raises(InvalidModelError, match=rf"^{name}: got a pointer of Git LFS, wanted the file itself"):
        load(path)


NO_MODELS = {
    b"\n<!DOCTYPE html>\n<html><head>": "a web page",
    b"<HTML>": "a web page",
    b'<?xml version="1.0"?>': "an XML document",
    b"PK\x03\x04\x14\x00": "a zip archive",
    b"\x1f\x8b\x08": "a gzip archive",
    b"\x89HDF\r\n": "an HDF5 file",
    b"": "an empty file, wanted a model",
}


@pytest.mark.parametrize("suffix", ["onnx", "tflite", "bolt", "pdmodel", "anything"])
@pytest.mark.parametrize("content", NO_MODELS)
def test_what_stands_in_the_place_of_a_model_is_told(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / (name := f"m.{suffix}")
    path.write_bytes(content)
    with pytest.raises(InvalidModelError, match=rf"^{name}: got {NO_MODELS[content]}"):
        load(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.999])
def test_a_file_that_is_cut_off_is_told(tmp_path: Path, share: float) -> None:
    whole = DIGITS.read_bytes()
    cut = whole[: int(len(whole) * share)]
    with pytest.raises(InvalidModelError, match=rf"^model: got {len(cut)} bytes of a file that is cut off") as error:
        load(cut)
    lost, told = len(whole) - len(cut), re.search(r"at least (\d+) are missing", str(error.value))
    assert told is not None
    assert lost - 8 <= int(told[1]) <= lost  # the graph is the last field but opsets
    store.save(load(DIGITS), tmp_path / "m.bolt")
    stored = (tmp_path / "m.bolt").read_bytes()
    with pytest.raises(InvalidModelError, match=f"wanted {len(stored)}: the file is cut off"):
        load(stored[: max(64, int(len(stored) * share))], format="bolt")


def test_external_weights_that_were_not_fetched(tmp_path: Path) -> None:
    save_onnx(load(DIGITS), tmp_path / "m.onnx", external=True)
    (tmp_path / "m.onnx.data").write_bytes(POINTER)
    with pytest.raises(InvalidModelError, match=r"m\.onnx\.data: got a pointer of Git LFS"):
        load(tmp_path / "m.onnx")


NET = """input: "x" input_shape { dim: 1 dim: 3 dim: 4 dim: 4 }
layer { name: "c" type: "Convolution" bottom: "x" top: "y" convolution_param { num_output: 2 kernel_size: 1 } }"""


@pytest.mark.parametrize("named", [False, True])
def test_a_pointer_in_place_of_weights_is_told(tmp_path: Path, named: bool) -> None:
    path, weights = tmp_path / "m.prototxt", tmp_path / "m.caffemodel"
    path.write_text(NET)
    weights.write_bytes(POINTER)
    with pytest.raises(InvalidModelError, match=r"^m\.caffemodel: got a pointer of Git LFS"):
        load(path, weights=weights if named else None)
