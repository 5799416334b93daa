"""The short ways that kernels take through Numba give what its own give."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest


def branches(n: int, m: int) -> int:
    x = 0
    if n > m:
        x = n
    elif n == 3:
        x = m
        n += 1
    return x + n


def loops(n: int, m: int) -> int:
    total, last = 0, n
    for i in range(n):
        step = i
        while step < m:
            step += last
            if step % 7 == 3:
                continue
            total += step
            last = step if step > 2 else 1
        if total > 100:
            break
        n -= 1
    return total + last + n


def late(n: int) -> int:
    for i in range(n):
        found = i * 2
        if found > 7:
            n = found
    return n


@pytest.mark.parametrize(
    "modules", [("numba.core.ssa", "numba.core.compiler"), ("numba.cuda.core.ssa", "numba.cuda.compiler")]
)
@pytest.mark.parametrize("function", [branches, loops, late], ids=lambda f: f.__name__)
def test_single_assignments_are_those_of_numba(function: Callable[..., Any], modules: tuple[str, str]) -> None:
    ssa, compiler = map(importlib.import_module, modules)
    run_frontend = compiler.run_frontend

    from bolt_numba.kernels.compiler_passes import single_assignments

    def text(blocks: Any) -> list[Any]:
        return [(label, [str(x) for x in block.body]) for label, block in sorted(blocks.items())]

    wanted = text(ssa.reconstruct_ssa(run_frontend(function)).blocks)
    assert text(single_assignments(run_frontend(function).blocks, ssa)) == wanted
    assert any("phi" in line for _, lines in wanted for line in lines)


def test_calls_are_remembered_for_a_block_only() -> None:
    from numba.core.types.functions import BaseFunction

    from bolt_numba.kernels.compiler_passes import remembered_calls

    own = BaseFunction.get_call_type
    with remembered_calls():
        assert BaseFunction.get_call_type is not own
    assert BaseFunction.get_call_type is own
