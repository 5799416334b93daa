"""Random graphs on a device that takes some operators and fails at random: results are right, and all is closed."""

from __future__ import annotations

import gc
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.plugins.interface import DeviceFullError, DeviceLostError
from tests.graphs import graphs, integers
from tests.plugins.plain_driver import throw
from tests.plugins.two_parts import BROKEN, cache, driver

__all__ = ["cache", "driver"]
pytestmark = pytest.mark.usefixtures("cache")
WHERE = ("supports", "compile", "restore", "request", "run", "serialise", "close")
ERRORS = (BROKEN, BROKEN, DeviceFullError("plain: memory"), DeviceLostError("plain: gone"))
KINDS = ("MatMul", "Relu", "Add", "Mul", "Concat", "Transpose", "Clip", "Sub", "Neg")


def sometimes(chance: random.Random, share: float) -> Any:
    """Fails at random, with any of the errors."""

    def fail(count: int) -> None:
        if chance.random() < share:
            throw(chance.choice(ERRORS))

    return fail


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 1 << 30), st.sampled_from(["fixed", "ranges", "free"]), st.booleans())
def test_random_graphs_with_random_faults(driver: Any, graph: Graph, seed: int, shapes: Any, checks: bool) -> None:
    chance = random.Random(seed)
    driver.fails, driver.shapes = {}, shapes
    driver.only = set(chance.sample(KINDS, 6)) if chance.random() < 0.7 else None
    for where in chance.sample(WHERE, 3):
        driver.fails[where] = sometimes(chance, 0.2)
    buckets = chance.choice(["", "n:2,4"])
    properties = {"plain": {"self_check": checks, "buckets": buckets, "max_compiled": chance.choice([1, 8])}}
    session = bn.compile(graph, device=["plain"], properties=properties, threads=1)
    for n in (1, 3, 3, 2, 3, 4, 1):
        feeds = {v.name: integers(np.random.default_rng(n), n, 4) for v in graph.inputs}
        wanted = interpret(graph, feeds)
        for name, got in session(**feeds).items():
            np.testing.assert_allclose(got, wanted[name], rtol=1e-5, atol=1e-5)
    session.close()
    del session
    gc.collect()
    assert not +driver.live
