"""Chains: pointwise operators, and conversions between bytes and floats, that run as one loop."""

from __future__ import annotations

from typing import Any, TypeAlias

from bolt_numba.base.types import AnyDType, Array, TensorType
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.content import VALUES, bounded
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.ops.registry import Op, op
from bolt_numba.ops.shapes import want_one

ChainStep: TypeAlias = tuple[Op, tuple[int, ...]]
CONVERSIONS = (DequantizeLinear, QuantizeLinear)
"""Steps that are no pointwise operators: with one scale for all they do the same to each element."""


@op("Chain")
class Chain(Op):
    """Several operators run as one loop: intermediate values stay in registers.

    steps: (operator, operand indices) in single assignment form: index i < number of inputs is input i, the others
    are earlier steps, counted on from there.  Operators are pointwise, or conversions whose scale and zero point have
    one element.  results: the indices returned.  Internal: made by fusion only.
    """

    steps: tuple[ChainStep, ...]
    results: tuple[int, ...]
    data_bounds = bounded(inputs=VALUES)

    def infer(self, *inputs: TensorType) -> TensorType | tuple[TensorType, ...]:
        types = self.infer_all(*inputs)
        made = tuple(types[i].with_value(None) for i in self.results)
        return made if len(made) > 1 else made[0]

    def infer_all(self, *inputs: TensorType) -> list[TensorType]:
        """Types of the inputs, then of every step."""
        types = list(inputs)
        self.fail_if(not self.steps, "steps", self.steps, "at least one")
        for step, operands in self.steps:
            if min(operands) < 0 or max(operands) >= len(types):
                raise self.fail(f"operands of step {step.name}", operands, f"indices under {len(types)}")
            given = [types[i] for i in operands]
            if isinstance(step, CONVERSIONS):
                want_one(self, **{f"operand {i} of step {step.name}": t for i, t in enumerate(given[1:], 1)})
            elif not isinstance(step, Pointwise):
                raise self.fail("step", step.name, "a pointwise operator or a conversion")
            made: Any = step.infer(*given)
            types.append(made)
        if not self.results or not all(0 <= i < len(types) for i in self.results):
            raise self.fail("results", self.results, f"indices under {len(types)}")
        return types

    def reference(self, *inputs: Array) -> Any:
        values = list(inputs)
        for step, operands in self.steps:
            values.append(step.reference(*(values[i] for i in operands)))
        made = tuple(values[i] for i in self.results)
        return made if len(made) > 1 else made[0]


def step_dtype(step: Op, *dtypes: AnyDType) -> AnyDType:
    """Dtype of a step's result; raises DTypeError."""
    if isinstance(step, Pointwise):
        return step.result_dtype(*dtypes)
    made: Any = step.infer(*[TensorType(d, ()) for d in dtypes])
    return made.dtype  # type: ignore[no-any-return]
