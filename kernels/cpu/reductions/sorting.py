"""Sorting: the k first of a line, and different elements or slices.

A number becomes a key of 32 bits that sorts as the number does; keys are sorted together with places, as one i64 each,
by a stable radix sort of 8 or 11 bits a pass.  Numbers of 64 bits take two rounds, low half first, slices one for each
element.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.types import BOOL, F32, F64, I8, I16, I32, U8, U16, U32, U64, AnyDType, Array, TensorType, type_of
from bolt_numba.base.types import I64 as INT64
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    any_lane,
    copy_bytes,
    lanes_below,
    load_f32,
    load_f64,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    splat,
    split,
    store_i64,
    vload_n,
)
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.cpu.movement.move import UNITS
from bolt_numba.kernels.data_sized import Empty, Sized, data_sized, sized
from bolt_numba.kernels.extents import Extents, Numbers, Reach
from bolt_numba.kernels.geometry.reduced import around_axis
from bolt_numba.kernels.jit import I64, PTR, Inline, Native, inline, native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.gather import Unique
from bolt_numba.ops.arrays.reduce import TopK
from bolt_numba.ops.registry import normalise_axis

LAST_KEY = 0xFFFFFFFF
"""The last key of 32 bits, which is also that of NaN."""
LEAST_KEY = -0x8000000000000000
DIGITS = 2048
INSERTED_ELEMENTS = 48
"""Elements under which insertion beats counting."""
FEW_ELEMENTS = 1024
"""Elements under which four passes of 8 bits beat three of 11, whose counters take longer than the elements."""
COUNTERS = 8 * DIGITS
"""Bytes of workspace for the counters of one sort."""
HEAPED_PART = 16
"""A line is sorted whole for its first k when k is more than this part of it, else a heap holds them."""


@inline
def key_f32(address):
    bits = load_i32(address)
    if (bits & 0x7FFFFFFF) > 0x7F800000:
        return LAST_KEY
    if bits < 0:
        return (-1 - bits) if bits != -0x80000000 else 0x80000000
    return bits + 0x80000000


@inline
def key_f64(address):
    x, bits = load_f64(address), load_i64(address)
    if x != x:
        return 0x7FFFFFFFFFFFFFFF
    if bits < 0:
        return LEAST_KEY - bits if bits != LEAST_KEY else 0
    return bits


def _plain_key(load: Any, above: int) -> Inline:
    """The key of an integer of less than 64 bits; above: what makes the least one 0."""

    @inline
    def key(address):
        return load(address) + above

    made: Inline = key
    return made


@inline
def key_i64(address):
    return load_i64(address)


@inline
def key_u64(address):
    return load_i64(address) ^ LEAST_KEY


_key_u8 = _plain_key(load_u8, 0)
KEYS: dict[AnyDType, tuple[Inline, int]] = {
    F32: (key_f32, 32), F64: (key_f64, 64), INT64: (key_i64, 64), U64: (key_u64, 64),
    I32: (_plain_key(load_i32, 0x80000000), 32), U32: (_plain_key(load_u32, 0), 32),
    I16: (_plain_key(load_i16, 0x8000), 16), U16: (_plain_key(load_u16, 0), 16),
    I8: (_plain_key(load_i8, 0x80), 8), U8: (_key_u8, 8), BOOL: (_key_u8, 8),
}  # fmt: skip
"""Function of an address that gives the key as i64, and its bits: 64, with a sign, or fewer, without one."""


@inline
def part_of(key, half, wide):
    """What one round sorts by: all of a short key, or half 0 or 1 (the high one) of a wide one."""
    return ((key ^ LEAST_KEY) >> (32 * half)) & LAST_KEY if wide else key


@inline
def sort_few(a, n):
    """Sort few i64 that are not negative by their high halves, equal ones staying in order."""
    for i in range(1, n):
        item = load_i64(a + 8 * i)
        j = i
        while j > 0 and (load_i64(a + 8 * j - 8) >> 32) & LAST_KEY > (item >> 32) & LAST_KEY:
            store_i64(a + 8 * j, load_i64(a + 8 * j - 8))
            j -= 1
        store_i64(a + 8 * j, item)


@inline
def sort_keys(a, b, counters, n, bits):
    """Sort n items of key << 32 | place by ``bits`` of the key, equal ones staying in order; the address of the result.

    a, b: 8 n bytes each; counters: `COUNTERS` bytes.
    """
    if n <= INSERTED_ELEMENTS:
        sort_few(a, n)
        return a
    width = 8 if n < FEW_ELEMENTS else 11
    digits = 1 << width
    for shift in range(32, 32 + bits, width):
        for i in range(digits):
            store_i64(counters + 8 * i, 0)
        for i in range(n):
            at = counters + 8 * ((load_i64(a + 8 * i) >> shift) & (digits - 1))
            store_i64(at, load_i64(at) + 1)
        if load_i64(counters + 8 * ((load_i64(a) >> shift) & (digits - 1))) == n:
            continue
        total = 0
        for i in range(digits):
            count = load_i64(counters + 8 * i)
            store_i64(counters + 8 * i, total)
            total += count
        for i in range(n):
            item = load_i64(a + 8 * i)
            at = counters + 8 * ((item >> shift) & (digits - 1))
            to = load_i64(at)
            store_i64(at, to + 1)
            store_i64(b + 8 * to, item)
        a, b = b, a
    return a


@inline
def sort_rounds(key, source, step, found, a, b, n, largest, wide, bits):
    """Sort n items of places by the keys of the numbers there, ``step`` bytes apart; where they are then, of a and b.

    largest: the greatest first.  Keys that are ``wide`` take two rounds.  Counters lie behind b, as of `sort_keys`.
    """
    top = -1 if wide else (1 << bits) - 1
    for half in range(2 if wide else 1):
        for i in range(n):
            place = load_i64(found + 8 * i) & LAST_KEY
            v = key(source + step * place)
            store_i64(found + 8 * i, (part_of(top - v if largest else v, half, wide) << 32) | place)
        found = sort_keys(found, a + b - found, b + 8 * n, n, 32 if wide else bits)
    return found


@inline
def sift_down(keys, places, k, root):
    """Restore a heap of k (key, place) whose root is the last of them in order."""
    v, i = load_i64(keys + 8 * root), load_i64(places + 8 * root)
    while True:
        child = 2 * root + 1
        if child >= k:
            break
        w, j = load_i64(keys + 8 * child), load_i64(places + 8 * child)
        if child + 1 < k:
            w2, j2 = load_i64(keys + 8 * child + 8), load_i64(places + 8 * child + 8)
            if w2 > w or (w2 == w and j2 > j):
                child, w, j = child + 1, w2, j2
        if v > w or (v == w and i > j):
            break
        store_i64(keys + 8 * root, w)
        store_i64(places + 8 * root, j)
        root = child
    store_i64(keys + 8 * root, v)
    store_i64(places + 8 * root, i)


@inline
def none_better(source, left, limit, largest):
    """Whether a vector of f32 holds nothing that comes before ``limit``."""
    v, t = vload_n(source, left), splat(limit)
    better = ~(v <= t) if largest else ~(v >= t)
    return not any_lane(better & lanes_below(left))


def _ordered(unit: int, whole: bool) -> Extents:
    """Extents of the kernels of TopK; whole: lines are sorted."""

    def reach(a: Numbers) -> dict[str, Reach]:
        lines = a.outer * a.inner
        return {
            "x": unit * ((a.outer - 1) * a.n + max(a.n, a.k)) * a.inner if a.outer else 0,
            "values": unit * lines * a.k,
            "places": 8 * lines * a.k,
            "room": (16 * a.n + COUNTERS if whole else 16 * a.k) * a.threads,
        }

    return reach


@cache
def topk_heap(dtype: AnyDType) -> Native:
    """Kernel that keeps the first k of each line of ``[outer, n, inner]`` in a heap, emptied from the last one up.

    room: 16 k bytes for each thread.
    """
    key, bits = KEYS[dtype]
    unit, floats = dtype.itemsize, int(dtype == F32)
    load, store = UNITS[unit]
    top = -1 if bits == 64 else (1 << bits) - 1

    def body(p: Any, tid: int, nthreads: int) -> None:
        n, inner, k, largest = p.n, p.inner, p.k, p.largest
        keys = p.room + 16 * k * tid
        places = keys + 8 * k
        first, last = split(p.outer * inner, tid, nthreads)
        for line in range(first, last):
            o = line // inner
            source = p.x + unit * (o * n * inner + line - o * inner)
            for i in range(k):
                v = key(source + unit * i * inner)
                store_i64(keys + 8 * i, top - v if largest else v)
                store_i64(places + 8 * i, i)
            for i in range(k // 2 - 1, -1, -1):
                sift_down(keys, places, k, i)
            i = k
            while i < n:
                todo = min(LANES, n - i)
                worst = source + unit * load_i64(places)
                if floats and inner == 1 and none_better(source + 4 * i, todo, load_f32(worst), largest):
                    i += todo
                    continue
                for j in range(i, i + todo):
                    v = key(source + unit * j * inner)
                    v = top - v if largest else v
                    if v < load_i64(keys):
                        store_i64(keys, v)
                        store_i64(places, j)
                        sift_down(keys, places, k, 0)
                i += todo
            at = o * k * inner + line - o * inner
            for i in range(k - 1, -1, -1):
                place = load_i64(places)
                store(p.values + unit * (at + i * inner), load(source + unit * place * inner))
                store_i64(p.places + 8 * (at + i * inner), place)
                store_i64(keys, load_i64(keys + 8 * i))
                store_i64(places, load_i64(places + 8 * i))
                sift_down(keys, places, i, 0)

    body.__name__ = f"topk_heap_{dtype.name}"
    return native(fastmath=set(), extents=_ordered(unit, False), **_TOPK)(body)


_TOPK = dict.fromkeys(("x", "values", "places", "room"), PTR) | dict.fromkeys(
    ("outer", "n", "inner", "k", "largest"), I64
)


@cache
def topk_sorted(dtype: AnyDType) -> Native:
    """Kernel that sorts whole lines and copies the first k of each; room: 16 n + `COUNTERS` bytes for each thread."""
    key, bits = KEYS[dtype]
    unit, wide = dtype.itemsize, int(bits == 64)
    load, store = UNITS[unit]

    def body(p: Any, tid: int, nthreads: int) -> None:
        n, inner, k, largest = p.n, p.inner, p.k, p.largest
        a = p.room + (16 * n + COUNTERS) * tid
        b = a + 8 * n
        first, last = split(p.outer * inner, tid, nthreads)
        for line in range(first, last):
            o = line // inner
            source = p.x + unit * (o * n * inner + line - o * inner)
            for i in range(n):
                store_i64(a + 8 * i, i)
            found = sort_rounds(key, source, unit * inner, a, a, b, n, largest, wide, bits)
            at = o * k * inner + line - o * inner
            for i in range(k):
                place = load_i64(found + 8 * i) & LAST_KEY
                store(p.values + unit * (at + i * inner), load(source + unit * place * inner))
                store_i64(p.places + 8 * (at + i * inner), place)

    body.__name__ = f"topk_sorted_{dtype.name}"
    return native(fastmath=set(), extents=_ordered(unit, True), **_TOPK)(body)


def _can_order(op: TopK, ins: Types) -> bool:
    x, k = ins[0], ins[1]
    if k.known is None or not x.is_static or not x.dims or x.dtype not in KEYS:
        return False
    return bool(x.dims[op.axis] <= LAST_KEY)


@kernel(TopK, accepts=_can_order)
def topk(op: TopK, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Any dtype, any k; lines are shared by the threads."""
    x = ins[0]
    axis = normalise_axis(op, op.axis, len(x.dims))
    outer, n, inner = around_axis(x.dims, axis)
    k = outs[0].dims[axis]
    if not outer * inner * k:
        return []
    whole = k * HEAPED_PART > n
    room = 16 * n + COUNTERS if whole else 16 * k
    args: dict[str, Argument] = {"x": In(0), "values": Out(0), "places": Out(1)}
    args |= {"room": Scratch(room * context.threads), "outer": outer, "n": n, "inner": inner, "k": k}
    args["largest"] = int(op.largest)
    made = (topk_sorted if whole else topk_heap)(x.dtype)
    return [Step(made, args, outer * inner > 1 and outer * n * inner > PAYS_ELEMENTS)]


