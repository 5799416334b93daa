"""Macros: one call in a kernel writes a whole unrolled register tile as LLVM IR.

Numba takes a tenth of a second for each statement of a body that has a thousand of them; here a thousand instructions
take milliseconds.  Register tiles are arrays of ``cuda.local.array`` that are touched at constant places only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from bolt_numba.kernels.cuda.language.emit import LLVM, Registers, assembled, made_intrinsic
from bolt_numba.kernels.cuda.language.instructions import INSTRUCTIONS, Instruction, mma
from bolt_numba.kernels.cuda.language.softmax import SOFTMAX_MACROS
from bolt_numba.kernels.cuda.language.tiles import TILE_MACROS

_F32, _U32 = types.float32, types.uint32


def _are_literal(*kinds: Any) -> bool:
    return all(isinstance(kind, types.Literal) for kind in kinds)


def _load_rows(text: str, results: str, n: int, stride: int) -> Any:
    """``rows(tile, address, offset)``: n loads at address + offset + i * stride; the offset is a literal."""

    def typed(tile: Any, address: Any, offset: Any) -> Any:
        return types.void(tile, _U32, offset) if _are_literal(offset) else None

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        tile, offset = Registers(context, builder, sig.args[0], args[0]), sig.args[2].literal_value
        for i in range(n):
            load = Instruction(text % (offset + i * stride), results, "r", touches_memory=True)
            for j, value in enumerate(assembled(builder, load, [args[1]])):
                tile.store(len(results) * i + j, value)

    return made_intrinsic("load_rows", 3, typed, codegen, literal=True)


def lds(n: int, stride: int, kind: str = "f") -> Any:
    """``lds(tile, address, offset)``: 4 n elements by 16-byte loads of shared memory.  kind: "f" f32, "r" u32."""
    return _load_rows("ld.shared.v4.b32 {$0,$1,$2,$3}, [$4+%d];", kind * 4, n, stride)


_LDMATRIX = "ldmatrix.sync.aligned.m8n8.x4%s.shared.b16 {$0,$1,$2,$3}, [$4+%%d];"


def ldsm(n: int, stride: int, trans: bool = False) -> Any:
    """``ldsm(tile, address, offset)``: 4 n registers by n ldmatrix.x4."""
    return _load_rows(_LDMATRIX % (".trans" if trans else ""), "rrrr", n, stride)


def ldsm_at(trans: bool = False) -> Any:
    """``ldsm_at(tile, first, address, offset)``: one ldmatrix.x4 into tile[first ...]; both are literals."""
    text = _LDMATRIX % (".trans" if trans else "")

    def typed(tile: Any, first: Any, address: Any, offset: Any) -> Any:
        return types.void(tile, first, _U32, offset) if _are_literal(first, offset) else None

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        tile, first = Registers(context, builder, sig.args[0], args[0]), sig.args[1].literal_value
        load = Instruction(text % sig.args[3].literal_value, "rrrr", "r", touches_memory=True)
        for j, value in enumerate(assembled(builder, load, [args[2]])):
            tile.store(first + j, value)

    return made_intrinsic("ldsm_at", 4, typed, codegen, literal=True)


def outer(rows: int, columns: int) -> Any:
    """``outer(sums, a, b)``: sums[i * columns + j] += a[i] * b[j], rounded once."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        sums, a, b = (Registers(context, builder, kind, value) for kind, value in zip(sig.args, args, strict=True))
        left, right = a.loads(rows), b.loads(columns)
        for i in range(rows):
            for j in range(columns):
                k = i * columns + j
                sums.store(k, assembled(builder, INSTRUCTIONS["fma"], [left[i], right[j], sums.load(k)])[0])

    return made_intrinsic("outer", 3, lambda *kinds: types.void(*kinds), codegen)


