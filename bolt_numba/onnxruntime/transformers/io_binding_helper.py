"""TypeHelper: from onnxruntime's names of types to those of NumPy, torch and ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba.base.types import BF16, BOOL, STRING, AnyDType
from bolt_numba.onnxruntime.errors import OrtOptionError
from bolt_numba.onnxruntime.kinds import CODES, tensor_kind
from bolt_numba.onnxruntime.model import NodeArg
from bolt_numba.onnxruntime.session import InferenceSession

_DTYPES = {tensor_kind(dtype): dtype for dtype in CODES}


class TypeHelper:
    """Types of a session's inputs and outputs in other libraries' words.  Raises OrtOptionError, a ValueError."""

    @staticmethod
    def get_input_type(ort_session: InferenceSession, name: str) -> str:
        return _named(ort_session.get_inputs(), name).type

    @staticmethod
    def get_output_type(ort_session: InferenceSession, name: str) -> str:
        return _named(ort_session.get_outputs(), name).type

    @staticmethod
    def ort_type_to_numpy_type(ort_type: str) -> Any:
        """The scalar class of NumPy; ``bool`` for booleans."""
        dtype = _dtype(ort_type)
        if dtype in (STRING, BF16):
            raise OrtOptionError(f"type: got {ort_type!r}, wanted one of NumPy's own")
        return bool if dtype == BOOL else dtype.type

    @staticmethod
    def ort_type_to_torch_type(ort_type: str) -> Any:
        return _torch_dtype(_dtype(ort_type), ort_type)

    @staticmethod
    def ort_type_to_onnx_type(ort_type: str) -> int:
        """The number of ONNX's TensorProto.DataType."""
        return CODES[_dtype(ort_type)]

    @staticmethod
    def numpy_type_to_torch_type(numpy_type: Any) -> Any:
        return _torch_dtype(np.dtype(numpy_type), numpy_type)

    @staticmethod
    def torch_type_to_numpy_type(torch_type: Any) -> Any:
        name = str(torch_type).removeprefix("torch.")
        return TypeHelper.ort_type_to_numpy_type(next((k for k, d in _DTYPES.items() if d.name == name), name))

    @staticmethod
    def get_io_onnx_type_map(ort_session: InferenceSession) -> dict[str, int]:
        return _each(ort_session, TypeHelper.ort_type_to_onnx_type)

    @staticmethod
    def get_io_numpy_type_map(ort_session: InferenceSession) -> dict[str, Any]:
        return _each(ort_session, TypeHelper.ort_type_to_numpy_type)

    @staticmethod
    def get_io_torch_type_map(ort_session: InferenceSession) -> dict[str, Any]:
        return _each(ort_session, TypeHelper.ort_type_to_torch_type)


def _named(args: list[NodeArg], name: str) -> NodeArg:
    for arg in args:
        if arg.name == name:
            return arg
    raise OrtOptionError(f"name: got {name!r}, wanted one of {[arg.name for arg in args]}")


def _dtype(ort_type: str) -> AnyDType:
    if ort_type not in _DTYPES:
        raise OrtOptionError(f"type: got {ort_type!r}, wanted one of {list(_DTYPES)}")
    return _DTYPES[ort_type]


def _torch_dtype(dtype: AnyDType, given: Any) -> Any:
    import torch  # the caller's: it asks for torch's types

    found = None if dtype == STRING else getattr(torch, dtype.name, None)
    if found is None:
        raise OrtOptionError(f"type: got {given!r}, wanted one that torch has")
    return found


def _each(session: InferenceSession, to: Callable[[str], Any]) -> dict[str, Any]:
    return {arg.name: to(arg.type) for arg in (*session.get_inputs(), *session.get_outputs())}
