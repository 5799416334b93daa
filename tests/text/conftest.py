"""A small decoder, and a generator of it, for each file of tests that asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bolt_numba.text import Generator
from tests.text.decoders import whole


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole(tmp_path_factory.mktemp("decoder") / "small.bolt")


@pytest.fixture(scope="module")
def one(file: Path) -> Iterator[Generator]:
    with Generator(file, threads=1) as made:
        yield made
