"""Attributes, and contents that decide shapes, at the ends of what they can say: refused by a BoltError, or right."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from bolt_numba.base.budget import Budget, within
from bolt_numba.errors import BoltError, BudgetError, ShapeError
from bolt_numba.ir.build import infer_types
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.arrays.shape import Tile
from bolt_numba.ops.control import If
from bolt_numba.ops.evaluate import evaluate
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Cast, Not
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.registry import Op
from bolt_numba.types import F32, F64, Array, type_of
from tests.cases import CASES, Case
from tests.test_infer_operands import ALL, EXAMPLES, agrees

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
WHOLE = (0, -1, 1, 2, 65, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63))
REAL = (0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e30, 1e-30)
WORK, MEMORY = 1 << 20, 1 << 26
"""What a reference may take here; more is refused, which is as good."""


def check(op: Op, operands: tuple[Array | None, ...]) -> bool:
    """Whether `infer` refuses; raises for a wrong claim, and for what is no BoltError."""
    types = [None if a is None else type_of(a) for a in operands]
    try:
        op.infer(*types)
        claims = infer_types(op, types)
    except BoltError:
        return True
    try:
        with within(Budget(WORK, MEMORY)):
            results = [np.asarray(r) for r in evaluate(op, operands)]
    except BoltError:  # it takes too much, or another operand's content does not fit
        return False
    assert all(agrees(t, r) for t, r in zip(claims, results, strict=True)), [str(t) for t in claims]
    return False


def others(value: Any) -> Iterator[Any]:
    """Other values of an attribute of the same type."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from WHOLE
    elif isinstance(value, float):
        yield from REAL
    elif isinstance(value, str):
        yield from ("", "bogus")
    elif isinstance(value, tuple) and value and all(type(v) is int for v in value):
        yield from (value[:-1], (*value, 1))
        for i in (0, len(value) - 1):
            yield from ((*value[:i], v, *value[i + 1 :]) for v in WHOLE)


@pytest.mark.parametrize("op", [op for op in ALL if op not in (If, Chain)], ids=lambda op: op.name)
def test_attributes_are_refused_or_right(op: type[Op]) -> None:
    @EXAMPLES
    @given(CASES[op]())
    def run(case: Case) -> None:
        for name, value in vars(case.op).items():
            for other in others(value):
                changed = dataclasses.replace(case.op, **{name: other})  # type: ignore[type-var]
                try:
                    check(changed, case.inputs)
                except Exception as error:
                    raise AssertionError(f"{case}, {name} = {other}: {error}") from error

    run()


def changed(a: Array) -> Iterator[Array]:
    """The operand with its first, its last or all elements at an end of their range."""
    for value in WHOLE if a.dtype.kind in "iu" else REAL if a.dtype.kind == "f" else ():
        if a.dtype.kind == "f" or np.iinfo(a.dtype).min <= value <= np.iinfo(a.dtype).max:
            for spot in (slice(0, 1), slice(-1, None), slice(None)):
                b = a.copy()
                b.reshape(-1)[spot] = value
                yield b


DECIDED = [op for op in ALL if op.value_inputs]


@pytest.mark.parametrize("op", DECIDED, ids=[op.name for op in DECIDED])
def test_contents_that_decide_shapes_are_refused_or_right(op: type[Op]) -> None:
    refused = 0

    @EXAMPLES
    @given(CASES[op]())
    def run(case: Case) -> None:
        nonlocal refused
        for i, a in enumerate(case.inputs):
            for b in () if a is None or i not in op.value_inputs else changed(a):
                try:
                    refused += check(case.op, (*case.inputs[:i], b, *case.inputs[i + 1 :]))
                except Exception as error:
                    raise AssertionError(f"{case}, operand {i} = {b.tolist()}: {error}") from error

    run()
    assert refused or op.name in ("Compress", "If")


IMAGE, FILTERS = np.ones((1, 2, 4, 4), F32), np.ones((2, 2, 3, 3), F32)


@pytest.mark.parametrize("activation", [Softmax(), Not(), Cast(to=F64)], ids=lambda a: a.name)
@pytest.mark.parametrize(
    ("op", "operands"),
    [(Conv(), (IMAGE, FILTERS)), (ConvTranspose(), (IMAGE, FILTERS)), (MatMul(), (FILTERS[0, 0], FILTERS[0, 0]))],
    ids=["Conv", "ConvTranspose", "MatMul"],
)
def test_activations_keep_shape_and_dtype(op: Any, operands: tuple[Array, ...], activation: Op) -> None:
    with pytest.raises(BoltError, match=r"activation|dtype of operand 0"):
        infer_types(dataclasses.replace(op, activation=activation), [type_of(a) for a in operands])


def test_spans_that_no_memory_holds_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"span of the dilated kernel: got .*, wanted at most 2147483647"):
        infer_types(Conv(dilations=(2**31 - 1, 1)), [type_of(IMAGE), type_of(FILTERS)])


def test_a_reference_without_memory_says_so() -> None:
    with pytest.raises(BudgetError, match=r"^Tile: cannot compute the result"):
        Tile().reference(np.ones((1, 64), F32), np.array([1 << 50, 1]))
