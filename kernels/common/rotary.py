"""Rotary position embedding: which row of the tables turns a head; pairs are turned as each device does it.

A CPU turns all pairs of a head in vectors, a thread of a GPU one pair.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

from bolt_numba.base.types import BF16, F16, F32, dtype_name
from bolt_numba.kernels.declare import I64, PTR, PTR_OR_0, inline
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.geometry.elements import FAULT, DeviceParts, elements
from bolt_numba.kernels.registry import Argument, Context, Fault, In, Out, Outs, Step, Types, always, everywhere
from bolt_numba.ops.layers.attention.rotary import RotaryEmbedding


def _size(dtype: str) -> int:
    return 2 if "16" in dtype else 4


def _turned(a: Any, dtype: str, neighbours: bool) -> dict[str, Reach]:
    places = (a.n - 1) * a.image + (a.outer if a.is_outer else a.inner)
    count, table = a.n * a.outer * a.inner * a.d, a.half * (places if a.positions is None else a.rows)
    numbers = {"x": count, "y": count, "cos": table, "sin": table}
    return {name: _size(dtype) * reach for name, reach in numbers.items()} | {"positions": 8 * places}


@elements(
    over={"b": "n", "o": "outer", "i": "inner"}, extents=_turned, x=PTR, y=PTR, cos=PTR, sin=PTR, positions=PTR_OR_0,
    fault=FAULT, d=I64, half=I64, is_outer=I64, rows=I64, image=I64, run=I64,
)  # fmt: skip
def rotate(on: DeviceParts, dtype: str, neighbours: bool):
    """Heads ``x [n, outer, inner, d]``; the position is the outer index if ``is_outer``, else the inner one.

    positions: i64 rows of the tables, 0…rows - 1, or 0: the row is the position.  image: positions (or rows)
    from one of the n to the next, 0 where all share them.  neighbours: elements 2 i and 2 i + 1 are a pair, else
    elements i and i + half.  run: bytes of the first elements of all pairs and of what stays behind them.
    """
    load, report, size = on.load("i64"), on.report, _size(dtype)
    turn = on.own("attention.rotary.turns")(dtype, neighbours)

    @inline
    def element(b, o, i, c, t, x, y, cos, sin, positions, fault, d, half, is_outer, rows, image, run):
        row = b * image + (o if is_outer != 0 else i)
        if positions != 0:
            given = load(positions + 8 * row)
            if given < 0 or given >= rows:
                report(fault, row, given, 0, rows - 1)
                return -1
            row = given
        turn(x + size * t * d, y + size * t * d, cos + size * row * half, sin + size * row * half, c, half, d)
        return 0

    return element


def _accepts(op: RotaryEmbedding, ins: Types) -> bool:
    is_static = all(t is None or (t.is_static and t.size) for t in ins)
    return is_static and all(ins[i].dtype in (F32, F16, BF16) for i in range(3))


@everywhere(RotaryEmbedding, accepts=_accepts, computes=always, few=True, inplace=(0,))
def rotary_embedding(op: RotaryEmbedding, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """One read and one write."""
    x, cos, positions = ins[0], ins[1], ins[3] if len(ins) > 3 else None
    (n, outer, inner, d), half, is_outer = x.dims, cos.dims[-1], op.layout == "SHD"
    shared = (cos if positions is None else positions).dims[0] == 1
    args: dict[str, Argument] = {"x": In(0), "y": Out(0), "cos": In(1), "sin": In(2)}
    args |= {"positions": None if positions is None else In(3), "fault": None if positions is None else Fault(3)}
    args |= {"n": n, "outer": outer, "inner": inner, "d": d, "half": half, "is_outer": int(is_outer)}
    args |= {"rows": cos.size // half, "image": 0 if shared else outer if is_outer else inner}
    args["run"] = x.dtype.itemsize * (d - half)
    settings = dtype_name(x.dtype), bool(op.interleaved)
    return [on.step(rotate, settings, args, on.pays(0, x.size // 2), x.dtype.itemsize)]
