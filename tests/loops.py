"""Machine code of kernels as text, and its innermost loops."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from bolt_numba.kernels.targets import assembly


@functools.cache
def text_of(kernel: Any) -> str:
    """`assembly`, made once in a process."""
    return assembly(kernel)


def innermost_loops(assembly: str) -> Iterator[list[str]]:
    """Lines from each label to the jump back to it, where no other loop is between."""
    lines = assembly.splitlines()
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.startswith(".L") and line.endswith(":")}
    branches = [i for i, line in enumerate(lines) if re.match(r"\s+(b|cb|tb)", line)]
    jumps = [(labels.get(lines[i].split()[-1], i + 1), i) for i in branches]
    loops = [(first, last) for first, last in jumps if first <= last]
    for loop in loops:
        if not any(loop[0] <= first and last <= loop[1] and (first, last) != loop for first, last in loops):
            yield lines[loop[0] : loop[1] + 1]