# ------------------------------------------------------------------------------------------------- different elements


def _grouped(unit: int, a: Numbers) -> dict[str, Reach]:
    lists = dict.fromkeys(("first", "inverse", "counts"), 8 * a.n)
    return {"x": unit * a.outer * a.n * a.inner, "count": 8, "room": 16 * a.n + COUNTERS, **lists}


@cache
def unique_kernel(dtype: AnyDType) -> Native:
    """Kernel that groups the equal ones of n slices of ``[outer, n, inner]``.

    first, counts: [n] i64, of which count[0] are filled; inverse: [n] i64.  In order of value, or of first occurrence.
    room: 16 n + `COUNTERS` bytes.  apart: whether a NaN is unlike any other.
    """
    key, bits = KEYS[dtype]
    unit, wide = dtype.itemsize, int(bits == 64)
    nan = 0x7FFFFFFFFFFFFFFF if wide else LAST_KEY

    def body(p: Any, tid: int, nthreads: int) -> None:
        x, n, inner, slices = p.x, p.n, p.inner, p.outer * p.inner
        a, b = p.room, p.room + 8 * n
        for i in range(n):
            store_i64(a + 8 * i, i)
        found = a
        for element in range(slices - 1, -1, -1):
            o = element // inner
            source = x + unit * (o * n * inner + element - o * inner)
            found = sort_rounds(key, source, unit * inner, found, a, b, n, 0, wide, bits)
        groups = 0
        before = 0
        for i in range(n):
            place = load_i64(found + 8 * i) & LAST_KEY
            same = i > 0
            element = 0
            while same and element < slices:
                o = element // inner
                source = x + unit * (o * n * inner + element - o * inner)
                found_key = key(source + unit * place * inner)
                same = found_key == key(source + unit * before * inner) and not (p.apart and found_key == nan)
                element += 1
            if not same:
                store_i64(p.first + 8 * groups, place)
                store_i64(p.counts + 8 * groups, 0)
                groups += 1
            store_i64(p.counts + 8 * groups - 8, load_i64(p.counts + 8 * groups - 8) + 1)
            store_i64(p.inverse + 8 * place, groups - 1)
            before = place
        store_i64(p.count, groups)
        if not p.sorted:
            by_occurrence(p.first, p.counts, p.inverse, a, b, n, groups)

    body.__name__ = f"unique_{dtype.name}"
    pointers = dict.fromkeys(("x", "first", "inverse", "counts", "count", "room"), PTR)
    sizes = dict.fromkeys(("outer", "n", "inner", "sorted", "apart"), I64)
    return native(fastmath=set(), extents=lambda a: _grouped(unit, a), **pointers, **sizes)(body)


