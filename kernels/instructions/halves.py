"""Floats of 16 bits as words of the kernel language: loads widen them to f32, stores round to nearest even.

Imported only while a kernel compiles; kernel files import these names from `lang`.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"
from __future__ import annotations

import math

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.instructions.memory import loads, stores
from bolt_numba.kernels.instructions.simd import (
    ADDR,
    F32,
    I32,
    I64,
    LANES,
    BFloat,
    call,
    constant,
    load,
    masked_load,
    masked_store,
    rounded_bits,
    splat_value,
    store,
    tail_mask,
    vector,
    word,
)  # fmt: skip
from bolt_numba.kernels.instructions.tiles import BYTES, _build, _masks, _row, _vec, add_outer, row_elements

# ---------------------------------------------------------------------------------------------------------------- bf16


def _wide_bf16(b, bits):
    ty = ir.VectorType(I32, bits.type.count)
    return b.bitcast(b.shl(b.zext(bits, ty), constant(ty, 16)), ir.VectorType(ir.FloatType(), bits.type.count))


def _narrow_bf16(b, v):
    return b.trunc(b.lshr(rounded_bits(b, v), constant(vector("i32"), 16)), vector("i16"))


# To nearest even; NaN stays NaN.
globals().update(loads("vload_bf16", F32, "i16", _wide_bf16) | stores("vstore_bf16", F32, "i16", _narrow_bf16))


@word(types.void, ADDR, F32, F32)
def vstore_bf16_two(b, address, v, w):
    """The elements of ``v``, then those of ``w``, rounded as by `vstore_bf16`; denormal ones may become 0."""
    _store_two(b, address, v, w)


def _two(b, v, w):
    """Bits of the elements of v, then of w, by one instruction."""
    result = ir.VectorType(BFloat(), 2 * LANES)
    made = call(b, f"llvm.x86.avx512bf16.cvtne2ps2bf16.{32 * LANES}", result, [w, v])
    return b.bitcast(made, ir.VectorType(ir.IntType(16), 2 * LANES))


def _store_two(b, address, v, w):
    if target().has_bf16:
        store(b, _two(b, v, w), address, 2)
        return
    for i, x in enumerate((v, w)):
        store(b, _narrow_bf16(b, x), b.add(address, I64(2 * LANES * i)), 2)


@intrinsic
def tile_finish_bf16(tyctx, acc, address, ld, n, residual, residual_ld, lo, hi, kind):
    """`tile_finish`; memory of the tile is bfloat16 if ``kind & 2``, that of the residual if ``kind & 4``."""

    def codegen(ctx, b, sig, args):
        value, address, ld, n, residual, residual_ld, lo, hi, kind = args
        place, masks = cgutils.alloca_once_value(b, value), _masks(b, acc, n)

        def either(condition, make):
            with b.if_else(condition) as (then, otherwise):
                with then:
                    make(True)
                with otherwise:
                    make(False)

        def is_set(bit):
            return b.icmp_signed("!=", b.and_(kind, I64(bit)), I64(0))

        def change(one):
            old = b.load(place)
            b.store(_build(b, acc, lambda i, j: one(_vec(b, acc, old, i, j), i, j)), place)

        def add(narrow):
            ty, unit = (vector("i16"), 2) if narrow else (vector("f32"), 4)

            def one(x, i, j):
                got = masked_load(b, _row(b, residual, residual_ld, i), ty, unit, masks[j], unit * LANES * j)
                return b.fadd(x, _wide_bf16(b, got) if narrow else got)

            change(one)

        with b.if_then(b.icmp_signed("!=", residual, I64(0))):
            either(is_set(4), add)
        for sign, bound, end in ((">", lo, -math.inf), ("<", hi, math.inf)):
            with b.if_then(b.fcmp_ordered(sign, bound, bound.type(end))):
                limit = splat_value(b, bound)
                change(lambda x, i, j, s=sign, v=limit: b.select(b.fcmp_ordered(s, v, x), v, x))
        done = b.load(place)
        rows = [_row(b, address, ld, i) for i in range(acc.mr)]
        tile = [[_vec(b, acc, done, i, j) for j in range(acc.nv)] for i in range(acc.mr)]

        def put(is_whole):
            with b.if_else(is_set(2)) as (then, otherwise):
                with then:
                    _put_narrow(b, rows, tile, n, is_whole)
                with otherwise:
                    for row, vectors in zip(rows, tile, strict=True):
                        for j, x in enumerate(vectors):
                            if is_whole:
                                store(b, x, row, 4, BYTES * j)
                            else:
                                masked_store(b, x, row, 4, masks[j], BYTES * j)

        either(b.icmp_signed(">=", n, I64(acc.columns)), put)
        return ctx.get_dummy_value()

    numbers = (ADDR, types.int64, types.int64, ADDR, types.int64, types.float32, types.float32, types.int64)
    return types.void(acc, *numbers), codegen


def _put_narrow(b, rows, tile, n, is_whole):
    """Store the first n columns of a tile as bfloat16; all of them if ``is_whole``."""
    wide = tail_mask(b, n, 2 * LANES)
    for row, vectors in zip(rows, tile, strict=True):
        if is_whole and len(vectors) == 2:
            _store_two(b, row, *vectors)
        elif target().has_bf16:
            masked_store(b, _two(b, vectors[0], vectors[-1]), row, 2, wide)
        else:
            for j, x in enumerate(vectors):
                mask = tail_mask(b, b.sub(n, I64(LANES * j)))
                masked_store(b, _narrow_bf16(b, x), row, 2, mask, 2 * LANES * j)


# ----------------------------------------------------------------------------------------------------------------- f16


def _wide_f16(b, bits):
    """f32 of the bits of f16, a vector of i16 of any length; subnormal numbers are numbers."""
    wide = ir.VectorType(ir.FloatType(), bits.type.count)
    if target().has_f16:
        return b.fpext(b.bitcast(bits, ir.VectorType(ir.HalfType(), bits.type.count)), wide)
    ty = ir.VectorType(I32, bits.type.count)
    given = b.zext(bits, ty)
    low = b.and_(given, constant(ty, 0x7FFF))
    moved = b.add(b.shl(low, constant(ty, 13)), constant(ty, 0x38000000))
    beyond = b.icmp_signed(">=", low, constant(ty, 0x7C00))  # infinity and NaN
    made = b.select(beyond, b.add(moved, constant(ty, 0x38000000)), moved)
    tiny = b.bitcast(b.fmul(b.sitofp(low, wide), constant(wide, 2.0**-24)), ty)
    made = b.select(b.icmp_signed("<", low, constant(ty, 0x0400)), tiny, made)
    sign = b.shl(b.and_(given, constant(ty, 0x8000)), constant(ty, 16))
    return b.bitcast(b.or_(made, sign), wide)


def _narrow_f16(b, v):
    """Bits of the nearest f16, ties to even; what is too large is infinite."""
    if target().has_f16:
        return b.bitcast(b.fptrunc(v, ir.VectorType(ir.HalfType(), LANES)), vector("i16"))
    ty = vector("i32")
    given = b.bitcast(v, ty)
    low = b.and_(given, constant(ty, 0x7FFFFFFF))
    odd = b.and_(b.lshr(low, constant(ty, 13)), constant(ty, 1))
    moved = b.lshr(b.add(b.add(b.sub(low, constant(ty, 0x38000000)), constant(ty, 0x0FFF)), odd), constant(ty, 13))
    made = b.select(b.icmp_signed(">=", low, constant(ty, 0x47800000)), constant(ty, 0x7C00), moved)
    is_tiny = b.icmp_signed("<", low, constant(ty, 0x38800000))
    # Added to 2 ** 23, a number keeps what is worth one: here 2 ** -24.
    whole = constant(v.type, 2.0**23)
    tiny = b.fmul(b.select(is_tiny, b.bitcast(low, v.type), constant(v.type, 0.0)), constant(v.type, 2.0**24))
    made = b.select(is_tiny, b.fptosi(b.fsub(b.fadd(tiny, whole), whole), ty), made)
    made = b.select(b.icmp_signed(">", low, constant(ty, 0x7F800000)), constant(ty, 0x7E00), made)
    return b.trunc(b.or_(made, b.and_(b.lshr(given, constant(ty, 16)), constant(ty, 0x8000))), vector("i16"))


globals().update(loads("vload_f16", F32, "i16", _wide_f16) | stores("vstore_f16", F32, "i16", _narrow_f16))


def _add_outer_of(widen, acc, rows):
    """What a word of the tile language returns that multiplies by a row of B of 16 bits each."""

    def codegen(ctx, b, sig, args):
        tile, rows, offset, brow = args
        halves = [ir.VectorType(ir.IntType(16), acc.vector(j).count) for j in range(acc.nv)]
        columns = [widen(b, load(b, brow, ty, 2, 2 * LANES * j)) for j, ty in enumerate(halves)]
        return add_outer(b, acc, tile, row_elements(b, rows, offset), columns)

    return acc(acc, rows, types.int64, ADDR), codegen


@intrinsic
def tile_rank1_rows_f16(tyctx, acc, rows, offset, brow):
    """`tile_rank1_rows` of a row of B in float16."""
    return _add_outer_of(_wide_f16, acc, rows)


@intrinsic
def tile_rank1_rows_bf16(tyctx, acc, rows, offset, brow):
    """`tile_rank1_rows` of a row of B in bfloat16, which becomes f32: nothing is rounded."""
    return _add_outer_of(_wide_bf16, acc, rows)
