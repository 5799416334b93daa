"""Bits: logic, shifts, permutations, counting; and moves between registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba_simulator.ptx.instructions.table import opcode
from bolt_numba_simulator.ptx.state.spaces import LOCAL_WINDOW, SHARED_WINDOW
from bolt_numba_simulator.ptx.state.text import Statement
from bolt_numba_simulator.ptx.state.types import I32, U32, U64, RefusedError, Values, dtype_of, unsigned

_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}


@opcode("and", "or", "xor", "not")
def logic(m: Any, ins: Statement) -> Any:
    dtype = dtype_of(ins.modifiers)
    return m.ufunc(_LOGIC[ins.op], m.target(ins.args[0], dtype), *(m.source(arg, dtype) for arg in ins.args[1:]))


@opcode("cnot")
def cnot(m: Any, ins: Statement) -> Any:
    dtype = dtype_of(ins.modifiers)
    return m.pure(m.target(ins.args[0], dtype), lambda x: (x == 0).astype(dtype), m.source(ins.args[1], dtype))


@opcode("shl", "shr")
def shift(m: Any, ins: Statement) -> Any:
    """A count of as many bits or more leaves zeros, or copies of the sign."""
    dtype = dtype_of(ins.modifiers)
    size = 8 * dtype.itemsize
    move = np.left_shift if ins.op == "shl" else np.right_shift
    x, by = m.source(ins.args[1], dtype), m.source(ins.args[2], U32)
    target = m.target(ins.args[0], dtype)
    signed = dtype.kind == "i" and ins.op == "shr"
    if np.ndim(by) == 0:
        if int(by) >= size and not signed:
            return m.copy(target, dtype.type(0))
        return m.ufunc(move, target, x, dtype.type(min(int(by), size - 1)))

    def compute(x: Values, by: Values) -> Any:
        moved = move(x, np.minimum(by, size - 1).astype(dtype))
        return moved if signed else np.where(np.asarray(by) >= size, dtype.type(0), moved)

    return m.pure(target, compute, x, by)


@opcode("shf")
def funnel(m: Any, ins: Statement) -> Any:
    """Shifts 64 bits and keeps 32."""
    left, wraps = ins.modifiers[0] == "l", "wrap" in ins.modifiers

    def compute(low: Values, high: Values, by: Values) -> Any:
        both = np.asarray(low).astype(U64) | np.asarray(high).astype(U64) << np.uint64(32)
        count = np.asarray(by & np.uint32(31) if wraps else np.minimum(by, np.uint32(32))).astype(U64)
        return ((both << count) >> np.uint64(32) if left else both >> count).astype(U32)

    return m.pure(m.target(ins.args[0], U32), compute, *(m.source(arg, U32) for arg in ins.args[1:4]))


@opcode("lop3")
def lop3(m: Any, ins: Statement) -> Any:
    """Any function of three bits, by its table of eight."""
    if "|" in ins.args[0] or ins.modifiers[0] != "b32":
        raise RefusedError("not modelled")
    table = int(ins.args[4], 0)

    def compute(a: Values, b: Values, c: Values) -> Any:
        found: Any = np.uint32(0)
        for i in range(8):
            if table >> i & 1:
                found = found | ((a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c))
        return found

    return m.pure(m.target(ins.args[0], U32), compute, *(m.source(arg, U32) for arg in ins.args[1:4]))


@opcode("prmt")
def prmt(m: Any, ins: Statement) -> Any:
    """Four bytes chosen of eight; bit 3 of a choice asks for copies of the byte's sign."""
    if len(ins.modifiers) > 1:
        raise RefusedError("not modelled")

    def compute(low: Values, high: Values, choice: Values) -> Any:
        both = np.asarray(low).astype(U64) | np.asarray(high).astype(U64) << np.uint64(32)
        found: Any = np.uint64(0)
        for i in range(4):
            one = np.asarray(choice).astype(U64) >> np.uint64(4 * i)
            byte = both >> ((one & np.uint64(7)) * np.uint64(8)) & np.uint64(255)
            sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
            found = found | np.where(one & np.uint64(8), sign, byte) << np.uint64(8 * i)
        return np.asarray(found).astype(U32)

    return m.pure(m.target(ins.args[0], U32), compute, *(m.source(arg, U32) for arg in ins.args[1:4]))


@opcode("bfe")
def bfe(m: Any, ins: Statement) -> Any:
    """Bits from a place on, extended by zeros or by the last bit."""
    dtype = dtype_of(ins.modifiers)
    size = 8 * dtype.itemsize

    def compute(x: Values, start: Values, count: Values) -> Any:
        start, count = (np.asarray(v).astype(np.int64) & 255 for v in (start, count))
        raw = np.asarray(x)
        kept = np.minimum(np.clip(size - start, 0, None), count)
        up = np.clip(size - kept - np.minimum(start, size), 0, size - 1)
        field = raw << up.astype(dtype)
        moved = field >> np.clip(size - kept, 0, size - 1).astype(dtype)
        if dtype.kind == "i":
            beyond = raw >> dtype.type(size - 1)
            return np.where(count == 0, dtype.type(0), np.where(kept == 0, beyond, moved))
        return np.where(kept == 0, dtype.type(0), moved)

    x = m.source(ins.args[1], dtype)
    return m.pure(m.target(ins.args[0], dtype), compute, x, m.source(ins.args[2], U32), m.source(ins.args[3], U32))


