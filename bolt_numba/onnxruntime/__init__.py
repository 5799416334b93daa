"""onnxruntime's Python interface on top of bolt-numba: ``import bolt_numba.onnxruntime as ort``.

`install` gives it the name ``onnxruntime`` for code that cannot be edited.  docs/onnxruntime.md lists every name.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from bolt_numba.onnxruntime import errors
from bolt_numba.onnxruntime.assigned import OrtEpAssignedNode, OrtEpAssignedSubgraph
from bolt_numba.onnxruntime.binding import IOBinding, SessionIOBinding
from bolt_numba.onnxruntime.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from bolt_numba.onnxruntime.model import ModelMetadata, NodeArg
from bolt_numba.onnxruntime.options import RunOptions, SessionOptions
from bolt_numba.onnxruntime.process import (
    VERSION,
    copy_tensors,
    create_and_register_allocator,
    create_and_register_allocator_v2,
    disable_telemetry_events,
    enable_telemetry_events,
    get_build_info,
    get_ep_devices,
    get_version_string,
    has_collective_ops,
    preload_dlls,
    print_debug_info,
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    set_seed,
)
from bolt_numba.onnxruntime.providers import get_all_providers, get_available_providers, get_device
from bolt_numba.onnxruntime.session import InferenceSession
from bolt_numba.onnxruntime.values import OrtArenaCfg, OrtDevice, OrtMemoryInfo, OrtValue

__version__ = version = VERSION
package_name, cuda_version = "onnxruntime", ""

__all__ = [
    "AdapterFormat", "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "IOBinding", "InferenceSession",
    "LoraAdapter", "ModelMetadata",
    "NodeArg", "OrtAllocatorType", "OrtArenaCfg", "OrtDevice", "OrtDeviceMemoryType", "OrtDeviceVendorId",
    "OrtEpAssignedNode", "OrtEpAssignedSubgraph", "OrtMemType", "OrtMemoryInfo", "OrtMemoryInfoDeviceType",
    "OrtValue", "RunOptions", "SessionIOBinding", "SessionOptions", "__version__", "copy_tensors",
    "create_and_register_allocator", "create_and_register_allocator_v2", "cuda_version", "disable_telemetry_events",
    "enable_telemetry_events", "get_all_providers", "get_available_providers", "get_build_info", "get_device",
    "get_ep_devices", "get_version_string", "has_collective_ops", "install", "package_name", "preload_dlls",
    "print_debug_info", "set_default_logger_callback", "set_default_logger_severity",
    "set_default_logger_verbosity", "set_global_thread_pool_sizes", "set_seed", "version",
]  # fmt: skip

NAME = "onnxruntime"
MODULES = (
    "backend",
    "capi", "capi.onnxruntime_pybind11_state", "capi._pybind_state", "capi.onnxruntime_inference_collection",
    "transformers", "transformers.io_binding_helper",
)  # fmt: skip
"""Modules below this one that onnxruntime has, too."""


def install() -> None:
    """Make ``import onnxruntime`` give this module, for the rest of the process.

    Call it before anything imports onnxruntime.  Raises OrtRefusedError where that has happened.
    """
    found = sys.modules.get(NAME)
    begun = getattr(getattr(found, "__spec__", None), "_initializing", False)  # a package that calls us to be replaced
    if found is not None and found is not sys.modules[__name__] and not begun:
        raise errors.OrtRefusedError("install: got an onnxruntime that is imported already, wanted to come first")
    for name in ("", *(f".{module}" for module in MODULES)):
        sys.modules[NAME + name] = importlib.import_module(__name__ + name)


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in ("AdapterFormat", "LoraAdapter"):  # few clients have any
        return getattr(importlib.import_module(f"{__name__}.adapters"), name)
    if name == "capi":  # its modules are named without being imported
        for module in MODULES:
            importlib.import_module(f"{__name__}.{module}")
        return sys.modules[f"{__name__}.capi"]
    raise AttributeError(f"module {NAME!r} of bolt-numba has no {name!r}; docs/onnxruntime.md lists what it has")
