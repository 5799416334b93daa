"""Arithmetic on integers and floats, comparison and selection."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bolt_numba_simulator.ptx.instructions.table import OPCODES, opcode
from bolt_numba_simulator.ptx.state.text import Statement
from bolt_numba_simulator.ptx.state.types import (
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I32,
    U8,
    U16,
    U32,
    U64,
    RefusedError,
    Values,
    dtype_of,
    wider,
)

Decode = Any


def to_bf16(values: Values) -> Any:
    """f32 -> the 16 bits of bf16, rounded to nearest, ties to even; NaN stays one."""
    bits = np.atleast_1d(np.asarray(values, F32)).view(U32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    return np.where(np.isnan(bits.view(F32)), np.uint32(0x7FFF), rounded).astype(U16)


def from_bf16(values: Values) -> Any:
    """The 16 bits of bf16 -> f32."""
    return (np.atleast_1d(values).astype(U32) << np.uint32(16)).view(F32)


def _halves(values: Values) -> Any:
    """Two f16 in 32 bits -> f32 (..., 2)."""
    return np.atleast_1d(np.asarray(values)).view(F16).reshape(-1, 2).astype(F32)


def _bf16_halves(values: Values) -> Any:
    return from_bf16(np.atleast_1d(np.asarray(values)).view(U16)).reshape(-1, 2)


def _from_halves(values: Any) -> Any:
    return np.ascontiguousarray(values.astype(F16)).view(U32).reshape(-1)


def _from_bf16_halves(values: Any) -> Any:
    return to_bf16(values.astype(F32)).reshape(-1, 2).view(U32).reshape(-1)


_PACKED: dict[str, tuple[Any, Any, Any]] = {
    "f16x2": (U32, _halves, _from_halves),
    "bf16x2": (U32, _bf16_halves, _from_bf16_halves),
    "bf16": (U16, from_bf16, to_bf16),
    "f16": (F16, lambda x: np.asarray(x).astype(F32), lambda x: x.astype(F16)),
}
"""By type that computes in f32 and rounds once: dtype of a register, how to open and how to close it."""


def fused(x: Values, y: Values, z: Values) -> Any:
    """X * y + z in f64, rounded once or nearly so: the errors of product and sum are added."""
    product = x * y
    split = np.float64(134217729.0)
    xh = x * split - (x * split - x)
    yh = y * split - (y * split - y)
    xl, yl = x - xh, y - yh
    lost = ((xh * yh - product) + xh * yl + xl * yh) + xl * yl
    total = product + z
    back = total - product
    rest = (product - (total - back)) + (z - back)
    exact = total + (rest + lost)
    return np.where(np.isfinite(exact), exact, total)


def fused_f32(x: Values, y: Values, z: Values) -> Any:
    """X * y + z of f32 by way of f64, where the product is exact."""
    wide = np.multiply(x, y, dtype=F64)
    return np.add(wide, z)


def _fused_in_place(lanes: int) -> Any:
    """`fused_f32` of all lanes, without new arrays."""
    wide = np.empty(lanes, F64)

    def compute(x: Values, y: Values, z: Values) -> Any:
        np.multiply(x, y, out=wide, dtype=F64)
        return np.add(wide, z, out=wide)

    return compute


def _operation(ins: Statement, name: str) -> Callable[..., Any]:
    """What an opcode computes on floats."""
    nan = "NaN" in ins.modifiers
    table: dict[str, Callable[..., Any]] = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum if nan else np.fmin,
        "max": np.maximum if nan else np.fmax, "abs": np.abs, "neg": np.negative,
        "fma": lambda x, y, z: np.asarray(x, F64) * y + z,
    }  # fmt: skip
    if "abs" in ins.modifiers or "xorsign" in ins.modifiers:
        raise RefusedError("not modelled")
    return table[name]


def packed(m: Decode, ins: Statement, kind: str) -> Any:
    """f16x2 and its like."""
    dtype, opened, closed = _PACKED[kind]
    operation = _operation(ins, ins.op)
    relu, sat = "relu" in ins.modifiers, "sat" in ins.modifiers

    def compute(*values: Values) -> Any:
        found = operation(*(opened(x) for x in values))
        found = np.maximum(found, 0) if relu else found
        found = np.clip(found, 0, 1) if sat else found
        return closed(found)

    return m.pure(m.target(ins.args[0], dtype), compute, *(m.source(arg, dtype) for arg in ins.args[1:]))


def _kind(ins: Statement) -> str:
    return next((kind for kind in ins.modifiers if kind in _PACKED), "")


@opcode("add", "sub", "min", "max", "abs", "neg")
def simple(m: Decode, ins: Statement) -> Any:
    if "cc" in ins.modifiers:
        raise RefusedError("carries are not modelled")
    if kind := _kind(ins):
        return packed(m, ins, kind)
    dtype = dtype_of(ins.modifiers)
    sources = [m.source(arg, dtype) for arg in ins.args[1:]]
    operation, target = _operation(ins, ins.op), m.target(ins.args[0], dtype)
    directed = {"rz", "rm", "rp"} & set(ins.modifiers)
    if directed and dtype.kind == "f":
        return m.pure(target, partial(_directed_sum, ins.op, directed.pop(), dtype), *sources)
    if "sat" in ins.modifiers:
        return m.pure(target, partial(_saturated, operation, dtype), *sources)
    return m.ufunc(operation, target, *sources)


def _saturated(operation: Any, dtype: Any, *values: Values) -> Any:
    if dtype.kind == "f":
        found = operation(*values)
        return np.where(np.isnan(found), dtype.type(0), np.clip(found, 0, 1))
    info = np.iinfo(dtype)
    return np.clip(operation(*(np.asarray(x).astype(np.int64) for x in values)), info.min, info.max).astype(dtype)


def _directed_sum(op: str, way: str, dtype: Any, x: Values, y: Values) -> Any:
    wide = np.longdouble
    exact = np.asarray(x, wide) + np.asarray(y, wide) if op == "add" else np.asarray(x, wide) - np.asarray(y, wide)
    return directed(exact, dtype, way)


def directed(exact: Any, dtype: Any, way: str) -> Any:
    """Rounded to a narrower float: rn to nearest, rz to zero, rm down, rp up."""
    near = exact.astype(dtype)
    if way == "rn":
        return near
    back = near.astype(exact.dtype)
    down = np.nextafter(near, dtype.type(-np.inf)) if dtype != F16 else _step(near, -1)
    up = np.nextafter(near, dtype.type(np.inf)) if dtype != F16 else _step(near, 1)
    lower = np.where(back > exact, down, near)
    upper = np.where(back < exact, up, near)
    if way == "rz":
        return np.where(exact < 0, upper, lower)
    return lower if way == "rm" else upper


def _step(values: Any, sign: int) -> Any:
    return np.nextafter(values, np.float16(sign * np.inf))


@opcode("mul")
def mul(m: Decode, ins: Statement) -> Any:
    if kind := _kind(ins):
        return packed(m, ins, kind)
    dtype = dtype_of(ins.modifiers)
    x, y = (m.source(arg, dtype) for arg in ins.args[1:3])
    if "wide" in ins.modifiers:
        return m.ufunc(partial(np.multiply, dtype=wider(dtype)), m.target(ins.args[0], wider(dtype)), x, y)
    target = m.target(ins.args[0], dtype)
    if "hi" in ins.modifiers:
        return m.pure(target, high_product, x, y)
    if "sat" in ins.modifiers:
        return m.pure(target, partial(_saturated, np.multiply, dtype), x, y)
    if directions := {"rz", "rm", "rp"} & set(ins.modifiers):
        way = directions.pop()
        return m.pure(target, lambda a, b: directed(np.multiply(a, b, dtype=np.longdouble), dtype, way), x, y)
    return m.ufunc(np.multiply, target, x, y)


def high_product(x: Values, y: Values) -> Any:
    """Upper half of the product."""
    dtype = np.asarray(x).dtype if np.ndim(x) else np.asarray(y).dtype
    if dtype.itemsize < 8:
        wide = wider(dtype)
        return (np.multiply(x, y, dtype=wide) >> wide.type(8 * dtype.itemsize)).astype(dtype)
    a, b = np.asarray(x).view(U64), np.asarray(y).view(U64)
    low, shift = np.uint64(0xFFFF_FFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> shift, b & low, b >> shift
    middle = a1 * b0 + (a0 * b0 >> shift)
    other = a0 * b1 + (middle & low)
    high = a1 * b1 + (middle >> shift) + (other >> shift)
    if dtype.kind == "i":
        high = high - np.where(np.asarray(x) < 0, b, np.uint64(0)) - np.where(np.asarray(y) < 0, a, np.uint64(0))
    return high.view(dtype) if np.ndim(high) else np.asarray(high).view(dtype)


@opcode("mul24", "mad24")
def mul24(m: Decode, ins: Statement) -> Any:
    dtype = dtype_of(ins.modifiers)
    high = "hi" in ins.modifiers
    drop = np.int64(40)

    def compute(x: Values, y: Values, *z: Values) -> Any:
        wide = [np.asarray(v).astype(np.int64) << drop for v in (x, y)]
        a, b = ((v >> drop) if dtype.kind == "i" else (v.view(U64) >> U64.type(40)).view(np.int64) for v in wide)
        product = a * b >> np.int64(16) if high else a * b
        return sum(z, product.astype(dtype)).astype(dtype)

    return m.pure(m.target(ins.args[0], dtype), compute, *(m.source(arg, dtype) for arg in ins.args[1:]))


@opcode("mad")
def mad(m: Decode, ins: Statement) -> Any:
    dtype = dtype_of(ins.modifiers)
    if dtype.kind == "f":
        return fma(m, ins)
    wide = wider(dtype) if "wide" in ins.modifiers else dtype
    x, y, z = m.source(ins.args[1], dtype), m.source(ins.args[2], dtype), m.source(ins.args[3], wide)
    high = "hi" in ins.modifiers
    if {"cc", "sat"} & set(ins.modifiers):
        raise RefusedError("not modelled")

    def compute(x: Values, y: Values, z: Values) -> Any:
        return np.add(high_product(x, y) if high else np.multiply(x, y, dtype=wide), z)

    return m.pure(m.target(ins.args[0], wide), compute, x, y, z)


@opcode("fma")
def fma(m: Decode, ins: Statement) -> Any:
    if kind := _kind(ins):
        return packed(m, ins, kind)
    dtype = dtype_of(ins.modifiers)
    sources = [m.source(arg, dtype) for arg in ins.args[1:4]]
    target = m.target(ins.args[0], dtype)
    if directions := {"rz", "rm", "rp"} & set(ins.modifiers):
        way = directions.pop()
        wide = np.longdouble
        return m.pure(
            target, lambda x, y, z: directed(np.multiply(x, y, dtype=wide) + np.asarray(z, wide), dtype, way), *sources
        )
    if dtype == F64:
        return m.pure(target, fused, *sources)
    if "sat" in ins.modifiers:
        return m.pure(target, lambda x, y, z: np.clip(fused_f32(x, y, z), 0, 1).astype(F32), *sources)
    return m.pure(target, _fused_in_place(m.n), *sources)


@opcode("div", "rem")
def div(m: Decode, ins: Statement) -> Any:
    dtype = dtype_of(ins.modifiers)
    x, y = (m.source(arg, dtype) for arg in ins.args[1:3])
    target = m.target(ins.args[0], dtype)
    if dtype.kind == "f":
        return m.ufunc(np.divide, target, x, y)
    return m.pure(target, quotient if ins.op == "div" else remainder, x, y)


def quotient(x: Values, y: Values) -> Any:
    """Of integers, towards zero; by zero: all bits set."""
    x, y = np.asarray(x), np.asarray(y)
    one = y.dtype.type(1)
    safe = np.where(y == 0, one, y)
    down = x // safe
    if y.dtype.kind == "i":
        down = down + ((down < 0) & (down * safe != x)).astype(y.dtype)
    return np.where(y == 0, ~y.dtype.type(0), down)


def remainder(x: Values, y: Values) -> Any:
    x, y = np.asarray(x), np.asarray(y)
    return np.where(y == 0, x, x - quotient(x, y) * y)


def _unary(name: str, function: Callable[[Any], Any]) -> None:
    def decode(m: Decode, ins: Statement) -> Any:
        kind = _kind(ins)
        if kind:
            dtype, opened, closed = _PACKED[kind]
            return m.pure(
                m.target(ins.args[0], dtype),
                lambda x: closed(function(opened(x).astype(F64)).astype(F32)),
                m.source(ins.args[1], dtype),
            )
        dtype = dtype_of(ins.modifiers)
        wide = np.longdouble if dtype == F64 else F64
        return m.pure(
            m.target(ins.args[0], dtype),
            lambda x: function(np.asarray(x, wide)).astype(dtype),
            m.source(ins.args[1], dtype),
        )

    OPCODES[name] = decode


for _name, _function in (
    ("ex2", np.exp2), ("lg2", np.log2), ("sqrt", np.sqrt), ("rsqrt", lambda x: 1 / np.sqrt(x)),
    ("rcp", lambda x: 1 / x), ("sin", np.sin), ("cos", np.cos), ("tanh", np.tanh),
):  # fmt: skip
    _unary(_name, _function)


@opcode("copysign")
def copysign(m: Decode, ins: Statement) -> Any:
    dtype = dtype_of(ins.modifiers)
    sign, size = (m.source(arg, dtype) for arg in ins.args[1:3])
    return m.ufunc(np.copysign, m.target(ins.args[0], dtype), size, sign)


@opcode("testp")
def testp(m: Decode, ins: Statement) -> Any:
    tests: dict[str, Callable[[Any], Any]] = {
        "finite": np.isfinite, "infinite": np.isinf, "notanumber": np.isnan, "number": lambda x: ~np.isnan(x),
        "subnormal": lambda x: (x != 0) & (np.abs(x) < np.finfo(np.asarray(x).dtype).tiny),
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= np.finfo(np.asarray(x).dtype).tiny),
    }  # fmt: skip
    return m.pure(m.target(ins.args[0], BOOL), tests[ins.modifiers[0]], m.source(ins.args[1], dtype_of(ins.modifiers)))


_COMPARE: dict[str, np.ufunc] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_COMBINE: dict[str, np.ufunc] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _comparison(name: str, floats: bool) -> Any:
    """What setp computes; None where a ufunc does it alone."""

    def ordered(x: Values, y: Values) -> Any:
        return ~(np.isnan(x) | np.isnan(y))

    if name in ("num", "nan"):
        return ordered if name == "num" else lambda x, y: ~ordered(x, y)
    if name not in _COMPARE:
        base = _COMPARE[name[:-1]]
        return lambda x, y: base(x, y) | ~ordered(x, y)
    if floats and name == "ne":
        return lambda x, y: np.not_equal(x, y) & ordered(x, y)
    return _COMPARE[name]


@opcode("setp", "set")
def setp(m: Decode, ins: Statement) -> Any:
    kind = _kind(ins)
    if kind in ("f16x2", "bf16x2"):
        raise RefusedError("not modelled")
    _, opened, _ = _PACKED.get(kind, (None, lambda x: x, None))
    dtype = dtype_of(ins.modifiers)
    x, y = (m.source(arg, dtype) for arg in ins.args[1:3])
    compare = _comparison(ins.modifiers[0], dtype.kind == "f" or kind == "bf16")
    names = re.split(r"\s*\|\s*", ins.args[0])
    if ins.op == "set":
        made = dtype_of(ins.modifiers, -2)
        yes = made.type(1) if made.kind == "f" else ~made.type(0)
        return m.pure(
            m.target(names[0], made), lambda x, y: np.where(compare(opened(x), opened(y)), yes, made.type(0)), x, y
        )
    target = m.target(names[0], BOOL)
    combine = _COMBINE.get(ins.modifiers[1])
    if isinstance(compare, np.ufunc) and len(names) == 1 and combine is None and kind != "bf16":
        return m.ufunc(compare, target, x, y)
    third = m.source(ins.args[3].lstrip("!"), BOOL) if combine else np.bool_(True)
    third_negated = bool(combine) and ins.args[3].startswith("!")
    other = m.target(names[1], BOOL) if len(names) > 1 else None
    where = m.where

    def compute(x: Values, y: Values, z: Values) -> Any:
        found = compare(opened(x), opened(y))
        z = ~z if third_negated else z
        if other is not None:
            np.copyto(other, combine(~found, z) if combine else ~found, where=where)
        return combine(found, z) if combine else found

    full, masked = m.pure(target, compute, x, y, third)
    return (masked, masked) if other is not None else (full, masked)


@opcode("selp")
def selp(m: Decode, ins: Statement) -> Any:
    dtype = dtype_of(ins.modifiers)
    x, y = (m.source(arg, dtype) for arg in ins.args[1:3])
    return m.pure(m.target(ins.args[0], dtype), lambda p, x, y: np.where(p, x, y), m.source(ins.args[3], BOOL), x, y)


@opcode("slct")
def slct(m: Decode, ins: Statement) -> Any:
    dtype, third = dtype_of(ins.modifiers, -2), dtype_of(ins.modifiers)
    x, y = (m.source(arg, dtype) for arg in ins.args[1:3])
    return m.pure(
        m.target(ins.args[0], dtype), lambda c, x, y: np.where(c >= 0, x, y), m.source(ins.args[3], third), x, y
    )


@opcode("sad")
def sad(m: Decode, ins: Statement) -> Any:
    dtype = dtype_of(ins.modifiers)
    sources = [m.source(arg, dtype) for arg in ins.args[1:4]]
    return m.pure(m.target(ins.args[0], dtype), lambda x, y, z: z + (np.maximum(x, y) - np.minimum(x, y)), *sources)


@opcode("dp4a", "dp2a")
def dp4a(m: Decode, ins: Statement) -> Any:
    left, right = (I8 if kind == "s32" else U8 for kind in ins.modifiers[-2:])
    if ins.op == "dp2a":
        raise RefusedError("not modelled")

    def parts(values: Values, dtype: Any) -> Any:
        return np.atleast_1d(np.ascontiguousarray(values)).view(dtype).reshape(-1, 4).astype(I32)

    def compute(x: Values, y: Values, z: Values) -> Any:
        return (parts(x, left) * parts(y, right)).sum(1, dtype=I32) + z

    x, y, z = m.source(ins.args[1], U32), m.source(ins.args[2], U32), m.source(ins.args[3], I32)
    return m.pure(m.target(ins.args[0], I32), compute, x, y, z)
