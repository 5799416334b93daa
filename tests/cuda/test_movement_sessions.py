"""Movement in sessions on the simulated GPU: shape after shape, and indices that are refused."""

from __future__ import annotations

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import DataError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.arrays.gather import Gather, ScatterND
from bolt_numba.ops.arrays.reduce import TopK
from bolt_numba.ops.arrays.shape import Concat, Transpose
from bolt_numba.ops.arrays.slicing import Pad
from bolt_numba.ops.layers.pool import MaxPool
from bolt_numba.ops.layers.resize import Resize
from bolt_numba.types import F32, Sym, TensorType


def mover() -> Graph:
    """Images of any height, turned, surrounded, joined, pooled, resized; the first of each line, in places by index."""
    graph = Graph("mover")
    x = graph.add_input("x", TensorType(F32, (1, 4, Sym("h"), 6)))
    places = graph.add_input("places", TensorType(np.dtype(np.int64), (3,)))
    b = Builder(graph)
    around = b(Pad("reflect"), x, np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    joined = b(Concat(axis=1), around, around)
    turned = b(Transpose(perm=(0, 3, 2, 1)), joined)
    pooled = b(MaxPool((2, 2), (2, 2)), turned)
    wide = b(Resize(mode="linear"), pooled, None, np.array([1, 1, 2, 1], F32))
    values, indices = b(TopK(axis=1), wide, np.array([2]))
    graph.add_output(b(Gather(axis=2), values, places), "rows")
    graph.add_output(b(ScatterND(), wide, np.array([[0, 1, 0], [0, 0, 1]]), b(Gather(axis=0), np.ones((3, 4), F32),
                       np.array([1, 2]))), "set")  # fmt: skip
    graph.add_output(indices, "indices")
    return graph


def devices_of(session: bn.Session) -> set[str]:
    return {row["device"] for row in session.report() if row["op"] != "Copy"}


def test_every_shape_gives_what_the_operators_mean() -> None:
    graph = mover()
    session = bn.compile(graph, device="cuda-sim", threads=1)
    rng = np.random.default_rng(0)
    for h in (4, 8, 6, 10, 4):
        given = {"x": rng.standard_normal((1, 4, h, 6)).astype(F32), "places": rng.integers(-2, 2, 3)}
        wanted = interpret(graph, given)
        for name, got in session(**given).items():
            np.testing.assert_allclose(got, wanted[name], rtol=1e-6, atol=1e-6, err_msg=f"{name} of h = {h}")
        assert devices_of(session) == {"cuda-sim"}


def test_an_index_beyond_the_axis_names_its_node_and_the_next_run_is_good() -> None:
    graph = Graph("rows")
    table = np.arange(512 * 16, dtype=F32).reshape(512, 16)
    index = graph.add_input("index", TensorType(np.dtype(np.int64), (64,)))
    graph.add_output(Builder(graph)(Gather(), table, index), "y")
    session = bn.compile(graph, device="cuda-sim", threads=1)
    good = np.arange(64)
    for _ in range(3):
        np.testing.assert_array_equal(session(index=good)["y"], table[:64])
        with pytest.raises(DataError, match=r"node .*Gather: indices\[9\]: got 512, wanted -512 to 511"):
            session(index=np.where(good == 9, 512, good))
    assert devices_of(session) == {"cuda-sim"}
