"""What `tests/level.py` and `tests/lower_isa.py` name is there, and long tests and the others are all tests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests import level, lower_isa

ROOT = Path(__file__).parent.parent
NAMED = [
    *(name for names in level.LONG.values() for name in names),
    *level.EVERY,
    *(f"tests/{name}" for name in lower_isa.AGAIN),
]


def is_there(name: str) -> bool:
    path, *inside = name.partition("[")[0].split("::")
    if (ROOT / path).is_dir():
        return not inside
    text = (ROOT / path).read_text() if (ROOT / path).exists() else ""
    return bool(text) and all(f"def {word}" in text or f"class {word}" in text for word in inside)


def test_names_are_those_of_tests() -> None:
    assert [name for name in NAMED if not is_there(name)] == []
    assert not is_there("tests/test_long.py::test_nothing")


def long_among(*nodes: str) -> list[str]:
    items: Any = [SimpleNamespace(nodeid=node) for node in nodes]
    return [item.nodeid for item in level.long_tests(items)]


def test_the_first_and_the_last_of_many_cases_are_not_long() -> None:
    cases = [f"tests/test_x.py::test_y[{i}]" for i in range(100)]
    assert long_among(*cases) == cases[1:-1]
    assert not long_among(*cases[:2])
    assert not long_among(*cases[:1])


def test_cases_that_are_kernels_are_not_long() -> None:
    assert not long_among(*(f"{level.DRAWN[0]}[{i}]" for i in range(100)))


def test_what_is_named_is_long() -> None:
    there, here = "tests/aarch64/test_x.py::test_y", "tests/test_x.py::test_y"
    assert long_among(there, here) == [there]
