"""What kernel code is made of before anything is compiled: fields, words, helpers, generated text, and their digests.

Numba and LLVM meet these in `kernels.compiler`; `kernels.jit` makes kernels of them.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from bolt_numba.base.digest import sha256
from bolt_numba.base.forks import renew_cached_properties
from bolt_numba.base.records import record


@record(frozen=True)
class Field:
    """Kind of one entry of a parameter record.  optional: an address that may be 0."""

    kind: str
    dtype: str
    optional: bool = False


PTR, I64, I32 = Field("ptr", "i8"), Field("i64", "i8"), Field("i32", "i4")
F32, F64 = Field("f32", "f4"), Field("f64", "f8")
PTR_OR_0 = Field("ptr", "i8", optional=True)
CODE = Field("code", "i8")
"""Address of a machine function, or of a record that begins with one; or 0."""

FASTMATH = frozenset({"contract", "arcp"})
"""Default floating-point freedoms: fused multiply-add and reciprocals; NaN, infinity, signs and order are kept."""

Body = Callable[..., None]


class Late:
    """Something that kernel code names before Numba is imported; `kernels.compiler` says what Numba sees.

    resolved: what it sees, once it was asked for.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.resolved: Any = None

    def key(self, seen: set[int]) -> Iterator[bytes]:
        """Bytes that change when the machine code of a user of this would."""
        yield self.name.encode()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self.name}: only kernels can call it")


class Word(Late):
    """A word of the kernel language, implemented in a file of `kernels.instructions`."""


WORDS = (
    # memory
    "load_f32", "store_f32", "load_f64", "store_f64", "load_i8", "store_i8", "load_u8", "store_u8",
    "load_i16", "store_i16", "load_u16", "store_u16", "load_i32", "store_i32", "load_u32", "store_u32",
    "load_i64", "store_i64", "vload", "vload_n", "vload_m", "vload_i32", "vload_i32_n", "vload_u8", "vload_u8_n",
    "vload_i8", "vload_i8_n", "vload_u16", "vload_u16_n", "vload_i16", "vload_i16_n", "vstore_u8", "vstore_u8_n",
    "vstore_u16", "vstore_u16_n", "vstore", "vstore_n", "vstore_m", "vgather", "view",
    "splat_f64", "vload_f64", "vload_widened", "vstore_narrowed",
    "address_of", "copy_bytes", "fill_bytes", "prefetch", "prefetch_second", "prefetch_write",
    # halves
    "vload_bf16", "vload_bf16_n", "vstore_bf16", "vstore_bf16_n", "vstore_bf16_two", "vload_f16", "vload_f16_n",
    "vstore_f16", "vstore_f16_n", "tile_rank1_rows_f16", "tile_rank1_rows_bf16", "tile_finish_bf16",
    # vectors
    "splat", "iota", "lanes_below", "fma", "select", "vmax", "vmin", "vmaximum", "vminimum", "vabs", "vsqrt", "vfloor",
    "vceil", "vround", "vtrunc", "copysign", "bits_of", "f32_of_bits", "pair_bf16", "dot_bytes", "to_f32", "to_i32",
    "round_i32", "shift_right_logical", "any_lane", "all_lanes", "reduce_add", "reduce_mul", "reduce_max", "reduce_min",
    "lane", "with_lane", "interleave_low", "interleave_high", "even_lanes", "odd_lanes", "permute", "dot_low_bytes",
    # raw bytes
    "max_u8", "max_i8", "pack_u8", "pack_i8", "codes_u8", "codes_i8", "lookup_bytes", "lookup_f32", "transpose_16x16",
    "lookup_nibbles",
    # tiles
    "tile_zeros", "tile_cleared", "tile_row", "tile_row_narrow", "tile_load", "tile_load_n", "tile_store",
    "tile_store_n", "tile_rank1", "tile_rank1_rows", "tile_rank1_rows_as", "tile_dot_rows_bf16", "tile_dot_rows_bytes",
    "tile_dot_rows_centred", "tile_add_sums",
    "rows_strided", "rows_load", "tile_get", "tile_set", "tile_add_row", "tile_add_row_n", "tile_add_tile",
    "tile_add_stored", "tile_scale", "tile_clamp", "tile_map", "tile_finish", "tile_prefetch",
    # tiles of sums of bytes
    "tile_take_outer", "tile_finish_bytes", "pixels_row", "pixels_dot", "pixels_store",
    "pixels_store_bytes",
    # bits
    "mask_bits", "tile_count_rows", "tile_sum_bytes", "tile_add_integers",
    # threads
    "call_kernel", "call_activation", "atomic_add", "atomic_load", "atomic_store", "atomic_compare_exchange",
    "spin_pause", "cycles", "sem_wait", "sem_trywait", "sem_post", "sched_yield", "float_control", "set_float_control",
)  # fmt: skip
"""The words, which kernels import from `kernels.cpu.language.lang`."""


