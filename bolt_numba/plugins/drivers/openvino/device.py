"""OpenVINO as a device: graphs as ONNX models, weights and operands where they lie in our memory."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bolt_numba.base.errors import DeviceError
from bolt_numba.base.types import Array
from bolt_numba.ir.graph import Graph, Node
from bolt_numba.plugins.drivers.alone import alone, kind_of
from bolt_numba.plugins.drivers.indices import loose
from bolt_numba.plugins.drivers.openvino.table import TABLE, want
from bolt_numba.plugins.drivers.shared import Bindings, borrowed, lacking, processor_digest, threads_of, version_of
from bolt_numba.plugins.drivers.table import NotThereError
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

HINTS = ("latency", "throughput")


class OpenVinoDriver(DeviceDriver):
    """Graphs run by OpenVINO, on the processor or on what else of Intel's it finds."""

    name = "openvino"
    vendor = "Intel"
    properties: ClassVar[Mapping[str, Property]] = {
        "device": Property("what runs the graph, as OpenVINO names it: CPU, GPU, NPU, AUTO", "CPU"),
        "threads": Property("threads of its own; 0: as many as the session has", 0),
        "precision": Property("of products; narrower ones than f32 change results", "f32", ("f32", "f16", "bf16")),
        "hint": Property("what it is tuned for", "latency", HINTS),
        "shapes": Property("compile for each set of shapes, or once for all", "fixed", ("fixed", "free")),
        "int64": Property("keep 64-bit integers from it, which it computes in 32 bits", "exact", ("exact", "narrow")),
    }

    used_by = 0
    """The process that first opened it."""

    def missing(self) -> str:
        if self.used_by not in (0, os.getpid()):
            return "this process was forked from one that uses OpenVINO, whose threads a child has not"
        return lacking("openvino")

    def open(self, properties: Mapping[str, Setting]) -> OvAccelerator:
        self.used_by = os.getpid()
        return OvAccelerator(properties)


