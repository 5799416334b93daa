"""Words of the kernel language for values of one bit: masks as bits, and register tiles that count bits.

Imported only while a kernel compiles; kernel files import these names from `lang`.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"
from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.instructions.simd import (
    ADDR,
    I8,
    I32,
    I64,
    LANES,
    MASK,
    call,
    constant,
    load,
    suffix,
    vector,
    word,
)  # fmt: skip
from bolt_numba.kernels.instructions.tiles import BYTES, combined, row_columns, row_elements


@word(types.int64, MASK)
def mask_bits(b, mask):
    """One bit for each lane, that of the first lane in the lowest place."""
    return b.zext(b.bitcast(mask, ir.IntType(LANES)), I64)


@intrinsic
def tile_count_rows(tyctx, acc, rows, offset, brow):
    """Acc += bits in which the i32 at ``rows[i] + offset`` differs from each of the ``nv * LANES`` i32 at ``brow``.

    Acc's bits are counts in i32 where the target counts those, else in bytes, which hold the counts of 31 calls.
    """
    ty = vector("i32") if target().has_popcount else ir.VectorType(I8, BYTES)

    def codegen(ctx, b, sig, args):
        tile, rows, offset, brow = args

        def count(old, x, column):
            found = call(b, f"llvm.ctpop.{suffix(ty)}", ty, [b.bitcast(b.xor(x, column), ty)])
            return b.add(b.bitcast(old, ty), found)

        columns = row_columns(b, acc, brow, vector("i32"))
        return combined(b, acc, tile, row_elements(b, rows, offset, I32), columns, count)

    return acc(acc, rows, types.int64, ADDR), codegen


@intrinsic
def tile_sum_bytes(tyctx, acc):
    """Acc whose i32 are the sums of their four bytes."""
    ty = vector("i32")

    def codegen(ctx, b, sig, args):
        (tile,) = args
        for k in range(acc.mr * acc.nv):
            v = b.bitcast(b.extract_value(tile, k), ty)
            even = constant(ty, 0x00FF00FF)
            v = b.add(b.and_(v, even), b.and_(b.lshr(v, constant(ty, 8)), even))
            v = b.add(b.and_(v, constant(ty, 0xFFFF)), b.lshr(v, constant(ty, 16)))
            tile = b.insert_value(tile, b.bitcast(v, vector("f32")), k)
        return tile

    return acc(acc), codegen


@intrinsic
def tile_add_integers(tyctx, acc, address, ld):
    """Add the i32 tile of this shape that stands at ``address``, rows ``ld`` bytes apart; acc's bits are i32, too."""
    ty = vector("i32")

    def codegen(ctx, b, sig, args):
        tile, address, ld = args
        for i in range(acc.mr):
            row = b.add(address, b.mul(ld, I64(i)))
            for j in range(acc.nv):
                k = i * acc.nv + j
                total = b.add(b.bitcast(b.extract_value(tile, k), ty), load(b, row, ty, 4, BYTES * j))
                tile = b.insert_value(tile, b.bitcast(total, vector("f32")), k)
        return tile

    return acc(acc, ADDR, types.int64), codegen
