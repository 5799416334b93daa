"""The kernel language, without Numba: names that kernel bodies use, given a meaning when a kernel first compiles.

``docs/kernels.md`` describes each word.
"""

from __future__ import annotations

from typing import Any

from bolt_numba.kernels.cpu.isa import target
from bolt_numba.kernels.jit import (
    CODE,
    F32,
    F64,
    I32,
    I64,
    PTR,
    PTR_OR_0,
    Word,
    inline,
    inline_source,
    native,
    native_source,
)

LANES = target().lanes
"""f32 lanes of a vector."""
BYTES = 4 * LANES
"""Bytes of a vector."""

WORDS = (
    # memory
    "load_f32", "store_f32", "load_f64", "store_f64", "load_i8", "store_i8", "load_u8", "store_u8",
    "load_i16", "store_i16", "load_u16", "store_u16", "load_i32", "store_i32", "load_u32", "store_u32",
    "load_i64", "store_i64", "vload", "vload_n", "vload_m", "vload_i32", "vload_i32_n", "vload_u8", "vload_u8_n",
    "vload_i8", "vload_i8_n", "vload_bf16", "vstore_bf16", "vstore_bf16_two", "vload_f16", "vstore_f16", "vstore_u8",
    "vstore_u8_n", "vstore", "vstore_n", "vstore_m", "vgather", "view", "address_of", "copy_bytes", "fill_bytes",
    "prefetch", "prefetch_second", "prefetch_write",
    # vectors
    "splat", "iota", "lanes_below", "fma", "select", "vmax", "vmin", "vmaximum", "vminimum", "vabs", "vsqrt", "vfloor",
    "vceil", "vround", "vtrunc", "copysign", "bits_of", "f32_of_bits", "pair_bf16", "dot_bytes", "to_f32", "to_i32",
    "shift_right_logical", "any_lane", "all_lanes", "reduce_add", "reduce_mul", "reduce_max", "reduce_min", "lane",
    "with_lane", "interleave_low", "interleave_high", "even_lanes", "odd_lanes", "permute",
    # tiles
    "tile_zeros", "tile_cleared", "tile_row", "tile_row_narrow", "tile_load", "tile_load_n", "tile_store",
    "tile_store_n", "tile_rank1", "tile_rank1_rows", "tile_rank1_rows_as", "tile_dot_rows_bf16", "tile_dot_rows_bytes",
    "rows_strided", "rows_load", "tile_get", "tile_set", "tile_add_row", "tile_add_row_n", "tile_add_tile",
    "tile_add_stored", "tile_scale", "tile_clamp", "tile_map", "tile_finish", "tile_prefetch",
    # threads
    "call_kernel", "call_activation", "atomic_add", "atomic_load", "atomic_store", "atomic_compare_exchange",
    "spin_pause", "cycles", "sem_wait", "sem_trywait", "sem_post", "sched_yield", "float_control", "set_float_control",
)  # fmt: skip

_words = {name: Word(name) for name in WORDS}


def __getattr__(name: str) -> Any:
    try:
        return _words[name]
    except KeyError:
        raise AttributeError(f"kernel language: word: got {name}") from None


@inline
def split(n: int, tid: int, nthreads: int) -> tuple[int, int]:
    """Share ``tid`` of ``n`` items in ``nthreads`` even parts: first, one past last."""
    return n * tid // nthreads, n * (tid + 1) // nthreads


@inline
def ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b


__all__ = [
    "BYTES", "CODE", "F32", "F64", "I32", "I64", "LANES", "PTR", "PTR_OR_0", "WORDS", "ceil_div", "inline",
    "inline_source", "native", "native_source", "split",
]  # fmt: skip
