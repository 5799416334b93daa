"""Dot products of fours of bytes as a word of the kernel language, by what a target has for them.

Imported only while a kernel compiles; kernel files import the word from `lang`.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"
from __future__ import annotations

from llvmlite import ir

from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.instructions.simd import I8, I16, I32, INT, call, constant, word


def _signed_neon(b, acc, x, y):
    """Acc + the four products of an i8 of x and an i8 of y in each i32, on AArch64.

    Indexed forms of instructions take the operand that is x here, of which all fours are alike in a tile.
    """
    ty, narrow = acc.type, ir.VectorType(I8, 16)
    x, y = b.bitcast(x, narrow), b.bitcast(y, narrow)
    if target().has_dot:
        return call(b, "llvm.aarch64.neon.sdot.v4i32.v16i8", ty, [acc, y, x])
    pairs, halves = ir.VectorType(I16, 8), []
    for first in (0, 8):
        index = ir.Constant(ir.VectorType(I32, 8), list(range(first, first + 8)))
        low, high = (b.sext(b.shuffle_vector(v, v, index), pairs) for v in (x, y))
        halves.append(call(b, "llvm.aarch64.neon.saddlp.v4i32.v8i16", ty, [b.mul(low, high)]))
    return b.add(acc, call(b, "llvm.aarch64.neon.addp.v4i32", ty, halves))


def _byte_sums_neon(b, y):
    """Sums of the four i8 of each i32."""
    pairs = call(
        b, "llvm.aarch64.neon.saddlp.v8i16.v16i8", ir.VectorType(I16, 8), [b.bitcast(y, ir.VectorType(I8, 16))]
    )
    return call(b, "llvm.aarch64.neon.saddlp.v4i32.v8i16", y.type, [pairs])


def dot_centred_value(b, acc, x, y):
    """Acc + the four products of a u8 of x, less `Isa.centre`, and an i8 of y in each i32 (modulo 2 ** 32)."""
    if target().centre:
        return _signed_neon(b, acc, b.xor(x, constant(x.type, 0x80808080)), y)
    return dot_bytes_value(b, acc, x, y)


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
    if target().has_i8mm:
        narrow = ir.VectorType(I8, 16)
        return call(b, "llvm.aarch64.neon.usdot.v4i32.v16i8", ty, [acc, b.bitcast(x, narrow), b.bitcast(y, narrow)])
    taken = b.shl(_byte_sums_neon(b, y), constant(ty, 7))
    return dot_centred_value(b, b.add(acc, taken), x, y)


@word(INT, INT, INT, INT)
def dot_bytes(b, acc, x, y):
    """i32 lanes of ``acc`` plus the four products of a u8 of ``x`` and an i8 of ``y``."""
    return dot_bytes_value(b, acc, x, y)


@word(INT, INT, INT, INT)
def dot_low_bytes(b, acc, x, y):
    """`dot_bytes` where no byte of ``x`` is above 127."""
    ty, count = acc.type, acc.type.count
    if not target().is_x86:
        return _signed_neon(b, acc, x, y)
    if target().has_vnni or "ssse3" not in target().features:
        return dot_bytes_value(b, acc, x, y)
    pairs, narrow = ir.VectorType(I16, 2 * count), ir.VectorType(I8, 4 * count)
    name = {16: "avx512.pmaddubs.w.512", 8: "avx2.pmadd.ub.sw", 4: "ssse3.pmadd.ub.sw.128"}[count]
    sums = call(b, f"llvm.x86.{name}", pairs, [b.bitcast(x, narrow), b.bitcast(y, narrow)])
    name = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}[count]
    return b.add(acc, call(b, f"llvm.x86.{name}", ty, [sums, constant(pairs, 1)]))
