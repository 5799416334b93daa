"""Dot products of fours of bytes as a word of the kernel language, by what a target has for them.

Imported only while a kernel compiles; kernel files import the word from `lang`.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"
from __future__ import annotations

from llvmlite import ir

from bolt_numba.kernels.cpu.isa import target
from bolt_numba.kernels.cpu.language.simd import I8, I16, INT, call, constant, word


def _dot_bytes_neon(b, acc, x, y):
    """`dot_bytes_value` on AArch64.  Where both have to be signed, x is taken 128 less, and 128 times y is added."""
    ty, narrow = acc.type, ir.VectorType(I8, 16)
    name = f"llvm.aarch64.neon.{'usdot' if target().has_i8mm else 'sdot'}.v4i32.v16i8"
    if target().has_i8mm:
        return call(b, name, ty, [acc, b.bitcast(x, narrow), b.bitcast(y, narrow)])
    y = b.bitcast(y, narrow)
    half = call(b, name, ty, [ir.Constant(ty, None), constant(narrow, 64), y])
    centred = b.bitcast(b.xor(x, constant(ty, 0x80808080)), narrow)
    return call(b, name, ty, [b.add(acc, b.add(half, half)), centred, y])


def dot_bytes_value(b, acc, x, y):
    """Acc + the four products of a u8 of x and an i8 of y in each i32, exactly (modulo 2 ** 32)."""
    ty = acc.type
    if target().has_vnni:
        return call(b, f"llvm.x86.avx512.vpdpbusd.{32 * ty.count}", ty, [acc, x, y])
    if target().is_x86:  # two products of i16 at a time; vpmaddubsw would saturate
        pairs = ir.VectorType(I16, 2 * ty.count)
        byte, low = constant(pairs, 8), constant(ty, 0x00FF00FF)
        name = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}[ty.count]
        halves = b.bitcast(y, pairs)
        for u, v in (
            (b.and_(x, low), b.ashr(b.shl(halves, byte), byte)),
            (b.and_(b.lshr(x, constant(ty, 8)), low), b.ashr(halves, byte)),
        ):
            acc = b.add(acc, call(b, f"llvm.x86.{name}", ty, [b.bitcast(u, pairs), v]))
        return acc
    if target().has_dot or target().has_i8mm:
        return _dot_bytes_neon(b, acc, x, y)
    for shift in (0, 8, 16, 24):
        u = b.and_(b.lshr(x, constant(ty, shift)), constant(ty, 255))
        acc = b.add(acc, b.mul(u, b.ashr(b.shl(y, constant(ty, 24 - shift)), constant(ty, 24))))
    return acc


@word(INT, INT, INT, INT)
def dot_bytes(b, acc, x, y):
    """i32 lanes of ``acc`` plus the four products of a u8 of ``x`` and an i8 of ``y``."""
    return dot_bytes_value(b, acc, x, y)
