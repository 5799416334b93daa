"""Words that load and store one element of global memory."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

GLOBAL = 1
"""Address space of global memory."""
_STORED = {
    "f32": (ir.FloatType(), types.float32),
    "f64": (ir.DoubleType(), types.float64),
    **{f"i{n}": (ir.IntType(n), getattr(types, f"int{n}")) for n in (8, 16, 32, 64)},
    **{f"u{n}": (ir.IntType(n), getattr(types, f"uint{n}")) for n in (8, 16, 32, 64)},
    "f16": (ir.HalfType(), types.float32),
    "bf16": (ir.IntType(16), types.float32),
}
"""By dtype: what memory holds, and what a register is for Numba."""


def _pointer(builder: Any, address: Any, stored: Any) -> Any:
    return builder.inttoptr(address, stored.as_pointer(GLOBAL))


def _align(stored: Any) -> int:
    return {"half": 2, "float": 4, "double": 8}.get(str(stored)) or int(stored.width) // 8


def _widen(builder: Any, dtype: str, value: Any) -> Any:
    if dtype == "f16":
        return builder.fpext(value, ir.FloatType())
    if dtype == "bf16":
        high = builder.shl(builder.zext(value, ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return builder.bitcast(high, ir.FloatType())
    return value


def _narrow(builder: Any, dtype: str, value: Any) -> Any:
    if dtype == "f16":
        return builder.fptrunc(value, ir.HalfType())
    if dtype == "bf16":
        kind = ir.FunctionType(ir.IntType(16), [ir.FloatType()])
        return builder.call(ir.InlineAsm(kind, "cvt.rn.bf16.f32 $0, $1;", "=h,f"), [value])
    return value


def _load(dtype: str) -> Any:
    stored, register = _STORED[dtype]

    def load(typingctx, address):
        def codegen(context, builder, sig, args):
            return _widen(builder, dtype, builder.load(_pointer(builder, args[0], stored), align=_align(stored)))

        return register(types.int64), codegen

    return intrinsic(load)


def _store(dtype: str) -> Any:
    stored, register = _STORED[dtype]

    def store(typingctx, address, value):
        def codegen(context, builder, sig, args):
            made = _narrow(builder, dtype, args[1])
            builder.store(made, _pointer(builder, args[0], stored), align=_align(stored))
            return context.get_dummy_value()

        return types.void(types.int64, register), codegen

    return intrinsic(store)


WORDS = {f"load_{dtype}": _load(dtype) for dtype in _STORED} | {f"store_{dtype}": _store(dtype) for dtype in _STORED}
