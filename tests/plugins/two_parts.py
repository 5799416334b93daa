"""What tests of plug-ins share: a graph of which a device gets two parts, and a cache of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.plugins import blobs, registry
from bolt_numba.types import F32, Sym, TensorType
from tests.graphs import integers, make
from tests.plugins.plain_driver import PlainDriver, register_plain


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What plug-ins compile is kept here; kernels are where they always are."""
    monkeypatch.setattr(blobs, "FOLDER", str(tmp_path / "cache" / "plugins"))
    return tmp_path / "cache"


@pytest.fixture
def driver() -> Iterator[PlainDriver]:
    made = register_plain()
    made.only = {"MatMul", "Relu", "Add"}
    yield made
    registry.unregister_driver("plain")


def network() -> Graph:
    """Two parts for the device, with a softmax between them."""
    graph, rng = Graph("parts"), np.random.default_rng(0)
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 8)))
    y = build(make("Relu"), build(make("MatMul"), x, integers(rng, 8, 8)))
    y = build(make("Softmax", axis=-1), y)
    graph.add_output(build(make("Add"), y, build(make("MatMul"), y, integers(rng, 8, 8))), "y")
    return graph


GRAPH = network()


def expect(session: bn.Session, n: int = 3, seed: int = 0) -> None:
    x = integers(np.random.default_rng(seed), n, 8)
    np.testing.assert_allclose(session(x=x)[0], interpret(GRAPH, {"x": x})["y"], rtol=1e-4, atol=1e-5)


def session_of(**options: Any) -> bn.Session:
    return bn.compile(GRAPH, device=["plain", "cpu"], threads=1, **options)


BROKEN = RuntimeError("no answer")


def fails_in(report: Any) -> dict[str, int]:
    """Runs of our own program, by reason, of all parts."""
    found: dict[str, int] = {}
    for row in report:
        for reason, count in row.get("fallbacks", {}).items():
            found[reason] = found.get(reason, 0) + count
    return found
