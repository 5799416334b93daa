"""Words on raw bytes: an i32 vector as the ``4 * LANES`` bytes that it holds.

Imported only while a kernel compiles; kernel files import these names from `lang`.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"
from __future__ import annotations

from llvmlite import ir
from numba.extending import intrinsic

from bolt_numba.kernels.cpu.language.simd import I8, INT, LANES, call, constant, suffix, vector, word

RAW = ir.VectorType(I8, 4 * LANES)


def _extreme(name):
    def build(b, x, y):
        made = call(b, f"llvm.{name}.{suffix(RAW)}", RAW, [b.bitcast(x, RAW), b.bitcast(y, RAW)])
        return b.bitcast(made, vector("i32"))

    return build


@word(INT, INT, INT)
def max_u8(b, x, y):
    """The greater of each two u8."""
    return _extreme("umax")(b, x, y)


@word(INT, INT, INT)
def max_i8(b, x, y):
    """The greater of each two i8."""
    return _extreme("smax")(b, x, y)


@intrinsic
def lookup_bytes(tyctx, table, v):
    """Each byte's entry in a table of 256, a tile of 4 vectors of 64 bytes; only where ``target().has_vbmi``."""

    def codegen(ctx, b, sig, a):
        parts = [b.bitcast(b.extract_value(a[0], i), RAW) for i in range(4)]
        index = b.bitcast(a[1], RAW)
        name = "llvm.x86.avx512.vpermi2var.qi.512"
        low, high = (call(b, name, RAW, [parts[i], index, parts[i + 1]]) for i in (0, 2))
        made = b.select(b.icmp_signed("<", index, constant(RAW, 0)), high, low)
        return b.bitcast(made, vector("i32"))

    return INT(table, INT), codegen
