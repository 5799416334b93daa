"""Register tiles as words of the kernel language: ``mr`` rows of ``nv`` f32 vectors that live in registers.

Imported only while a kernel compiles; kernel files import these names from `lang`.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"
from __future__ import annotations

import math
from functools import partial

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_model

from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.instructions.simd import (
    ADDR,
    F32,
    I8,
    I32,
    I64,
    LANES,
    RegistersModel,
    call,
    dot_bf16_value,
    fma_value,
    load,
    masked_load,
    masked_store,
    splat_value,
    store,
    tail_mask,
    vector,
)  # fmt: skip

BYTES, FLOAT = 4 * LANES, ir.FloatType()


class RegisterTile(types.Type):
    """``mr`` x ``nv`` f32 vectors; the last of each row has ``last`` lanes."""

    def __init__(self, mr: int, nv: int, last: int = LANES) -> None:
        self.mr, self.nv, self.last = mr, nv, last
        super().__init__(name=f"RegisterTile({mr}x{nv}, {last})")

    @property
    def llvm(self) -> ir.Type:
        if self.last == LANES:
            return ir.ArrayType(vector("f32"), self.mr * self.nv)
        return ir.LiteralStructType([self.vector(j) for j in range(self.nv)] * self.mr)

    def vector(self, j: int) -> ir.Type:
        """The type of the vectors of column j."""
        return vector("f32") if j + 1 < self.nv else ir.VectorType(ir.FloatType(), self.last)

    @property
    def columns(self) -> int:
        return LANES * (self.nv - 1) + self.last


class Rows(types.Type):
    """``mr`` addresses."""

    def __init__(self, mr: int) -> None:
        self.mr = mr
        super().__init__(name=f"Rows({mr})")

    @property
    def llvm(self) -> ir.Type:
        return ir.ArrayType(I64, self.mr)


register_model(RegisterTile)(RegistersModel)
register_model(Rows)(RegistersModel)


def _row(b, address, ld, i):
    return address if i == 0 else b.add(address, b.mul(ld, I64(i)))


def _build(b, tile, make):
    """A tile whose vector (i, j) is ``make(i, j)``."""
    out = ir.Constant(tile.llvm, ir.Undefined)
    for i in range(tile.mr):
        for j in range(tile.nv):
            out = b.insert_value(out, make(i, j), i * tile.nv + j)
    return out


def _vec(b, tile, value, i, j):
    return b.extract_value(value, i * tile.nv + j)


def _masks(b, tile, n):
    """Column masks of a row of ``n`` elements."""
    return [tail_mask(b, b.sub(n, n.type(LANES * j)), tile.vector(j).count) for j in range(tile.nv)]


@intrinsic(prefer_literal=True)
def tile_zeros(tyctx, mr, nv):
    """All zero; mr, nv are compile-time constants."""
    t = RegisterTile(mr.literal_value, nv.literal_value)
    return t(mr, nv), lambda ctx, b, sig, a: ir.Constant(t.llvm, None)


@intrinsic
def tile_cleared(tyctx, acc):
    """All zero, of the shape of a tile."""
    return acc(acc), lambda ctx, b, sig, a: ir.Constant(acc.llvm, None)


def _equal_rows(t, mr, nv):
    def codegen(ctx, b, sig, a):
        loaded = [load(b, a[2], t.vector(j), 4, BYTES * j) for j in range(t.nv)]
        return _build(b, t, lambda i, j: loaded[j])

    return t(mr, nv, types.int64), codegen


@intrinsic(prefer_literal=True)
def tile_row(tyctx, mr, nv, address):
    """Every row is the ``nv * LANES`` f32 at one address (a bias)."""
    return _equal_rows(RegisterTile(mr.literal_value, nv.literal_value), mr, nv)


@intrinsic(prefer_literal=True)
def tile_row_narrow(tyctx, mr, nv, address):
    """`tile_row` of a tile whose last vectors are half as wide; it works with `tile_rank1_rows` and `tile_finish`."""
    return _equal_rows(RegisterTile(mr.literal_value, nv.literal_value, LANES // 2), mr, nv)


@intrinsic(prefer_literal=True)
def tile_load(tyctx, mr, nv, address, ld):
    """Rows ``ld`` bytes apart."""
    t = RegisterTile(mr.literal_value, nv.literal_value)

    def codegen(ctx, b, sig, a):
        rows = [_row(b, a[2], a[3], i) for i in range(t.mr)]
        return _build(b, t, lambda i, j: load(b, rows[i], vector("f32"), 4, BYTES * j))

    return t(mr, nv, types.int64, types.int64), codegen


@intrinsic(prefer_literal=True)
def tile_load_n(tyctx, mr, nv, address, ld, n):
    """The first ``n`` columns; others are 0 and not touched."""
    t = RegisterTile(mr.literal_value, nv.literal_value)

    def codegen(ctx, b, sig, a):
        rows = [_row(b, a[2], a[3], i) for i in range(t.mr)]
        masks = _masks(b, t, a[4])
        return _build(b, t, lambda i, j: masked_load(b, rows[i], vector("f32"), 4, masks[j], BYTES * j))

    return t(mr, nv, types.int64, types.int64, types.int64), codegen


def _store(b, tile, value, address, ld, store_one):
    """Store every vector by ``store_one(vector, row address, j)``."""
    for i in range(tile.mr):
        row = _row(b, address, ld, i)
        for j in range(tile.nv):
            store_one(_vec(b, tile, value, i, j), row, j)


@intrinsic
def tile_store(tyctx, acc, address, ld):
    """Rows ``ld`` bytes apart."""

    def codegen(ctx, b, sig, a):
        _store(b, acc, a[0], a[1], a[2], lambda v, row, j: store(b, v, row, 4, BYTES * j))
        return ctx.get_dummy_value()

    return types.void(acc, ADDR, types.int64), codegen


@intrinsic
def tile_store_n(tyctx, acc, address, ld, n):
    """The first ``n`` columns of each row; other memory is not touched."""

    def codegen(ctx, b, sig, a):
        masks = _masks(b, acc, a[3])
        _store(b, acc, a[0], a[1], a[2], lambda v, row, j: masked_store(b, v, row, 4, masks[j], BYTES * j))
        return ctx.get_dummy_value()

    return types.void(acc, ADDR, types.int64, types.int64), codegen


def combined(b, acc, tile, xs, columns, combine):
    """A tile whose vectors are ``combine(old, x, column)``; xs: from the number of a row to its scalar."""
    for i in range(acc.mr):
        value = xs(i)
        for j, column in enumerate(columns):
            k = i * acc.nv + j
            old, x = b.extract_value(tile, k), splat_value(b, value, column.type.count)
            made = combine(b.bitcast(old, column.type), x, column)
            tile = b.insert_value(tile, b.bitcast(made, old.type), k)
    return tile


def add_outer(b, acc, tile, xs, columns):
    """Tile += outer(xs, columns)."""
    return combined(b, acc, tile, xs, columns, lambda old, x, column: fma_value(b, x, column, old))


def _columns(b, acc, brow):
    """The vectors of a row of B."""
    return [load(b, brow, acc.vector(j), 4, BYTES * j) for j in range(acc.nv)]


def row_elements(b, rows, offset, ty=FLOAT, align=4):
    """From the number of a row to the element ``offset`` bytes behind its address."""
    return lambda i: load(b, b.add(b.extract_value(rows, i), offset), ty, align)


def row_columns(b, acc, brow, ty):
    """The vectors of any elements of a row of B."""
    return [load(b, brow, ty, 4, BYTES * j) for j in range(acc.nv)]


@intrinsic
def tile_rank1(tyctx, acc, a, lda, brow):
    """Acc += outer(one f32 from each row of A, ``lda`` bytes apart; the row of B at ``brow``)."""

    def codegen(ctx, b, sig, args):
        tile, a, lda, brow = args
        columns = _columns(b, acc, brow)
        return add_outer(b, acc, tile, lambda i: load(b, _row(b, a, lda, i), ir.FloatType(), 4), columns)

    return acc(acc, ADDR, types.int64, ADDR), codegen


@intrinsic
def tile_rank1_rows(tyctx, acc, rows, offset, brow):
    """Acc += outer(the f32 at ``rows[i] + offset``; the row of B at ``brow``)."""

    def codegen(ctx, b, sig, args):
        tile, rows, offset, brow = args
        return add_outer(b, acc, tile, row_elements(b, rows, offset), _columns(b, acc, brow))

    return acc(acc, rows, types.int64, ADDR), codegen


@intrinsic
def tile_dot_rows_bf16(tyctx, acc, rows, offset, brow):
    """Acc += the pair of bfloat16 at ``rows[i] + offset`` times the ``nv * LANES`` pairs at ``brow``, summed."""

    def codegen(ctx, b, sig, args):
        tile, rows, offset, brow = args

        def add(old, x, column):
            return dot_bf16_value(b, b.bitcast(old, vector("f32")), x, column)

        columns = row_columns(b, acc, brow, vector("i32"))
        return combined(b, acc, tile, row_elements(b, rows, offset, I32), columns, add)

    return acc(acc, rows, types.int64, ADDR), codegen


@intrinsic(prefer_literal=True)
def tile_rank1_rows_as(tyctx, acc, rows, offset, brow, kind):
    """`tile_rank1_rows` of other elements, whose bits the tile holds; kind: 0 f64, 1 i32, 2 i64, a constant."""
    element = (ir.DoubleType(), I32, I64)[kind.literal_value]
    size = 4 if element is I32 else 8
    ty = ir.VectorType(element, BYTES // size)

    def add_product(b, total, x, y):
        if element in (I32, I64):
            return b.add(total, b.mul(x, y))
        if target().has_fma:
            return call(b, f"llvm.fma.v{ty.count}f64", ty, [x, y, total])
        return b.fadd(total, b.fmul(x, y))

    def codegen(ctx, b, sig, args):
        tile, rows, offset, brow, _ = args
        columns = [load(b, brow, ty, size, BYTES * j) for j in range(acc.nv)]
        return combined(b, acc, tile, row_elements(b, rows, offset, element, size), columns, partial(add_product, b))

    return acc(acc, rows, types.int64, ADDR, kind), codegen


@intrinsic(prefer_literal=True)
def rows_strided(tyctx, mr, address, ld):
    """Addresses ``address + i * ld``."""
    t = Rows(mr.literal_value)

    def codegen(ctx, b, sig, a):
        out = ir.Constant(t.llvm, ir.Undefined)
        for i in range(t.mr):
            out = b.insert_value(out, _row(b, a[1], a[2], i), i)
        return out

    return t(mr, types.int64, types.int64), codegen


@intrinsic(prefer_literal=True)
def rows_load(tyctx, mr, table, step, base):
    """Addresses ``base +`` the i64 found at ``table + i * step``."""
    t = Rows(mr.literal_value)

    def codegen(ctx, b, sig, a):
        out = ir.Constant(t.llvm, ir.Undefined)
        for i in range(t.mr):
            out = b.insert_value(out, b.add(load(b, _row(b, a[1], a[2], i), I64, 8), a[3]), i)
        return out

    return t(mr, types.int64, types.int64, types.int64), codegen


@intrinsic(prefer_literal=True)
def tile_get(tyctx, acc, i, j):
    """Vector (i, j); compile-time indices."""
    k = i.literal_value * acc.nv + j.literal_value
    return F32(acc, i, j), lambda ctx, b, sig, a: b.extract_value(a[0], k)


@intrinsic(prefer_literal=True)
def tile_set(tyctx, acc, i, j, v):
    """The tile with vector (i, j) replaced; compile-time indices."""
    k = i.literal_value * acc.nv + j.literal_value
    return acc(acc, i, j, F32), lambda ctx, b, sig, a: b.insert_value(a[0], a[3], k)


@intrinsic
def tile_add_row(tyctx, acc, address):
    """Add the ``nv * LANES`` f32 at ``address`` to every row."""

    def codegen(ctx, b, sig, a):
        cols = [load(b, a[1], vector("f32"), 4, BYTES * j) for j in range(acc.nv)]
        return _build(b, acc, lambda i, j: b.fadd(_vec(b, acc, a[0], i, j), cols[j]))

    return acc(acc, ADDR), codegen


@intrinsic
def tile_add_row_n(tyctx, acc, address, n):
    """Add the ``n`` f32 at ``address`` to every row."""

    def codegen(ctx, b, sig, a):
        masks = _masks(b, acc, a[2])
        cols = [masked_load(b, a[1], vector("f32"), 4, masks[j], BYTES * j) for j in range(acc.nv)]
        return _build(b, acc, lambda i, j: b.fadd(_vec(b, acc, a[0], i, j), cols[j]))

    return acc(acc, ADDR, types.int64), codegen


@intrinsic
def tile_add_tile(tyctx, x, y):
    """Elementwise sum."""

    def codegen(ctx, b, sig, a):
        return _build(b, x, lambda i, j: b.fadd(_vec(b, x, a[0], i, j), _vec(b, x, a[1], i, j)))

    return x(x, x), codegen


@intrinsic
def tile_add_stored(tyctx, acc, address, ld):
    """Add a tile of this shape from where `tile_store` wrote it."""

    def codegen(ctx, b, sig, a):
        rows = [_row(b, a[1], a[2], i) for i in range(acc.mr)]

        def one(i, j):
            return b.fadd(_vec(b, acc, a[0], i, j), load(b, rows[i], acc.vector(j), 4, BYTES * j))

        return _build(b, acc, one)

    return acc(acc, ADDR, types.int64), codegen


@intrinsic
def tile_scale(tyctx, acc, alpha):
    """Every element times a number."""

    def codegen(ctx, b, sig, a):
        factor = splat_value(b, a[1])
        return _build(b, acc, lambda i, j: b.fmul(_vec(b, acc, a[0], i, j), factor))

    return acc(acc, types.float32), codegen


@intrinsic
def tile_clamp(tyctx, acc, lo, hi):
    """min(max(x, lo), hi); NaN stays NaN."""

    def codegen(ctx, b, sig, a):
        low, high = splat_value(b, a[1]), splat_value(b, a[2])

        def clamp(i, j):
            x = _vec(b, acc, a[0], i, j)
            x = b.select(b.fcmp_ordered(">", low, x), low, x)
            return b.select(b.fcmp_ordered("<", high, x), high, x)

        return _build(b, acc, clamp)

    return acc(acc, types.float32, types.float32), codegen


@intrinsic(prefer_literal=True)
def tile_prefetch(tyctx, acc, address, ld, write):
    """Ask for the cache lines of a tile's memory, to read or (write=1, a constant) to write; any address is allowed."""

    def codegen(ctx, b, sig, a):
        for i in range(acc.mr):
            row = _row(b, a[1], a[2], i)
            for j in range(0, acc.nv * BYTES, 64):
                pointer = b.inttoptr(b.add(row, I64(j)), I8.as_pointer())
                call(b, "llvm.prefetch.p0", ir.VoidType(), [pointer, I32(write.literal_value), I32(3), I32(1)])
        return ctx.get_dummy_value()

    return types.void(acc, ADDR, types.int64, write), codegen