@inline
def by_occurrence(first, counts, inverse, rank, room, n, groups):
    """Number the groups anew, in order of their first members."""
    for g in range(groups):
        store_i64(rank + 8 * g, -1)
    found = 0
    for i in range(n):
        g = load_i64(inverse + 8 * i)
        if load_i64(rank + 8 * g) < 0:
            store_i64(rank + 8 * g, found)
            store_i64(first + 8 * found, i)
            store_i64(room + 8 * found, load_i64(counts + 8 * g))
            found += 1
        store_i64(inverse + 8 * i, load_i64(rank + 8 * g))
    copy_bytes(counts, room, 8 * groups)


def _has_keys(op: Unique, ins: Types) -> bool:
    return ins[0].dtype in KEYS


@data_sized(Unique, accepts=_has_keys)
def unique(op: Unique, operands: Sequence[Any], empty: Empty) -> tuple[Array, ...]:
    """Slices sorted by radix, then grouped."""
    x = operands[0]
    axis = 0 if op.axis is None else normalise_axis(op, op.axis, x.ndim)
    outer, n, inner = (1, x.size, 1) if op.axis is None else around_axis(x.shape, axis)
    first, inverse, counts, count = (empty(size, INT64) for size in (n, n, n, 1))
    room = empty(2 * n + DIGITS, INT64)
    made = unique_kernel(type_of(x).dtype)
    record = made.record(
        x=x, first=first, inverse=inverse, counts=counts, count=count, room=room, outer=outer, n=n, inner=inner,
        sorted=int(op.sorted), apart=int(op.axis is not None and x.dtype.kind == "f"),
    )  # fmt: skip
    made.call(record)
    kept = int(count[0])
    return np.take(x, first[:kept], axis=None if op.axis is None else axis), first[:kept], inverse, counts[:kept]


