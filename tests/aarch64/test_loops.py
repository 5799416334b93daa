"""Hot loops of the twins for AArch64 hold the instructions that docs/aarch64.md names, and spill no register."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from bolt_numba.kernels.targets import twin
from tests.loops import innermost_loops, text_of

INSTRUCTION = re.compile(r"\s+[a-z]")


def hottest(text: str, arithmetic: str) -> list[str]:
    """Instructions of the innermost loop that has most of ``arithmetic``."""
    loops = [[line for line in loop if INSTRUCTION.match(line)] for loop in innermost_loops(text)]
    return max(loops, key=lambda loop: sum(bool(re.search(arithmetic, line)) for line in loop))


LOOPS: dict[tuple[str, str], tuple[Callable[[Any], Any], str, int, int]] = {
    ("aarch64", "products of f32"): (lambda f: f.products.sweep.sweep, r"\tfmla\t.*\.s\[0\]", 16, 30),
    ("aarch64", "depthwise"): (lambda f: f.convolution.depthwise.depthwise_kernel(3, 1, False), r"\tfmla\t", 21, 45),
    ("aarch64", "rows of a norm"): (lambda f: f.reductions.norm.normalise_rows, r"\tfmla\t", 6, 20),
    ("aarch64_dot", "products of bytes"): (lambda f: f.products.sweep_bytes.sweep_bytes, r"\tsdot\t", 24, 65),
    ("aarch64_i8mm", "depthwise bytes"): (
        lambda f: f.convolution.depthwise_bytes.depthwise_kernel(3, 1), r"\tusdot\t", 8, 37,
    ),
}  # fmt: skip
"""By target and loop: the kernel, its arithmetic, how many of that one round has, and how many instructions at most."""


@pytest.mark.parametrize(("target", "name"), LOOPS)
def test_hot_loops_hold_what_the_page_says(target: str, name: str) -> None:
    kernel, arithmetic, count, most = LOOPS[target, name]
    loop = hottest(text_of(kernel(twin(target))), arithmetic)
    assert sum(bool(re.search(arithmetic, line)) for line in loop) == count
    assert len(loop) <= most
    assert not any("[sp" in line for line in loop), "a register is spilled"


def test_loops_lower_to_vectors_on_aarch64() -> None:
    found = twin("aarch64")
    kernels = (
        found.products.sweep.sweep, found.convolution.depthwise.depthwise_kernel(3, 1, False),
        found.convolution.winograd.winograd_kernel((4, 4)), found.attention.attention.attention_kernel(8),
        found.reductions.norm.normalise_rows,
    )  # fmt: skip
    texts = [text_of(kernel) for kernel in kernels]
    assert texts[0].count("fmla") >= 60  # one for each vector of each tile
    assert "prfm" in texts[0]
    for text in texts:
        loops = list(innermost_loops(text))
        assert any("fmla\tv" in line for loop in loops for line in loop)
        arithmetic = re.compile(r"\s+f(n?mul|n?madd|n?msub|add|sub|div|max|min)\w*\s+[sd]\d")
        scalar = [line for loop in loops for line in loop if arithmetic.match(line)]
        assert scalar == []
