"""Kernel text of conversions within chains: bytes are i32 vectors, numbers are f32 vectors.

A sum of dequantised bytes that is quantised again is one multiply-add for each operand: the code of
``s1 * (x - z1) + s2 * (y - z2)`` is ``round(x * a + (y * b + c))`` with ``a = s1 / s``, ``b = s2 / s`` and
``c = z - a * z1 - b * z2``.  It is the code that the conversions would give, or at a boundary between two codes (within
2 ** -12 of the middle) perhaps its neighbour.  All other conversions give the codes of the references.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from bolt_numba.codegen.formula import Term
from bolt_numba.ops.chain import Chain
from bolt_numba.ops.layers.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.pointwise import Add, Relu, Sub
from bolt_numba.types import I8, AnyDType, TensorType

Sum: TypeAlias = "tuple[tuple[int, int], ...]"
"""Steps that dequantise, and the sign of each."""
LEAST_SCALE, MOST_RATIO = 2.0**-100, 2.0**16
"""Scales of which sums are computed so: least, and greatest in units of the result's."""
MOST = 4
"""Operands of a sum that is computed so."""


def dequantized_text(x: Term, scale: Term, zero: Term | None) -> str:
    """(x - zero) * scale."""
    return f"(to_f32({x.text}{f' - {zero.text}' if zero else ''}) * {scale.text})"


def _code_text(number: str, zero: str, to: AnyDType) -> str:
    """Code of a number in units of the scale; of NaN the least.  Limits are whole, so they may come first."""
    low, high = (-128, 127) if to == I8 else (0, 255)
    least, most = (f"to_f32(splat(i32({limit})) - {zero})" for limit in (low, high))
    return f"(round_i32(vmin(vmax({number}, {least}), {most})) + {zero})"


def quantized_text(x: Term, scale: Term, zero: Term | None, to: AnyDType) -> str:
    """saturate(round(x / scale) + zero)."""
    return _code_text(f"{x.text} / {scale.text}", zero.text if zero else "splat(i32(0))", to)


def sums_of(chain: Chain, count: int) -> dict[int, tuple[Sum, bool]]:
    """Of each QuantizeLinear that reads a sum of dequantised bytes: the sum, and whether a Relu lies between.

    count: operands of the chain.  Steps are counted as in `Chain`.
    """
    sums: dict[int, Sum] = {}
    found: dict[int, tuple[Sum, bool]] = {}
    for i, (op, operands) in enumerate(chain.steps, count):
        if isinstance(op, DequantizeLinear):
            sums[i] = ((i, 1),)
        elif isinstance(op, (Add, Sub)) and operands[0] in sums and operands[1] in sums:
            sign = 1 if isinstance(op, Add) else -1
            made = sums[operands[0]] + tuple((k, sign * s) for k, s in sums[operands[1]])
            if len(made) <= MOST:
                sums[i] = made
        elif isinstance(op, QuantizeLinear):
            at, clamped = operands[0], False
            if at not in sums and at >= count and isinstance(chain.steps[at - count][0], Relu):
                at, clamped = chain.steps[at - count][1][0], True
            if len(sums.get(at, ())) > 1:
                found[i] = sums[at], clamped
    return found


def sum_text(chain: Chain, count: int, made: int, total: Sum, clamped: bool, to: AnyDType) -> str:
    """Text of the QuantizeLinear ``made`` that reads a sum; see above."""
    _, scale, *zero = chain.steps[made - count][1]
    point = f"v{zero[0]}" if zero else "splat(i32(0))"
    number = f"to_f32({point})"
    for step, sign in total:
        _, own, *points = chain.steps[step - count][1]
        if points:
            number += f" {'-' if sign > 0 else '+'} v{own} / v{scale} * to_f32(v{points[0]})"
    for step, sign in total:
        x, own, *_ = chain.steps[step - count][1]
        number = f"fma(to_f32(v{x}), {'-' if sign < 0 else ''}(v{own} / v{scale}), {number})"
    low, high = (-128, 127) if to == I8 else (0, 255)
    least = f"to_f32({point})" if clamped else f"splat(f32({low}))"
    return f"round_i32(vmin(vmax({number}, {least}), splat(f32({high}))))"


def known_sums(chain: Chain, ins: Sequence[TensorType]) -> list[int]:
    """Steps that quantise a sum whose scales are known, and neither tiny nor far from the result's."""
    count = len(ins)

    def scale(at: int) -> float:
        known = ins[operand].known if (operand := chain.steps[at - count][1][1]) < count else None
        return 0.0 if known is None else float(known.reshape(-1)[0])

    found = []
    for at, (total, _) in sums_of(chain, count).items():
        own = scale(at)
        if own > LEAST_SCALE and all(LEAST_SCALE < scale(k) < MOST_RATIO * own for k, _ in total):
            found.append(at - count)
    return found


def conversion_text(
    chain: Chain, count: int, at: int, terms: Sequence[Term], to: AnyDType, is_sum: bool
) -> str:
    """Text of the conversion that is value ``at`` of a chain with ``count`` operands, on the vectors ``terms``.

    is_sum: whether it is one of `known_sums`.
    """
    x, scale, *zero = terms
    if isinstance(chain.steps[at - count][0], DequantizeLinear):
        return dequantized_text(x, scale, zero[0] if zero else None)
    if is_sum:
        return sum_text(chain, count, at, *sums_of(chain, count)[at], to)
    return quantized_text(x, scale, zero[0] if zero else None, to)
