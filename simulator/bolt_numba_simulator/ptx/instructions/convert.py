"""``cvt``: between integers and floats of all sizes, with rounding and saturation."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba_simulator.ptx.instructions.arithmetic import directed, from_bf16, to_bf16
from bolt_numba_simulator.ptx.instructions.table import opcode
from bolt_numba_simulator.ptx.state.text import Statement
from bolt_numba_simulator.ptx.state.types import DTYPES, F16, F32, F64, I32, U16, U32, RefusedError, Values

_TO_INTEGER = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
_WAYS = ("rn", "rna", "rz", "rm", "rp")


def to_integer(values: Values, dtype: Any, way: str) -> Any:
    """Rounded and held to the range; NaN is 0, or the highest bit alone where 64 bits are involved."""
    values = np.asarray(values)
    info = np.iinfo(dtype)
    wide = _TO_INTEGER[way](values.astype(F64))
    high = float(info.max)
    with np.errstate(all="ignore"):
        inside = np.where(np.isnan(wide) | (wide >= high) | (wide <= info.min), 0, wide).astype(dtype)
    held = np.where(wide >= high, info.max, np.where(wide <= info.min, info.min, inside)).astype(dtype)
    odd = dtype.itemsize == 8 or values.dtype == F64
    highest = np.array(1 << (8 * dtype.itemsize - 1), np.uint64).astype(f"u{dtype.itemsize}").view(dtype)[()]
    return np.where(np.isnan(wide), highest if odd else dtype.type(0), held)


def to_tf32(bits: Values, nearest_even: bool) -> Any:
    """Bits of f32 rounded to 10 bits of fraction."""
    bits = np.asarray(bits)
    add = np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1)) if nearest_even else np.uint32(0x1000)
    special = (bits & np.uint32(0x7F80_0000)) == np.uint32(0x7F80_0000)
    return np.where(special, bits, bits + add) & np.uint32(0xFFFF_E000)


def _narrow(kind: str, way: str, relu: bool, finite: bool) -> Any:
    """f32 -> bits of a half."""

    def close(values: Values) -> Any:
        values = np.atleast_1d(np.asarray(values, F32))
        values = np.where(values > 0, values, np.where(np.isnan(values), values, np.float32(0))) if relu else values
        if kind == "f16":
            made = values.astype(F16) if way == "rn" else directed(values, F16, way)
            made = np.clip(made, np.finfo(F16).min, np.finfo(F16).max) if finite else made
            return made.view(U16)
        return to_bf16(values) if way == "rn" else (values.view(U32) >> np.uint32(16)).astype(U16)

    if kind == "bf16" and way not in ("rn", "rz"):
        raise RefusedError(f"bf16 rounded by {way}")
    return close


def _packed(m: Any, ins: Statement, kind: str, way: str) -> Any:
    close = _narrow(kind.removesuffix("x2"), way, "relu" in ins.modifiers, "satfinite" in ins.modifiers)

    def compute(high: Values, low: Values) -> Any:
        return close(low).astype(U32) | close(high).astype(U32) << np.uint32(16)

    return m.pure(m.target(ins.args[0], U32), compute, m.source(ins.args[1], F32), m.source(ins.args[2], F32))


def _pack_integers(m: Any, ins: Statement) -> Any:
    """``cvt.pack.sat.type.s32.b32 d, a, b, c``: c shifted up, then b and a in the low places."""
    to = ins.modifiers[ins.modifiers.index("sat") + 1]
    dtype = DTYPES[to]
    info: Any = np.iinfo(to.replace("s", "int").replace("u", "uint"))
    size = 8 * dtype.itemsize
    a, b = m.source(ins.args[1], I32), m.source(ins.args[2], I32)
    c: Any = m.source(ins.args[3], U32) if len(ins.args) > 3 else np.uint32(0)

    def held(x: Values) -> Any:
        return np.clip(x, info.min, info.max).astype(dtype).astype(f"u{dtype.itemsize}").astype(U32)

    def compute(a: Values, b: Values, c: Values) -> Any:
        up = np.asarray(c) << np.uint32(2 * size) if size < 16 else np.uint32(0)
        return up | held(a) << np.uint32(size) | held(b)

    return m.pure(m.target(ins.args[0], U32), compute, a, b, c)


@opcode("cvt")
def cvt(m: Any, ins: Statement) -> Any:
    kinds = [name for name in ins.modifiers if name in DTYPES]
    way = next((name for name in ins.modifiers if name in _WAYS), "rn")
    if ins.modifiers[0] == "pack":
        return _pack_integers(m, ins)
    if len(kinds) != 2 or "e4m3x2" in ins.modifiers or "e5m2x2" in ins.modifiers:
        raise RefusedError("not modelled")
    to, by = kinds
    if to in ("f16x2", "bf16x2"):
        return _packed(m, ins, to, way)
    if to == "tf32":
        return m.pure(m.target(ins.args[0], U32), lambda x: to_tf32(x, way == "rn"), m.source(ins.args[1], U32))
    source, target = m.source(ins.args[1], DTYPES[by]), m.target(ins.args[0], DTYPES[to])
    sat, relu = "sat" in ins.modifiers, "relu" in ins.modifiers
    rounded = next((name for name in ins.modifiers if name in _TO_INTEGER), None)
    if by == to and not (rounded or sat or relu):
        return m.copy(target, source)
    integer = DTYPES[to].kind in "iu" and to != "bf16"
    if DTYPES[by].kind in "iu" and by != "bf16" and integer:
        return m.pure(
            target, lambda x: held_integer(x, DTYPES[to]) if sat else np.asarray(x).astype(DTYPES[to]), source
        )
    if integer:
        return m.pure(
            target, lambda x: to_integer(from_bf16(x) if by == "bf16" else x, DTYPES[to], rounded or "rzi"), source
        )
    close = _closing(to, way, relu, "satfinite" in ins.modifiers)

    def compute(x: Values) -> Any:
        opened = from_bf16(x) if by == "bf16" else np.asarray(x)
        opened = _TO_INTEGER[rounded](opened) if rounded else opened
        if sat:
            opened = np.where(np.isnan(opened), opened.dtype.type(0), np.clip(opened, 0, 1))
        return close(opened)

    return m.pure(target, compute, source)


def held_integer(values: Values, dtype: Any) -> Any:
    """Held to the range of a dtype."""
    values = np.asarray(values)
    info, own = np.iinfo(dtype), np.iinfo(values.dtype)
    return np.clip(values, max(info.min, own.min), min(info.max, own.max)).astype(dtype)


def _closing(to: str, way: str, relu: bool, finite: bool) -> Any:
    """From an opened value to the register's dtype."""
    dtype = DTYPES[to]
    if to in ("f16", "bf16"):
        narrow = _narrow(to, way, relu, finite)

        def close(x: Any) -> Any:
            if x.dtype.kind in "iu" or x.dtype == F64:
                return x.astype(F64).astype(dtype) if to == "f16" and way == "rn" else narrow(x.astype(F32)).view(dtype)
            return narrow(x.astype(F32)).view(dtype)

        return close

    def plain(x: Any) -> Any:
        if way == "rn" or np.can_cast(x.dtype, dtype):
            return x.astype(dtype)
        return directed(x.astype(np.longdouble), dtype, way)

    return plain
