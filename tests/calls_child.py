"""Counts calls of Python functions in a process of its own: ``python -m tests.calls_child``, one line of JSON a case.

A call is what `sys.setprofile` reports as one: functions, comprehensions, and each time a generator goes on.  Imports
and what is made once a process do not count: all is done once before, so the second time is counted.  The module
`logging` is there from the start: a process that compiles has it, and a cold cache would decide what is counted.  A
move is a call from one folder of the package to another.
"""

from __future__ import annotations

import json
import logging  # noqa: F401 - see above
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import bolt_numba as bn
from bolt_numba.types import Array
from tests.budget_cases import model, node, value

DIGITS = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"
OTHERS = np.array([1, 2, 3], np.float32)


def counted(work: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """What ``work`` gives, and how many calls, moves and files it took."""
    calls = moves = 0
    files: set[str] = set()

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls, moves
        if event == "call":
            calls += 1
            here, back = frame.f_code.co_filename, frame.f_back
            files.add(here)
            moves += back is not None and os.path.dirname(back.f_code.co_filename) != os.path.dirname(here)

    sys.setprofile(profile)
    try:
        made = work()
    finally:
        sys.setprofile(None)
    return made, {"calls": calls, "moves": moves, "files": len(files)}


def digits() -> dict[str, dict[str, int]]:
    """The second session of the digits model: made from its file, its first run, and one more."""
    image = np.zeros((1, 1, 8, 8), np.float32)
    bn.compile(DIGITS, threads=1)(image=image)
    session, compiled = counted(lambda: bn.compile(DIGITS, threads=1))
    first, known = (counted(lambda: session.run(None, {"image": image}))[1] for _ in range(2))
    return {"compile": compiled, "first": first, "known": known}


def chain(count: int) -> tuple[bytes, dict[str, Array]]:
    """Relu and Add of a constant in turn."""
    pairs = [("Relu", [f"v{i}"]) if i % 2 else ("Add", [f"v{i}", "c"]) for i in range(count)]
    nodes = [node(op, reads, [f"v{i + 1}"]) for i, (op, reads) in enumerate(pairs)]
    made = model(nodes, [value("v0", "f", (3,))], [value(f"v{count}", "f")], {"c": OTHERS})
    return made.SerializeToString(), {"v0": OTHERS}


def wide_sum(count: int) -> tuple[bytes, dict[str, Array]]:
    """One Sum of so many operands."""
    made = model([node("Sum", ["x"] * count, ["y"])], [value("x", "f", (3,))], [value("y", "f")])
    return made.SerializeToString(), {"x": OTHERS}


def many_inputs(count: int) -> tuple[bytes, dict[str, Array]]:
    """A Sum of so many inputs."""
    names = [f"x{i}" for i in range(count)]
    made = model([node("Sum", names, ["y"])], [value(n, "f", (3,)) for n in names], [value("y", "f")])
    return made.SerializeToString(), dict.fromkeys(names, OTHERS)


def joined(count: int) -> tuple[bytes, dict[str, Array]]:
    """So many nodes of one value, and a Concat of them all."""
    nodes = [node("Add" if i % 2 else "Mul", ["x", f"c{i}"], [f"v{i}"]) for i in range(count)]
    nodes.append(node("Concat", [f"v{i}" for i in range(count)], ["y"], axis=0))
    constants = {f"c{i}": OTHERS + i for i in range(count)}
    made = model(nodes, [value("x", "f", (3,))], [value("y", "f")], constants)
    return made.SerializeToString(), {"x": OTHERS}


LARGE = {"chain": chain, "wide_sum": wide_sum, "many_inputs": many_inputs, "joined": joined}


def large(make: Callable[[int], tuple[bytes, dict[str, Array]]], count: int) -> int:
    """Calls from a file to the first result of a graph of so many nodes, operands or inputs."""
    content, feeds = make(count)
    for _ in range(2):
        found = counted(lambda: bn.compile(content, threads=1)(feeds))[1]["calls"]
    return found


def main() -> None:
    rows: dict[str, Any] = digits()
    for name, make in LARGE.items():
        rows[name] = {str(count): large(make, count) for count in (250, 500, 1000)}
    sys.stdout.write(json.dumps(rows))


if __name__ == "__main__":
    main()
