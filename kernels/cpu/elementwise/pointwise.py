"""Pointwise operators and fused chains of them: generated loops (see `codegen.chain`) with their vocabulary."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bolt_numba.base.follow import followed
from bolt_numba.base.types import AnyDType, Array, TensorType
from bolt_numba.codegen.chain import (
    LoopNest,
    Powers,
    can_generate,
    chain_kernel,
    geometry,
    has_conversions,
    is_vector_form,
    known_powers,
    number_args,
    operand_strides,
    unit_cost,
    value_dtypes,
)
from bolt_numba.kernels.cpu.language.lang import native_source
from bolt_numba.kernels.cpu.language.scope import scope_of
from bolt_numba.kernels.cpu.machine import PAYS_NS
from bolt_numba.kernels.geometry.chains import FIELDS, OPERATORS, loops_of, loops_reach, may_write_over, seen_chain
from bolt_numba.kernels.jit import Native
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Step, Types, kernel, once
from bolt_numba.kernels.unseen import KEYED_ELEMENTS, tested
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.pointwise.row import Pointwise

SHORT_LOOP = 16
"""Elements under which the innermost loop is lengthened: a jumping load costs four times a running one."""
SHORT_FOR_CONSTANTS = 128
"""The same where constants can be laid out so that nothing jumps."""

_FREEDOMS = frozenset({"contract"})
"""No reciprocals: the fast one of a square root makes NaN of 0 and of infinity.  Chains of exact steps between bytes do
without: which way a half is rounded depends on the last bit."""


@functools.lru_cache(maxsize=1024)
def _kernel(chain: Chain, ins: tuple[AnyDType, ...], powers: Powers, outer: int, forms: str) -> Native:
    made = chain_kernel(chain, ins, powers, outer, forms)
    fields = {name: FIELDS[kind] for name, kind in made.fields.items()}
    sizes = [t.itemsize for t in value_dtypes(chain, ins)]
    extents = functools.partial(loops_reach, sizes, [sizes[i] for i in chain.results], outer, forms)
    exact = has_conversions(chain) and not any(isinstance(op, Pointwise) and op.ulp for op, _ in chain.steps)
    freedoms = frozenset() if exact else _FREEDOMS
    return native_source(made.text, made.name, fields, freedoms, extents=extents, **scope_of(made.text))


@once
def _nest(op: Pointwise | Chain, ins: Types) -> LoopNest | None:
    return loops_of(op, ins, _lengthen)


def _lengthen(chain: Chain, shape: tuple[int, ...], ins: Sequence[TensorType], dtypes: Sequence[AnyDType]) -> LoopNest:
    """Loops whose innermost is not too short, as far as operands can follow."""
    dims = [t.dims for t in ins]
    vector = is_vector_form(chain, dtypes)
    for short in (SHORT_FOR_CONSTANTS, SHORT_LOOP, 0):
        nest = geometry(shape, dims, short)
        jumping = [k for k, t in enumerate(nest.tables) if t is not None and not _is_spreadable(nest, k, ins[k])]
        if not jumping or (short == SHORT_LOOP and not (vector and any(dtypes[k].itemsize < 4 for k in jumping))):
            break  # there are no jumping loads of less than 32 bits
    return nest


def _is_spreadable(nest: LoopNest, k: int, operand: TensorType) -> bool:
    """Whether operand k is a constant that every row reads alike."""
    return operand.known is not None and not any(nest.strides[k])


def _spread(nest: LoopNest, ins: Sequence[TensorType], context: Context) -> tuple[LoopNest, dict[int, Array]]:
    """Lay out constants that would be jumped through, once; the nest then runs along them."""
    made: dict[int, Array] = {}
    forms, tables = list(nest.forms), list(nest.tables)
    for k, table in enumerate(nest.tables):
        known = ins[k].known
        if table is None or known is None or not _is_spreadable(nest, k, ins[k]):
            continue
        if known.size <= KEYED_ELEMENTS:
            made[k] = followed(_take, table, known)
        else:
            made[k] = context.packed(known, ("spread", table.tobytes()), functools.partial(_take, table))
        forms[k], tables[k] = "v", None
    return (replace(nest, forms="".join(forms), tables=tuple(tables)) if made else nest), made


def _take(table: Array, array: Array) -> Array:
    return np.ascontiguousarray(array.reshape(-1)[table])


@once
def _accepts(op: Pointwise | Chain, ins: Types) -> bool:
    seen = seen_chain(op, ins)
    return seen is not None and can_generate(seen[0], seen[1]) and _nest(op, ins) is not None


def _accepts_in_place(op: Pointwise | Chain, ins: Types) -> bool:
    return _accepts(op, ins) and may_write_over(op, ins)


def _steps(op: Pointwise | Chain, ins: Types, outs: Outs, context: Context) -> list[Step]:
    chain, known, _ = tested(seen_chain(op, ins))
    nest = tested(_nest(op, ins))
    if not nest.size:
        return []
    nest, spread = _spread(nest, known, context)
    args: dict[str, Argument] = {f"o{k}": Out(k) for k in range(len(chain.results))}
    args |= {f"a{k}": spread.get(k, In(k)) for k in range(len(known))}
    args |= {f"t{k}": table for k, table in enumerate(nest.tables) if table is not None}
    args |= {"n": nest.inner, "items": nest.rows * nest.blocks, "blocks": nest.blocks}
    args |= {f"d{j}": size for j, size in enumerate(nest.outer) if j}
    dtypes = tuple([t.dtype for t in known])
    args |= operand_strides(nest, dtypes)
    args |= number_args(chain, dtypes)
    parallel = context.threads > 1 and (nest.size > int(PAYS_NS / unit_cost(chain))) & (nest.rows * nest.blocks > 1)
    made = _kernel(chain, dtypes, known_powers(chain, known), len(nest.outer), nest.forms)
    return [Step(made, args, parallel)]


@kernel(*OPERATORS, accepts=_accepts_in_place, inplace=tuple(range(8)), rank=1)
def pointwise_in_place(op: Pointwise | Chain, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Generated loop whose result may take over an operand's memory: each index is read before it is written."""
    return _steps(op, ins, outs, context)


@kernel(*OPERATORS, accepts=_accepts)
def pointwise(op: Pointwise | Chain, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Generated loop with operands wider than the result."""
    return _steps(op, ins, outs, context)
