"""TopK: chunks of a line are sorted in shared memory, then runs are merged two by two, each as far as k.

A number becomes a key of 32 bits that sorts as the number does, with its place in the low half of an i64.  So no two
are equal, and of equal numbers the first comes first.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.types import BF16, F16, F32, I8, I16, I32, U8, U16, U32, dtype_name
from bolt_numba.kernels.cuda.declare import I64, PTR, PTR_OR_0, CudaKernel, cuda_kernel
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.division import divider, fast_divide
from bolt_numba.kernels.cuda.language.lang import cuda, f32_bits, load_i64, store_i64
from bolt_numba.kernels.declare import Inline, inline
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import MOST_LAUNCHED, DeviceParts, elements
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.arrays.reduce import TopK
from bolt_numba.ops.registry import normalise_axis

LAST = 0x7FFFFFFFFFFFFFFF
"""A key behind all others."""
CHUNK = 2048
"""Keys that a block sorts at most."""
LEAST_CHUNK = 64
FLOATS = {F32, F16, BF16}
KEYED = {*FLOATS, I32, I16, I8, U32, U16, U8}


@cache
def key_of(dtype: str, largest: bool) -> Inline:
    """Helper ``(address, place)``: the key of an element."""
    load, is_float, half = getattr(lang, f"load_{dtype}"), dtype.endswith(("f32", "f16")), 1 << 31

    @inline
    def key(address, place):
        value = load(address)
        if is_float:
            bits = np.int64(f32_bits(value))
            sorts = bits if bits < half else half - bits
            sorts = np.int64(0x7FFFFFFF) if (bits & 0x7FFFFFFF) > 0x7F800000 else sorts  # NaN is the greatest
        else:
            sorts = np.int64(value) - (half if dtype == "u32" else 0)
        return ((~sorts if largest else sorts) << 32) | place

    made: Inline = key
    return made


@inline
def sort_shared(keys, count, t):
    """Bitonic sort of ``count`` keys, twice as many as threads.  Source: Batcher, Sorting networks, 1968."""
    size = 2
    while size <= count:
        apart = size >> 1
        while apart > 0:
            low = 2 * t - (t & (apart - 1))
            a, b = keys[low], keys[low + apart]
            if (a > b) == ((low & size) == 0):
                keys[low], keys[low + apart] = b, a
            cuda.syncthreads()
            apart >>= 1
        size <<= 1


@cache
def written(unit: int) -> Inline:
    """Helper that writes what a key stands for to place ``i`` of a line of the results."""
    load, store = getattr(lang, f"load_u{8 * unit}"), getattr(lang, f"store_u{8 * unit}")

    @inline
    def write(key, source, values, places, at, inner):
        place = key & 0xFFFFFFFF
        store(values + unit * at, load(source + unit * place * inner))
        store_i64(places + 8 * at, place)

    made: Inline = write
    return made


_LINES: dict[str, Any] = {**dict.fromkeys(("x", "values", "places", "runs"), PTR), **dict.fromkeys(
    ("lines", "n", "inner", "ml", "hl", "k", "count", "mc", "hc", "kept"), I64
)}  # fmt: skip


@cache
def sort_chunks(dtype: str, largest: bool, chunk: int, final: bool) -> CudaKernel:
    """Kernel of a block for each of ``count`` chunks of each of ``lines`` lines: x [outer, n, inner].

    The first ``kept`` keys of each go to runs [lines, count, kept] i64; or, of the only chunk, to the results.
    """
    key, write, threads, unit = key_of(dtype, largest), written(lang.SIZES[dtype]), chunk // 2, lang.SIZES[dtype]

    def reach(a: Any) -> dict[str, Reach]:
        made = dict.fromkeys(("values", "places", "runs"), 0)
        made |= {"values": unit * a.lines * a.k, "places": 8 * a.lines * a.k} if final else {}
        return {"x": unit * a.lines * a.n, **made} | ({} if final else {"runs": 8 * a.lines * a.count * a.kept})

    @cuda_kernel(threads=threads, blocks=lambda a: a.lines * a.count, extents=reach, **_LINES)
    def sort_parts(x, values, places, runs, lines, n, inner, ml, hl, k, count, mc, hc, kept):
        keys = cuda.shared.array(chunk, np.int64)
        t = np.int32(cuda.threadIdx.x)
        block = np.uint32(cuda.blockIdx.x)
        line = fast_divide(block, mc, hc)
        first = (np.int64(block) - np.int64(line) * count) * chunk
        o = np.int64(fast_divide(line, ml, hl))
        i = np.int64(line) - o * inner
        source = x + unit * (o * n * inner + i)
        for part in range(2):
            place = first + t + part * threads
            keys[t + part * threads] = key(source + unit * place * inner, place) if place < n else np.int64(LAST)
        cuda.syncthreads()
        sort_shared(keys, chunk, t)
        for part in range(2):
            at = np.int64(t + part * threads)
            if at < kept:
                if final:
                    write(keys[at], source, values, places, o * k * inner + i + at * inner, inner)
                else:
                    store_i64(runs + 8 * (np.int64(block) * kept + at), keys[at])

    return sort_parts


@inline
def keys_before(run, length, key, or_equal):
    """How many of a sorted run's keys come before a key."""
    low, high = np.int64(0), length
    while low < high:
        middle = (low + high) >> 1
        found = load_i64(run + 8 * middle)
        if found < key or (or_equal and found == key):
            low = middle + 1
        else:
            high = middle
    return low


