"""The SDK of SimNPU, a neural processor that does not exist: what a vendor would ship, in NumPy.

It knows nothing of bolt-numba.  A `Graph` is made of tensors and operators, the `Compiler` of a chip makes a blob
of it, and a `Runtime` loads blobs and runs them on `Buffer`s of its own memory.
"""

from simnpu_sdk.blob import FORMAT
from simnpu_sdk.chips import CHIPS, Chip
from simnpu_sdk.compiler import Compiler
from simnpu_sdk.errors import (
    BlobError,
    LostError,
    MemoryFullError,
    SimError,
    UnsupportedError,
    VersionError,
)
from simnpu_sdk.graph import Graph, Op, Tensor
from simnpu_sdk.runtime import Buffer, Loaded, Runtime, counters, live

VERSIONS = ("1.4", "2.0")
"""Releases of this SDK; a runtime of one refuses blobs of the other."""

__all__ = [
    "CHIPS", "FORMAT", "VERSIONS", "BlobError", "Buffer", "Chip", "Compiler", "Graph", "Loaded", "LostError",
    "MemoryFullError", "Op", "Runtime", "SimError", "Tensor", "UnsupportedError", "VersionError", "counters", "live",
]  # fmt: skip
