"""Sessions that a plug-in's device gets random parts of compute what all others do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import BOOL, F32, I64, Sym, TensorType
from tests.graphs import feeds_of, integers, make
from tests.near import assert_near
from tests.pipeline_graphs import NETWORKS
from tests.pipeline_graphs import graph as network
from tests.plugins.plain_driver import PlainAccelerator, PlainDriver
from tests.plugins.two_parts import cache, driver

__all__ = ["cache", "driver"]
pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def some(driver: PlainDriver, monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """Decides for each node, by its name, whether the device takes it."""
    rng, taken = random.Random(1), dict[str, bool]()

    def supports(self: PlainAccelerator, node: Node) -> bool | str:
        return taken.setdefault(node.name, rng.random() < 0.6) or "it does not like it"

    monkeypatch.setattr(PlainAccelerator, "supports", supports)
    return rng


def agree(graph: Graph, sizes: tuple[int, ...], **options: Any) -> int:
    """Compare a session with the interpreter, for several sizes; how many parts it has."""
    with bn.compile(graph, device=["plain", "host"], fallback="forbid", **options) as session:
        for n in sizes:
            feeds = feeds_of(graph, n=n)
            got = session(**feeds)
            for name, array in interpret(graph, feeds).items():
                assert_near(got[name], array, 1e-4)
        return len({row["part"] for row in session.report().placed if row["part"]})


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_in_random_parts(some: random.Random, name: str) -> None:
    assert agree(network(name), (6, 4, 6)) > 0


def body(*inputs: tuple[str, TensorType]) -> tuple[Graph, Builder, list[Any]]:
    graph = Graph("body")
    values = [graph.add_input(name, t) for name, t in inputs]
    return graph, Builder(graph), values


@pytest.mark.parametrize("shapes", ["fixed", "free"])
def test_loops_whose_bodies_have_parts(driver: PlainDriver, shapes: Any) -> None:
    """The state of the loop has another shape in each iteration, that of the scan does not."""
    driver.only, driver.shapes = {"MatMul", "Relu", "Neg", "Mul"}, shapes
    row = TensorType(F32, (Sym("rows"), 4))
    inner, b, (_, go, state) = body(("i", TensorType(I64, ())), ("go", TensorType(BOOL, ())), ("state", row))
    made = b(make("Relu"), b(make("MatMul"), state, integers(np.random.default_rng(0), 4, 4)))
    for value in (go, b(make("Concat", axis=0), made, made), b(make("ReduceMax"), b(make("Neg"), made))):
        inner.add_output(value)
    graph = Graph("loops")
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (Sym("n"), 4)))
    last, most = b(make("Loop", body=inner, carried=1), np.array(3), None, x)
    graph.add_output(last, "last")
    graph.add_output(most, "most")
    scan, b, (total, part) = body(("total", TensorType(F32, (4,))), ("part", TensorType(F32, (4,))))
    added = b(make("Add"), total, b(make("Neg"), b(make("Mul"), part, 2.0)))
    for value in (added, b(make("Relu"), added)):
        scan.add_output(value)
    outs = Builder(graph)(make("Scan", body=scan, states=1, scans=1), np.zeros(4, F32), x)
    graph.add_output(outs[1], "sums")
    assert agree(graph, (2, 3)) == 3


def test_a_report_lists_what_is_within_loops_and_branches(driver: PlainDriver) -> None:
    """Parts of bodies, too, behind the node that ran them; of two branches the one that was chosen."""
    driver.only = {"Relu", "Neg"}
    row = TensorType(F32, (4096,))
    branches = []
    for name in ("Relu", "Neg"):
        inner, b, (value,) = body(("value", row))
        inner.add_output(b(make(name), value))
        branches.append(inner)
    loop, b, (_, go, state) = body(("i", TensorType(I64, ())), ("go", TensorType(BOOL, ())), ("state", row))
    is_small = b(make("Less"), b(make("ReduceMax", keepdims=False), state), 0.5)
    made = b(make("If", then_branch=branches[0], else_branch=branches[1]), is_small, b(make("Neg"), state))
    for value in (go, b(make("Exp"), made)):
        loop.add_output(value)
    graph = Graph("nested")
    b, x = Builder(graph), graph.add_input("x", row)
    last = b(make("Loop", body=loop, carried=1), np.array(1), None, b(make("Relu"), x))
    graph.add_output(b(make("Neg"), last), "y")
    with bn.compile(graph, device=["plain", "cpu"], threads=1, fallback="forbid") as session:
        np.testing.assert_allclose(session(x=np.ones(4096, F32))["y"], -np.e, rtol=1e-5)
        report = session.report()
    (outer,) = {r["node"] for r in report if r["op"] == "Loop"}
    (inner_if,) = {r["node"] for r in report if r["op"] == "If"}
    parts = [(r.get("within", ""), r["nodes"]) for r in report if r["op"] == "Foreign"]
    assert parts == [("", ["Relu"]), (outer, ["Neg"]), (f"{outer}/{inner_if}", ["Neg"]), ("", ["Neg"])]
    assert all(r["state"] == "compiled" and r["runs"] == 1 for r in report if r["op"] == "Foreign")
    assert "within" in report._repr_html_()
