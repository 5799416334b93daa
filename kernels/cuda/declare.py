"""What a CUDA kernel is: a Python function of addresses and numbers, and how many threads run it.

A body is written in Numba CUDA (``cuda.threadIdx.x``, ``cuda.syncthreads()``) with words of
`kernels.cuda.language.lang` for all that touches memory or needs an instruction of its own.  Its parameters are the
fields in order: addresses are i64, like all plain arithmetic on them.  Nothing of Numba is imported until a kernel is
compiled (`kernels.cuda.compiler`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

from bolt_numba.base.records import record
from bolt_numba.kernels.declare import F32, F64, I32, I64, PTR, PTR_OR_0, Field, Late, Source, digest_of, function_key
from bolt_numba.kernels.declare import inline as inline
from bolt_numba.kernels.declare import inline_source as inline_source
from bolt_numba.kernels.extents import Extents
from bolt_numba.kernels.registry import MEMORY

Blocks: TypeAlias = "Callable[[Any], int | tuple[int, ...]]"
"""``blocks(a)``: thread blocks of a launch, in up to three directions; ``a.name`` is the step's argument.

``a.processors``: multiprocessors of the GPU.
"""
MAP = Field("map", "i8")
"""Address of what a GPU knows of a tensor from which it copies boxes by itself; see `MappedTensor`."""


@record(frozen=True)
class MappedTensor:
    """A tensor in global memory, whose boxes go to shared memory swizzled by 128 bytes.

    address: a multiple of 16 · itemsize: bytes of an element · dims: from the innermost on · strides: bytes, multiples
    of 16, without the innermost · box: elements of one copy along each dimension, at most 256, 128 bytes innermost.
    """

    address: int
    itemsize: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]


Maps: TypeAlias = "Callable[[Any], dict[str, MappedTensor]]"
"""``maps(a)``: the tensor of each `MAP` among the fields; addresses among ``a`` are those of the launch."""

SM_80, SM_90A = "sm_80", "sm_90a"
BLOCK, WIDE_BLOCK = 128, 256
"""Threads of a block: of most kernels; and of those that move memory, or share tiles and sums."""


class Macro(Late):
    """A word with settings, such as a register tile of so many rows: each combination is an intrinsic of its own."""

    def __init__(self, name: str, *settings: int | float | str) -> None:
        super().__init__(name)
        self.settings = settings

    def key(self, seen: set[int]) -> Any:
        yield repr((self.name, self.settings)).encode()


class CudaKernel:
    """A kernel for NVIDIA GPUs, compiled when its code is first asked for.

    Attributes
    ----------
    name: for people: profiles, errors, cache listings.
    fields: name and kind of each parameter.
    threads: of a block.  blocks: see `Blocks`.  shared: bytes of dynamic shared memory of a block, or a function of the
    arguments.  maps: see `Maps`; steps give no arguments for these fields.
    arch: the least architecture that has its instructions.
    unrolled: whether ``static_range`` and ``static`` in the body are written out (`kernels.cuda.language.unroll`).
    fastmath: whether functions may be approximate and sums reordered.
    names, extents, pointers, references: see `kernels.registry.Kernel`.
    """

    def __init__(
        self,
        given: Callable[..., None] | Source,
        name: str,
        fields: dict[str, Field],
        *,
        threads: int,
        blocks: Blocks,
        shared: int | Callable[[Any], int] = 0,
        arch: str = SM_80,
        unrolled: bool = False,
        fastmath: bool = False,
        extents: Extents | None = None,
        maps: Maps = lambda a: {},
    ) -> None:
        self.given, self.name, self.fields, self.extents, self.maps = given, name, fields, extents, maps
        self.threads, self.blocks, self.shared = threads, blocks, shared
        self.arch, self.unrolled, self.fastmath = arch, unrolled, fastmath
        self.names = frozenset(name for name, field in fields.items() if field.kind != MAP.kind)
        self.pointers = {name: field.optional for name, field in fields.items() if field.kind == "ptr"}
        self.references = dict.fromkeys(self.pointers, MEMORY)

    def __repr__(self) -> str:
        return f"CudaKernel({self.name})"

    def __reduce__(self) -> tuple[Any, ...]:
        """What its code depends on: another process compiles it, and launches nothing."""
        options = {"threads": self.threads, "arch": self.arch, "unrolled": self.unrolled, "fastmath": self.fastmath}
        return _compilable, (self.given, self.name, self.fields, options)

    @functools.cached_property
    def body(self) -> Callable[..., None]:
        """The Python function."""
        body: Callable[..., None] = self.given.define() if isinstance(self.given, Source) else self.given
        return body

    @functools.cached_property
    def digest(self) -> str:
        """Names the code: equal digests, equal code."""
        kinds = [(name, field.kind) for name, field in self.fields.items()]
        head = repr((self.name, kinds, self.threads, self.unrolled, self.fastmath)).encode()
        code = self.given.key() if isinstance(self.given, Source) else function_key(self.given, set())
        return digest_of(itertools.chain((head,), code)).hex()[:24]

    @property
    def symbol(self) -> str:
        """Name of the entry in PTX; cubins have another, and one entry."""
        return f"bolt_{self.name}_{self.digest}"

    def grid(self, args: Any) -> tuple[int, int, int]:
        """Blocks of a launch with these arguments."""
        made = self.blocks(args)
        x, y, z, *_ = (*((made,) if isinstance(made, int) else made), 1, 1)
        return x, y, z

    def shared_bytes(self, args: Any) -> int:
        return self.shared if isinstance(self.shared, int) else self.shared(args)


def _compilable(given: Any, name: str, fields: dict[str, Field], options: dict[str, Any]) -> CudaKernel:
    return CudaKernel(given, name, fields, blocks=lambda _: 0, **options)


def cuda_kernel(
    *,
    threads: int,
    blocks: Blocks,
    shared: int | Callable[[Any], int] = 0,
    arch: str = SM_80,
    unrolled: bool = False,
    fastmath: bool = False,
    extents: Extents | None = None,
    maps: Maps = lambda a: {},
    **fields: Field,
) -> Callable[[Callable[..., None]], CudaKernel]:
    """Make a kernel of a body; keywords that are fields declare its parameters, others are those of `CudaKernel`."""

    def wrap(body: Callable[..., None]) -> CudaKernel:
        return CudaKernel(
            body, body.__name__, fields, threads=threads, blocks=blocks, shared=shared, arch=arch, unrolled=unrolled,
            fastmath=fastmath, extents=extents, maps=maps,
        )  # fmt: skip

    return wrap


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


__all__ = [
    "F32", "F64", "I32", "I64", "MAP", "PTR", "PTR_OR_0", "SM_80", "SM_90A", "CudaKernel", "Macro", "MappedTensor",
    "ceil_div", "cuda_kernel", "inline", "inline_source",
]  # fmt: skip
