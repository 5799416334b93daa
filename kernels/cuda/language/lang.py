"""Words of the kernel language, without Numba: they get a meaning when a kernel first compiles.

``cuda`` is Numba's module: ``cuda.threadIdx.x``, ``cuda.syncthreads()``, ``cuda.local.array``.  Addresses of global
memory are i64 and those of shared memory u32; both count bytes.  Halves are stored as 16 bits; in registers they are
f32, or two in a u32.
"""

from __future__ import annotations

from typing import Any

from bolt_numba.kernels.cuda.language.instructions import INSTRUCTIONS
from bolt_numba.kernels.declare import Word

SIZES = {
    "f32": 4, "f64": 8, "f16": 2, "bf16": 2,
    "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8,
}  # fmt: skip
"""By dtype: bytes of an element in memory."""
VECTORS = (2, 4, 8, 16)
"""Elements of a vector, which has at most 16 bytes."""


def _accesses(dtype: str) -> list[str]:
    """``load_f32(address)``, ``load4_f32``, ``load_shared_f32``, ``load_f32_nc`` (where nothing writes meanwhile).

    Vectors are tuples, at addresses that are multiples of their size: ``store4_f32(address, a, b, c, d)``.
    """
    counts = ["", *(str(n) for n in VECTORS if n * SIZES[dtype] <= 16)]
    return [
        name for n in counts
        for name in (f"load{n}_{dtype}", f"load{n}_{dtype}_nc", f"load{n}_shared_{dtype}",
                     f"store{n}_{dtype}", f"store{n}_shared_{dtype}")
    ]  # fmt: skip


WORDS = (
    "cuda", "static", "static_range",
    "shared_address",  # of the first element of an array in shared memory: u32
    *(name for dtype in SIZES for name in _accesses(dtype)),
    *INSTRUCTIONS,
)  # fmt: skip


class CudaWord(Word):
    """A word of this language; another process finds it here."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _word, (self.name,)


_words = {name: CudaWord(name) for name in WORDS}


def _word(name: str) -> CudaWord:
    return _words[name]


def __getattr__(name: str) -> Any:
    try:
        return _words[name]
    except KeyError:
        raise AttributeError(f"kernel language of CUDA: word: got {name}") from None
