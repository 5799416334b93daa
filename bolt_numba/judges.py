"""Who knows the right values of a model's tensors, for `bolt_numba.verification`: other engines, and the references."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bolt_numba.base.errors import BoltError, OptionError, UnsupportedOpError
from bolt_numba.base.types import Array
from bolt_numba.converters.caffe.net import net_of
from bolt_numba.converters.caffe.reading.read import files_of
from bolt_numba.converters.caffe.text import parse
from bolt_numba.converters.formats import Content, format_of
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.peers import Feeds, Model, installed, make, paddle_predictor, with_outputs
from bolt_numba.sessions.session import Session


@dataclass(frozen=True, slots=True)
class Asked:
    """What is judged: a model as its file and as the graph that was read of it, on these inputs.

    format: a key of `bolt_numba.converters.formats.FORMATS`; "" for a graph without a file.
    """

    model: Model | Graph
    weights: Model | None
    graph: Graph
    feeds: Feeds
    format: str

    def file(self) -> Content:
        """The file, where there is one."""
        assert not isinstance(self.model, Graph), "engines with formats of their own get files"
        return Content(self.model, self.weights)


class Judge(Protocol):
    """The values of the tensors whose names it knows.  levels: by which its own rounding may change bytes."""

    levels: int

    def names(self) -> set[str]: ...

    def values(self, names: Sequence[str]) -> dict[str, Array]: ...


class OnnxRuntime:
    """onnxruntime; every result of the main graph can be asked for.  Models of other formats come to it as ONNX."""

    levels = 1

    def __init__(self, asked: Asked) -> None:
        model = asked.model
        as_it_is = asked.format == "onnx" and not isinstance(model, Graph)
        self.model: Any = model if as_it_is else to_onnx(asked.graph).SerializeToString()
        self.feeds = asked.feeds

    def names(self) -> set[str]:
        return set(with_outputs(self.model, lambda _: True)[1])

    def values(self, names: Sequence[str]) -> dict[str, Array]:
        wanted = set(names)
        extended, outputs = with_outputs(self.model, wanted.__contains__)
        try:
            engine = make("onnxruntime", extended, 0)
        except BoltError as error:
            raise BoltError(f"{error}; against 'reference' no other engine is needed") from error
        found = engine.run(self.feeds)
        return {n: a for n, a in zip(outputs, found, strict=True) if n in wanted}


class Reference:
    """The references of the operators of the graph as loaded."""

    levels = 1

    def __init__(self, asked: Asked) -> None:
        self.graph, self.feeds = asked.graph, asked.feeds

    def names(self) -> set[str]:
        return {v.name for v in self.graph.values()} | set(self.graph.output_names)

    def values(self, names: Sequence[str]) -> dict[str, Array]:
        return interpret(self.graph, self.feeds, names)


class OwnCpu:
    """Our own kernels on the CPU: what sessions on other devices are held against."""

    levels = 1

    def __init__(self, asked: Asked) -> None:
        self.session, self.feeds = Session(asked.graph, stand_ins=False), asked.feeds

    def names(self) -> set[str]:
        graph = self.session.graph
        return {v.name for v in graph.values()} | set(graph.output_names)

    def values(self, names: Sequence[str]) -> dict[str, Array]:
        self.session.reset_state()
        return dict(zip(names, self.session.run(list(names), self.feeds), strict=True))


class LiteRt:
    """LiteRT's own kernels, one operator after the other, all tensors kept.

    It rounds sums twice on their way to bytes, so in 2 of 1,000 places it is a level away, and two behind some layers.
    """

    levels = 2

    def __init__(self, asked: Asked) -> None:
        package = installed("ai_edge_litert.interpreter", "ai-edge-litert")
        resolver = package.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        self.net = package.Interpreter(
            model_content=asked.file().data, num_threads=1, experimental_op_resolver_type=resolver,
            experimental_preserve_all_tensors=True,
        )  # fmt: skip
        inputs, results = self.net.get_input_details(), self.net.get_output_details()
        names = [name for name, _ in asked.graph.caller_outputs]
        if len(inputs) != len(asked.feeds) or len(results) != len(names):
            raise BoltError(f"litert: signature '{asked.graph.name}': got another one, wanted the file's first")
        given = [np.asarray(asked.feeds[v.name]) for v in asked.graph.inputs if v.name in asked.feeds]
        for detail, array in zip(inputs, given, strict=True):
            self.net.resize_tensor_input(detail["index"], array.shape)
        self.net.allocate_tensors()
        for detail, array in zip(inputs, given, strict=True):
            self.net.set_tensor(detail["index"], array)
        self.net.invoke()
        self.places = {d["name"]: int(d["index"]) for d in self.net.get_tensor_details()}
        self.places |= {n: int(d["index"]) for n, d in zip(names, results, strict=True)}

    def names(self) -> set[str]:
        return {name for name, place in self.places.items() if self._value(place) is not None}

    def values(self, names: Sequence[str]) -> dict[str, Array]:
        return {name: found for name in names if (found := self._value(self.places[name])) is not None}

    def _value(self, place: int) -> Array | None:
        try:
            found: Array = self.net.get_tensor(place)
        except ValueError:  # a tensor that it has merged into another
            return None
        return found


class OpenCv:
    """OpenCV's own reader and kernels, by the names of layers.  It knows the first result of each.

    Inputs and outputs are f32; axes that it adds to vectors are taken off again.
    """

    levels = 1

    def __init__(self, asked: Asked) -> None:
        package = installed("cv2", "opencv-python-headless<5").dnn
        if not hasattr(package, "readNetFromCaffe"):
            raise BoltError("opencv: got version 5, which reads no Caffe, wanted one below")
        file = asked.file()
        text, model = files_of(file.view, file.path, None if file.weights is None else file.weights.view)
        if not text:
            raise BoltError(f"opencv: {file.name}: got a caffemodel alone, wanted its prototxt")
        self.net = package.readNetFromCaffe(*(np.frombuffer(part, np.uint8) for part in (text, model) if len(part)))
        self.net.setPreferableBackend(package.DNN_BACKEND_OPENCV)
        self.net.enableFusion(False)
        known = set(self.net.getLayerNames())
        layers = net_of(parse(text, file.name), file.name).layers
        self.layers = {layer.tops[0]: layer.name for layer in layers if layer.tops and layer.name in known}
        self.detections = {v.tops[0] for v in layers if v.tops and v.type == "DetectionOutput"}
        self.shapes = {v.name: v.type for v in asked.graph.values()}
        self.feeds = asked.feeds
        for name, array in asked.feeds.items():
            self.net.setInput(np.asarray(array), name)

    def names(self) -> set[str]:
        return set(self.layers)

    def values(self, names: Sequence[str]) -> dict[str, Array]:
        made = {name: np.asarray(self.feeds[name]) for name in names if name in self.feeds}
        wanted = [name for name in names if name not in made]
        unknown = [name for name in wanted if name not in self.layers]
        if unknown:
            raise BoltError(f"opencv: outputs {unknown}: got none, wanted first results of layers")
        found = self.net.forward([self.layers[name] for name in wanted]) if wanted else ()
        return made | {name: self._shaped(name, np.asarray(a)) for name, a in zip(wanted, found, strict=True)}

    def _shaped(self, name: str, found: Array) -> Array:
        if name in self.detections:
            return _by_class(found.reshape(-1, 7))
        known = self.shapes.get(name)
        fits = known is not None and known.is_static and known.size == found.size
        return found.reshape(known.dims) if fits and known is not None else found


def _by_class(rows: Array) -> Array:
    """Detections in the order of SSD's Caffe.  OpenCV has them by score, and behind them zeros up to ``keep_top_k``."""
    found = rows[rows[:, 2] > 0]
    return found[np.lexsort((found[:, 1], found[:, 0]))][None, None]