class OvAccelerator(Accelerator):
    """Makes compiled models of OpenVINO with the properties of ours."""

    def __init__(self, properties: Mapping[str, Setting]) -> None:
        import openvino  # type: ignore[import-untyped]

        self.sdk, self.properties = openvino, properties
        self.core = openvino.Core()
        self.device, self.threads = str(properties["device"]), threads_of("openvino", properties["threads"])
        # Looking for devices takes as long as a small model, and its own processor is always there.
        available = ["CPU"] if self.device == "CPU" else [*self.core.available_devices, "AUTO"]
        if self.device.partition(".")[0].partition(":")[0] not in {name.partition(".")[0] for name in available}:
            raise DeviceError(f"openvino: device: got {self.device!r:.80}, wanted one of {', '.join(available)}")
        self.version = f"openvino {version_of('openvino')} on {self.device} of {processor_digest()}"
        self.shapes = "free" if properties["shapes"] == "free" else "fixed"
        self.wide = properties["int64"] == "narrow"
        self._answers: dict[Any, bool | str] = {}

    @cached_property
    def lowerings(self) -> Sequence[Rule]:  # type: ignore[override]  # nobody sets it
        from bolt_numba.plugins.lowering import (  # what starts from a blob needs none
            ACTIVATIONS,
            BYTES,
            CHANNELS_FIRST,
            FUSED,
            NORMS,
            STEPS_FIRST,
        )

        # A rotation that OpenVINO has joined comes back from a kept model as another one.
        fused = [rule for rule in FUSED if rule.name != "RotaryEmbedding"]
        return (*CHANNELS_FIRST, *STEPS_FIRST, *fused, *BYTES, *ACTIVATIONS, *NORMS)

    def supports(self, node: Node) -> bool | str:
        if why := loose(node, self.shapes == "fixed"):
            return why
        builder = TABLE.load().get(node.op.name)
        key = kind_of(node, builder is not None and builder.by_rank)
        if key not in self._answers:
            self._answers[key] = self._asked(node)
        return self._answers[key]

    def _asked(self, node: Node) -> bool | str:
        try:
            want(node, self.wide)
            made, _ = self._model(alone(node))
            if self.device == "CPU":  # it has all that the table has, and takes 40 ms to say so
                return True
            missed = {x.get_friendly_name() for x in made.get_ops()} - set(self.core.query_model(made, self.device))
        except NotThereError as error:
            return str(error)
        except Exception as error:  # ours say that ONNX has no words for it, OpenVINO's that it lacks it
            return " ".join(str(error).split())[-300:]
        return f"{self.device} has no {', '.join(sorted(missed))}" if missed else True

    def settings(self, context: CompileContext) -> dict[str, Any]:
        """Properties of a compiled model."""
        made: dict[str, Any] = {
            "PERFORMANCE_HINT": str(self.properties["hint"]).upper(),
            "INFERENCE_PRECISION_HINT": str(self.properties["precision"]),
        }
        if self.device == "CPU":
            made["INFERENCE_NUM_THREADS"] = self.threads or context.threads
        return made

    def compile(self, graph: Graph, context: CompileContext) -> OvCompiled:
        try:
            model, weights = self._model(graph)
            compiled = self.core.compile_model(model, self.device, self.settings(context))
        except Exception as error:
            raise _error(error) from error
        return OvCompiled(self, compiled, weights)

    def _model(self, graph: Graph) -> tuple[Any, Mapping[str, Array]]:
        """A graph as a model of OpenVINO, and its large weights: inputs of the file, then constants where they lie."""
        import onnx  # what starts from a blob needs neither

        from bolt_numba.converters.onnx.types import CODES
        from bolt_numba.converters.onnx.writing.write import to_onnx_apart
        from bolt_numba.passes.rewrite import rewrite
        from bolt_numba.plugins.lowering import CONVERSIONS

        graph = graph.clone()
        rewrite(graph, CONVERSIONS)  # what stands between ONNX's it would compute in fewer bits
        model, weights = to_onnx_apart(graph)
        kept = [t for t in model.graph.initializer if t.name not in weights]
        for name, array in weights.items():
            model.graph.input.append(onnx.helper.make_tensor_value_info(name, CODES[array.dtype], array.shape))
        del model.graph.initializer[:]
        model.graph.initializer.extend(kept)
        made = self.core.read_model(model.SerializeToString())
        for parameter in made.get_parameters():
            weight = weights.get(parameter.get_friendly_name())
            if weight is not None:
                shared = self.sdk.op.Constant(borrowed(weight, weight.ctypes.data), shared_memory=True)
                parameter.output(0).replace(shared.output(0))
                made.remove_parameter(parameter)
        made.validate_nodes_and_infer_types()
        return made, weights

    def restore(self, blob: bytes, graph: Graph, context: CompileContext) -> OvCompiled:
        return self.start(memoryview(blob), context)

    def start(self, blob: memoryview, context: CompileContext) -> OvCompiled:
        array = np.frombuffer(blob, np.uint8)
        tensor = self.sdk.Tensor(borrowed(array, array.ctypes.data), shared_memory=True)
        try:
            compiled = self.core.import_model(tensor, self.device, self.settings(context))
        except Exception as error:
            raise _error(error) from error
        return OvCompiled(self, compiled, array)


class OvCompiled(Compiled):
    """A compiled model of OpenVINO.  memory: holds what the model shares: weights, or a blob."""

    def __init__(self, device: OvAccelerator, model: Any, memory: object) -> None:
        self.device, self.model, self.memory = device, model, memory

    def request(self) -> OvRequest:
        return OvRequest(self.device.sdk, self.model.create_infer_request())

    def serialise(self) -> bytes | None:
        stream = io.BytesIO()
        self.model.export_model(stream)
        return stream.getvalue()

    def close(self) -> None:
        self.model = self.memory = None


class OvRequest(Request):
    """An infer request whose tensors are our memory, set anew where that moves."""

    def __init__(self, sdk: Any, request: Any) -> None:
        self._sdk, self._request = sdk, request
        # The wrapper's own method makes a dictionary of all results, which takes longer than a small graph.
        plain: Any = super(type(request), request)
        self._infer = plain.infer
        self._inputs = Bindings(self._setter(request.set_input_tensor), len(request.model_inputs))
        self._outputs = Bindings(self._setter(request.set_output_tensor), len(request.model_outputs))

    def _setter(self, method: Any) -> Any:
        def set_tensor(i: int, array: Array, address: int) -> None:
            method(i, self._sdk.Tensor(borrowed(array, address), shared_memory=True))

        return set_tensor

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._inputs.to(inputs)
        self._outputs.to(outputs)
        try:
            self._infer({}, share_outputs=True, decode_strings=False)
        except Exception as error:
            raise _error(error) from error


def _error(error: Exception) -> Exception:
    """What OpenVINO raised, where it lacked memory as the error that asks for some."""
    text = str(error)
    wants_memory = isinstance(error, MemoryError) or "bad_alloc" in text or "OUT_OF_RESOURCES" in text
    return DeviceFullError(f"openvino: memory: {text}") if wants_memory else error