@native(
    x=PTR, first=PTR, count=PTR, y=PTR, outer=I64, n=I64, run=I64,
    extents=lambda a: {
        "x": a.outer * a.n * a.run, "y": a.outer * a.n * a.run, "first": 8 * a.n, "count": 8,
    },
)  # fmt: skip
def take_first(p: Any, tid: int, nthreads: int) -> None:
    """y: dense rows of ``run`` bytes of x [outer, n, run], those that the first count[0] of ``first`` [n] i64 name."""
    count, run = load_i64(p.count), p.run
    for o in range(p.outer):
        for i in range(count):
            place = o * p.n + load_i64(p.first + 8 * i)
            copy_bytes(p.y + (o * count + i) * run, p.x + place * run, run)


@sized(Unique)
def sized_unique(op: Unique, ins: Types) -> Sized | None:
    """The same as steps."""
    x = ins[0]
    if not _has_keys(op, ins):
        return None
    axis = 0 if op.axis is None else normalise_axis(op, op.axis, len(x.dims))
    outer, n, inner = (1, x.size, 1) if op.axis is None else around_axis(x.dims, axis)
    grouping: dict[str, Argument] = {
        "x": In(0), "first": Out(1), "inverse": Out(2), "counts": Out(3), "count": Out(4),
        "room": Scratch(16 * n + COUNTERS), "outer": outer, "n": n, "inner": inner, "sorted": int(op.sorted),
        "apart": int(op.axis is not None and x.dtype.kind == "f"),
    }  # fmt: skip
    taking: dict[str, Argument] = {"x": In(0), "first": Out(1), "count": Out(4), "y": Out(0), "outer": outer, "n": n}
    places = TensorType(INT64, (n,))
    results = (TensorType(x.dtype, (n,) if op.axis is None else x.dims), places, places, places)
    kernels = ((unique_kernel(x.dtype), grouping), (take_first, {**taking, "run": inner * x.dtype.itemsize}))
    return Sized(results, (axis, 0, None, 0), [Step(kernel, args, parallel=False) for kernel, args in kernels])
