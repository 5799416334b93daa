"""What to try on each operator: hypothesis strategies that draw an operator with inputs; shared by all tests of it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import strategies as st

from bolt_numba.ops.registry import Op
from bolt_numba.types import Array


@dataclass(frozen=True, eq=False)
class Case:
    """One call of an operator.

    exact: the data are integers small enough that every order of summation gives the same bits; else results may
    differ by ``rtol`` relative to the greatest magnitude of the result.
    """

    op: Op
    inputs: tuple[Array | None, ...]
    exact: bool = True
    rtol: float = 1e-5

    def __repr__(self) -> str:
        args = ", ".join("-" if a is None else f"{a.dtype}{list(a.shape)}" for a in self.inputs)
        return f"{self.op}({args})"


ELSEWHERE = {
    "control flow": ("Loop", "Scan"),
    "tests/test_nested.py": (
        *("SequenceEmpty", "SequenceConstruct", "SequenceAt", "SequenceInsert", "SequenceErase", "SequenceLength"),
        *("ConcatFromSequence", "SplitToSequence", "Optional", "OptionalEmpty", "OptionalHasElement"),
        *("OptionalGetElement", "ZipMap", "DictVectorizer", "CastMap"),
    ),
}
"""Operators without cases, most of them because their operands or results are no arrays, by what tests them."""

CASES: dict[type[Op], Callable[[], st.SearchStrategy[Case]]] = {}

F = TypeVar("F", bound=Callable[..., Any])


def cases(op: type[Op]) -> Callable[[F], F]:
    """Register ``strategy(draw, op)`` as the one that draws cases of ``op``."""

    def register(strategy: F) -> F:
        composite = st.composite(strategy)
        CASES[op] = lambda: composite(op)
        return strategy

    return register


for _info in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_info.name}")
