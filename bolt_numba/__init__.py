"""bolt-numba: neural-network inference in Python at machine speed.

>>> import bolt_numba as bn
>>> sess = bn.compile("model.onnx", threads=2)
>>> y = sess(x=array)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "BoltError": "base.errors", "BudgetError": "base.errors", "CancelToken": "base.cancelling",
    "CancelledError": "base.errors", "DTypeError": "base.errors",
    "DataError": "base.errors", "DeviceError": "base.errors", "InternalError": "base.errors",
    "InvalidModelError": "base.errors", "OptionError": "base.errors", "ShapeError": "base.errors",
    "TimeLimitError": "base.errors", "UnsupportedOpError": "base.errors",
    "Options": "base.options", "TensorSpec": "base.types",
    "Graph": "ir.graph", "Outputs": "sessions.outputs", "Session": "sessions.session", "compile": "compiling",
    "Model": "ir.model", "load_model": "sessions.loading",
    "Exported": "export.exporting", "export_model": "export.exporting",
    "load": "sessions.loading", "save": "sessions.loading",
    "InferenceSession": "onnxruntime", "SessionOptions": "onnxruntime",
    "device_array": "devices.cuda.device", "read_mean": "converters.caffe.mean", "verify": "verification",
}  # fmt: skip
"""Where each public name lives; modules load when a name is first used, so that importing the package is cheap."""
_MODULES = ("batch", "plugins", "surgery", "text")
"""Modules that load when they are first named, as ``bn.surgery``."""

__all__ = [
    "BoltError", "BudgetError", "CancelToken", "CancelledError", "DTypeError", "DataError", "DeviceError", "Exported",
    "Graph", "InferenceSession", "InternalError", "InvalidModelError", "Model", "OptionError", "Options", "Outputs",
    "Session", "SessionOptions", "ShapeError", "TensorSpec", "TimeLimitError", "UnsupportedOpError", "__version__",
    "compile", "device_array", "export_model", "load", "load_model", "read_mean", "save", "verify",
]  # fmt: skip

if TYPE_CHECKING:
    from bolt_numba.base.cancelling import CancelToken
    from bolt_numba.base.errors import (
        BoltError,
        BudgetError,
        CancelledError,
        DataError,
        DeviceError,
        DTypeError,
        InternalError,
        InvalidModelError,
        OptionError,
        ShapeError,
        TimeLimitError,
        UnsupportedOpError,
    )
    from bolt_numba.base.options import Options
    from bolt_numba.base.types import TensorSpec
    from bolt_numba.compiling import compile
    from bolt_numba.converters.caffe.mean import read_mean
    from bolt_numba.devices.cuda.device import device_array
    from bolt_numba.export.exporting import Exported, export_model
    from bolt_numba.ir.graph import Graph
    from bolt_numba.ir.model import Model
    from bolt_numba.onnxruntime import InferenceSession, SessionOptions
    from bolt_numba.sessions.loading import load, load_model, save
    from bolt_numba.sessions.outputs import Outputs
    from bolt_numba.sessions.session import Session
    from bolt_numba.verification import verify


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"bolt_numba.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'bolt_numba' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"bolt_numba.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