class Source:
    """Generated text that defines function ``name``; a process whose kernels are all cached never parses it.

    scope: what the text may name.
    """

    def __init__(self, text: str, name: str, scope: dict[str, Any]) -> None:
        self.text, self.name, self.scope = text, name, scope

    def key(self) -> Iterator[bytes]:
        """Everything the code depends on; more than it needs where it does not use all of its scope."""
        yield self.text.encode()
        for name in sorted(self.scope):
            yield name.encode()
            yield from value_key(self.scope[name], set())

    def define(self) -> Any:
        """Execute the text; its lines stay visible to error messages."""
        import linecache

        filename = f"<bolt_numba {self.name} {sha256(self.text.encode()).hexdigest()[:12]}>"
        linecache.cache[filename] = (len(self.text), None, self.text.splitlines(keepends=True), filename)
        scope = {**self.scope, "__name__": "bolt_numba.generated"}
        exec(compile(self.text, filename, "exec"), scope)
        return scope[self.name]


class Inline(Late):
    """A helper function that kernels call; it is inlined.

    fastmath: floating-point freedoms of its own; None: those of the kernel or helper that calls it.
    """

    def __init__(self, given: Callable[..., Any] | Source, fastmath: frozenset[str] | None = None) -> None:
        super().__init__(given.name if isinstance(given, Source) else given.__name__)
        self.given, self.fastmath = given, fastmath

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """The Python function."""
        made: Callable[..., Any] = self.given.define() if isinstance(self.given, Source) else self.given
        return made

    @functools.cached_property
    def digest(self) -> bytes:
        """Names the helper's code: most helpers are in many kernels."""
        code = self.given.key() if isinstance(self.given, Source) else function_key(self.given, set())
        own = [] if self.fastmath is None else [repr(sorted(self.fastmath)).encode()]
        return digest_of(itertools.chain(own, code))

    def key(self, seen: set[int]) -> Iterator[bytes]:
        yield self.digest


def inline(function: Callable[..., Any]) -> Inline:
    """Mark a helper that kernel bodies and other helpers call."""
    return Inline(function)


def elementary(function: Callable[..., Any]) -> Inline:
    """Mark a helper whose error was measured with the default freedoms, so it has them in every kernel."""
    return Inline(function, FASTMATH)


def inline_source(text: str, name: str, **scope: Any) -> Inline:
    """Make a helper of generated source that defines function ``name``; see `native_source`."""
    return Inline(Source(text, name, scope))


# ---------------------------------------------------------------------------------------------------------------- keys


def digest_of(parts: Iterable[bytes]) -> bytes:
    state = sha256()
    for part in parts:
        state.update(len(part).to_bytes(4, "little") + part)
    return state.digest()


def function_key(function: Any, seen: set[int]) -> Iterator[bytes]:
    """Everything the code of a Python function depends on: byte code, constants, and what its free names mean."""
    if id(function) in seen:
        return
    seen.add(id(function))
    yield from _code_key(function.__code__)
    yield repr((function.__defaults__, function.__kwdefaults__)).encode()
    for cell_name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield cell_name.encode()
        yield from value_key(cell.cell_contents, seen)
    scope = function.__globals__
    for name in free_names(function.__code__):
        if name in scope:
            yield name.encode()
            yield from value_key(scope[name], seen)


def _code_key(code: types.CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_key(constant)
        else:
            yield repr(constant).encode()


def free_names(code: types.CodeType) -> list[str]:
    """Names of globals and of attributes, in a fixed order."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(free_names(constant))
    return sorted(names)


def value_key(value: Any, seen: set[int]) -> Iterator[bytes]:
    if isinstance(value, Late):
        yield from value.key(seen)
    elif isinstance(value, (types.ModuleType, types.BuiltinFunctionType, type)):
        yield value.__name__.encode()
    elif isinstance(value, (bool, int, float, str, bytes, tuple, np.generic, np.dtype, type(None))):
        yield repr(value).encode()
    elif isinstance(value, np.ndarray):
        yield repr((value.dtype, value.shape)).encode() + value.tobytes()
    elif isinstance(value, types.FunctionType):
        yield from function_key(value, seen)
    else:
        yield repr(type(value)).encode()


renew_cached_properties(Inline)
