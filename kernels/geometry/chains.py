"""What makers of pointwise chains ask of a node, whatever the device, and how far their kernels reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from bolt_numba.base.types import AnyDType, TensorType
from bolt_numba.codegen.chain import MAX_OUTER, LoopNest, as_chain, value_dtypes
from bolt_numba.kernels.declare import F32, F64, I64, PTR
from bolt_numba.kernels.extents import Numbers, Reach, box
from bolt_numba.kernels.registry import Types, once, result_of
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops import pointwise
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.ops.shapes import broadcast_shapes

OPERATORS: list[type[Any]] = [
    row
    for row in vars(pointwise).values()
    if isinstance(row, type) and issubclass(row, Pointwise) and hasattr(row, "formula")
] + [Chain]
"""Those whose kernels are generated."""
FIELDS = {"ptr": PTR, "i64": I64, "f32": F32, "f64": F64}
"""By the kinds that generators name."""


@once
def seen_chain(op: Pointwise | Chain, ins: Types) -> tuple[Chain, list[TensorType], tuple[AnyDType, ...]] | None:
    """The chain, its operands, and the dtypes of all values; None when an operand is omitted or unknown."""
    known = [t for t in ins if t is not None and t.is_static]
    if len(known) != len(ins) or not known:
        return None
    chain = as_chain(op)
    return chain, known, value_dtypes(chain, [t.dtype for t in known])


@once
def common_shape(op: Pointwise | Chain, ins: Types) -> tuple[int, ...] | None:
    """Of all results, to which the operands are broadcast; None where they differ."""
    chain, known, _ = tested(seen_chain(op, ins))
    if len(chain.results) == 1:
        shapes = [result_of(op, ins).dims]
    else:
        types = chain.infer_all(*known)
        shapes = [types[i].dims for i in chain.results]
    whole = broadcast_shapes(op, *[t.dims for t in known])
    return None if any(shape != whole for shape in shapes) else shapes[0]


def loops_of(
    op: Pointwise | Chain,
    ins: Types,
    lay: Callable[[Chain, tuple[int, ...], list[TensorType], tuple[AnyDType, ...]], LoopNest],
) -> LoopNest | None:
    """Loops that ``lay`` makes of chain, shape, operands and dtypes; None where there are none, or too many."""
    seen = seen_chain(op, ins)
    shape = None if seen is None else common_shape(op, ins)
    if seen is None or shape is None:
        return None
    chain, known, dtypes = seen
    nest = lay(chain, shape, known, dtypes)
    return nest if len(nest.outer) <= MAX_OUTER else None


def may_write_over(op: Pointwise | Chain, ins: Types) -> bool:
    """Whether an operand of as many bytes as the first result has as many elements, too."""
    chain, known, dtypes = tested(seen_chain(op, ins))
    numbers = [t.known is not None and t.size == 1 for t in known]  # nobody writes over a constant
    widest = max([t.dtype.itemsize for t, number in zip(known, numbers, strict=True) if not number], default=0)
    return widest <= dtypes[chain.results[0]].itemsize


def loops_reach(sizes: Sequence[int], results: Sequence[int], outer: int, forms: str, a: Numbers) -> dict[str, Reach]:
    """Extents of a generated kernel: itemsizes of values and results, loops, and forms as in `LoopNest`."""
    given, n = vars(a), a.n
    rows = a.items // max(a.blocks, 1) if outer else 1
    found: dict[str, Reach] = {f"o{k}": rows * n * size for k, size in enumerate(results)}
    loops = [given[f"d{j}"] for j in range(1, outer)]
    loops = [rows // max(math.prod(loops), 1), *loops] if outer else []
    for k, form in enumerate(forms):
        run = n * sizes[k] if form == "v" else sizes[k]
        if form == "g":
            found[f"t{k}"] = 4 * n
            run += given[f"t{k}"].max().item() * sizes[k]
        moves = loops if form != "n" else []
        found[f"a{k}"] = box(run, *[(size, given[f"s{k}_{j}"]) for j, size in enumerate(moves)]) if moves else run
    return found
