"""Pointwise operators and fused chains of them: generated kernels (see `codegen.threads`).

A thread computes a few neighbours of a row, as many as 16 bytes hold where rows divide so; it loads and stores them
at once where they lie at multiples of their size.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from bolt_numba.base.types import AnyDType, TensorType
from bolt_numba.codegen.chain import LoopNest, Powers, geometry, known_powers, operand_strides, value_dtypes
from bolt_numba.codegen.threads import MOST_PER_THREAD, WIDTH, chain_for_threads, thread_lines, thread_numbers
from bolt_numba.kernels.cuda.declare import WIDE_BLOCK, CudaKernel, ceil_div, inline_source
from bolt_numba.kernels.cuda.elementwise.scalars import scope_of
from bolt_numba.kernels.cuda.language.division import divider
from bolt_numba.kernels.declare import Source
from bolt_numba.kernels.geometry.chains import FIELDS, OPERATORS, loops_of, loops_reach, may_write_over, seen_chain
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel, once
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops import pointwise as ops
from bolt_numba.ops.dtypes import MAX_I32
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.pointwise.row import BYTE_FLOATS, Pointwise

_IN_PLACE = tuple([op for op in OPERATORS if op not in (ops.IsNaN, ops.IsInf)])
"""Operators whose result may be as wide as an operand."""


@functools.lru_cache(maxsize=1024)
def chain_kernel(
    chain: Chain, ins: tuple[AnyDType, ...], powers: Powers, outer: int, forms: str, per: int
) -> CudaKernel:
    """For operands of these dtypes, ``outer`` outer loops, an innermost pattern, and elements of a thread."""
    made = chain_for_threads(chain, ins, powers, outer, forms, per, WIDE_BLOCK)
    element = inline_source(made.element, "element", **scope_of(made.element))
    scope = {**scope_of(made.text), "element": element}
    sizes = [t.itemsize for t in value_dtypes(chain, ins)]
    return CudaKernel(
        Source(made.text, made.name, scope), made.name, {name: FIELDS[kind] for name, kind in made.fields.items()},
        threads=WIDE_BLOCK, blocks=lambda a: ceil_div(a.items, WIDE_BLOCK),
        extents=functools.partial(loops_reach, sizes, [sizes[i] for i in chain.results], outer, forms),
    )  # fmt: skip


@once
def _nest(op: Pointwise | Chain, ins: Types) -> LoopNest | None:
    nest = loops_of(op, ins, lambda chain, shape, known, dtypes: geometry(shape, [t.dims for t in known]))
    return nest if nest is not None and nest.size <= MAX_I32 else None


def elements_of_thread(n: int, itemsize: int, is_flat: bool) -> int:
    """How many neighbours a thread takes: rows of ``n`` are divided evenly, unless there is one."""
    per = max(1, min(MOST_PER_THREAD, WIDTH // itemsize))
    while per > 1 and (n < per if is_flat else n % per):
        per //= 2
    return per


@once
def _accepts(op: Pointwise | Chain, ins: Types) -> bool:
    seen = seen_chain(op, ins)
    if seen is None or _nest(op, ins) is None or any(t.dtype in BYTE_FLOATS for t in seen[1]):
        return False
    return thread_lines(seen[0], tuple([t.dtype for t in seen[1]]), ()) is not None


def _accepts_in_place(op: Pointwise | Chain, ins: Types) -> bool:
    return _accepts(op, ins) and may_write_over(op, ins)


def _steps(op: Pointwise | Chain, ins: Types) -> list[Step]:
    (chain, known, _), nest = tested(seen_chain(op, ins)), tested(_nest(op, ins))
    return _loops(chain, known, nest, [In(k) for k in range(len(known))], [Out(k) for k in range(len(chain.results))])


def chain_steps(
    chain: Chain, ins: Sequence[TensorType], shape: Sequence[int], operands: Sequence[Argument], result: Argument
) -> list[Step]:
    """A chain as a part of another operator: ``operands``, of types ``ins``, broadcast to the shape of its result."""
    return _loops(chain, ins, geometry(shape, [t.dims for t in ins]), operands, [result])


def _loops(
    chain: Chain, ins: Sequence[TensorType], nest: LoopNest, operands: Sequence[Argument], results: Sequence[Argument]
) -> list[Step]:
    if not nest.size:
        return []
    outer, given = len(nest.outer), tuple([t.dtype for t in ins])
    dtypes = value_dtypes(chain, given)
    moving = [dtypes[k].itemsize for k, form in enumerate(nest.forms) if form == "v"]
    per = elements_of_thread(nest.inner, max([*moving, *(dtypes[i].itemsize for i in chain.results)]), not outer)
    blocks = ceil_div(nest.inner, per)
    args: dict[str, Argument] = {f"o{k}": result for k, result in enumerate(results)}
    args |= {f"a{k}": operand for k, operand in enumerate(operands)}
    args |= {"n": nest.inner, "items": nest.rows * blocks}
    for name, size in [("blocks", blocks), *((f"d{j}", size) for j, size in enumerate(nest.outer) if j)]:
        if outer:
            args[name] = size
            args[f"m_{name}"], args[f"h_{name}"] = divider(size)
    args |= operand_strides(nest, given)
    for name, (_, value) in thread_numbers(chain, dtypes).items():
        args[name] = value - 2**64 if isinstance(value, int) and value >= 2**63 else value
    return [Step(chain_kernel(chain, given, known_powers(chain, ins), outer, nest.forms, per), args)]


@kernel(*_IN_PLACE, device="cuda", accepts=_accepts_in_place, inplace=tuple(range(8)), rank=1)
def pointwise_in_place(op: Pointwise | Chain, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """A result that may take over an operand's memory: a thread loads its elements before it stores any there."""
    return _steps(op, ins)


@kernel(*OPERATORS, device="cuda", accepts=_accepts)
def pointwise(op: Pointwise | Chain, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Operands that are wider than the result."""
    return _steps(op, ins)
