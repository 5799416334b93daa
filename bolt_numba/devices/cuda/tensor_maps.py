"""Descriptors of tensors, for copies that a GPU does by itself.

`cuda.bindings` has the function that makes them, but lets it write into an object of Python, which begins at any
multiple of 16 bytes.  The driver wants `ALIGN`, so it is called by its address here.  Source: cuda.h of CUDA 13, and
NVIDIA/cuda-python#1692, whose processes crash.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.kernels.cuda.declare import MappedTensor

NAME, SINCE = "cuTensorMapEncodeTiled", 12000
"""The function, and the version of CUDA that brought it."""
ALIGN = MAP_BYTES = 128
_U32, _U64 = ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint64)
Encode = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, _U64, _U64, _U32, _U32,
    *(ctypes.c_int,) * 4,
)  # fmt: skip
"""Descriptor, kind of elements, rank, address, dims, strides, box, steps; interleaving, swizzle, use of L2, fill."""


def encoded(cu: Any, address: int, tensor: MappedTensor) -> tuple[Any, Array]:
    """Status of the driver, whose function stands at ``address``, and the descriptor; for the calling thread's GPU."""
    t, rank = tensor, len(tensor.dims)
    room = np.zeros(MAP_BYTES + ALIGN, np.uint8)
    made = room[-room.ctypes.data % ALIGN :][:MAP_BYTES]
    dims, strides = (ctypes.c_uint64 * rank)(*t.dims), (ctypes.c_uint64 * max(rank - 1, 1))(*t.strides)
    box, steps = (ctypes.c_uint32 * rank)(*t.box), (ctypes.c_uint32 * rank)(*(1,) * rank)
    status = Encode(address)(
        made.ctypes.data, int(getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_UINT{8 * t.itemsize}")), rank,
        t.address, dims, strides, box, steps,
        int(cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B),
        int(cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
        int(cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )  # fmt: skip
    return status, made
