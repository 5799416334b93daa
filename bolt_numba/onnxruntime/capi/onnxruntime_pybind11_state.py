"""Classes and functions under the module name that clients import errors from."""

from bolt_numba.onnxruntime.assigned import OrtEpAssignedNode, OrtEpAssignedSubgraph
from bolt_numba.onnxruntime.binding import SessionIOBinding
from bolt_numba.onnxruntime.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from bolt_numba.onnxruntime.errors import (
    DeviceReset,
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    RuntimeException,
)
from bolt_numba.onnxruntime.model import ModelMetadata, NodeArg
from bolt_numba.onnxruntime.options import RunOptions, SessionOptions
from bolt_numba.onnxruntime.process import (
    disable_telemetry_events,
    enable_telemetry_events,
    get_build_info,
    get_version_string,
    has_collective_ops,
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    set_seed,
)
from bolt_numba.onnxruntime.providers import get_all_providers, get_available_providers, get_device
from bolt_numba.onnxruntime.session import InferenceSession
from bolt_numba.onnxruntime.values import OrtArenaCfg, OrtDevice, OrtMemoryInfo, OrtValue, OrtValueVector

__all__ = [
    "DeviceReset", "EPFail", "EngineError", "ExecutionMode", "ExecutionOrder", "Fail", "GraphOptimizationLevel",
    "InferenceSession", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "ModelLoadCanceled", "ModelLoaded",
    "ModelMetadata", "ModelRequiresCompilation", "NoModel", "NoSuchFile", "NodeArg", "NotFound", "NotImplemented",
    "OrtAllocatorType", "OrtArenaCfg", "OrtDevice", "OrtDeviceMemoryType", "OrtEpAssignedNode",
    "OrtEpAssignedSubgraph", "OrtMemType", "OrtMemoryInfo", "OrtMemoryInfoDeviceType", "OrtValue", "OrtValueVector",
    "RunOptions", "RuntimeException", "SessionIOBinding", "SessionOptions", "disable_telemetry_events",
    "enable_telemetry_events", "get_all_providers", "get_available_providers", "get_build_info", "get_device",
    "get_version_string", "has_collective_ops", "set_default_logger_callback", "set_default_logger_severity",
    "set_default_logger_verbosity", "set_global_thread_pool_sizes", "set_seed",
]  # fmt: skip
