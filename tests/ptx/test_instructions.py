"""Each instruction against its meaning, written once more for one element in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba_simulator.ptx.instructions.arithmetic import from_bf16, to_bf16
from tests.ptx.kit import evaluate

F16, F32, F64 = np.float16, np.float32, np.float64
I16, I32, I64, I8 = np.int16, np.int32, np.int64, np.int8
U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64


def clip(x: int, dtype: Any) -> int:
    return int(min(max(x, np.iinfo(dtype).min), np.iinfo(dtype).max))


def towards_zero(x: int, y: int) -> int:
    return int(math.copysign(1, x * y)) * (abs(x) // abs(y)) if y else -1


def lop3(a: int, b: int, c: int, table: int) -> int:
    return sum((table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i for i in range(32))


def prmt(a: int, b: int, choice: int) -> int:
    both, found = (b << 32) | a, 0
    for i in range(4):
        one = choice >> 4 * i & 15
        byte = both >> 8 * (one & 7) & 255
        found |= (255 * (byte >> 7) if one & 8 else byte) << 8 * i
    return found


def bfe(x: int, start: int, count: int, bits: int, signed: bool) -> int:
    start, count, top = start & 255, count & 255, bits - 1
    x &= (1 << bits) - 1
    fill = x >> min(start + count - 1, top) & 1 if signed and count else 0
    found = sum(((x >> start + i & 1) if i < count and start + i <= top else fill) << i for i in range(bits))
    return found - (found >> top << bits) if signed else found


def bfi(x: int, y: int, start: int, count: int) -> int:
    start, count = start & 255, count & 255
    for i in range(count):
        if start + i < 32:
            y = y & ~(1 << start + i) | (x >> i & 1) << start + i
    return y


def high(x: int, y: int, bits: int) -> int:
    return x * y >> bits


def signed24(x: int) -> int:
    return ((x & 0xFFFFFF) ^ 0x800000) - 0x800000


INTEGERS: list[tuple[str, Any, tuple[Any, ...], Callable[..., int]]] = [
    ("add.s32 $0, $1, $2;", I32, (I32, I32), lambda x, y: x + y),
    ("add.sat.s32 $0, $1, $2;", I32, (I32, I32), lambda x, y: clip(x + y, I32)),
    ("sub.u64 $0, $1, $2;", U64, (U64, U64), lambda x, y: x - y),
    ("mul.lo.s64 $0, $1, $2;", I64, (I64, I64), lambda x, y: x * y),
    ("mul.hi.s64 $0, $1, $2;", I64, (I64, I64), lambda x, y: high(x, y, 64)),
    ("mul.hi.u64 $0, $1, $2;", U64, (U64, U64), lambda x, y: high(x, y, 64)),
    ("mul.hi.u32 $0, $1, $2;", U32, (U32, U32), lambda x, y: high(x, y, 32)),
    ("mul.hi.s32 $0, $1, $2;", I32, (I32, I32), lambda x, y: high(x, y, 32)),
    ("mul.wide.s32 $0, $1, $2;", I64, (I32, I32), lambda x, y: x * y),
    ("mul.wide.u16 $0, $1, $2;", U32, (U16, U16), lambda x, y: x * y),
    ("mad.lo.s32 $0, $1, $2, $3;", I32, (I32, I32, I32), lambda x, y, z: x * y + z),
    ("mad.wide.u32 $0, $1, $2, $3;", U64, (U32, U32, U64), lambda x, y, z: x * y + z),
    ("mad.hi.s32 $0, $1, $2, $3;", I32, (I32, I32, I32), lambda x, y, z: high(x, y, 32) + z),
    ("mul24.lo.s32 $0, $1, $2;", I32, (I32, I32), lambda x, y: signed24(x) * signed24(y)),
    ("mul24.hi.u32 $0, $1, $2;", U32, (U32, U32), lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF) >> 16),
    ("mad24.lo.u32 $0, $1, $2, $3;", U32, (U32, U32, U32), lambda x, y, z: (x & 0xFFFFFF) * (y & 0xFFFFFF) + z),
    ("sad.s32 $0, $1, $2, $3;", I32, (I32, I32, I32), lambda x, y, z: abs(x - y) + z),
    ("sad.u32 $0, $1, $2, $3;", U32, (U32, U32, U32), lambda x, y, z: abs(x - y) + z),
    ("div.s32 $0, $1, $2;", I32, (I32, I32), towards_zero),
    ("div.u64 $0, $1, $2;", U64, (U64, U64), lambda x, y: x // y if y else -1),
    ("rem.s32 $0, $1, $2;", I32, (I32, I32), lambda x, y: x - towards_zero(x, y) * y if y else x),
    ("min.s32 $0, $1, $2;", I32, (I32, I32), min),
    ("max.u32 $0, $1, $2;", U32, (U32, U32), max),
    ("abs.s32 $0, $1;", I32, (I32,), abs),
    ("neg.s64 $0, $1;", I64, (I64,), lambda x: -x),
    ("and.b32 $0, $1, $2;", U32, (U32, U32), lambda x, y: x & y),
    ("xor.b64 $0, $1, $2;", U64, (U64, U64), lambda x, y: x ^ y),
    ("not.b32 $0, $1;", U32, (U32,), lambda x: ~x),
    ("cnot.b32 $0, $1;", U32, (U32,), lambda x: int(x == 0)),
    ("and.b32 %r5, $2, 63; shl.b32 $0, $1, %r5;", U32, (U32, U32), lambda x, y: x << (y & 63)),
    ("and.b32 %r5, $2, 127; shr.u64 $0, $1, %r5;", U64, (U64, U32), lambda x, y: x >> (y & 127)),
    ("and.b32 %r5, $2, 127; shr.s64 $0, $1, %r5;", I64, (I64, U32), lambda x, y: x >> (y & 127)),
    ("shr.s32 $0, $1, 40;", I32, (I32,), lambda x: x >> 31),
    ("shl.b32 $0, $1, 32;", U32, (U32,), lambda x: 0),
    ("shf.l.wrap.b32 $0, $1, $2, $3;", U32, (U32, U32, U32), lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32),
    ("shf.r.wrap.b32 $0, $1, $2, $3;", U32, (U32, U32, U32), lambda a, b, c: (b << 32 | a) >> (c & 31)),
    ("shf.r.clamp.b32 $0, $1, $2, $3;", U32, (U32, U32, U32), lambda a, b, c: (b << 32 | a) >> min(c, 32)),
    ("lop3.b32 $0, $1, $2, $3, 0x6a;", U32, (U32, U32, U32), lambda a, b, c: lop3(a, b, c, 0x6A)),
    ("prmt.b32 $0, $1, $2, $3;", U32, (U32, U32, U32), prmt),
    ("bfe.u32 $0, $1, $2, $3;", U32, (U32, U8, U8), lambda x, s, n: bfe(x, s, n, 32, False)),
    ("bfe.s32 $0, $1, $2, $3;", I32, (I32, U8, U8), lambda x, s, n: bfe(x, s, n, 32, True)),
    ("bfe.s64 $0, $1, $2, $3;", I64, (I64, U8, U8), lambda x, s, n: bfe(x, s, n, 64, True)),
    ("bfi.b32 $0, $1, $2, $3, $4;", U32, (U32, U32, U8, U8), bfi),
    ("brev.b32 $0, $1;", U32, (U32,), lambda x: int(f"{x:032b}"[::-1], 2)),
    ("brev.b64 $0, $1;", U64, (U64,), lambda x: int(f"{x:064b}"[::-1], 2)),
    ("popc.b64 $0, $1;", U32, (U64,), lambda x: x.bit_count()),
    ("clz.b32 $0, $1;", U32, (U32,), lambda x: 32 - x.bit_length()),
    ("clz.b64 $0, $1;", U32, (U64,), lambda x: 64 - x.bit_length()),
    ("bfind.u32 $0, $1;", I32, (U32,), lambda x: x.bit_length() - 1),
    ("bfind.shiftamt.s32 $0, $1;", I32, (I32,), lambda x: 32 - n if (n := (~x if x < 0 else x).bit_length()) else -1),
    ("setp.lt.s32 %p1, $1, $2; selp.b32 $0, 7, 9, %p1;", U32, (I32, I32), lambda x, y: 7 if x < y else 9),
    ("setp.lo.u32 %p1|%p2, $1, $2; selp.b32 $0, 7, 9, %p2;", U32, (U32, U32), lambda x, y: 9 if x < y else 7),
    ("set.eq.u32.s32 $0, $1, $2;", U32, (I32, I32), lambda x, y: -int(x == y)),
    ("slct.s32.s32 $0, $1, $2, $3;", I32, (I32, I32, I32), lambda x, y, z: x if z >= 0 else y),
    ("cvt.s64.s32 $0, $1;", I64, (I32,), lambda x: x),
    ("cvt.u64.u32 $0, $1;", U64, (U32,), lambda x: x),
    ("cvt.u32.u64 $0, $1;", U32, (U64,), lambda x: x),
    ("cvt.s8.s32 $0, $1;", I32, (I32,), lambda x: (x & 255 ^ 128) - 128),
    ("cvt.sat.s8.s32 $0, $1;", I32, (I32,), lambda x: clip(x, I8)),
    ("cvt.sat.u8.s32 $0, $1;", U32, (I32,), lambda x: clip(x, U8)),
    ("cvt.pack.sat.s8.s32.b32 $0, $1, $2, $3;", U32, (I32, I32, U32),
     lambda a, b, c: c << 16 | (clip(a, I8) & 255) << 8 | clip(b, I8) & 255),
    ("mov.b64 {%r5, %r6}, $1; mov.b64 $0, {%r6, %r5};", U64, (U64,), lambda x: x >> 32 | x << 32),
    ("dp4a.s32.u32 $0, $1, $2, $3;", I32, (I32, U32, I32), lambda x, y, z: z + sum(
        ((x >> 8 * i & 255 ^ 128) - 128) * (y >> 8 * i & 255) for i in range(4))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "result", "kinds", "meaning"), INTEGERS, ids=[row[0].split("$")[0] for row in INTEGERS]
)
def test_integers(text: str, result: Any, kinds: tuple[Any, ...], meaning: Callable[..., int]) -> None:
    rng = np.random.default_rng(1)
    operands = []
    for i, kind in enumerate(kinds):
        info = np.iinfo(kind)
        few = [x & (2**info.bits - 1) for x in (0, 1, 2, 31, 32, 33, info.max, info.min, info.max - 1, 128)]
        unsigned = np.array(few, np.dtype(f"u{info.bits // 8}")).view(kind)
        edges = np.resize(np.repeat(unsigned, len(few) ** i % 99 or 1), 100)
        random = rng.integers(info.min, info.max, 156, dtype=kind, endpoint=True)
        operands.append(np.concatenate([edges, random]))
    got = evaluate(text, result, *(x if x.itemsize > 1 else x.astype(U32) for x in operands))
    bits = 8 * np.dtype(result).itemsize
    for i, values in enumerate(zip(*(x.tolist() for x in operands), strict=True)):
        wanted = meaning(*values) & (2**bits - 1)
        assert int(got[i]) & (2**bits - 1) == wanted, (text, values)


SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.inf,
    -math.inf,
    math.nan,
    0.5,
    1.5,
    2.5,
    -2.5,
    3e9,
    -3e9,
    65519.0,
    65520.0,
    1e-8,
    1e20,
]


def floats(count: int, dtype: Any = F32) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(2)
    made = []
    for i in range(count):
        edges = np.resize(np.repeat(SPECIAL, len(SPECIAL) ** i), len(SPECIAL) ** min(count, 2))
        with np.errstate(over="ignore"):
            made.append(
                np.concatenate([edges, rng.standard_normal(200) * 10.0 ** rng.integers(-6, 6, 200)]).astype(dtype)
            )
    return made


def near_equal(got: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(np.nan_to_num(got, nan=123.0), np.nan_to_num(np.asarray(wanted), nan=123.0))


def halves(x: Any) -> Any:
    return x.view(F16).astype(F32)


def wide(x: Any) -> Any:
    return x.astype(F64)


FLOATS: list[tuple[str, Any, tuple[Any, ...], Callable[..., Any]]] = [
    ("add.rn.f32 $0, $1, $2;", F32, (F32, F32), lambda x, y: x + y),
    ("mul.f64 $0, $1, $2;", F64, (F64, F64), lambda x, y: x * y),
    ("fma.rn.f32 $0, $1, $2, $3;", F32, (F32, F32, F32), lambda x, y, z: (wide(x) * wide(y) + wide(z)).astype(F32)),
    ("div.rn.f32 $0, $1, $2;", F32, (F32, F32), lambda x, y: x / y),
    ("sqrt.rn.f32 $0, $1;", F32, (F32,), np.sqrt),
    ("rcp.approx.ftz.f32 $0, $1;", F32, (F32,), lambda x: (1 / wide(x)).astype(F32)),
    ("ex2.approx.f32 $0, $1;", F32, (F32,), lambda x: np.exp2(wide(x)).astype(F32)),
    ("tanh.approx.f32 $0, $1;", F32, (F32,), lambda x: np.tanh(wide(x)).astype(F32)),
    ("min.f32 $0, $1, $2;", F32, (F32, F32), np.fmin),
    ("max.NaN.f32 $0, $1, $2;", F32, (F32, F32), np.maximum),
    ("add.sat.f32 $0, $1, $2;", F32, (F32, F32), lambda x, y: np.nan_to_num(np.clip(x + y, 0, 1))),
    ("copysign.f32 $0, $1, $2;", F32, (F32, F32), lambda x, y: np.copysign(y, x)),
    ("setp.ne.f32 %p1, $1, $2; selp.u32 $0, 1, 0, %p1;", U32, (F32, F32), lambda x, y: (x < y) | (x > y)),
    ("setp.geu.f32 %p1, $1, $2; selp.u32 $0, 1, 0, %p1;", U32, (F32, F32), lambda x, y: ~(x < y)),
    ("setp.nan.f32 %p1, $1, $2; selp.u32 $0, 1, 0, %p1;", U32, (F32, F32), lambda x, y: np.isnan(x) | np.isnan(y)),
    ("testp.infinite.f32 %p1, $1; selp.u32 $0, 1, 0, %p1;", U32, (F32,), np.isinf),
    ("cvt.rn.f16.f32 $0, $1;", F16, (F32,), lambda x: x.astype(F16)),
    ("cvt.f32.f16 $0, $1;", F32, (F16,), lambda x: x.astype(F32)),
    ("cvt.rn.f32.f64 $0, $1;", F32, (F64,), lambda x: x.astype(F32)),
    ("cvt.rn.bf16.f32 $0, $1;", U16, (F32,), to_bf16),
    ("cvt.rzi.s32.f32 $0, $1;", I32, (F32,),
     lambda x: np.clip(np.nan_to_num(np.trunc(wide(x)), posinf=9e9, neginf=-9e9), -(2.0**31), 2.0**31 - 1).astype(I32)),
    ("cvt.rni.u8.f32 $0, $1;", U32, (F32,), lambda x: np.clip(np.nan_to_num(np.rint(wide(x)), posinf=1e30), 0, 255)),
    ("cvt.rmi.f32.f32 $0, $1;", F32, (F32,), np.floor),
    ("cvt.sat.f32.f32 $0, $1;", F32, (F32,), lambda x: np.nan_to_num(np.clip(x, 0, 1))),
    ("cvt.rn.relu.f16.f32 $0, $1;", F16, (F32,), lambda x: np.where(np.isnan(x), x, np.maximum(x, 0)).astype(F16)),
    ("cvt.rn.f16x2.f32 %r5, $1, $2; mov.b32 {%h5, $0}, %r5;", F16, (F32, F32), lambda x, y: x.astype(F16)),
    ("cvt.rn.bf16x2.f32 %r5, $1, $2; mov.b32 {$0, %h5}, %r5;", U16, (F32, F32), lambda x, y: to_bf16(y)),
    ("add.f16 $0, $1, $2;", F16, (F16, F16), lambda x, y: x + y),
    ("fma.rn.f16 $0, $1, $2, $3;", F16, (F16,) * 3,
     lambda x, y, z: (wide(x) * wide(y) + wide(z)).astype(F32).astype(F16)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "result", "kinds", "meaning"), FLOATS, ids=[row[0].split("$")[0] for row in FLOATS])
def test_floats(text: str, result: Any, kinds: tuple[Any, ...], meaning: Callable[..., Any]) -> None:
    with np.errstate(all="ignore"):
        operands = [x.astype(kind) for x, kind in zip(floats(len(kinds), F64), kinds, strict=True)]
        near_equal(evaluate(text, result, *(x[:489] for x in operands)), meaning(*(x[:489] for x in operands)))


@pytest.mark.parametrize("op", ["add", "mul", "max", "fma.rn"])
@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_packed_halves(op: str, kind: str) -> None:
    count = 3 if op == "fma.rn" else 2
    rng = np.random.default_rng(3)
    values = [rng.standard_normal(128).astype(F32) for _ in range(count)]
    stored = [(x.astype(F16).view(U16) if kind == "f16x2" else to_bf16(x)) for x in values]
    opened = [(x.view(F16).astype(F32) if kind == "f16x2" else from_bf16(x)) for x in stored]
    got = evaluate(
        f"{op}.{kind} $0, " + ", ".join(f"${i + 1}" for i in range(count)) + ";", U32, *(x.view(U32) for x in stored)
    )
    wanted = {"add": lambda x, y: x + y, "mul": lambda x, y: x * y, "max": np.maximum}.get(
        op, lambda x, y, z: x * y + z
    )(*opened)
    closed = wanted.astype(F16).view(U16) if kind == "f16x2" else to_bf16(wanted)
    near_equal(got.view(U16), closed)


def test_fused_multiply_add_of_f64_keeps_the_error_of_the_product() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal(64), rng.standard_normal(64)
    got = evaluate("fma.rn.f64 $0, $1, $2, $3;", F64, x, y, -(x * y))
    exact = [float(np.longdouble(a) * np.longdouble(b) - np.longdouble(a * b)) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(got, exact, rtol=1e-2, atol=1e-19)


@pytest.mark.parametrize("way", ["rz", "rm", "rp"])
def test_directed_rounding_is_the_next_number_on_that_side(way: str) -> None:
    x = np.random.default_rng(5).standard_normal(200)
    got = evaluate(f"cvt.{way}.f32.f64 $0, $1;", F32, x).astype(F64)
    size = np.spacing(np.abs(x).astype(F32)).astype(F64)
    assert (np.abs(got - x) < size).all()
    towards = {"rz": np.abs(got) <= np.abs(x), "rm": got <= x, "rp": got >= x}[way]
    assert towards.all()


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 97), st.sampled_from(["up", "down", "bfly", "idx"]), st.integers(0, 31))
def test_shuffles(threads: int, mode: str, by: int) -> None:
    threads = 32 * -(-threads // 32)
    x = np.arange(threads, dtype=U32) * 3
    clamp = 0 if mode == "up" else 31
    got = evaluate(f"shfl.sync.{mode}.b32 $0|%p1, $1, {by}, {clamp}, 0xffffffff;", U32, x)
    lane = np.arange(threads) % 32
    to = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": np.full(threads, by)}[mode]
    to = np.where((to >= 0) & (to < 32), to, lane)
    np.testing.assert_array_equal(got, x[np.arange(threads) - lane + to])


def test_votes_matches_and_reductions_of_a_warp() -> None:
    x = np.random.default_rng(6).integers(0, 3, 64).astype(U32)
    warps = x.reshape(2, 32)
    ones = evaluate("setp.eq.u32 %p1, $1, 1; vote.sync.ballot.b32 $0, %p1, 0xffffffff;", U32, x)
    weights = (1 << np.arange(32, dtype=np.uint64)).astype(U64)
    assert ones.tolist() == np.repeat([(w == 1) @ weights for w in warps], 32).tolist()
    same = evaluate("match.any.sync.b32 $0, $1, 0xffffffff;", U32, x)
    assert same.tolist() == [int((w == v) @ weights) for w in warps for v in w]
    total = evaluate("redux.sync.add.s32 $0, $1, 0xffffffff;", I32, x.view(I32))
    assert total.tolist() == np.repeat(warps.sum(1), 32).tolist()
    any_ = evaluate("setp.eq.u32 %p1, $1, 7; vote.sync.any.pred %p2, %p1, -1; selp.u32 $0, 1, 0, %p2;", U32, x)
    assert not any_.any()
    active = evaluate("setp.eq.u32 %p1, $1, 1; mov.u32 $0, 0; @!%p1 bra L; activemask.b32 $0; L:", U32, x)
    assert active.tolist() == [int((w == 1) @ weights) * int(v == 1) for w in warps for v in w]
