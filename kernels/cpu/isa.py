"""The instruction set that kernels are compiled for: what the processor has, or a lower one that the user forces.

Kernels are written once against `Isa`; nothing here compiles anything.
"""

from __future__ import annotations

import os
import platform
from functools import cache

from bolt_numba.base.records import record
from bolt_numba.errors import DeviceError
from bolt_numba.kernels.cpu.processor import processor


@record(frozen=True)
class Isa:
    """What a kernel may ask of the target.

    lanes: f32 lanes of a vector.  registers: vector registers.  rows, vectors: shape of the widest register tile of a
    matrix product (``rows`` rows of ``vectors`` vectors), chosen so that no register is spilled.
    has_vnni, has_bf16: products of bytes, of bfloat16.  has_dot, has_i8mm: on AArch64, products of signed bytes, of
    unsigned with signed ones.  has_f16: instructions convert f16 from and to f32.  has_popcount: one instruction counts
    the bits of each i32 of a vector.  cpu, features: what LLVM is told.  is_forced: they are less than the processor's.
    """

    name: str
    lanes: int
    registers: int
    rows: int
    vectors: int
    has_fma: bool = False
    has_vnni: bool = False
    has_bf16: bool = False
    has_f16: bool = False
    is_x86: bool = True
    cpu: str = ""
    features: str = ""
    is_forced: bool = False
    has_vbmi: bool = False
    has_popcount: bool = False
    has_dot: bool = False
    has_i8mm: bool = False

    @property
    def panel(self) -> int:
        """Columns of one tile."""
        return self.vectors * self.lanes


_AVX2 = ("avx2", "fma", "bmi", "bmi2", "f16c", "lzcnt", "movbe", "popcnt")
_ORDER = ("generic", "avx2", "avx512")


def _best_x86(features: dict[str, bool]) -> str:
    if all(features.get(f, False) for f in ("avx512f", "avx512bw", "avx512dq", "avx512vl", *_AVX2)):
        return "avx512"
    return "avx2" if all(features.get(f, False) for f in _AVX2) else "generic"


def _x86(name: str, best: str, host_cpu: str, features: dict[str, bool]) -> Isa:
    forced = name != best
    plain = {"avx512": "x86-64-v4", "avx2": "x86-64-v3", "generic": "x86-64"}[name]
    cpu = plain if forced else host_cpu
    text = "" if forced else _text(features)
    if name == "avx512":
        vnni, bf16 = features.get("avx512vnni", False), features.get("avx512bf16", False)
        vbmi = features.get("avx512vbmi", False)
        counts = features.get("avx512vpopcntdq", False)
        return Isa("avx512", 16, 32, 12, 2, True, vnni, bf16, True, True, cpu, text, forced, vbmi, counts)
    if name == "avx2":
        vnni = not forced and features.get("avxvnni", False)
        return Isa("avx2", 8, 16, 6, 2, True, vnni, False, True, True, cpu, text, forced)
    return Isa("generic", 4, 16, 6, 2, cpu=cpu, features=text, is_forced=forced)


def _text(features: dict[str, bool]) -> str:
    return ",".join(("+" if on else "-") + f for f, on in sorted(features.items()))


@cache
def target() -> Isa:
    """The ISA of this process; ``BOLT_NUMBA_ISA=avx512|avx2|generic`` forces a lower one than the processor's.

    Raises
    ------
    DeviceError
        When the forced ISA is unknown or more than the processor has.
    """
    wanted = os.environ.get("BOLT_NUMBA_ISA", "")
    cpu, features, _ = processor()
    if platform.machine().lower() not in ("x86_64", "amd64"):
        if wanted not in ("", "generic"):
            raise DeviceError(f"BOLT_NUMBA_ISA: instruction set: got {wanted}, wanted generic")
        return Isa("generic", 4, 32, 8, 2, True, has_f16=True, is_x86=False, cpu=cpu, features=_text(features))
    best = _best_x86(features)
    name = wanted or best
    known = _ORDER[: _ORDER.index(best) + 1]
    if name not in known:
        raise DeviceError(f"BOLT_NUMBA_ISA: instruction set: got {name}, wanted one of {known}")
    return _x86(name, best, cpu, features)
