"""Other engines behind one small interface, for `bolt_numba.verification` and `bolt_numba.benchmark`.

They are optional; nothing here runs unless a peer is asked for by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from bolt_numba.base.errors import BoltError
from bolt_numba.base.files.regular import open_regular, read_regular
from bolt_numba.base.types import Array

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
        with open_regular(model) as file:
            head = file.read(2)
    if len(head) < 2 or head[0] != 8 or not _NEWEST_IR < head[1] < 128:
        return model if isinstance(model, bytes) else os.fspath(model)
    content = model if isinstance(model, bytes) else read_regular(model)
    return bytes([8, _NEWEST_IR]) + content[2:]


class OnnxRuntimeEngine:
    """onnxruntime on the processor, with ``threads`` threads inside an operator and one operator at a time.

    Its precision is f32 whatever is asked for: it has no products of bfloat16 for this device.
    """

    def __init__(self, model: Model, threads: int, precision: str = "f32") -> None:
        ort = installed("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 4  # it writes to the standard error otherwise; failures come as exceptions
        source = with_old_ir(model)
        if isinstance(source, bytes) and not isinstance(model, bytes):
            key = "session.model_external_initializers_file_folder_path"
            options.add_session_config_entry(key, os.fspath(Path(model).parent))
        self.session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def run(self, feeds: Feeds) -> Sequence[Any]:
        return [a if isinstance(a, (list, dict)) else np.asarray(a) for a in self.session.run(None, dict(feeds))]


class OpenVinoEngine:
    """OpenVINO on the processor, arithmetic in f32 or bf16 by name, tuned for latency.

    Where weights are stored in bytes, it would otherwise make bytes of what they meet, too.
    """

    def __init__(self, model: Model, threads: int, precision: str = "f32") -> None:
        core = installed("openvino").Core()
        source = core.read_model(model if isinstance(model, bytes) else os.fspath(model))
        hints: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
        hints |= {"INFERENCE_PRECISION_HINT": precision, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
        self.compiled = core.compile_model(source, "CPU", hints)
        self.request = self.compiled.create_infer_request()

    def run(self, feeds: Feeds) -> Sequence[Array]:
        found = self.request.infer(dict(feeds), share_inputs=True, share_outputs=False)
        return [np.asarray(found[i]) for i in range(len(self.compiled.outputs))]


class LiteRtEngine:
    """LiteRT with its delegate for processors (XNNPACK), on a file of TFLite; inputs in the file's order."""

    def __init__(self, model: Model, threads: int, precision: str = "f32") -> None:
        package = installed("ai_edge_litert.interpreter", "ai-edge-litert")
        given = {"model_content": model} if isinstance(model, bytes) else {"model_path": os.fspath(model)}
        self.net = package.Interpreter(num_threads=threads, **given)
        self.inputs, self.results = self.net.get_input_details(), self.net.get_output_details()
        self.shapes: list[tuple[int, ...]] = []

    def run(self, feeds: Feeds) -> Sequence[Array]:
        arrays = [np.asarray(a) for a in feeds.values()]
        if len(arrays) != len(self.inputs):
            raise BoltError(f"litert: inputs: got {len(arrays)}, wanted the {len(self.inputs)} of the first signature")
        if self.shapes != [a.shape for a in arrays]:
            for detail, array in zip(self.inputs, arrays, strict=True):
                self.net.resize_tensor_input(detail["index"], array.shape)
            self.net.allocate_tensors()
            self.shapes = [a.shape for a in arrays]
        for detail, array in zip(self.inputs, arrays, strict=True):
            self.net.set_tensor(detail["index"], array)
        self.net.invoke()
        return [self.net.get_tensor(detail["index"]) for detail in self.results]


