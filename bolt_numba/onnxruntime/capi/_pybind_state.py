"""The module that onnxruntime's own Python files take its compiled part from."""

from bolt_numba.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403
