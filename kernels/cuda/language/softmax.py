"""Macros on the scores of attention: sums of ``mma`` for 16 * rows rows and 8 * columns keys of a warp.

A lane has two halves of each tile of 16 rows: half 2 i is row 16 i + lane / 4, half 2 i + 1 the row 8 below.  Numbers
of halves are arrays of 2 * rows.  Of columns it has 8 j + 2 (lane % 4) and the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba.cuda import types

from bolt_numba.kernels.cuda.language.emit import LLVM, Registers, assembled, made_intrinsic
from bolt_numba.kernels.cuda.language.instructions import INSTRUCTIONS, Instruction

_F32, _I32, _U32 = types.float32, types.int32, types.uint32
_FLOAT, _WORD = LLVM["f"], LLVM["r"]
_SHUFFLES = [
    Instruction(f"shfl.sync.bfly.b32 $0, $1, {lanes}, 0x1f, 0xffffffff;", "f", "f", is_pure=False) for lanes in (1, 2)
]
_LOADS = {
    "f16": "ld.global.b16 h, [$2]; cvt.f32.f16 $0, h;",
    "bf16": "ld.global.b16 h, [$2]; mov.b32 $0, {z, h};",
}


_LEAST_SCORE = -(2.0**100)
"""Finite numbers of masks are no less."""


def _elements(rows: int, columns: int) -> Iterator[tuple[int, int, int]]:
    """Of all sums of a lane: place, half, and column after the lane's first."""
    for place in range(4 * rows * columns):
        tile, k = divmod(place, 4)
        yield place, 2 * (tile // columns) + k // 2, 8 * (tile % columns) + k % 2


def _of(context: Any, builder: Any, sig: Any, args: Any, *which: int) -> list[Registers]:
    return [Registers(context, builder, sig.args[i], args[i]) for i in which]


def hide(rows: int, columns: int) -> Any:
    """``hide(sums, key, starts, ends)``: -inf where a key is not in starts…ends - 1 of its half; key: the first."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        sums, starts, ends = _of(context, builder, sig, args, 0, 2, 3)
        first, last = starts.loads(2 * rows), ends.loads(2 * rows)
        for place, half, column in _elements(rows, columns):
            key = builder.add(args[1], ir.Constant(_WORD, column))
            is_seen = builder.and_(
                builder.icmp_signed(">=", key, first[half]), builder.icmp_signed("<", key, last[half])
            )
            sums.store(place, builder.select(is_seen, sums.load(place), ir.Constant(_FLOAT, float("-inf"))))

    return made_intrinsic("hide", 4, lambda s, _, b, e: types.void(s, _I32, b, e), codegen)


def add_mask(rows: int, columns: int, kind: str, alike: bool) -> Any:
    """``add_mask(sums, key, keys, masks, factor)``: sums += factor * mask[key] of each half, for keys below ``keys``.

    masks: i64 addresses; alike: of all rows the first one's.
    """
    text = f"{{ .reg .pred p; .reg .b16 h, z; mov.b16 h, 0; mov.b16 z, 0; setp.lt.s32 p, $1, $3; @p {_LOADS[kind]} }}"
    load = Instruction(text, "f", "rlr", is_pure=False)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        sums, masks = _of(context, builder, sig, args, 0, 3)
        starts, found = masks.loads(2 * rows), {}
        for place, half, column in _elements(rows, columns):
            at = 0 if alike else half, column
            if at not in found:
                key = builder.add(args[1], ir.Constant(_WORD, column))
                wide = builder.shl(builder.sext(key, LLVM["l"]), ir.Constant(LLVM["l"], 1))
                found[at] = assembled(builder, load, [key, builder.add(starts[at[0]], wide), args[2]])[0]
                if kind == "bf16":  # times factor or scale the least finite ones would be -inf
                    is_low = builder.fcmp_ordered("<", found[at], ir.Constant(_FLOAT, _LEAST_SCORE))
                    is_finite = builder.fcmp_ordered("!=", found[at], ir.Constant(_FLOAT, float("-inf")))
                    both = builder.and_(is_low, is_finite)
                    found[at] = builder.select(both, ir.Constant(_FLOAT, _LEAST_SCORE), found[at])
            sums.store(place, assembled(builder, INSTRUCTIONS["fma"], [found[at], args[4], sums.load(place)])[0])

    return made_intrinsic("add_mask", 5, lambda s, _, __, m, ___: types.void(s, _I32, _I32, m, _F32), codegen)


def cap_scores(rows: int, columns: int) -> Any:
    """``cap_scores(sums, narrow, wide)``: sums become wide * tanh(narrow * sums)."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        (sums,) = _of(context, builder, sig, args, 0)
        for place in range(4 * rows * columns):
            bent = assembled(builder, INSTRUCTIONS["tanh_approx"], [builder.fmul(sums.load(place), args[1])])[0]
            sums.store(place, builder.fmul(bent, args[2]))

    return made_intrinsic("cap_scores", 3, lambda s, *_: types.void(s, _F32, _F32), codegen)


def soften(rows: int, columns: int) -> Any:
    """``soften(sums, tops, totals, factors, scale)``: the next keys of a softmax that goes along with them.

    sums become 2 ** (scale * (sums - top)), with the new maximum of the half in tops.  factors: what makes earlier
    powers fit it; totals: of the powers of this lane, all that came.  A half of -inf alone has powers of 0.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        sums, tops, totals, factors = _of(context, builder, sig, args, 0, 1, 2, 3)
        scale, infinite, zero = args[4], ir.Constant(_FLOAT, float("-inf")), ir.Constant(_FLOAT, -0.0)
        old = tops.loads(2 * rows)
        new, added = list(old), [ir.Constant(_FLOAT, 0.0)] * (2 * rows)
        for place, half, _ in _elements(rows, columns):
            new[half] = assembled(builder, INSTRUCTIONS["max_f32"], [new[half], sums.load(place)])[0]
        below = []
        for half in range(2 * rows):
            for shuffle in _SHUFFLES:
                other = assembled(builder, shuffle, [new[half]])
                new[half] = assembled(builder, INSTRUCTIONS["max_f32"], [new[half], *other])[0]
            taken = builder.fsub(zero, builder.fmul(new[half], scale))
            below.append(builder.select(builder.fcmp_ordered("==", new[half], infinite), zero, taken))
            lower = assembled(builder, INSTRUCTIONS["fma"], [old[half], scale, below[half]])
            factors.store(half, assembled(builder, INSTRUCTIONS["ex2"], lower)[0])
            tops.store(half, new[half])
        for place, half, _ in _elements(rows, columns):
            lower = assembled(builder, INSTRUCTIONS["fma"], [sums.load(place), scale, below[half]])
            power = assembled(builder, INSTRUCTIONS["ex2"], lower)[0]
            sums.store(place, power)
            added[half] = builder.fadd(added[half], power)
        for half in range(2 * rows):
            fma = [totals.load(half), factors.load(half), added[half]]
            totals.store(half, assembled(builder, INSTRUCTIONS["fma"], fma)[0])

    return made_intrinsic("soften", 5, lambda s, m, t, f, _: types.void(s, m, t, f, _F32), codegen)


def scale_rows(rows: int, columns: int) -> Any:
    """``scale_rows(sums, factors)``: multiplies each half."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        sums, factors = _of(context, builder, sig, args, 0, 1)
        by = factors.loads(2 * rows)
        for place, half, _ in _elements(rows, columns):
            sums.store(place, builder.fmul(sums.load(place), by[half]))

    return made_intrinsic("scale_rows", 2, lambda *kinds: types.void(*kinds), codegen)


def pack_rows(rows: int, columns: int, kind: str = "f16") -> Any:
    """``pack_rows(sums, a)``: sums become operands a[4 (rows * step + i) ...] of columns / 2 steps; no data moves."""
    narrow = INSTRUCTIONS[f"cvt_{kind}x2"]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        sums, a = _of(context, builder, sig, args, 0, 1)
        for step in range(columns // 2):
            for i in range(rows):
                for r in range(4):
                    k = 4 * (i * columns + 2 * step + r // 2) + 2 * (r % 2)
                    a.store(4 * (rows * step + i) + r, assembled(builder, narrow, [sums.load(k + 1), sums.load(k)])[0])

    return made_intrinsic("pack_rows", 2, lambda *kinds: types.void(*kinds), codegen)


def store_rows(rows: int, columns: int, kind: str, pitch: int) -> Any:
    """``store_rows(sums, address)``: pairs to shared memory, rows ``pitch`` bytes apart.

    address: of the lane's first pair; its bits of 16 and more have row % 8, and each column of tiles is taken from it
    by exclusive or, so that lanes write to different banks.
    """
    narrow = INSTRUCTIONS[f"cvt_{kind}x2"]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        (sums,) = _of(context, builder, sig, args, 0)
        for j in range(columns):
            address = builder.xor(args[1], ir.Constant(_WORD, 16 * j))
            for half in range(2 * rows):
                k = 4 * (half // 2 * columns + j) + 2 * (half % 2)
                word = assembled(builder, narrow, [sums.load(k + 1), sums.load(k)])[0]
                store = Instruction(f"st.shared.b32 [$0+{8 * half * pitch}], $1;", "", "rr", touches_memory=True)
                assembled(builder, store, [address, word])

    return made_intrinsic("store_rows", 2, lambda s, _: types.void(s, _U32), codegen)


def store_sums(rows: int, columns: int) -> Any:
    """``store_sums(sums, places, column, width)``: pairs of f32 to global memory, below column ``width``.

    places: i64 addresses of each half's row, 0 for none; column: the lane's first one.
    """
    text = "{ .reg .pred p; setp.ne.b32 p, $0, 0; @p st.global.v2.f32 [$1], {$2, $3}; }"
    store = Instruction(text, "", "rlff", touches_memory=True)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        sums, places = _of(context, builder, sig, args, 0, 1)
        begins, nowhere = places.loads(2 * rows), ir.Constant(LLVM["l"], 0)
        for place, half, offset in _elements(rows, columns):
            if place % 2 == 0:
                column = builder.add(args[2], ir.Constant(_WORD, offset))
                is_there = builder.icmp_signed("<", column, args[3])
                is_there = builder.and_(is_there, builder.icmp_signed("!=", begins[half], nowhere))
                wide = builder.shl(builder.sext(column, LLVM["l"]), ir.Constant(LLVM["l"], 2))
                pair = [sums.load(place), sums.load(place + 1)]
                assembled(builder, store, [builder.zext(is_there, _WORD), builder.add(begins[half], wide), *pair])

    return made_intrinsic("store_sums", 4, lambda s, p, *_: types.void(s, p, _I32, _I32), codegen)


SOFTMAX_MACROS = {
    made.__name__: made for made in (hide, add_mask, cap_scores, soften, scale_rows, pack_rows, store_rows, store_sums)
}
"""By the name that a `Macro` gives: the intrinsic of its settings."""
