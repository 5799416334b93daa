"""From PTX text and tiles to LLVM IR: what words and macros are made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import _intrinsic  # the public one has no `prefer_literal`

from bolt_numba.kernels.cuda.language.instructions import Instruction

LLVM = {"h": ir.IntType(16), "r": ir.IntType(32), "l": ir.IntType(64), "f": ir.FloatType(), "d": ir.DoubleType()}
NUMBA = {"h": types.uint16, "r": types.uint32, "l": types.int64, "f": types.float32, "d": types.float64}
I64 = ir.IntType(64)


def assembled(builder: Any, instruction: Instruction, arguments: Sequence[Any], text: str = "") -> list[Any]:
    """Write one instruction; the values of its results.  text: in place of the instruction's own."""
    outs, ins = instruction.results, instruction.arguments
    constraints = [f"={c}" for c in outs] + list(ins) + (["~{memory}"] if instruction.touches_memory else [])
    results = [LLVM[c] for c in outs]
    kind = ir.VoidType() if not outs else results[0] if len(outs) == 1 else ir.LiteralStructType(results)
    function = ir.FunctionType(kind, [LLVM[c] for c in ins])
    code = ir.InlineAsm(
        function, text or instruction.text, ",".join(constraints), side_effect=not instruction.is_pure
    )  # fmt: skip
    # What a warp does together must not be copied into branches.
    made = builder.call(code, list(arguments), attrs=() if instruction.is_pure else ("convergent",))
    return [made] if len(outs) == 1 else [builder.extract_value(made, i) for i in range(len(outs))]


Codegen = Callable[..., Any]
"""``(context, builder, sig, args)``: writes LLVM IR; returns the value, or None where there is none."""


def made_intrinsic(
    name: str, parameters: int, typed: Callable[..., Any], codegen: Codegen, literal: bool = False
) -> Any:
    """A word for Numba.

    typed: signature of the types of the arguments; None where it refuses them.
    literal: whether types of literals say their values.
    """

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        made = codegen(context, builder, sig, args)
        return context.get_dummy_value() if made is None else made

    def define(_: Any, *given: Any) -> Any:
        sig = typed(*given)
        return None if sig is None else (sig, lowered)

    define.__name__ = name
    names = ("typingctx", *(f"a{i}" for i in range(parameters)))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    define.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])  # type: ignore[attr-defined]
    return _intrinsic(target="cuda", prefer_literal=literal)(define)


def as_tuple(context: Any, builder: Any, sig: Any, values: Sequence[Any]) -> Any:
    """Several results."""
    return context.make_tuple(builder, sig.return_type, list(values))


def word_of(name: str, instruction: Instruction) -> Any:
    """The intrinsic of an instruction."""
    outs, ins, literals = instruction.results, instruction.arguments, instruction.literals
    kinds = [NUMBA[c] for c in outs]
    returned = types.void if not outs else kinds[0] if len(outs) == 1 else types.Tuple(kinds)

    def typed(*given: Any) -> Any:
        last = given[len(ins) :]
        if not all(isinstance(t, types.Literal) for t in last):
            return None
        return returned(*(NUMBA[c] for c in ins), *last)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        text = instruction.text
        for literal, kind in zip(literals, sig.args[len(ins) :], strict=True):
            text = text.replace(f"%{literal}%", str(kind.literal_value))
        results = assembled(builder, instruction, args[: len(ins)], text)
        return None if not outs else results[0] if len(outs) == 1 else as_tuple(context, builder, sig, results)

    return made_intrinsic(name, len(ins) + len(literals), typed, codegen, literal=bool(literals))


# ------------------------------------------------------------------------------------------------------ register tiles


class Registers:
    """An array of ``cuda.local.array`` in code that is written; constant places in it become registers."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        self.builder, self.data = builder, context.make_array(kind)(context, builder, value=value).data

    def _place(self, i: int) -> Any:
        return self.builder.gep(self.data, [ir.Constant(I64, i)], inbounds=True)

    def load(self, i: int) -> Any:
        return self.builder.load(self._place(i))

    def loads(self, count: int, first: int = 0) -> list[Any]:
        return [self.load(first + i) for i in range(count)]

    def store(self, i: int, value: Any) -> None:
        self.builder.store(value, self._place(i))
