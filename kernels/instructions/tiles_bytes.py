"""Tiles of sums of bytes as words of the kernel language: sums to bytes in registers, and dot products of pixels.

Imported only while a kernel compiles; kernel files import these names from `lang`.

Results leave a tile by rows of bytes.  Four vectors of i32 become one of bytes by instructions that work within 128
bits; what they leave in another order is put right where it is stored (`tile_finish_bytes`), or was put in the same
order before (`PixelTile`).
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"
from __future__ import annotations

from functools import partial

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_model

from bolt_numba.kernels.instructions.dots import dot_bytes_value, dot_centred_value
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.instructions.raw import interleaved
from bolt_numba.kernels.instructions.simd import (
    ADDR,
    I8,
    I16,
    I32,
    I64,
    LANES,
    RegistersModel,
    call,
    constant,
    fma_value,
    hidden,
    load,
    masked_load,
    masked_store,
    splat_value,
    store,
    suffix,
    tail_mask,
    vector,
    whole,
)  # fmt: skip
from bolt_numba.kernels.instructions.tiles import BYTES, _build, _row, _vec, combined, row_columns, row_elements

HAS_BYTE_MASKS = target().name == "avx512"
HIGH, ZERO, LOW, FLIP, RESIDUAL_FACTOR = 0, 4, 8, 12, 16
"""Places in the record that `tile_finish_bytes` reads: patterns of 32 bits, of the greatest byte as a signed one, the
zero point less 128 where bytes are unsigned (twice i16), the least byte, the highest bit of unsigned ones; and what a
residual is multiplied by (f32)."""


def _copy_some(b, to, source, n, most):
    """Copy ``n`` bytes, from 1 to ``most`` - 1, by two moves that may overlap."""
    size = most // 2
    ty = ir.IntType(8 * size)

    def both():
        ends = [load(b, b.add(source, at), ty, 1) for at in (I64(0), b.sub(n, I64(size)))]
        for value, at in zip(ends, (I64(0), b.sub(n, I64(size))), strict=True):
            store(b, value, b.add(to, at), 1)

    if size == 1:
        both()
        return
    with b.if_else(b.icmp_signed(">=", n, I64(size))) as (then, otherwise):
        with then:
            both()
        with otherwise:
            _copy_some(b, to, source, n, size)


def _workspace(b, nbytes):
    """Address of memory on the stack."""
    return b.ptrtoint(cgutils.alloca_once(b, ir.ArrayType(I8, nbytes)), I64)


def _copy_rows(b, rows, width, to, to_ld, source, source_ld, n):
    """Copy ``n`` bytes of each row, fewer than ``width``."""
    with cgutils.for_range(b, I64(rows)) as loop:
        _copy_some(b, b.add(to, b.mul(to_ld, loop.index)), b.add(source, b.mul(source_ld, loop.index)), n, width)


# ---------------------------------------------------------------------------------------------------- dots of rows


def _dot_rows(acc, rows, dot):
    def codegen(ctx, b, sig, args):
        tile, rows, offset, shift, brow = args
        fours = row_elements(b, rows, offset, I32, 1)
        columns = row_columns(b, acc, brow, vector("i32"))
        return combined(b, acc, tile, lambda i: b.lshr(fours(i), b.trunc(shift, I32)), columns, partial(dot, b))

    return acc(acc, rows, types.int64, types.int64, ADDR), codegen


@intrinsic
def tile_dot_rows_bytes(tyctx, acc, rows, offset, shift, brow):
    """Acc, whose bits are i32, += four u8 of each row times the ``nv * LANES`` fours of i8 at ``brow``, summed.

    A row's four are those at ``rows[i] + offset``, shifted down by ``shift`` bits.
    """
    return _dot_rows(acc, rows, dot_bytes_value)


@intrinsic
def tile_dot_rows_centred(tyctx, acc, rows, offset, shift, brow):
    """`tile_dot_rows_bytes` of u8 less `Isa.centre`."""
    return _dot_rows(acc, rows, dot_centred_value)


@intrinsic
def tile_add_sums(tyctx, x, y):
    """Elementwise sum of tiles whose bits are i32."""
    whole = ir.VectorType(I32, LANES)

    def codegen(ctx, b, sig, args):
        def one(i, j):
            terms = (b.bitcast(_vec(b, x, tile, i, j), whole) for tile in args)
            return b.bitcast(b.add(*terms), vector("f32"))

        return _build(b, x, one)

    return x(x, x), codegen


# ------------------------------------------------------------------------------------------------------ sums to bytes


def _narrowed(b, x, y):
    """Integers of two vectors as those of half as many bits, saturated; on x86 each 128 bits apart."""
    half = ir.VectorType(ir.IntType(x.type.element.width // 2), 2 * x.type.count)
    bits = x.type.count * x.type.element.width
    if target().is_x86:
        kind = "packssdw" if half.element.width == 16 else "packsswb"
        name = {512: f"avx512.{kind}.512", 256: f"avx2.{kind}", 128: f"sse2.{kind}.128"}[bits]
        return call(b, f"llvm.x86.{name}", half, [x, y])
    top = (1 << half.element.width - 1) - 1
    both = b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, half.count), list(range(half.count))))
    both = call(b, f"llvm.smin.{suffix(both.type)}", both.type, [both, constant(both.type, top)])
    both = call(b, f"llvm.smax.{suffix(both.type)}", both.type, [both, constant(both.type, -top - 1)])
    return b.trunc(both, half)


def _ends(b, address, lanes):
    """What results are limited by, see `HIGH`, as vectors."""
    kinds = {HIGH: (I8, 4), ZERO: (I16, 2), LOW: (I8, 4), FLIP: (I8, 4)}
    return [
        b.bitcast(splat_value(b, load(b, address, I32, 4, at), lanes), ir.VectorType(kind, per * lanes))
        for at, (kind, per) in kinds.items()
    ]


def _as_bytes(b, vectors, ends):
    """Four vectors of f32 as one of bytes: rounded, zero point added, limited; in the order of `_narrowed`."""
    high, zero, low, flip = ends
    rounded = [whole(b, v, "cvt") for v in vectors]  # to nearest, ties to even
    pairs = [_narrowed(b, *rounded[i : i + 2]) for i in (0, 2)]
    name = f"llvm.sadd.sat.{suffix(zero.type)}"
    made = _narrowed(b, *(call(b, name, zero.type, [pair, zero]) for pair in pairs))
    for limit, bound in (("smax", low), ("smin", high)):
        made = call(b, f"llvm.{limit}.{suffix(low.type)}", low.type, [made, bound])
    return b.xor(made, flip)


def _in_order(b, made):
    """The bytes of four vectors one after the other, from how `_narrowed` leaves them."""
    parts = made.type.count // 16
    if parts == 1 or not target().is_x86:
        return made
    ty = ir.VectorType(I32, 4 * parts)
    words = b.bitcast(made, ty)
    index = ir.Constant(ty, [i % parts * 4 + i // parts for i in range(4 * parts)])
    return b.bitcast(b.shuffle_vector(words, ir.Constant(ty, ir.Undefined), index), made.type)


def _part(b, v, first, count):
    index = ir.Constant(ir.VectorType(I32, count), list(range(first, first + count)))
    return b.shuffle_vector(v, ir.Constant(v.type, ir.Undefined), index)


@intrinsic
def tile_take_outer(tyctx, acc, rows, columns):
    """A tile of i32 bits less the products of the i32 of each row at ``rows`` and of the vectors at ``columns``."""

    def codegen(ctx, b, sig, a):
        ty = vector("i32")
        cols = [load(b, a[2], ty, 4, BYTES * j) for j in range(acc.nv)]
        factors = [splat_value(b, load(b, a[1], I32, 4, 4 * i)) for i in range(acc.mr)]

        def one(i, j):
            rest = b.sub(b.bitcast(_vec(b, acc, a[0], i, j), ty), b.mul(factors[i], cols[j]))
            return b.bitcast(rest, vector("f32"))

        return _build(b, acc, one)

    return acc(acc, ADDR, ADDR), codegen


@intrinsic
def tile_finish_bytes(tyctx, acc, columns, width, address, ld, n, residual, residual_ld, flip, ends):
    """A tile of i32 bits, times a row of numbers plus another, to bytes: the first ``n`` columns.

    columns: the factors are ``2 * width`` bytes behind it, the addends ``4 * width``.  residual: bytes whose bits
    ``flip`` are turned, times the number at ``ends + 16``; or 0.  ends: what results are limited by, see `HIGH`.
    Numbers are less than 2 ** 31.
    """

    def codegen(ctx, b, sig, args):
        value, columns, width, address, ld, n, residual, residual_ld, flip, ends = args
        total, per = acc.mr * acc.nv, 4 // acc.nv
        limits, turned = _ends(b, ends, LANES), splat_value(b, b.trunc(flip, I8))
        starts = [b.add(columns, b.mul(width, I64(k))) for k in (2, 4)]
        factors, addends = ([load(b, at, vector("f32"), 4, BYTES * j) for j in range(acc.nv)] for at in starts)
        times = splat_value(b, load(b, ends, ir.FloatType(), 4, RESIDUAL_FACTOR))

        def finished(read, put):
            """Vectors in fours, so that few are alive; read: bytes of a residual, put: stores a row."""

            def number(k):
                i, j = divmod(min(k, total - 1), acc.nv)
                v = b.sitofp(b.bitcast(_vec(b, acc, value, i, j), vector("i32")), vector("f32"))
                v = fma_value(b, v, factors[j], addends[j])
                if read is None:
                    return v
                seen = b.zext(b.xor(read(i, j), turned), vector("i32"))
                return fma_value(b, b.uitofp(seen, vector("f32")), times, v)

            for first in range(0, total, 4):
                made = _in_order(b, _as_bytes(b, [number(first + k) for k in range(4)], limits))
                for i in range(first // acc.nv, min(first // acc.nv + per, acc.mr)):
                    put(i, _part(b, made, (i * acc.nv - first) * LANES, acc.columns))

        def both_ways(read, put):
            with b.if_else(b.icmp_signed("==", residual, I64(0))) as (then, otherwise):
                with then:
                    finished(None, put)
                with otherwise:
                    finished(read(), put)

        def whole():
            return lambda i, j: load(b, _row(b, residual, residual_ld, i), vector("u8"), 1, LANES * j)

        def masked():
            masks = [tail_mask(b, b.sub(n, I64(LANES * j))) for j in range(acc.nv)]
            row = [_row(b, residual, residual_ld, i) for i in range(acc.mr)]
            return lambda i, j: masked_load(b, row[i], vector("u8"), 1, masks[j], LANES * j)

        def copied():
            _copy_rows(b, acc.mr, acc.columns, room, I64(acc.columns), residual, residual_ld, n)
            return lambda i, j: load(b, room, vector("u8"), 1, i * acc.columns + LANES * j)

        with b.if_else(b.icmp_signed(">=", n, I64(acc.columns))) as (then, otherwise):
            with then:
                both_ways(whole, lambda i, row: store(b, row, _row(b, address, ld, i), 1))
            with otherwise:
                if HAS_BYTE_MASKS:
                    mask = tail_mask(b, hidden(b, n), acc.columns)
                    both_ways(masked, lambda i, row: masked_store(b, row, _row(b, address, ld, i), 1, mask))
                else:
                    room = _workspace(b, acc.mr * acc.columns)
                    both_ways(copied, lambda i, row: store(b, row, room, 1, i * acc.columns))
                    _copy_rows(b, acc.mr, acc.columns, address, ld, room, I64(acc.columns), n)
        return ctx.get_dummy_value()

    i64 = types.int64
    return types.void(acc, ADDR, i64, ADDR, i64, i64, ADDR, i64, types.int32, ADDR), codegen


# --------------------------------------------------------------------------------------------------- dots of pixels


class PixelTile(types.Type):
    """Sums of ``pixels`` x ``4 * lanes`` channels, i32: four vectors a pixel.

    Lane 4 L + i of vector q is channel 16 L + 4 q + i: what interleaving the bytes of four pixels within 128 bits
    gives, and what `_narrowed` puts in order.
    """

    def __init__(self, pixels: int, lanes: int) -> None:
        self.pixels, self.lanes = pixels, lanes
        super().__init__(name=f"PixelTile({pixels}x{lanes})")

    @property
    def llvm(self) -> ir.Type:
        return ir.ArrayType(ir.VectorType(I32, self.lanes), 4 * self.pixels)


register_model(PixelTile)(RegistersModel)


@intrinsic(prefer_literal=True)
def pixels_row(tyctx, pixels, lanes, address):
    """A tile of which every pixel is the ``4 * lanes`` i32 at an address."""
    t = PixelTile(pixels.literal_value, lanes.literal_value)

    def codegen(ctx, b, sig, a):
        out = ir.Constant(t.llvm, ir.Undefined)
        row = [load(b, a[2], ir.VectorType(I32, t.lanes), 4, 4 * t.lanes * q) for q in range(4)]
        for k in range(4 * t.pixels):
            out = b.insert_value(out, row[k % 4], k)
        return out

    return t(pixels, lanes, types.int64), codegen


def _interleaved(b, x, y, element):
    """The lower and the upper halves of each 128 bits of two vectors of bytes, elements of ``element`` bits in turn."""
    ty = ir.VectorType(ir.IntType(element), x.type.count * 8 // element)
    return interleaved(b, b.bitcast(x, ty), b.bitcast(y, ty))


@intrinsic(prefer_literal=True)
def pixels_dot(tyctx, acc, base, step, first, last, outside, weights, cols, stride, chunks, guarded):
    """Add a filter's row of ``cols`` taps under pixels, less `Isa.centre`, ``step`` bytes apart from ``base`` on.

    first, last: of the pixels that the image has, others are read at ``outside``; where ``guarded`` is 0 all are there.
    weights: i8 [chunks][forms][4][lanes][4], fours of taps.  Fours of
    pixels begin at even ones, so that neighbours share their interleaved pairs.  At stride 1 there is a second form of
    the weights, for odd results, that begins one tap later.  cols, stride, chunks, guarded: compile-time constants.
    """
    cols_, stride_, is_guarded = cols.literal_value, stride.literal_value, guarded.literal_value
    forms = 2 if stride_ == 1 else 1
    numbers = (ADDR, types.int64, types.int64, types.int64, ADDR, ADDR)

    def codegen(ctx, b, sig, args):
        tile, base, step, first, last, outside, weights = args[:7]
        wide, narrow = ir.VectorType(I32, acc.lanes), ir.VectorType(I8, 4 * acc.lanes)
        count = (acc.pixels - 1) * stride_ + cols_

        def pixel(k):
            at = b.add(base, b.mul(step, I64(k)))
            if is_guarded:
                inside = b.and_(b.icmp_signed("<=", first, I64(k)), b.icmp_signed("<", I64(k), last))
                at = b.select(inside, at, outside)
            return load(b, at, narrow, 1)

        seen = [pixel(k) for k in range(count)]
        pairs = [_interleaved(b, seen[k], seen[min(k + 1, count - 1)], 8) for k in range(0, count, 2)]
        for half in range(2):
            for chunk in range(chunks.literal_value):
                fours = {}
                for start in range(4 * chunk, 4 * chunk + (acc.pixels - 1) * stride_ + 1, 2):
                    k = start // 2  # a pair behind the last one meets weights of zero
                    if k < len(pairs):
                        fours[start] = _interleaved(b, pairs[k][half], pairs[min(k + 1, len(pairs) - 1)][half], 16)
                for part in range(2):
                    q = 2 * half + part
                    for form in range(forms):
                        place = 4 * acc.lanes * (4 * (chunk * forms + form) + q)
                        w = load(b, weights, wide, 4, place)
                        for i in range(form, acc.pixels, forms):
                            start = 4 * chunk + i * stride_ - form
                            if start in fours:
                                made = dot_centred_value(
                                    b, b.extract_value(tile, 4 * i + q), b.bitcast(fours[start][part], wide), w
                                )
                                tile = b.insert_value(tile, made, 4 * i + q)
        return tile

    return acc(acc, *numbers, cols, stride, chunks, guarded), codegen


@intrinsic
def pixels_store(tyctx, acc, address):
    """Store the sums, channels in order, pixels one after the other."""

    def codegen(ctx, b, sig, args):
        value, address = args
        for k in range(4 * acc.pixels):
            i, q = divmod(k, 4)
            for part in range(acc.lanes // 4):
                block = _part(b, b.extract_value(value, k), 4 * part, 4)
                store(b, block, address, 4, 16 * (i * acc.lanes + 4 * part + q))
        return ctx.get_dummy_value()

    return types.void(acc, ADDR), codegen


@intrinsic
def pixels_store_bytes(tyctx, acc, address, ld, pixels, columns, ends):
    """Store the first ``pixels`` as bytes, ``ld`` bytes apart, as `tile_finish_bytes` does.

    columns: f32 [2][4][lanes], factors and addends in the tile's order.
    """

    def codegen(ctx, b, sig, args):
        value, address, ld, pixels, columns, ends = args
        floats, size = ir.VectorType(ir.FloatType(), acc.lanes), 4 * acc.lanes
        rows = [load(b, columns, floats, 4, size * k) for k in range(8)]
        limits = _ends(b, ends, acc.lanes)
        for i in range(acc.pixels):
            totals = [b.sitofp(b.extract_value(value, 4 * i + q), floats) for q in range(4)]
            made = _as_bytes(b, [fma_value(b, v, rows[q], rows[4 + q]) for q, v in enumerate(totals)], limits)
            with b.if_then(b.icmp_signed(">", pixels, I64(i))):
                store(b, made, _row(b, address, ld, i), 1)
        return ctx.get_dummy_value()

    return types.void(acc, ADDR, types.int64, types.int64, ADDR, ADDR), codegen


__all__ = [
    "HIGH", "PixelTile", "pixels_dot", "pixels_row", "pixels_store", "pixels_store_bytes", "tile_add_sums",
    "tile_dot_rows_bytes", "tile_dot_rows_centred", "tile_finish_bytes", "tile_take_outer",
]  # fmt: skip