@intrinsic
def tile_finish(tyctx, acc, address, ld, n, residual, residual_ld, lo, hi):
    """Add the tile at ``residual`` unless that is 0, clamp (NaN stays NaN), and store the first ``n`` columns."""

    def codegen(ctx, b, sig, args):
        value, address, ld, n, residual, residual_ld, lo, hi = args
        place = cgutils.alloca_once_value(b, value)
        whole = b.icmp_signed(">=", n, I64(acc.columns))

        def add(load_one):
            rows = [_row(b, residual, residual_ld, i) for i in range(acc.mr)]
            old = b.load(place)
            b.store(_build(b, acc, lambda i, j: b.fadd(_vec(b, acc, old, i, j), load_one(rows[i], j))), place)

        def clamp(sign, bound):
            limits, old = [splat_value(b, bound, acc.vector(j).count) for j in range(acc.nv)], b.load(place)

            def one(i, j):
                x = _vec(b, acc, old, i, j)
                return b.select(b.fcmp_ordered(sign, limits[j], x), limits[j], x)

            b.store(_build(b, acc, one), place)

        with b.if_then(b.icmp_signed("!=", residual, I64(0))), b.if_else(whole) as (then, otherwise):
            with then:
                add(lambda row, j: load(b, row, acc.vector(j), 4, BYTES * j))
            with otherwise:
                masks = _masks(b, acc, n)
                add(lambda row, j: masked_load(b, row, acc.vector(j), 4, masks[j], BYTES * j))
        with b.if_then(b.fcmp_ordered(">", lo, lo.type(-math.inf))):
            clamp(">", lo)
        with b.if_then(b.fcmp_ordered("<", hi, hi.type(math.inf))):
            clamp("<", hi)
        done = b.load(place)
        with b.if_else(whole) as (then, otherwise):
            with then:
                _store(b, acc, done, address, ld, lambda v, row, j: store(b, v, row, 4, BYTES * j))
            with otherwise:
                masks = _masks(b, acc, n)
                _store(b, acc, done, address, ld, lambda v, row, j: masked_store(b, v, row, 4, masks[j], BYTES * j))
        return ctx.get_dummy_value()

    numbers = (ADDR, types.int64, types.int64, ADDR, types.int64, types.float32, types.float32)
    return types.void(acc, *numbers), codegen


@intrinsic
def tile_map(tyctx, acc, function):
    """Apply an @inline function of one f32 vector to every vector of the tile."""
    resolved = tyctx.resolve_function_type(function, (F32,), {})

    def codegen(ctx, b, sig, a):
        fn = ctx.get_function(function, resolved)
        ctx.add_linking_libs(getattr(fn, "libs", ()))
        return _build(b, acc, lambda i, j: fn(b, (_vec(b, acc, a[0], i, j),)))

    return acc(acc, function), codegen