def _merged(a: Numbers, unit: int, final: bool) -> dict[str, Reach]:
    lines = a.outer * a.inner
    made: dict[str, Reach] = {"x": 0, "values": 0, "places": 0, "merged": 8 * lines * a.pairs * a.kept}
    if final:
        made = {"x": unit * lines * a.n, "values": unit * lines * a.k, "places": 8 * lines * a.k, "merged": 0}
    return made | {"runs": 8 * lines * a.count * a.length}


@elements(
    over={"o": "outer", "i": "inner", "pair": "pairs", "at": "both"}, extents=_merged, x=PTR, values=PTR,
    places=PTR, runs=PTR, merged=PTR_OR_0, n=I64, k=I64, count=I64, length=I64, kept=I64,
)  # fmt: skip
def merge_runs(on: DeviceParts, unit: int, final: bool):
    """A thread for each key of pairs of runs: runs [outer, inner, count, length] to merged [outer, inner, pairs, kept].

    final: to the results instead, of the only pair; values, places: [outer, k, inner] · x: [outer, n, inner].
    both: keys of a pair.
    """
    write = written(unit)

    @inline
    def element(o, i, pair, at, inner, pairs, merged, x, values, places, runs, n, k, count, length, kept):
        line, one = o * inner + i, 2 * pair
        left = runs + 8 * ((line * count + one) * length)
        right, size = left + 8 * length, length if one + 1 < count else np.int64(0)
        key, rank = np.int64(LAST), at
        if at < length:
            key = load_i64(left + 8 * at)
            rank = at + keys_before(right, size, key, False)
        elif size > 0:
            key = load_i64(right + 8 * (at - length))
            rank = at - length + keys_before(left, length, key, True)
        if rank < kept:
            if final:
                write(key, x + unit * (o * n * inner + i), values, places, o * k * inner + i + rank * inner, inner)
            else:
                store_i64(merged + 8 * ((line * pairs + pair) * kept + rank), key)

    return element


def _accepts(op: TopK, ins: Types) -> bool:
    x, k = ins[0], ins[1]
    if k.known is None or not x.is_static or not x.dims or x.dtype not in KEYED:
        return False
    return 2 * x.size + CHUNK <= MOST_LAUNCHED


@kernel(TopK, device="cuda", accepts=_accepts)
def topk(op: TopK, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Numbers of up to 32 bits, any k; always in order."""
    x = ins[0]
    axis = normalise_axis(op, op.axis, len(x.dims))
    outer, n, inner = math.prod(x.dims[:axis]), x.dims[axis], math.prod(x.dims[axis + 1 :])
    k, lines, dtype = outs[0].dims[axis], outer * inner, dtype_name(x.dtype)
    if not lines * k:
        return []
    chunk = min(max(1 << (n - 1).bit_length(), LEAST_CHUNK), CHUNK)
    count, length = -(-n // chunk), min(k, chunk)
    args: dict[str, Argument] = {"x": In(0), "values": Out(0), "places": Out(1), "n": n, "inner": inner, "k": k}
    runs = Scratch(8 * lines * count * length) if count > 1 else None
    sorting: dict[str, Argument] = {"lines": lines, "count": count, "runs": runs, "kept": length}
    for what, size in (("l", inner), ("c", count)):
        sorting[f"m{what}"], sorting[f"h{what}"] = divider(size)
    made = [Step(sort_chunks(dtype, op.largest, chunk, count == 1), args | sorting)]
    while count > 1:
        pairs, kept = -(-count // 2), min(2 * length, k)
        merged = Scratch(8 * lines * pairs * kept) if pairs > 1 else None
        more: dict[str, Argument] = {"outer": outer, "pairs": pairs, "both": 2 * length, "count": count, "runs": runs}
        more |= {"merged": merged, "length": length, "kept": kept}
        made.append(PARTS.step(merge_runs, (x.dtype.itemsize, pairs == 1), args | more))
        count, length, runs = pairs, kept, merged
    return made
