"""The instruction set that kernels are compiled for: a level of which many processors are, never one processor alone.

A level is a list of instructions.  The processor is of the highest level of whose list it has all, so what is compiled
on one machine runs, and is found, on every other of the level.  Kernels are written once against `Isa`; nothing here
compiles anything.
"""

from __future__ import annotations

import os
import platform
from functools import cache

from bolt_numba.base.errors import DeviceError
from bolt_numba.base.records import record
from bolt_numba.kernels.instructions.processor import processor


@record(frozen=True)
class Isa:
    """What a kernel may ask of the target.

    name: the kind of vectors.  level: names all of it; equal levels, equal machine code.
    lanes: f32 lanes of a vector.  registers: vector registers.  rows, vectors: shape of the widest register tile of a
    matrix product (``rows`` rows of ``vectors`` vectors), chosen so that no register is spilled.
    has_vnni, has_bf16: products of bytes, of bfloat16.  has_dot, has_i8mm: on AArch64, products of signed bytes, of
    unsigned with signed ones.  has_f16: instructions convert f16 from and to f32.  has_vbmi: bytes are looked up in
    tables of 128.  has_popcount: one instruction counts the bits of each i32 of a vector.
    cpu: the processor, by LLVM's name, for whose times code is arranged.  features: instructions that LLVM may use, by
    its names.
    """

    name: str
    level: str
    lanes: int
    registers: int
    rows: int
    vectors: int
    cpu: str
    features: tuple[str, ...]
    has_fma: bool = False
    has_vnni: bool = False
    has_bf16: bool = False
    has_f16: bool = False
    is_x86: bool = True
    has_vbmi: bool = False
    has_popcount: bool = False
    has_dot: bool = False
    has_i8mm: bool = False

    @property
    def centre(self) -> int:
        """What products of bytes take from unsigned ones, before the zero point: 128 where both have to be signed."""
        return 0 if self.is_x86 or self.has_i8mm else 128

    @property
    def panel(self) -> int:
        """Columns of one tile."""
        return self.vectors * self.lanes


_V1 = ("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
_V2 = (*_V1, "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "sahf", "crc32")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V3_VNNI = (*_V3, "avxvnni")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_V4_VNNI = (*_V4, "avx512vnni")
_V4_VBMI = (
    *(*_V4_VNNI, "avx512vbmi", "avx512vbmi2", "avx512bitalg", "avx512vpopcntdq", "avx512ifma"),
    *("aes", "pclmul", "gfni", "vaes", "vpclmulqdq"),
)
_V4_BF16 = (*_V4_VBMI, "avx512bf16")


def _avx512(level: str, cpu: str, features: tuple[str, ...]) -> Isa:
    has = {f"has_{name}": f"avx512{name}" in features for name in ("vnni", "bf16", "vbmi")}
    counts = "avx512vpopcntdq" in features
    return Isa("avx512", level, 16, 32, 12, 2, cpu, features, True, has_f16=True, has_popcount=counts, **has)


def _avx2(level: str, features: tuple[str, ...]) -> Isa:
    return Isa("avx2", level, 8, 16, 6, 2, "x86-64-v3", features, True, "avxvnni" in features, has_f16=True)


def _aarch64(level: str, *more: str) -> Isa:
    has = {"has_dot": "dotprod" in more, "has_i8mm": "i8mm" in more}
    features = ("neon", *more)
    return Isa("generic", level, 4, 32, 8, 2, "generic", features, True, has_f16=True, is_x86=False, **has)


_KNOWN = (
    Isa("generic", "x86-64", 4, 16, 6, 2, "x86-64", _V1),
    Isa("generic", "x86-64-v2", 4, 16, 6, 2, "x86-64-v2", _V2),  # Nehalem to Ivy Bridge, Atoms
    _avx2("x86-64-v3", _V3),  # Haswell, Zen to Zen 3
    _avx2("x86-64-v3-vnni", _V3_VNNI),  # Alder Lake and what came after it
    _avx512("x86-64-v4", "skylake-avx512", _V4),
    _avx512("x86-64-v4-vnni", "cascadelake", _V4_VNNI),
    _avx512("x86-64-v4-vbmi", "icelake-server", _V4_VBMI),
    _avx512("x86-64-v4-bf16", "znver4", _V4_BF16),  # Zen 4 and 5, Sapphire Rapids
    _aarch64("aarch64"),
    _aarch64("aarch64-dot", "dotprod"),  # Neoverse N1, Apple M1
    _aarch64("aarch64-i8mm", "dotprod", "i8mm"),  # Neoverse V1 and N2, Apple M2
)
LEVELS = {isa.level: isa for isa in _KNOWN}
"""All levels by name; of those of one architecture a later one is to be preferred."""
ALIASES = {"avx512": "x86-64-v4", "avx2": "x86-64-v3", "generic": "x86-64"}
"""Other names for ``BOLT_NUMBA_ISA``; on AArch64 ``generic`` is ``aarch64``."""


def levels_of(features: frozenset[str], is_x86: bool) -> list[str]:
    """The levels that a processor of these features, by LLVM's names, has; the best comes last."""
    least = next(level for level, isa in LEVELS.items() if isa.is_x86 == is_x86)
    found = [v for v, isa in LEVELS.items() if isa.is_x86 == is_x86 and features.issuperset(isa.features)]
    return found or [least]


def lower_levels(of: Isa) -> list[Isa]:
    """Levels of the same vectors with fewer instructions, the best first: their code runs, and kernels are the same."""
    return [v for v in reversed(LEVELS.values()) if v.name == of.name and set(v.features) < set(of.features)]


@cache
def on_x86() -> bool:
    """Whether this process runs on x86-64; else it is AArch64."""
    return platform.machine().lower() in ("x86_64", "amd64")


@cache
def target() -> Isa:
    """The level of this process: the processor's, or a lower one that ``BOLT_NUMBA_ISA`` names.

    Raises
    ------
    DeviceError
        When that level is unknown, or more than the processor has.
    """
    wanted = os.environ.get("BOLT_NUMBA_ISA", "")
    known = levels_of(processor()[1], on_x86())
    aliases = ALIASES if on_x86() else {"generic": "aarch64"}
    level = aliases.get(wanted, wanted) or known[-1]
    if level not in known:
        short = [name for name, of in aliases.items() if of in known]
        raise DeviceError(f"BOLT_NUMBA_ISA: instruction set: got {wanted}, wanted one of {', '.join(known + short)}")
    return LEVELS[level]


def own() -> Isa:
    """The level of this process, also in the twin of another."""
    return target()
