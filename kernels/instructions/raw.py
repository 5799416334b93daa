"""Words on raw bytes: an i32 vector as the ``4 * LANES`` bytes that it holds.

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
    I16,
    I32,
    I64,
    INT,
    LANES,
    call,
    constant,
    load,
    store,
    suffix,
    vector,
    word,
)
from bolt_numba.kernels.instructions.tiles import RegisterTile

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


def _packed(b, parts, low, high, name, more=None):
    """Four i32 vectors as the bytes of one, in order, limited to low…high; more: a vector added to each before."""
    ty = vector("i32")
    if not target().is_x86:
        parts = parts if more is None else [b.add(v, more) for v in parts]
        bounds = [constant(ty, low), constant(ty, high)]
        least = [call(b, f"llvm.smax.{suffix(ty)}", ty, [v, bounds[0]]) for v in parts]
        fit = [call(b, f"llvm.smin.{suffix(ty)}", ty, [v, bounds[1]]) for v in least]
        small = [b.trunc(v, ir.VectorType(I8, LANES)) for v in fit]
        halves = [_joined(b, *small[:2]), _joined(b, *small[2:])]
        return b.bitcast(_joined(b, *halves), ty)
    words = ir.VectorType(I16, 2 * LANES)
    prefix, end = {16: ("avx512", ".512"), 8: ("avx2", ""), 4: ("sse2", ".128")}[LANES]
    pack = f"llvm.x86.{prefix}.packssdw{end}"
    pairs = [call(b, pack, words, list(parts[i : i + 2])) for i in (0, 2)]
    if more is not None:
        pairs = [
            call(b, f"llvm.sadd.sat.{suffix(words)}", words, [v, call(b, pack, words, [more, more])]) for v in pairs
        ]
    made = b.bitcast(call(b, f"llvm.x86.{prefix}.{name}{end}", RAW, pairs), ty)
    blocks = LANES // 4  # of 128 bits, within which the instructions pack
    order = [4 * (j % blocks) + j // blocks for j in range(LANES)]
    return b.shuffle_vector(made, made, ir.Constant(ty, order))


def _joined(b, x, y):
    count = 2 * x.type.count
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, count), list(range(count))))


@word(INT, INT, INT, INT, INT)
def pack_u8(b, x, y, z, w):
    """Four vectors as u8, in order; what is beyond 0…255 becomes the limit."""
    return _packed(b, (x, y, z, w), 0, 255, "packuswb")


@word(INT, INT, INT, INT, INT)
def pack_i8(b, x, y, z, w):
    """Four vectors as i8, in order; what is beyond -128…127 becomes the limit."""
    return _packed(b, (x, y, z, w), -128, 127, "packsswb")


@word(INT, INT, INT, INT, INT, INT)
def codes_u8(b, x, y, z, w, more):
    """`pack_u8` of four vectors plus ``more``, which is less than 2 ** 15 in magnitude."""
    return _packed(b, (x, y, z, w), 0, 255, "packuswb", more)


@word(INT, INT, INT, INT, INT, INT)
def codes_i8(b, x, y, z, w, more):
    """`pack_i8` of four vectors plus ``more``, which is less than 2 ** 15 in magnitude."""
    return _packed(b, (x, y, z, w), -128, 127, "packsswb", more)


def _looked_up(b, table, first, index):
    """Entries of the table in four vectors of a tile, from ``first`` on."""
    parts = [b.bitcast(b.extract_value(table, first + i), RAW) for i in range(4)]
    name = "llvm.x86.avx512.vpermi2var.qi.512"
    low, high = (call(b, name, RAW, [parts[i], index, parts[i + 1]]) for i in (0, 2))
    return b.select(b.icmp_signed("<", index, constant(RAW, 0)), high, low)


@word(types.void, ADDR, types.int64, ADDR, types.int64)
def transpose_16x16(b, to, to_step, source, step):
    """Store the columns of 16 x 16 bytes as rows; steps: bytes between rows."""
    ty = ir.VectorType(I8, 16)
    rows = [load(b, b.add(source, b.mul(step, I64(i))), ty, 1) for i in range(16)]
    low, high = ([s + first + i for i in range(8) for s in (0, 16)] for first in (0, 8))
    for _ in range(4):  # each round rotates the bits of (row, column) by one
        pairs = list(zip(rows[:8], rows[8:], strict=True))
        rows = [b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, 16), i)) for x, y in pairs for i in (low, high)]
    for i, row in enumerate(rows):
        store(b, row, b.add(to, b.mul(to_step, I64(i))), 1)


@word(INT, INT, INT)
def lookup_nibbles(b, table, v):
    """Of each byte, which is below 16, its entry in a table of 16 that each 16 bytes of ``table`` hold."""
    parts, chip = [b.bitcast(table, RAW), b.bitcast(v, RAW)], target()
    name = {16: "avx512.pshuf.b.512", 8: "avx2.pshuf.b", 4: "ssse3.pshuf.b.128"}[LANES]
    name = f"x86.{name}" if chip.is_x86 else "aarch64.neon.tbl1.v16i8"
    if not chip.is_x86 or "ssse3" in chip.features:
        return b.bitcast(call(b, f"llvm.{name}", RAW, parts), vector("i32"))
    made = parts[1]
    for i in map(I32, range(RAW.count)):
        at = b.zext(b.extract_element(parts[1], i), I32)
        made = b.insert_element(made, b.extract_element(parts[0], at), i)
    return b.bitcast(made, vector("i32"))


@intrinsic
def lookup_bytes(tyctx, table, v):
    """Each byte's entry in a table of 256, a tile of 4 vectors of 64 bytes; only where ``target().has_vbmi``."""

    def codegen(ctx, b, sig, a):
        return b.bitcast(_looked_up(b, a[0], 0, b.bitcast(a[1], RAW)), vector("i32"))

    return INT(table, INT), codegen


def interleaved(b, x, y):
    """Low and high halves of blocks of 128 bits, element by element from x and y: one instruction each."""
    lanes, block = x.type.count, 128 // x.type.element.width
    made = []
    for half in (0, block // 2):
        places = [start + half + i for start in range(0, lanes, block) for i in range(block // 2)]
        index = [source + at for at in places for source in (0, lanes)]
        made.append(b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, lanes), index)))
    return made


@intrinsic
def lookup_f32(tyctx, table, v):
    """Entries of a table of 256 f32 for 64 bytes, four vectors in order; only where ``target().has_vbmi``.

    table: a tile of 16 vectors, 4 for each byte of the entries: the lowest bytes of all 256, then the next ones.
    """
    made = RegisterTile(4, 1)

    def codegen(ctx, b, sig, a):
        order = [4 * (i % 4) + i // 4 for i in range(LANES)]  # what interleaving within blocks undoes
        index = b.bitcast(b.shuffle_vector(a[1], a[1], ir.Constant(vector("i32"), order)), RAW)
        bytes_ = [_looked_up(b, a[0], 4 * i, index) for i in range(4)]
        words = ir.VectorType(I16, 2 * LANES)
        low, high = ([b.bitcast(v, words) for v in interleaved(b, *bytes_[i : i + 2])] for i in (0, 2))
        found = [v for x, y in zip(low, high, strict=True) for v in interleaved(b, x, y)]
        out = ir.Constant(made.llvm, ir.Undefined)
        for i, v in enumerate(found):
            out = b.insert_value(out, b.bitcast(v, vector("f32")), i)
        return out

    return made(table, INT), codegen