class PaddleInference:
    """Paddle's own kernels, one operator after the other.

    It knows all tensors of an old program, and the outputs of one of PIR, whose values have no names.
    """

    levels = 1

    def __init__(self, asked: Asked) -> None:
        def configure(config: Any) -> None:
            config.disable_mkldnn()
            config.switch_ir_optim(False)

        if any(isinstance(given, list) for given in asked.feeds.values()):
            raise BoltError("paddle: inputs: got a ragged one, wanted arrays")
        net = paddle_predictor(asked.file(), configure)
        self.found: dict[str, Any] = {}
        net.register_output_hook(lambda _, name, tensor: self.found.update({name: np.array(tensor.numpy())}))
        for name, given in asked.feeds.items():
            net.get_input_handle(name).copy_from_cpu(np.asarray(given))
        net.run()
        self.found |= {name: net.get_output_handle(name).copy_to_cpu() for name in net.get_output_names()}

    def names(self) -> set[str]:
        return set(self.found)

    def values(self, names: Sequence[str]) -> dict[str, Array]:
        return {name: self.found[name] for name in names if name in self.found}


JUDGES: dict[str, Callable[[Asked], Judge]] = {
    "onnxruntime": OnnxRuntime, "reference": Reference, "cpu": OwnCpu, "litert": LiteRt, "opencv": OpenCv,
    "paddle": PaddleInference,
}  # fmt: skip
"""Judges by name."""
OURS = ("reference", "cpu")
OWN = {"tflite": ("litert", "ai_edge_litert"), "caffe": ("opencv", "cv2"), "paddle": ("paddle", "paddle")}
"""By format the judge whose own format it is, and the package that it needs."""


def judge_of(
    against: str | None, model: Model | Graph, graph: Graph, feeds: Feeds, weights: Model | None
) -> tuple[str, Judge]:
    """A judge and its name; None takes the engine whose format the model has, where it is installed."""
    format = "" if isinstance(model, Graph) else format_of(Content(model, weights))
    own, package = OWN.get(format, ("onnxruntime", "onnxruntime"))
    if against is None:
        against = own if importlib.util.find_spec(package) else "onnxruntime"
        if against == "onnxruntime" and not importlib.util.find_spec(against):
            other = "or against='reference' (--against reference), which computes in NumPy; 'cpu' is for other devices"
            raise BoltError(f"verify: onnxruntime is not installed, wanted it (pip install onnxruntime), {other}")
    if against not in JUDGES:
        raise OptionError(f"verify: against: got {against!r}, wanted one of {', '.join(map(repr, JUDGES))}")
    fitting = dict.fromkeys(("onnxruntime", *OURS, own))
    if against not in fitting:
        what = f"a file of {format}" if format else "a graph"
        raise BoltError(f"verify: against: got {against!r} for {what}, wanted {' or '.join(map(repr, fitting))}")
    with said_by(against):
        return against, JUDGES[against](Asked(model, weights, graph, feeds, format))


@contextmanager
def said_by(against: str) -> Iterator[None]:
    """Have what another engine raises name it; errors of our own references and kernels stay as they are."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UnsupportedOpError) and against not in OURS:
            raise UnsupportedOpError(f"{error.source} (--against reference does without)", error.items) from None
        if against in OURS or isinstance(error, (BoltError, OSError, MemoryError)):
            raise
        raise BoltError(f"{against}: model: got what it fails at, wanted one that it runs: {error}") from error
