"""A keyed fingerprint of many bytes, taken at memory speed while they are copied.

Blocks of 4 KiB are compressed to 16 bytes by NH with a Toeplitz key: who does not know the key finds two blocks that
agree with a probability of 2^-64.  What is left, a 256th, goes into keyed BLAKE2b, so that a fingerprint tells nothing
of the key.  Source: Black, Halevi, Krawczyk, Krovetz, Rogaway, "UMAC: Fast and Secure Message Authentication", 1999.
"""

from __future__ import annotations

import functools
from hashlib import blake2b
from typing import Any

import numpy as np

from bolt_numba.base.huge_pages import line_aligned
from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.language.lang import I64, PTR, native_source
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.extents import Numbers, Reach, box

BLOCK_BYTES = 4096
WORDS = BLOCK_BYTES // 8
_TEXT = f"""
def fingerprint_blocks(p, tid, nthreads):
    key = view(p.key, {WORDS + 1}, u64)
    for b in range(p.blocks):
        x, y = view(p.x + {BLOCK_BYTES} * b, {WORDS}, u64), view(p.y + p.step * b, {WORDS}, u64)
        first, second = u64(0), u64(0)
        for i in range({WORDS}):
            v = x[i]
            y[i] = v
            low, high = v & u64(0xFFFFFFFF), v >> u64(32)
            k, m = key[i], key[i + 1]
            first += ((low + k) & u64(0xFFFFFFFF)) * ((high + (k >> u64(32))) & u64(0xFFFFFFFF))
            second += ((low + m) & u64(0xFFFFFFFF)) * ((high + (m >> u64(32))) & u64(0xFFFFFFFF))
        sums = view(p.sums + 16 * b, 2, u64)
        sums[0], sums[1] = first, second
"""


def _reach(a: Numbers) -> dict[str, Reach]:
    return {
        "x": BLOCK_BYTES * a.blocks,
        "y": box(BLOCK_BYTES, (a.blocks, a.step)),
        "key": 8 * (WORDS + 1),
        "sums": 16 * a.blocks,
    }


@functools.cache
def _kernel() -> Any:
    fields = {"x": PTR, "y": PTR, "key": PTR, "sums": PTR, "blocks": I64, "step": I64}
    return native_source(_TEXT, "fingerprint_blocks", fields, extents=_reach, **scope_of(_TEXT))


@functools.lru_cache(maxsize=4)
def _key(secret: bytes) -> Array:
    numbers = (i.to_bytes(8, "little") for i in range(WORDS // 8 + 1))
    return np.frombuffer(b"".join(blake2b(n, key=secret, person=b"fingerprint").digest() for n in numbers), np.uint64)


def fingerprint(array: Array, secret: bytes) -> str:
    """32 hexadecimal digits that nobody can find for other bytes without the secret, which is 16 to 64 bytes long.

    Of an array that repeats one element (strides of 0) that element counts.
    """
    return _taken(_bytes(array.reshape(-1)[:1] if _repeats(array) else array), None, secret)


def fingerprinted_copy(array: Array, secret: bytes) -> tuple[Array, str]:
    """A dense copy that begins at a cache line, and the fingerprint of what it holds, whoever may write meanwhile."""
    if _repeats(array):
        made = np.array(array[(slice(0, 1),) * array.ndim])
        return np.ascontiguousarray(np.broadcast_to(made, array.shape)), fingerprint(made, secret)
    source = _bytes(array)
    room = line_aligned(len(source))
    mark = _taken(source, room, secret)
    return room.view(array.dtype).reshape(array.shape), mark


def _repeats(array: Array) -> bool:
    return array.size > 1 and not any(array.strides)


def _bytes(array: Array) -> Array:
    dense = np.ascontiguousarray(array)
    return (dense.copy() if dense.ctypes.data % 8 else dense).reshape(-1).view(np.uint8)


def _taken(source: Array, target: Array | None, secret: bytes) -> str:
    whole = len(source) // BLOCK_BYTES * BLOCK_BYTES
    rest = source[whole:].tobytes()
    state = blake2b(len(source).to_bytes(8, "little") + rest, digest_size=16, key=secret, person=b"weights")
    if whole:
        sums = np.empty((whole // BLOCK_BYTES, 2), np.uint64)
        room, step = (np.empty(BLOCK_BYTES, np.uint8), 0) if target is None else (target, BLOCK_BYTES)
        _kernel().run(x=source, y=room, key=_key(secret), sums=sums, blocks=len(sums), step=step)
        state.update(sums.data)
    if target is not None:
        target[whole:] = np.frombuffer(rest, np.uint8)
    return state.hexdigest()
