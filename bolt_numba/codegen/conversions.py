"""Kernel text of conversions within chains: bytes are i32 vectors, numbers are f32 vectors.

A sum of dequantised bytes that is quantised again is one multiply-add for each operand: the code of
``s1 * (x - z1) + s2 * (y - z2)`` is ``round(x * a + (y * b + c)) + z`` with ``a = s1 / s``, ``b = s2 / s`` and
``c = -a * z1 - b * z2``.  Products of two are terms of such sums, too, and so are floats.  The result is the code
that the conversions would give, ties included where ``a`` and ``b`` are exact, as for scales that are powers of two.
Elsewhere a number within 2 ** -12 of the middle between two codes may get the other one.  All other conversions give
the codes of the references.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import F32, I16, U16, AnyDType, TensorType
from bolt_numba.codegen.formula import Term
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.pointwise import Add, Mul, Relu, Sub
from bolt_numba.ops.pointwise.chain import Chain

LEAST_SCALE, MOST_RATIO = 2.0**-60, 2.0**16
"""Scales of which sums are computed so: least, and greatest in units of the result's."""
MOST_TERMS = 4


@record(frozen=True)
class Summand:
    """A term of a sum: a sign, and one or two values that steps dequantise, or (``plain``) a float."""

    sign: int
    factors: tuple[int, ...]
    plain: bool = False


@record(frozen=True)
class QuantisedSum:
    """What a QuantizeLinear reads: a sum, cut at zero or not."""

    terms: tuple[Summand, ...]
    clamped: bool

    @property
    def is_bounded(self) -> bool:
        """Whether it is so small, whatever the bytes, that it fits an i32."""
        return not any(t.plain for t in self.terms)


def limits(to: AnyDType) -> tuple[int, int]:
    limit = np.iinfo(to)
    return int(limit.min), int(limit.max)


def quantised_sums(chain: Chain, count: int) -> dict[int, QuantisedSum]:
    """By the value of a QuantizeLinear: the sum that it reads, where it reads one.  count: operands of the chain."""
    sums: dict[int, tuple[Summand, ...]] = {}
    found: dict[int, QuantisedSum] = {}
    for i, (op, operands) in enumerate(chain.steps, count):
        if isinstance(op, DequantizeLinear):
            sums[i] = (Summand(1, (i,)),)
        elif isinstance(op, Mul) and all(_is_single(sums.get(k)) for k in operands):
            sums[i] = (Summand(1, operands),)
        elif isinstance(op, (Add, Sub)) and any(k in sums for k in operands):
            first, second = (sums.get(k, (Summand(1, (k,), True),)) for k in operands)
            sign = 1 if isinstance(op, Add) else -1
            made = first + tuple(Summand(sign * t.sign, t.factors, t.plain) for t in second)
            if len(made) <= MOST_TERMS:
                sums[i] = made
        elif isinstance(op, QuantizeLinear):
            at, clamped = operands[0], False
            if at not in sums and at >= count and isinstance(chain.steps[at - count][0], Relu):
                at, clamped = chain.steps[at - count][1][0], True
            if at in sums:
                found[i] = QuantisedSum(sums[at], clamped)
    return found


def open_codes(chain: Chain, dtypes: Sequence[AnyDType]) -> dict[int, str]:
    """By the value of a QuantizeLinear to bytes that no step reads: its zero point, which is added as it is stored.

    Until then codes may be beyond the limits.  dtypes: of all values of the chain.
    """
    count, read = len(dtypes) - len(chain.steps), {k for _, operands in chain.steps for k in operands}
    return {
        i: _operands(chain, count, i)[2] or "splat(i32(0))"
        for i, (op, _) in enumerate(chain.steps, count)
        if isinstance(op, QuantizeLinear) and dtypes[i].itemsize == 1 and i not in read
    }


def _is_single(terms: tuple[Summand, ...] | None) -> bool:
    return terms is not None and len(terms) == 1 and len(terms[0].factors) == 1 and terms[0].sign > 0


