"""bolt-numba as an ONNX backend, for ``onnx.backend.test`` and whatever else speaks that interface.

``Backend.prepare(model).run(inputs)``; operators that have no meaning here raise UnsupportedOpError, which is a
NotImplementedError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend as Base
from onnx.backend.base import BackendRep

import bolt_numba
from bolt_numba.base.border import border
from bolt_numba.base.errors import DeviceError, ShapeError
from bolt_numba.base.options import want_known
from bolt_numba.base.types import Array
from bolt_numba.converters.onnx.reading.read import read_model
from bolt_numba.converters.onnx.types import DTYPES


class PreparedModel(BackendRep):
    """A compiled model; inputs are given by position or by name."""

    def __init__(self, session: Any, inputs: Sequence[str]) -> None:
        super().__init__()
        self._session, self._inputs = session, tuple(inputs)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Outputs in the model's order.  inputs: a sequence, one array, or a mapping by name."""
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            given = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            if len(given) > len(self._inputs):
                raise ShapeError(f"run: number of inputs: got {len(given)}, wanted {len(self._inputs)}")
            feeds = dict(zip(self._inputs, given, strict=False))
        return tuple(self._session.run(None, feeds))


class Backend(Base):
    """Entry points of ``onnx.backend.base.Backend``."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Always true: `prepare` declines by an exception that lists every reason."""
        return True

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.partition(":")[0] == "CPU"

    @classmethod
    @border("prepare")
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Compile a model; keyword arguments are those of `bolt_numba.compile`."""
        if not cls.supports_device(device):
            raise DeviceError(f"device: got {device}, wanted CPU")
        want_known("prepare", kwargs, "weights", "signature", "calibration", without="device")
        graph = read_model(model)
        return PreparedModel(bolt_numba.compile(graph, **kwargs), [v.name for v in graph.inputs])

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    @border("run_node")
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node; ``opset_version`` among the keyword arguments is the opset it is written for."""
        opset = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        names = [name for name in node.input if name]
        if isinstance(inputs, Mapping):
            inputs = [inputs[name] for name in names if name in inputs]
        arrays = _listed(inputs)
        if len(arrays) != len(names):
            raise ShapeError(f"run_node: inputs: got {len(arrays)}, wanted {names}")
        infos = [_info(name, array) for name, array in zip(names, arrays, strict=True)]
        results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "node", infos, results)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])
        return cls.run_model(model, arrays, device, **kwargs)


def _listed(inputs: Any) -> list[Array]:
    return [np.asarray(inputs)] if isinstance(inputs, np.ndarray) else [np.asarray(x) for x in inputs]


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    code = next((code for code, dtype in DTYPES.items() if dtype == array.dtype), onnx.TensorProto.STRING)
    return helper.make_tensor_value_info(name, code, array.shape)


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
