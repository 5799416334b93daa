"""Macros of products on tensor cores: operands that lie turned in shared memory, and sums that go there."""

from __future__ import annotations

import itertools
from typing import Any

from llvmlite import ir
from numba.cuda import types

from bolt_numba.kernels.cuda.language.emit import LLVM, Registers, assembled, made_intrinsic
from bolt_numba.kernels.cuda.language.instructions import Instruction

_LDMATRIX = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3}, [$4+%d];"


def ldsm_turned(n: int) -> Any:
    """``ldsm_turned(tile, base, place, offset)``: 4 n registers by n ldmatrix.x4.trans.

    Load i is at base + (place ^ 32 i) + offset: 16 bytes are swizzled within 128.  The offset is a literal.
    """

    def typed(tile: Any, _: Any, __: Any, offset: Any) -> Any:
        return types.void(tile, types.uint32, types.uint32, offset) if isinstance(offset, types.Literal) else None

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        tile = Registers(context, builder, sig.args[0], args[0])
        load = Instruction(_LDMATRIX % sig.args[3].literal_value, "rrrr", "r", touches_memory=True)
        for i in range(n):
            place = builder.xor(args[2], ir.Constant(LLVM["r"], 32 * i))
            for j, value in enumerate(assembled(builder, load, [builder.add(args[1], place)])):
                tile.store(4 * i + j, value)

    return made_intrinsic("ldsm_turned", 4, typed, codegen, literal=True)


def sts_sums(columns: int, pitch: int, letter: str = "f") -> Any:
    """``sts_sums(sums, first, address)``: one tile row of `mma_tile` to shared memory, 32 bytes from tile to tile.

    first: of its sums, a literal · address: of the lane's first sum · pitch: bytes from one row to the next ·
    letter: "f" f32 or "r" i32.
    """

    def typed(sums: Any, first: Any, _: Any) -> Any:
        return types.void(sums, first, types.uint32) if isinstance(first, types.Literal) else None

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        sums, first = Registers(context, builder, sig.args[0], args[0]), sig.args[1].literal_value
        for j in range(columns):
            for half in (0, 1):
                text = f"st.shared.v2.b32 [$0+{32 * j + 8 * pitch * half}], {{$1,$2}};"
                store = Instruction(text, "", "r" + 2 * letter, touches_memory=True)
                assembled(builder, store, [args[2], *sums.loads(2, first + 4 * j + 2 * half)])

    return made_intrinsic("sts_sums", 3, typed, codegen, literal=True)


def sts_rows(vectors: int, pitch: int, apart: int) -> Any:
    """``sts_rows(sums, first, address)``: 4 rows of ``vectors`` times 4 f32 to shared memory, 16 bytes at once.

    first: of the sums, a literal · pitch, apart: bytes from one row, and from one vector of a row, to the next.
    """

    def typed(sums: Any, first: Any, _: Any) -> Any:
        return types.void(sums, first, types.uint32) if isinstance(first, types.Literal) else None

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
        sums, first = Registers(context, builder, sig.args[0], args[0]), sig.args[1].literal_value
        for i, (row, vector) in enumerate(itertools.product(range(4), range(vectors))):
            text = f"st.shared.v4.b32 [$0+{row * pitch + vector * apart}], {{$1,$2,$3,$4}};"
            store = Instruction(text, "", "rffff", touches_memory=True)
            assembled(builder, store, [args[2], *sums.loads(4, first + 4 * i)])

    return made_intrinsic("sts_rows", 3, typed, codegen, literal=True)


TILE_MACROS = {made.__name__: made for made in (ldsm_turned, sts_sums, sts_rows)}
"""Like `macros.MACROS`."""
