"""Functions of one byte: a table in shared memory, 16 bytes to a thread."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from bolt_numba.kernels.cuda.declare import I64, PTR, CudaKernel, ceil_div
from bolt_numba.kernels.cuda.language.lang import load16_u8, load_u8, store16_u8, store_u8
from bolt_numba.kernels.cuda.movement.index import SCOPE
from bolt_numba.kernels.declare import Source
from bolt_numba.kernels.registry import Argument, Context, In, Out, Step, Types, kernel
from bolt_numba.ops.arrays.byte_table import ENTRIES, ByteTable
from bolt_numba.types import TensorType

THREADS = 256
"""One for each entry, which it fetches."""
EACH = 16
"""Bytes of a thread."""


@cache
def byte_lookup() -> CudaKernel:
    """Kernel of n bytes to bytes, y may be x; the first threads take those behind the last 16."""
    values = ", ".join(f"v{i}" for i in range(EACH))
    found = ", ".join(f"entries[v{i}]" for i in range(EACH))
    text = (
        "def byte_lookup(x, y, table, n):\n"
        f"    entries = cuda.shared.array({ENTRIES}, np.uint8)\n"
        "    entries[cuda.threadIdx.x] = load_u8(table + cuda.threadIdx.x)\n"
        "    cuda.syncthreads()\n"
        f"    i = cuda.blockIdx.x * {THREADS} + cuda.threadIdx.x\n"
        f"    if {EACH} * i + {EACH} <= n:\n"
        f"        {values} = load16_u8(x + {EACH} * i)\n"
        f"        store16_u8(y + {EACH} * i, {found})\n"
        f"    rest = n // {EACH} * {EACH} + i\n"
        "    if rest < n:\n"
        "        store_u8(y + rest, entries[load_u8(x + rest)])\n"
    )
    scope = {**SCOPE, "load_u8": load_u8, "store_u8": store_u8, "load16_u8": load16_u8, "store16_u8": store16_u8}
    return CudaKernel(
        Source(text, "byte_lookup", scope), "byte_lookup", {"x": PTR, "y": PTR, "table": PTR, "n": I64},
        threads=THREADS, blocks=lambda a: ceil_div(max(a.n // EACH, min(a.n, EACH)), THREADS),
        extents=lambda a: {"x": a.n, "y": a.n, "table": ENTRIES},
    )  # fmt: skip


@kernel(ByteTable, device="cuda", accepts=lambda op, ins: ins[0] is not None and ins[0].is_static, inplace=(0,))
def byte_table(op: Any, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """Any shape."""
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "table": In(1), "n": outs[0].size}
    return [Step(byte_lookup(), args)] if outs[0].size else []


def samples() -> list[CudaKernel]:
    """A kernel of each kind, for the table of resources."""
    return [byte_lookup()]
