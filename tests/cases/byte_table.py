"""Cases of tables of bytes."""

from __future__ import annotations

from typing import Any

from bolt_numba.ops.arrays.byte_table import ENTRIES, ByteTable
from bolt_numba.types import I8, U8
from tests.cases import Case, cases
from tests.cases.draw import Draw, pick, shapes, whole


@cases(ByteTable)
def byte_table(draw: Draw, op: type[Any]) -> Case:
    """Sizes on both sides of a vector of 64 bytes."""
    dims = pick(draw, shapes(draw, 0, 4), (63,), (64,), (2, 131))
    source, target = pick(draw, U8, I8), pick(draw, U8, I8)
    bounds = {U8: (0, 255), I8: (-128, 127)}
    return Case(op(), (whole(draw, dims, *bounds[source], source), whole(draw, (ENTRIES,), *bounds[target], target)))