def dots(rows: int, columns: int, deep: int, turned: bool = False) -> Any:
    """``dots(sums, a, b)``: sums[i * columns + j] += a[i * deep + k] * b[j * deep + k] for all k, each rounded once.

    turned: b[k * columns + j].
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        sums, a, b = (Registers(context, builder, kind, value) for kind, value in zip(sig.args, args, strict=True))
        left, right = a.loads(rows * deep), b.loads(columns * deep)
        made = sums.loads(rows * columns)
        for k in range(deep):
            for i in range(rows):
                for j in range(columns):
                    pair = [left[i * deep + k], right[k * columns + j if turned else j * deep + k]]
                    at = i * columns + j
                    made[at] = assembled(builder, INSTRUCTIONS["fma"], [*pair, made[at]])[0]
        for i, value in enumerate(made):
            sums.store(i, value)

    return made_intrinsic("dots", 3, lambda *kinds: types.void(*kinds), codegen)


def _multiply(builder: Any, step: Instruction, sums: Registers, at: int, a: list[Any], b: list[Any]) -> None:
    for k, value in enumerate(assembled(builder, step, a + b + sums.loads(4, at))):
        sums.store(at + k, value)


def mma_tile(rows: int, columns: int, kind: str) -> Any:
    """``mma_tile(sums, a, b)`` of a warp: rows x columns tiles of 16 x 8, whose sums are 4 registers each.

    Tile (i, j) adds a[4 i : 4 i + 4] times b[2 j : 2 j + 2] to sums[4 (i columns + j) ...].
    kind: see `instructions.MMA`.
    """
    step = mma(kind)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        sums, a, b = (Registers(context, builder, kind, value) for kind, value in zip(sig.args, args, strict=True))
        left, right = a.loads(4 * rows), b.loads(2 * columns)
        for i in range(rows):
            for j in range(columns) if i % 2 == 0 else reversed(range(columns)):  # there and back: b is still at hand
                _multiply(builder, step, sums, 4 * (i * columns + j), left[4 * i : 4 * i + 4], right[2 * j : 2 * j + 2])

    return made_intrinsic("mma_tile", 3, lambda *kinds: types.void(*kinds), codegen)


def mma_row(columns: int, kind: str = "f16", rows: int = 1) -> Any:
    """``mma_row(sums, a, first, b)``: rows of tiles of a[first ...] times all columns; first is a literal."""
    step = mma(kind)

    def typed(sums: Any, a: Any, first: Any, b: Any) -> Any:
        return types.void(sums, a, first, b) if _are_literal(first) else None

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        sums, a, b = (Registers(context, builder, sig.args[i], args[i]) for i in (0, 1, 3))
        left, right = a.loads(4 * rows, sig.args[2].literal_value), b.loads(2 * columns)
        for j in range(columns):
            for i in range(rows):
                _multiply(builder, step, sums, 4 * (i * columns + j), left[4 * i : 4 * i + 4], right[2 * j : 2 * j + 2])

    return made_intrinsic("mma_row", 4, typed, codegen, literal=True)


def fill(n: int, value: float) -> Any:
    """``fill(tile)``: tile[0 : n] = value."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        tile, element = Registers(context, builder, sig.args[0], args[0]), context.get_data_type(sig.args[0].dtype)
        number = float(value) if isinstance(sig.args[0].dtype, types.Float) else int(value)  # 0 and 0.0 are one setting
        for i in range(n):
            tile.store(i, ir.Constant(element, number))

    return made_intrinsic("fill", 1, lambda tile: types.void(tile), codegen)


# --------------------------------------------------------------------------------------------------------------- Hopper

_WGMMA = {
    "f16": ("f32.f16.f16", 16, ", 1, 1, %d, %d"),
    "bf16": ("f32.bf16.bf16", 16, ", 1, 1, %d, %d"),
    "tf32": ("f32.tf32.tf32", 8, ", 1, 1"),
    "e4m3": ("f32.e4m3.e4m3", 32, ", 1, 1"),
    "s8": ("s32.s8.s8", 32, ""),
    "u8s8": ("s32.u8.s8", 32, ""),
    "s8u8": ("s32.s8.u8", 32, ""),
    "u8u8": ("s32.u8.u8", 32, ""),
    "b1": ("s32.b1.b1.and.popc", 256, ""),
}
"""By kind: dtypes, terms of a sum in one instruction, and the end of its text (signs; for halves: what is turned)."""


def wgmma(n: int, kind: str = "f16", a_turned: int = 0, b_turned: int = 0) -> Any:
    """``wgmma(sums, first, a, b, scale)`` of a warp group: 64 x n sums += a (64 x k) b (k x n), both in shared memory.

    sums: sums[first : first + n / 2], a literal first.  a, b: descriptors, i64.  scale: 0 begins with zeros, 1 adds.
    a_turned, b_turned: 1 where not the terms of a line lie dense but the lines of a term; halves alone may.
    """
    dtypes, k, tail = _WGMMA[kind]
    tail = tail % (a_turned, b_turned) if "%" in tail else tail
    registers = n // 2
    letter = "r" if dtypes.startswith("s32") else "f"
    names = ",".join(f"${i}" for i in range(registers))
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, ${registers + 2}, 0; wgmma.mma_async.sync.aligned.m64n{n}k{k}.{dtypes} "
        f"{{{names}}}, ${registers}, ${registers + 1}, p{tail}; }}"
    )

    def typed(sums: Any, first: Any, *_: Any) -> Any:
        return types.void(sums, first, types.int64, types.int64, _U32) if _are_literal(first) else None

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        sums, first = Registers(context, builder, sig.args[0], args[0]), sig.args[1].literal_value
        each = [LLVM[letter]] * registers
        function = ir.FunctionType(ir.LiteralStructType(each), [LLVM["l"], LLVM["l"], LLVM["r"], *each])
        tied = [str(i) for i in range(registers)]
        constraints = ",".join([f"={letter}"] * registers + ["l", "l", "r", *tied, "~{memory}"])
        code = ir.InlineAsm(function, text, constraints, side_effect=True)
        made = builder.call(code, [*args[2:5], *sums.loads(registers, first)], attrs=("convergent",))
        for i in range(registers):
            sums.store(first + i, builder.extract_value(made, i))

    return made_intrinsic("wgmma", 5, typed, codegen, literal=True)


_MADE = (lds, ldsm, ldsm_at, outer, dots, mma_tile, mma_row, fill, wgmma)
_OTHERS = TILE_MACROS | SOFTMAX_MACROS
MACROS: dict[str, Callable[..., Any]] = {made.__name__: made for made in _MADE} | _OTHERS
"""By the name that a `Macro` gives: the intrinsic of its settings."""
