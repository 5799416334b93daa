"""Words of the kernel language, without Numba: they get a meaning when a kernel first compiles.

``cuda`` is Numba's module: ``cuda.threadIdx.x``, ``cuda.syncthreads()``, ``cuda.local.array``.  Addresses are i64 and
count bytes.  Halves are stored as 16 bits; in registers they are f32, or two in a u32.
"""

from __future__ import annotations

from typing import Any

from bolt_numba.kernels.declare import Word

DTYPES = ("f32", "f64", "f16", "bf16", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")

WORDS = (
    "cuda", "static", "static_range",
    # memory: load_f32(address), store_f32(address, value); f16 and bf16 are f32 in registers
    *(f"{word}_{dtype}" for word in ("load", "store") for dtype in DTYPES),
)  # fmt: skip

_words = {name: Word(name) for name in WORDS}


def __getattr__(name: str) -> Any:
    try:
        return _words[name]
    except KeyError:
        raise AttributeError(f"kernel language of CUDA: word: got {name}") from None
