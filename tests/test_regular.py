"""Pipes, sockets and devices in the place of files: refused at once by everything that reads a file which is named."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import bolt_numba as bn
from bolt_numba import flow
from bolt_numba.base.files import regular as files
from bolt_numba.cli.options import load_array, load_arrays
from bolt_numba.converters import bounded
from bolt_numba.onnxruntime import InferenceSession
from bolt_numba.peers import with_old_ir
from bolt_numba.preprocessing import open_image
from bolt_numba.quantize import quantize, read_scales
from bolt_numba.sessions.plugins import placement_of
from bolt_numba.types import F32

pytestmark = pytest.mark.timeout(60)


def add(folder: Path) -> Path:
    """A model that adds 4 KiB of weights, which lie in the file `w` beside it."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g",
        *([helper.make_tensor_value_info(n, 1, [1024])] for n in "xy"),
        [numpy_helper.from_array(np.ones(1024, F32), "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="w")
    return folder / "model.onnx"


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "onnx": ("m.onnx", bn.load),
    "tflite": ("m.tflite", bn.load),
    "paddle": ("m.pdmodel", bn.load),
    "caffe": ("m.prototxt", bn.load),
    "bolt": ("m.bolt", bn.load),
    "mean": ("m.binaryproto", bn.load),
    "compile": ("m.onnx", lambda path: bn.compile(path)),
    "compile for a plug-in": ("m.onnx", lambda path: bn.compile(path, device="onnxruntime")),
    "drop-in": ("m.onnx", InferenceSession),
    "judge": ("m.onnx", with_old_ir),
    "weights": ("m.pdiparams", lambda path: bn.load(b"\n\x06\x08\x00\x10\xff\xff\xff", weights=path)),
    "flow": ("f.toml", flow.load),
    "graph of tasks": ("f.prototxt", flow.load),
    "calibration": ("c.npz", lambda path: quantize(bn.load(add(path.parent)), path)),
    "ranges": ("scales.json", read_scales),
    "placement": ("rules", placement_of),
    "image": ("i.png", open_image),
    "arrays": ("a.npz", load_arrays),
    "array": ("a.npy", load_array),
}


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_at_once(reader: str, kind: str, tmp_path: Path) -> None:
    name, read = READERS[reader]
    path, said = tmp_path / name, {"pipe": "a named pipe", "socket": "a socket", "device": "a device"}[kind]
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        case _:
            path.symlink_to("/dev/zero")
    with pytest.raises(bn.BoltError, match=f"{name}.*got {said}, wanted a file"):
        read(path)


def test_weights_beside_a_model_are_looked_at_when_they_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that takes the place of the file after the name was looked up."""
    path = add(tmp_path)
    (tmp_path / "w").unlink()
    os.mkfifo(tmp_path / "w")
    with pytest.raises(bn.InvalidModelError, match="got 'w', wanted an existing file"):
        bn.load(path)
    monkeypatch.setattr(bounded.Path, "is_file", lambda path: True)
    with pytest.raises(bn.InvalidModelError, match="w: got a named pipe, wanted a file"):
        bn.load(path)


def test_files_and_folders_are_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert files.read_regular(tmp_path / "file") == files.read_regular(str(tmp_path / "link")) == b"abc"
    with pytest.raises(IsADirectoryError):
        files.open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.open_regular(tmp_path / "none")
    with pytest.raises(ValueError, match="null"):
        files.open_regular("a\0b")
    before = set(os.listdir("/proc/self/fd"))
    os.mkfifo(tmp_path / "pipe")
    with suppress(bn.BoltError):
        files.open_regular(tmp_path / "pipe")
    assert len(set(os.listdir("/proc/self/fd"))) == len(before), "it is closed"
