"""onnxruntime as a device: graphs as ONNX models, weights and operands where they lie in our memory.

What it supports is not listed: it is asked with a model of one node, once for each kind of node.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bolt_numba.base.errors import DeviceError
from bolt_numba.base.types import Array, TensorType, dtype_from_name, dtype_name, only_in_python
from bolt_numba.ir.graph import Graph, Node
from bolt_numba.plugins.drivers.alone import alone, kind_of
from bolt_numba.plugins.drivers.indices import loose
from bolt_numba.plugins.drivers.shared import Bindings, lacking, processor_digest, threads_of, version_of
from bolt_numba.plugins.interface import (
    Accelerator,
    CompileContext,
    Compiled,
    DeviceDriver,
    DeviceFullError,
    Property,
    Request,
    Setting,
)

if TYPE_CHECKING:
    from bolt_numba.passes.rewrite import Rule

LEAST_BYTES, LINE = 1024, 64
"""Bytes from which a weight is kept beside the model, and of which the places of all are multiples."""
LEVELS = ("disable", "basic", "extended", "all")
WRONG: dict[str, Callable[[Any, Sequence[TensorType | None]], str]] = {
    "Between": lambda op, types: "ONNX has no way to refuse what the run tells",
    "DFT": lambda op, types: "onnxruntime ends the process with it",
    "DynamicQuantizeLSTM": lambda op, types: "onnxruntime packs its weights in another way",
    "GroupQueryAttention": lambda op, types: "onnxruntime takes heads of a multiple of 8 elements only",
    "LabelEncoder": lambda op, types: "onnxruntime looks for NaN in another way",
    "TreeEnsemble": lambda op, types: "onnxruntime compares NaN in another way",
    "Div": lambda op, types: "" if _floats(types[0]) else "onnxruntime stops at an integer division by 0",
    "Mod": lambda op, types: "" if _floats(types[0]) else "onnxruntime stops at an integer division by 0",
    "LRN": lambda op, types: "" if _rank(types[0]) == 4 else "onnxruntime takes images of 4 axes only",
    "Resize": lambda op, types: _cubic(op, types[0]),
    "BetweenBytes": lambda op, types: _cubic(op.op, types[0]) if op.op.name == "Resize" else "",
    "Pow": lambda op, types: "" if _floats(types[0]) else "onnxruntime computes powers of integers in floats",
    "Swish": lambda op, types: "onnxruntime computes it in four steps, and x * Sigmoid(x) in one",
    "RoiAlign": lambda op, types: "onnxruntime's greatest samples are wrong" if op.mode == "max" else "",
    "ConvInteger": lambda op, types: _one_zero(types[2:]),
    "MatMulInteger": lambda op, types: _one_zero(types[2:]),
}
"""What onnxruntime accepts and then does not do, does otherwise, or slowly: operator -> why, or nothing."""
UNCHECKED = ("RotaryEmbedding",)
"""Operators with indices that onnxruntime does not hold to their axis; it reads in front of it."""


def _floats(t: TensorType | None) -> bool:
    return t is not None and t.dtype.kind == "f"


def _rank(t: TensorType | None) -> int | None:
    return None if t is None or t.shape is None else len(t.shape)


def _cubic(op: Any, t: TensorType | None) -> str:
    plain = op.mode != "cubic" or (_rank(t) == 4 and op.layout == "NCHW" and op.axes in ((), (2, 3)))
    return "" if plain else "onnxruntime takes cubic samples along the last two of four axes only"


def _one_zero(zeros: Sequence[TensorType | None]) -> str:
    several = [t for t in zeros if t is not None and t.shape not in ((), (1,))]
    return "onnxruntime takes one zero point only" if several else ""


class OrtDriver(DeviceDriver):
    """Graphs run by onnxruntime, on its CPU provider or another one that the installed package has."""

    name = "onnxruntime"
    vendor = "Microsoft"
    properties: ClassVar[Mapping[str, Property]] = {
        "provider": Property("who runs the graph, as onnxruntime names it", "CPUExecutionProvider"),
        "threads": Property("threads of its own; 0: as many as the session has", 0),
        "optimisation": Property("how far it rewrites graphs", "all", LEVELS),
        "spinning": Property("whether its idle threads spin, which is faster alone and slower beside others", True),
        "shapes": Property("compile for each set of shapes, or once for all", "free", ("fixed", "free")),
    }

    def missing(self) -> str:
        return lacking("onnxruntime")

    def open(self, properties: Mapping[str, Setting]) -> OrtAccelerator:
        return OrtAccelerator(properties)


class OrtAccelerator(Accelerator):
    """Makes sessions of onnxruntime with the properties of ours."""

    def __init__(self, properties: Mapping[str, Setting]) -> None:
        import onnxruntime  # type: ignore[import-untyped]

        self.sdk, self.properties = onnxruntime, properties
        self.provider, self.threads = str(properties["provider"]), threads_of("onnxruntime", properties["threads"])
        available = onnxruntime.get_available_providers()
        if self.provider not in available:
            raise DeviceError(f"onnxruntime: provider: got {self.provider!r:.80}, wanted one of {', '.join(available)}")
        sdk = f"onnxruntime {version_of('onnxruntime')} (weights apart)"
        self.version = f"{sdk} on {self.provider} of {processor_digest()}"
        self.shapes = "fixed" if properties["shapes"] == "fixed" else "free"
        self._answers: dict[Any, bool | str] = {}

    @cached_property
    def lowerings(self) -> Sequence[Rule]:  # type: ignore[override]  # nobody sets it
        from bolt_numba.ops.pointwise import Swish
        from bolt_numba.plugins.lowering import STEPS_FIRST, apart  # what starts from a blob needs none

        return (*STEPS_FIRST, *apart(Swish))

    def supports(self, node: Node) -> bool | str:
        types = [None if v is None else v.type for v in node.inputs]
        if node.op.has_side_state:
            return "its results differ from run to run"
        if any(only_in_python(t) for t in (*types, *(v.type for v in node.outputs))):
            return "onnxruntime is bound to the memory of tensors, and strings have none"
        if any(_PACKED.match(v.type.dtype.name) for v in (*filter(None, node.inputs), *node.outputs) if not v.is_const):
            return "onnxruntime has two or four of such numbers in a byte"
        if node.op.name in WRONG and (why := WRONG[node.op.name](node.op, types)):
            return why
        if node.op.name in UNCHECKED and (why := loose(node, self.shapes == "fixed")):
            return why
        key = kind_of(node)
        if key not in self._answers:
            self._answers[key] = self._asked(node)
        return self._answers[key]

    def _asked(self, node: Node) -> bool | str:
        try:
            model, weights = _model(alone(node))
            options = self.options(1, str(self.properties["optimisation"]))  # its rewrites may go wrong, too
            options.add_session_config_entry("session.disable_prepacking", "1")
            self.session(model, weights, options)
        except Exception as error:  # ours say that ONNX has no words for it, onnxruntime's that it lacks it
            return _CODE.sub("", " ".join(str(error).split()))[:200]
        return True

    def options(self, threads: int, level: str) -> Any:
        """Options of a session."""
        sdk = self.sdk
        options = sdk.SessionOptions()
        options.log_severity_level = 4  # it writes to the standard error otherwise; failures come as exceptions
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.graph_optimization_level = getattr(sdk.GraphOptimizationLevel, f"ORT_{_LEVEL[level]}")
        if not self.properties["spinning"]:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return options

    def session(self, model: bytes, weights: Mapping[str, Array], options: Any) -> Any:
        """A session of onnxruntime; weights: large ones, of which it keeps the addresses."""
        if weights:
            values = [self.sdk.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
            options.add_external_initializers(list(weights), values)
        try:
            return self.sdk.InferenceSession(model, options, providers=[self.provider])
        except Exception as error:
            raise _error(error) from error

    def compile(self, graph: Graph, context: CompileContext) -> OrtCompiled:
        model, weights = _model(graph)
        options = self.options(self._threads(context), str(self.properties["optimisation"]))
        return OrtCompiled(self, self.session(model, weights, options), graph, weights)

    def restore(self, blob: bytes, graph: Graph, context: CompileContext) -> OrtCompiled:
        return self.start(memoryview(blob), context)

    def start(self, blob: memoryview, context: CompileContext) -> OrtCompiled:
        options = self.options(self._threads(context), "disable")  # what it kept is optimised already
        model, weights = _unpacked(blob)
        return OrtCompiled(self, self.session(model, weights, options), None, weights)

    def _threads(self, context: CompileContext) -> int:
        return self.threads or context.threads


class OrtCompiled(Compiled):
    """A session of onnxruntime.  graph: what it was compiled from.  weights: arrays whose addresses it keeps."""

    def __init__(self, device: OrtAccelerator, session: Any, graph: Graph | None, weights: Mapping[str, Array]) -> None:
        self.device, self.session, self.graph, self.weights = device, session, graph, weights

    def request(self) -> OrtRequest:
        return OrtRequest(self.device.sdk, self.session)

    def serialise(self) -> bytes | None:
        """The model as onnxruntime has rewritten it, weights included; None of what was kept already."""
        if self.graph is None:
            return None
        import tempfile  # takes longer than a small model, and only what compiles needs it

        model, weights = _model(self.graph)
        options = self.device.options(1, str(self.device.properties["optimisation"]))
        configure = options.add_session_config_entry
        configure("session.optimized_model_external_initializers_file_name", "weights")
        configure("session.optimized_model_external_initializers_min_size_in_bytes", str(LEAST_BYTES))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            options.optimized_model_filepath = str(path)
            self.device.session(model, weights, options)
            file = path.with_name("weights")
            return _packed(path.read_bytes(), file.read_bytes() if file.exists() else b"")

    def close(self) -> None:
        self.session = None


class OrtRequest(Request):
    """A binding of operands to our memory, bound anew where that moves."""

    def __init__(self, sdk: Any, session: Any) -> None:
        self._run, self._binding = session.run_with_iobinding, session.io_binding()
        self._inputs = _bindings(self._binding.bind_input, session.get_inputs())
        self._outputs = _bindings(self._binding.bind_output, session.get_outputs())

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._inputs.to(inputs)
        self._outputs.to(outputs)
        try:
            self._run(self._binding)
        except Exception as error:
            raise _error(error) from error


def _bindings(bind: Any, operands: Sequence[Any]) -> Bindings:
    names = [operand.name for operand in operands]

    def bind_at(i: int, array: Array, address: int) -> None:
        kind: Any = array.dtype.type
        if array.dtype.isbuiltin != 1:  # those that NumPy has not are named by ONNX's numbers
            from bolt_numba.converters.onnx.types import CODES

            kind = CODES[array.dtype]
        bind(names[i], "cpu", 0, kind, array.shape, address)

    return Bindings(bind_at, len(names))


_PACKED = re.compile("u?int[24]$|float4")
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : (This is an invalid model\. )?")
_LEVEL = {"disable": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED", "all": "ENABLE_ALL"}


def _error(error: Exception) -> Exception:
    """What onnxruntime raised, where it lacked memory as the error that asks for some."""
    text = str(error)
    wants_memory = isinstance(error, MemoryError) or "Failed to allocate" in text or "bad_alloc" in text
    return DeviceFullError(f"onnxruntime: memory: {text}") if wants_memory else error


def _packed(model: bytes, weights: bytes) -> bytes:
    """A model of onnxruntime's and the file of its large weights, which are then used where they lie."""
    import onnx

    rows = []
    for tensor in onnx.load_model_from_string(model).graph.initializer:
        if tensor.external_data:
            place = {entry.key: entry.value for entry in tensor.external_data}
            dtype = dtype_name(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
            rows.append((tensor.name, dtype, tuple(tensor.dims), int(place["offset"])))
    head = json.dumps([len(model), rows]).encode()
    start = -(-(8 + len(head) + len(model)) // LINE) * LINE
    return (len(head).to_bytes(8, "little") + head + model).ljust(start, b"\0") + weights


def _unpacked(blob: memoryview) -> tuple[bytes, dict[str, Array]]:
    """What `_packed` was given: the model, and its large weights by name."""
    end = 8 + int.from_bytes(blob[:8], "little")
    size, rows = json.loads(bytes(blob[8:end]))
    memory = blob[-(-(end + size) // LINE) * LINE :]
    weights = {}
    for name, dtype, dims, offset in rows:
        found = dtype_from_name(dtype)
        weights[name] = np.frombuffer(memory, found, math.prod(dims), offset).reshape(dims)
    return bytes(blob[end : end + size]), weights


def _model(graph: Graph) -> tuple[bytes, dict[str, Array]]:
    """A graph as the bytes of an ONNX model, and its large weights."""
    from bolt_numba.converters.onnx.writing.write import to_onnx_apart

    model, weights = to_onnx_apart(graph)
    return model.SerializeToString(), weights
