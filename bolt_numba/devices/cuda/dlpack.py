"""Arrays of a GPU to other packages and from them, by DLPack: structs of C in a capsule of Python.

Source of the layout: dlpack.h, versions 0.8 and 1.0 (https://dmlc.github.io/dlpack/latest/c_api.html).
"""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any, NamedTuple

import numpy as np

from bolt_numba.base.errors import DTypeError
from bolt_numba.base.types import BF16, AnyDType, dtype_name

CUDA = 2
"""The number of CUDA's devices."""
HOST = 1
"""The number of the host."""
NAME, USED = b"dltensor", b"used_dltensor"
VERSIONED, USED_VERSIONED = b"dltensor_versioned", b"used_dltensor_versioned"
VERSION = 1, 0
"""Up to which the form with a version is read here: it says whether an array may be written to."""
_READ_ONLY = 1
_KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}
_BFLOAT = 4
"""Numbers of kinds of elements."""


class _DLDevice(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("number", ctypes.c_int32))


class _Kind(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("kind", _Kind),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_is_named = ctypes.pythonapi.PyCapsule_IsValid
_is_named.restype, _is_named.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
_is_named_by = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_of_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_pointer_in = _of_address(("PyCapsule_GetPointer", ctypes.pythonapi))

_lent: dict[int, Any] = {}
"""By address: the struct of each array that somebody else holds, and what it is made of."""


def _give_back(address: int) -> None:
    _lent.pop(address, None)


def _drop(capsule: int) -> None:
    """The capsule goes; nobody took what is in it if it has its first name."""
    if _is_named(capsule, NAME):
        _give_back(_pointer_in(capsule, NAME))


_given_back, _dropped = _Deleter(_give_back), ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_drop)
"""What the receiver of an array calls, and what Python calls for a capsule."""


def exported(address: int, shape: tuple[int, ...], dtype: AnyDType, number: int, owner: Any) -> Any:
    """A capsule of a dense array on GPU ``number``; ``owner`` lives until the receiver gives it back."""
    code = _BFLOAT if dtype == BF16 else _KINDS.get(dtype.kind)
    if code is None:
        raise DTypeError(f"DLPack: got {dtype_name(dtype)}, wanted numbers or bools")
    made = _Managed()
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    tensor = made.tensor
    tensor.data, tensor.device, tensor.ndim = address, _DLDevice(CUDA, number), len(shape)
    tensor.kind = _Kind(code, 8 * dtype.itemsize, 1)
    tensor.shape, tensor.strides = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64)), None
    made.deleter = _given_back
    at = ctypes.addressof(made)
    _lent[at] = made, sizes, owner
    return _new(at, NAME, ctypes.cast(_dropped, ctypes.c_void_p))


class _Owner:
    """What keeps the memory of a foreign array; its end gives it back."""


class Taken(NamedTuple):
    """A dense array of another package.  owner: what keeps its memory."""

    address: int
    shape: tuple[int, ...]
    dtype: AnyDType
    owner: Any
    is_read_only: bool


def imported(capsule: Any) -> Taken:
    """The array in a capsule of either form.

    Raises DTypeError for elements that are not here, and for arrays that are not dense; BufferError for a version
    whose form is not known.
    """
    is_versioned = bool(_is_named_by(capsule, VERSIONED))
    at = _pointer(capsule, VERSIONED if is_versioned else NAME)
    managed = _Versioned.from_address(at) if is_versioned else _Managed.from_address(at)
    if isinstance(managed, _Versioned) and managed.major != VERSION[0]:
        raise BufferError(f"DLPack: got a capsule of version {managed.major}.{managed.minor}, wanted {VERSION[0]}.x")
    is_read_only = isinstance(managed, _Versioned) and bool(managed.flags & _READ_ONLY)
    tensor = managed.tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    kinds = {code: kind for kind, code in _KINDS.items()}
    code, bits, lanes = tensor.kind.code, tensor.kind.bits, tensor.kind.lanes
    if lanes != 1 or (code not in kinds and code != _BFLOAT):
        raise DTypeError(f"DLPack: got elements of kind {code} in {lanes} lanes, wanted plain numbers or bools")
    dtype = BF16 if code == _BFLOAT else np.dtype(f"{kinds[code]}{bits // 8}")
    if tensor.strides:
        check_dense(shape, tuple(dtype.itemsize * s for s in tensor.strides[: tensor.ndim]), dtype)
    _rename(capsule, USED_VERSIONED if is_versioned else USED)
    owner = _Owner()
    if managed.deleter:
        weakref.finalize(owner, managed.deleter, at).atexit = False
    return Taken((tensor.data or 0) + tensor.offset, shape, dtype, owner, is_read_only)


def check_dense(shape: tuple[int, ...], strides: tuple[int, ...], dtype: AnyDType) -> None:
    """Refuse an array with gaps; strides in bytes."""
    dense = [math.prod(shape[axis + 1 :]) * dtype.itemsize for axis in range(len(shape))]
    if 0 not in shape and any(n > 1 and a != b for n, a, b in zip(shape, strides, dense, strict=True)):
        raise DTypeError(f"array on a GPU: got strides {strides}, wanted a dense array: .contiguous()")