class OpenCvEngine:
    """OpenCV's own reader and kernels (below version 5) on a net of Caffe.  All its numbers are f32."""

    def __init__(self, model: Model, threads: int, precision: str = "f32", weights: Model | None = None) -> None:
        from bolt_numba.converters.caffe.reading.read import files_of
        from bolt_numba.converters.formats import Content

        package = installed("cv2", "opencv-python-headless<5")
        if not hasattr(package.dnn, "readNetFromCaffe"):
            raise BoltError("opencv: got version 5, which reads no Caffe, wanted one below")
        file = Content(model, weights)
        parts = files_of(file.view, file.path, None if file.weights is None else file.weights.view)
        if not len(parts[0]):
            raise BoltError(f"opencv: {file.name}: got a caffemodel alone, wanted its prototxt")
        package.setNumThreads(threads)
        self.net = package.dnn.readNetFromCaffe(*(np.frombuffer(part, np.uint8) for part in parts if len(part)))
        self.net.setPreferableBackend(package.dnn.DNN_BACKEND_OPENCV)
        self.names = self.net.getUnconnectedOutLayersNames()

    def run(self, feeds: Feeds) -> Sequence[Array]:
        for name, array in feeds.items():
            self.net.setInput(np.asarray(array), name)
        return [np.asarray(a) for a in self.net.forward(self.names)]


def paddle_predictor(content: Any, configure: Callable[[Any], None]) -> Any:
    """Paddle's own predictor of a program, for the processor; ``configure`` sets what else its configuration has."""
    from bolt_numba.converters.paddle.reading.read import files_of

    package = installed("paddle.inference", "paddlepaddle")
    program, weights = files_of(content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.json" if program[:1] == b"{" else "model.pdmodel")
        path.write_bytes(program)
        path.with_suffix(".pdiparams").write_bytes(weights)
        config = package.Config(str(path), str(path.with_suffix(".pdiparams")))
        config.disable_gpu()
        config.disable_glog_info()
        configure(config)
        return package.create_predictor(config)


class PaddleEngine:
    """Paddle's inference with oneDNN, on a program of Paddle."""

    def __init__(self, model: Model, threads: int, precision: str = "f32", weights: Model | None = None) -> None:
        from bolt_numba.converters.formats import Content

        def configure(config: Any) -> None:
            config.enable_mkldnn()
            if precision == "bf16":
                config.enable_mkldnn_bfloat16()
            config.set_cpu_math_library_num_threads(threads)

        self.net = paddle_predictor(Content(model, weights), configure)

    def run(self, feeds: Feeds) -> Sequence[Array]:
        for name, array in feeds.items():
            self.net.get_input_handle(name).copy_from_cpu(np.asarray(array))
        self.net.run()
        return [self.net.get_output_handle(name).copy_to_cpu() for name in self.net.get_output_names()]


ENGINES: dict[str, Callable[..., Engine]] = {
    "bolt-numba": BoltEngine,
    "onnxruntime": OnnxRuntimeEngine,
    "openvino": OpenVinoEngine,
    "litert": LiteRtEngine,
    "opencv": OpenCvEngine,
    "paddle": PaddleEngine,
}
OWN_FORMATS = {"litert": "tflite", "opencv": "caffe", "paddle": "paddle"}
"""Engines that read files of one format; the others get a model as ONNX."""
_MODULES = {"litert": "ai_edge_litert", "opencv": "cv2", "bolt-numba": "bolt_numba"}


def want_installed(name: str) -> None:
    """Raise BoltError where another engine is unknown or absent; importing it takes longer and is left to `make`."""
    if name not in ENGINES:
        raise BoltError(f"engine: got {name!r}, wanted one of {', '.join(ENGINES)}")
    if importlib.util.find_spec(_MODULES.get(name, name)) is None:
        raise BoltError(f"{name}: is not installed: {HOW_TO_INSTALL}")


def make(name: str, model: Model, threads: int, precision: str = "f32", weights: Model | None = None) -> Engine:
    """The engine called ``name``, with the model loaded.

    precision: asked of engines that have several.  weights: a second file of a model of Caffe or Paddle, for the engine
    that reads such files.  Raises BoltError when it is unknown, absent or refuses.
    """
    want_installed(name)
    second = {} if weights is None else {"weights": weights}
    try:
        return ENGINES[name](model, threads, precision, **second)
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
