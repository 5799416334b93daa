"""Words that load and store elements of global and shared memory, one or a vector of up to 16 bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types

from bolt_numba.kernels.cuda.language.emit import as_tuple, assembled, made_intrinsic
from bolt_numba.kernels.cuda.language.instructions import INSTRUCTIONS
from bolt_numba.kernels.cuda.language.lang import SIZES, VECTORS

GLOBAL, SHARED = 1, 3
"""Address spaces."""
_STORED = {
    "f32": (ir.FloatType(), types.float32),
    "f64": (ir.DoubleType(), types.float64),
    **{f"i{n}": (ir.IntType(n), getattr(types, f"int{n}")) for n in (8, 16, 32, 64)},
    **{f"u{n}": (ir.IntType(n), getattr(types, f"uint{n}")) for n in (8, 16, 32, 64)},
    "f16": (ir.HalfType(), types.float32),
    "bf16": (ir.IntType(16), types.float32),
}
"""By dtype: what memory holds, and what a register is for Numba."""


def _widen(builder: Any, dtype: str, value: Any) -> Any:
    if dtype == "f16":
        return builder.fpext(value, _F32)
    if dtype == "bf16":
        return builder.bitcast(builder.shl(builder.zext(value, _I32), _i32(16)), _F32)
    return value


def _narrow(builder: Any, dtype: str, value: Any) -> Any:
    if dtype == "f16":
        return builder.fptrunc(value, ir.HalfType())
    if dtype == "bf16":
        kind = ir.FunctionType(ir.IntType(16), [_F32])
        return builder.call(ir.InlineAsm(kind, "cvt.rn.bf16.f32 $0, $1;", "=h,f"), [value])
    return value


class _Accessed:
    """Elements of one dtype at one address.

    LLVM moves vectors of small elements in parts, so several of them travel as words of 32 bits (two bytes: of 16).
    """

    def __init__(self, dtype: str, count: int, space: int) -> None:
        self.dtype, self.count, self.space, self.nbytes = dtype, count, space, count * SIZES[dtype]
        self.stored, self.register = _STORED[dtype]
        self.is_packed = count > 1 and SIZES[dtype] < 4
        self.word = ir.IntType(min(32, 8 * self.nbytes)) if self.is_packed else self.stored
        self.words = 8 * self.nbytes // self.word.width if self.is_packed else count
        self.address = types.uint32 if space == SHARED else types.int64

    def pointer(self, builder: Any, address: Any) -> Any:
        kind = self.word if self.words == 1 else ir.VectorType(self.word, self.words)
        return builder.inttoptr(address, kind.as_pointer(self.space))

    def unpacked(self, builder: Any, word: Any) -> list[Any]:
        """Elements of a word."""
        bits, made = 8 * SIZES[self.dtype], []
        for shift in range(0, self.word.width, bits):
            each = builder.trunc(builder.lshr(word, ir.Constant(self.word, shift)), ir.IntType(bits))
            made.append(_widen(builder, self.dtype, builder.bitcast(each, self.stored)))
        return made

    def packed(self, builder: Any, values: Sequence[Any]) -> Any:
        """One word of elements."""
        if self.dtype in ("f16", "bf16"):
            return assembled(builder, INSTRUCTIONS[f"cvt_{self.dtype}x2"], [values[1], values[0]])[0]
        made, bits = ir.Constant(self.word, 0), 8 * SIZES[self.dtype]
        for i, value in enumerate(values):
            made = builder.or_(made, builder.shl(builder.zext(value, self.word), ir.Constant(self.word, bits * i)))
        return made


_I32, _F32 = ir.IntType(32), ir.FloatType()


def _i32(i: int) -> Any:
    return ir.Constant(_I32, i)


def _load(name: str, access: _Accessed, constant: bool = False) -> Any:
    """constant: nothing writes the memory while the kernel runs."""
    returned = access.register if access.count == 1 else types.UniTuple(access.register, access.count)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        made = builder.load(access.pointer(builder, args[0]), align=access.nbytes)
        if constant:
            made.set_metadata("invariant.load", builder.module.add_metadata([]))
        words = [made] if access.words == 1 else [builder.extract_element(made, _i32(i)) for i in range(access.words)]
        if access.is_packed:
            each = [value for word in words for value in access.unpacked(builder, word)]
        else:
            each = [_widen(builder, access.dtype, word) for word in words]
        return each[0] if access.count == 1 else as_tuple(context, builder, sig, each)

    return made_intrinsic(name, 1, lambda _: returned(access.address), codegen)


def _store(name: str, access: _Accessed) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        if access.is_packed:
            n = access.count // access.words
            words = [access.packed(builder, args[1 + i : 1 + i + n]) for i in range(0, access.count, n)]
        else:
            words = [_narrow(builder, access.dtype, value) for value in args[1:]]
        value = words[0]
        if len(words) > 1:
            value = ir.Constant(ir.VectorType(access.word, len(words)), ir.Undefined)
            for i, each in enumerate(words):
                value = builder.insert_element(value, each, _i32(i))
        builder.store(value, access.pointer(builder, args[0]), align=access.nbytes)

    signature = types.void(access.address, *[access.register] * access.count)
    return made_intrinsic(name, 1 + access.count, lambda *_: signature, codegen)


def _shared_address() -> Any:
    """Of the first element of an array in shared memory."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, builder, value=args[0])
        pointer = builder.addrspacecast(array.data, ir.PointerType(ir.IntType(8), SHARED), "shared")
        return builder.ptrtoint(pointer, ir.IntType(32))

    def typed(array: Any) -> Any:
        return types.uint32(array) if isinstance(array, types.Array) else None

    return made_intrinsic("shared_address", 1, typed, codegen)


def _words() -> dict[str, Any]:
    made = {"shared_address": _shared_address()}
    for dtype, size in SIZES.items():
        for count in (1, *(n for n in VECTORS if n * size <= 16)):
            n = "" if count == 1 else str(count)
            for end, space in ((dtype, GLOBAL), (f"shared_{dtype}", SHARED)):
                access = _Accessed(dtype, count, space)
                made[f"load{n}_{end}"] = _load(f"load{n}_{end}", access)
                made[f"store{n}_{end}"] = _store(f"store{n}_{end}", access)
            made[f"load{n}_{dtype}_nc"] = _load(f"load{n}_{dtype}_nc", _Accessed(dtype, count, GLOBAL), constant=True)
    return made


WORDS = _words()