@opcode("bfi")
def bfi(m: Any, ins: Statement) -> Any:
    """Puts low bits of the first operand over bits of the second."""
    dtype = unsigned(dtype_of(ins.modifiers))
    size = 8 * dtype.itemsize

    def compute(x: Values, y: Values, start: Values, count: Values) -> Any:
        start, count = (np.asarray(v).astype(np.int64) & 255 for v in (start, count))
        one = np.uint64(1)
        ones = np.where(count >= 64, ~np.uint64(0), (one << np.minimum(count, 63).astype(U64)) - one)
        place = np.minimum(start, 63).astype(U64)
        mask = np.where(start >= size, np.uint64(0), ones << place).astype(dtype)
        return (y & ~mask) | ((np.asarray(x) << np.minimum(start, size - 1).astype(dtype)) & mask)

    x, y = m.source(ins.args[1], dtype), m.source(ins.args[2], dtype)
    return m.pure(m.target(ins.args[0], dtype), compute, x, y, m.source(ins.args[3], U32), m.source(ins.args[4], U32))


def reversed_bits(x: Values) -> Any:
    x = np.atleast_1d(np.asarray(x))
    byte = np.flip(np.ascontiguousarray(x).view(np.uint8).reshape(x.size, -1), 1)
    return np.packbits(np.unpackbits(byte, axis=1, bitorder="little"), axis=1, bitorder="big").view(x.dtype).reshape(-1)


@opcode("brev")
def brev(m: Any, ins: Statement) -> Any:
    dtype = dtype_of(ins.modifiers)
    return m.pure(m.target(ins.args[0], dtype), reversed_bits, m.source(ins.args[1], dtype))


@opcode("popc")
def popc(m: Any, ins: Statement) -> Any:
    return m.pure(m.target(ins.args[0], U32), np.bitwise_count, m.source(ins.args[1], dtype_of(ins.modifiers)))


def highest_bit(x: Any) -> Any:
    """Number of the highest bit that is set, -1 of zero."""
    x = np.asarray(x).astype(U64)
    found: Any = np.full(np.shape(x), -1, np.int64)
    for half in (32, 16, 8, 4, 2, 1):
        upper = x >> np.uint64(half)
        found = found + np.where(upper > 0, half, 0)
        x = np.where(upper > 0, upper, x)
    return found + (x > 0)


@opcode("clz")
def clz(m: Any, ins: Statement) -> Any:
    dtype = dtype_of(ins.modifiers)
    size = 8 * dtype.itemsize
    return m.pure(
        m.target(ins.args[0], U32), lambda x: (size - 1 - highest_bit(x)).astype(U32), m.source(ins.args[1], dtype)
    )


@opcode("bfind")
def bfind(m: Any, ins: Statement) -> Any:
    dtype = dtype_of(ins.modifiers)
    size, distance = 8 * dtype.itemsize, "shiftamt" in ins.modifiers

    def compute(x: Values) -> Any:
        x = np.asarray(x)
        x = np.where(x < 0, ~x, x) if dtype.kind == "i" else x
        found = highest_bit(x.astype(unsigned(dtype)))
        return np.where(found < 0, -1, size - 1 - found if distance else found).astype(I32)

    return m.pure(m.target(ins.args[0], I32), compute, m.source(ins.args[1], dtype))


@opcode("mov")
def mov(m: Any, ins: Statement) -> Any:
    if not ins.modifiers:
        raise RefusedError("not modelled")
    dtype = dtype_of(ins.modifiers)
    if ins.args[0].startswith("{"):
        names = m.vector(ins.args[0])
        part = np.dtype(f"u{dtype.itemsize // len(names)}")
        whole = m.source(ins.args[1], unsigned(dtype))
        targets = [m.target(name, part) for name in names]
        where = m.where

        def open_up() -> None:
            for i, target in enumerate(targets):
                np.copyto(
                    target,
                    np.right_shift(whole, whole.dtype.type(8 * part.itemsize * i)),
                    where=where,
                    casting="unsafe",
                )

        return open_up, open_up
    if ins.args[1].startswith("{"):
        names = m.vector(ins.args[1])
        part, wide = np.dtype(f"u{dtype.itemsize // len(names)}"), unsigned(dtype)

        def compute(*parts: Values) -> Any:
            found: Any = wide.type(0)
            for i, one in enumerate(parts):
                found = found | np.asarray(one).astype(wide) << wide.type(8 * part.itemsize * i)
            return found

        return m.pure(m.target(ins.args[0], wide), compute, *(m.source(name, part) for name in names))
    return m.copy(m.target(ins.args[0], dtype), m.source(ins.args[1], dtype))


@opcode("cvta")
def cvta(m: Any, ins: Statement) -> Any:
    """Between addresses of one kind of memory and generic ones."""
    if dtype_of(ins.modifiers).itemsize != 8:
        raise RefusedError("32-bit addresses")
    space = next(name for name in ins.modifiers if name != "to").split("::")[0]
    if space not in ("global", "shared", "local", "const"):
        raise RefusedError(f"addresses of {space}")
    start = np.uint64({"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0))
    move = np.subtract if ins.modifiers[0] == "to" else np.add
    return m.ufunc(move, m.target(ins.args[0], U64), m.source(ins.args[1], U64), start)


@opcode("isspacep")
def isspacep(m: Any, ins: Statement) -> Any:
    space = ins.modifiers[0].split("::")[0]
    low, high = {
        "shared": (SHARED_WINDOW, LOCAL_WINDOW),
        "local": (LOCAL_WINDOW, 1 << 44),
        "global": (1 << 44, 1 << 63),
    }[space]
    return m.pure(
        m.target(ins.args[0], np.bool_),
        lambda x: (x >= np.uint64(low)) & (x < np.uint64(high)),
        m.source(ins.args[1], U64),
    )
