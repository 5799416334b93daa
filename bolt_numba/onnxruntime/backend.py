"""onnxruntime's form of ONNX's interface of backends: ``onnxruntime.backend.prepare(model).run(inputs)``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from bolt_numba.onnxruntime.errors import OrtOptionError
from bolt_numba.onnxruntime.options import RunOptions, SessionOptions
from bolt_numba.onnxruntime.providers import get_device
from bolt_numba.onnxruntime.session import InferenceSession


class OnnxRuntimeBackendRep:
    """A model ready to run."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> list[Any]:
        """Outputs in order.  inputs: a list of them in order, or the only one; keywords are fields of `RunOptions`."""
        options = RunOptions()
        for name, value in kwargs.items():
            setattr(options, name, value)
        wanted = [arg.name for arg in self._session.get_inputs()]
        given = inputs if isinstance(inputs, list) and len(wanted) != 1 else [inputs[0] if _is_row(inputs) else inputs]
        if len(given) != len(wanted):
            raise OrtOptionError(f"inputs: got {len(given)}, wanted {wanted}")
        return self._session.run(None, dict(zip(wanted, given, strict=True)), options)


def _is_row(inputs: Any) -> bool:
    return isinstance(inputs, list) and len(inputs) == 1


def is_compatible(model: Any, device: str | None = None, **kwargs: Any) -> bool:
    """Whether `prepare` may be asked; it raises for what has no meaning here."""
    return device is None or supports_device(device)


def supports_device(device: str) -> bool:
    return device == get_device()


def prepare(model: Any, device: str | None = None, **kwargs: Any) -> Any:
    """A model made ready: a path, bytes, a ``ModelProto`` or a session.  Keywords are fields of `SessionOptions`."""
    if isinstance(model, (OnnxRuntimeBackendRep, InferenceSession)):
        return model if isinstance(model, OnnxRuntimeBackendRep) else OnnxRuntimeBackendRep(model)
    if device is not None and not supports_device(device):
        raise OrtOptionError(f"device: got {device!r}, wanted {get_device()!r}")
    options = SessionOptions()
    for name, value in kwargs.items():
        setattr(options, name, value)
    source = model if isinstance(model, (str, bytes, os.PathLike)) else model.SerializeToString()
    return OnnxRuntimeBackendRep(InferenceSession(source, options))


def run_model(model: Any, inputs: Any, device: str | None = None, **kwargs: Any) -> list[Any]:
    made: list[Any] = prepare(model, device, **kwargs).run(inputs)
    return made


def run(model: Any, inputs: Sequence[Any], device: str | None = None, **kwargs: Any) -> list[Any]:
    """As `run_model`."""
    return run_model(model, inputs, device, **kwargs)