def known_sums(chain: Chain, ins: Sequence[TensorType]) -> list[int]:
    """Steps that quantise a sum whose scales are known, and neither tiny nor far from the result's."""
    count = len(ins)
    if {I16, U16} & ({t.dtype for t in ins} | {getattr(op, "output_dtype", None) for op, _ in chain.steps}):
        return []  # a multiply-add is too coarse for levels of 16 bits

    def scale(at: int) -> float:
        operand = chain.steps[at - count][1][1]
        known = ins[operand].known if operand < count else None
        return 0.0 if known is None or known.dtype != F32 else float(known.reshape(-1)[0])

    def factor(term: Summand) -> float:
        if any(scale(k) < LEAST_SCALE for k in term.factors):
            return 0.0
        return scale(term.factors[0]) * (256 * scale(term.factors[1]) if len(term.factors) > 1 else 1)

    found = []
    for at, total in quantised_sums(chain, count).items():
        own = scale(at)
        factors = [factor(t) for t in total.terms if not t.plain]
        if own > LEAST_SCALE and all(0 < f < MOST_RATIO * own for f in factors):
            found.append(at - count)
    return found


def _operands(chain: Chain, count: int, at: int) -> tuple[str, str, str]:
    """Names of the first operand, scale and zero point of a conversion; "" where it has none."""
    names = [f"v{k}" for k in chain.steps[at - count][1]]
    return names[0], names[1], names[2] if len(names) > 2 else ""


def _centred(x: str, zero: str) -> str:
    return f"to_f32({x} - {zero})" if zero else f"to_f32({x})"


def sum_text(chain: Chain, count: int, at: int, total: QuantisedSum, to: AnyDType, is_open: bool) -> str:
    """Text of the QuantizeLinear that is value ``at``; is_open: whether it is one of `open_codes`."""
    _, scale, zero = _operands(chain, count, at)
    zero, constant, made = zero or "splat(i32(0))", "splat(f32(0))", "{}"
    for term in total.terms:
        sign = "-" if term.sign < 0 else ""
        if term.plain:
            made = made.format(f"fma(v{term.factors[0]}, {sign}(splat(f32(1)) / {scale}), {{}})")
            continue
        parts = [_operands(chain, count, k) for k in term.factors]
        if len(parts) == 1:
            x, own, point = parts[0]
            factor = f"{sign}({own} / {scale})"
            constant += f" - {factor} * to_f32({point})" if point else ""
            made = made.format(f"fma(to_f32({x}), {factor}, {{}})")
        else:
            (x, one, first), (y, two, second) = parts
            product = f"{_centred(x, first)} * {_centred(y, second)}"
            made = made.format(f"fma({product}, {sign}({one} * {two} / {scale}), {{}})")
    number = made.format(f"({constant})")
    number = f"vmax(splat(f32(0)), {number})" if total.clamped else number  # keeps NaN
    number = number if total.is_bounded else _bounded(number, zero, to)
    return f"round_i32({number})" if is_open else limited_text(f"(round_i32({number}) + {zero})", to)


def _bounded(number: str, zero: str, to: AnyDType) -> str:
    """A number in units of the scale within what ``to`` can hold; limits are whole, so rounding comes after."""
    least, most = (f"to_f32(splat(i32({limit})) - {zero})" for limit in limits(to))
    return f"vmin(vmax({number}, {least}), {most})"  # of NaN the least is taken


def limited_text(code: str, to: AnyDType) -> str:
    """An i32 vector within the limits of a dtype."""
    low, high = limits(to)
    return f"vmin(vmax({code}, splat(i32({low}))), splat(i32({high})))"


def conversion_text(chain: Chain, dtypes: Sequence[AnyDType], at: int, terms: Sequence[Term], is_sum: bool) -> str:
    """Text of the conversion that is value ``at`` of a chain, on the vectors ``terms``; without zero point where open.

    dtypes: of all values.  is_sum: whether it is one of `known_sums`.
    """
    count, to, is_open = len(dtypes) - len(chain.steps), dtypes[at], at in open_codes(chain, dtypes)
    x, scale, zero = [t.text for t in (*terms, Term("", None))][:3]
    if isinstance(chain.steps[at - count][0], DequantizeLinear):
        return f"({_centred(x, zero)} * {scale})"
    if is_sum:
        return sum_text(chain, count, at, quantised_sums(chain, count)[at], to, is_open)
    zero = zero or "splat(i32(0))"
    code = f"round_i32({_bounded(f'{x} / {scale}', zero, to)})"
    return code if is_open else f"({code} + {zero})"
