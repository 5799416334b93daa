"""Other engines behind one small interface, for `bolt_numba.verification` and `bolt_numba.benchmark`.

They are optional; nothing here runs unless a peer is asked for by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from bolt_numba.errors import BoltError
from bolt_numba.types import Array

HOW_TO_INSTALL = "pip install 'bolt-numba[peers]'"

Model: TypeAlias = "str | os.PathLike[str] | bytes"
Feeds: TypeAlias = Mapping[str, Array]


class Engine(Protocol):
    """A model ready to run."""

    def run(self, feeds: Feeds) -> Sequence[Array]:
        """All outputs, in the model's order."""
        ...


class BoltEngine:
    """bolt-numba itself; ``how``: what else `bolt_numba.compile` takes."""

    def __init__(self, model: Model, threads: int, precision: str = "f32", **how: Any) -> None:
        from bolt_numba.compiling import compile as compile_model

        self.session = compile_model(model, threads=threads, precision=precision, **how)

    def run(self, feeds: Feeds) -> Sequence[Array]:
        return self.session.run(None, feeds)


_NEWEST_IR = 13
"""Of the versions of the ONNX file format that onnxruntime reads; the onnx package writes newer ones."""


def with_old_ir(model: Model) -> str | bytes:
    """The model as it is, or its bytes with the version of the format lowered to one that onnxruntime reads.

    The version is the first field of a file (tag 8), one byte long; operators have versions of their own.
    """
    if isinstance(model, bytes):
        head = model[:2]
    else:
        with open(model, "rb") as file:
            head = file.read(2)
    if len(head) < 2 or head[0] != 8 or not _NEWEST_IR < head[1] < 128:
        return model if isinstance(model, bytes) else os.fspath(model)
    content = model if isinstance(model, bytes) else Path(model).read_bytes()
    return bytes([8, _NEWEST_IR]) + content[2:]


class OnnxRuntimeEngine:
    """onnxruntime on the processor, with ``threads`` threads inside an operator and one operator at a time.

    Its precision is f32 whatever is asked for: it has no products of bfloat16 for this device.
    """

    def __init__(self, model: Model, threads: int, precision: str = "f32") -> None:
        ort = installed("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        source = with_old_ir(model)
        if isinstance(source, bytes) and not isinstance(model, bytes):
            key = "session.model_external_initializers_file_folder_path"
            options.add_session_config_entry(key, os.fspath(Path(model).parent))
        self.session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def run(self, feeds: Feeds) -> Sequence[Any]:
        return [a if isinstance(a, (list, dict)) else np.asarray(a) for a in self.session.run(None, dict(feeds))]


class OpenVinoEngine:
    """OpenVINO on the processor, arithmetic in f32 or bf16 by name, tuned for latency."""

    def __init__(self, model: Model, threads: int, precision: str = "f32") -> None:
        core = installed("openvino").Core()
        source = core.read_model(model if isinstance(model, bytes) else os.fspath(model))
        hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
        hints["INFERENCE_PRECISION_HINT"] = precision
        self.compiled = core.compile_model(source, "CPU", hints)
        self.request = self.compiled.create_infer_request()

    def run(self, feeds: Feeds) -> Sequence[Array]:
        found = self.request.infer(dict(feeds), share_inputs=True, share_outputs=False)
        return [np.asarray(found[i]) for i in range(len(self.compiled.outputs))]


ENGINES: dict[str, Callable[[Model, int, str], Engine]] = {
    "bolt-numba": BoltEngine,
    "onnxruntime": OnnxRuntimeEngine,
    "openvino": OpenVinoEngine,
}


def want_installed(name: str) -> None:
    """Raise BoltError where another engine is unknown or absent; importing it takes longer and is left to `make`."""
    if name not in ENGINES:
        raise BoltError(f"engine: got {name!r}, wanted one of {', '.join(ENGINES)}")
    if importlib.util.find_spec(name.replace("-", "_")) is None:
        raise BoltError(f"{name}: is not installed: {HOW_TO_INSTALL}")


def make(name: str, model: Model, threads: int, precision: str = "f32") -> Engine:
    """The engine called ``name``, with the model loaded.

    precision: asked of engines that have several.  Raises BoltError when it is unknown, absent or refuses.
    """
    want_installed(name)
    try:
        return ENGINES[name](model, threads, precision)
    except BoltError:
        raise
    except Exception as error:  # whatever a peer raises for a model that it does not take
        raise BoltError(f"{name}: does not load the model: {_line(error)}") from error


def with_outputs(model: Model, wanted: Callable[[str], bool]) -> tuple[bytes, list[str]]:
    """An ONNX model that returns all its own outputs, then the results of its nodes whose names are wanted.

    Returns the model and the names of all outputs.
    """
    onnx = installed("onnx")
    proto = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(os.fspath(Path(model)))
    names = [o.name for o in proto.graph.output]
    for node in proto.graph.node:
        for name in node.output:
            if name and name not in names and wanted(name):
                names.append(name)
                proto.graph.output.append(onnx.ValueInfoProto(name=name))
    return proto.SerializeToString(), names


def installed(name: str, package: str = "") -> Any:
    """A module of another engine; raises BoltError where its package (named otherwise or not) is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BoltError(f"{package or name}: is not installed: {HOW_TO_INSTALL}") from error


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
