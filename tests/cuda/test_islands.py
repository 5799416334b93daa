"""Which nodes stay on the host although a GPU has kernels for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import devices
from bolt_numba.devices.cuda.device import Cuda
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.arrays.accumulate import LogCumSumExp
from bolt_numba.ops.pointwise import Relu
from bolt_numba.runtime import stand_ins
from bolt_numba.runtime.copies import NOT_WORTH_IT
from bolt_numba.runtime.plan import Planner
from bolt_numba.types import F32, Array, Sym, TensorType
from bolt_numba_simulator.gpu import SimulatedGpu

_numbers = itertools.count()


def session_of(build: Callable[[Builder, Value], Any], weighs: bool = True, **costs: float) -> tuple[bn.Session, Graph]:
    """On a simulated GPU that is weighed against the host; costs: seconds of its ``launch``, and of a ``copy``."""
    name = f"fake-weighed{next(_numbers)}"
    device: Any = Cuda(name, SimulatedGpu(name), weighs)
    device.seconds = lambda op, ins, outs, threads: costs.get("launch", 0.0)
    device.copy_seconds = lambda nbytes: costs.get("copy", 0.0)
    devices.register(name, lambda: device)
    graph = Graph("islands")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 4)))
    for i, value in enumerate(build(Builder(graph), x)):
        graph.add_output(value, f"y{i}")
    return bn.compile(graph, device=name, threads=1, stages=()), graph


def stays(session: bn.Session, graph: Graph, given: Array) -> list[bool]:
    """Which of the nodes are not worth a copy; results are as they should be."""
    wanted = interpret(graph, {"x": given})
    for name, got in session(x=given).items():
        np.testing.assert_array_equal(got, wanted[name])
    return [row["runner"].endswith(NOT_WORTH_IT) for row in session.report() if row["op"] == "Relu"]


def alternating(b: Builder, x: Value) -> Any:
    """Two nodes for the GPU, the host's reference, one more for the GPU."""
    first = b(Relu(), b(Relu(), x))
    return (b(Relu(), b(LogCumSumExp(), first)),)


GIVEN = np.arange(-8, 8, dtype=F32).reshape(4, 4)


def test_a_node_whose_copies_take_longer_stays_on_the_host() -> None:
    session, graph = session_of(alternating, copy=1.0)
    assert stays(session, graph, GIVEN) == [False, False, True]
    assert [row["device"] == "cpu" for row in session.report() if row["op"] == "Relu"] == [False, False, True]
    copies = [row["runner"] for row in session.report() if row["op"] == "Copy"]
    assert len(copies) == 2  # in and out of the region that stays


def test_what_pays_goes_to_the_gpu() -> None:
    session, graph = session_of(alternating)
    assert stays(session, graph, GIVEN) == [False] * 3


def test_a_region_with_the_most_work_stays_whatever_it_costs() -> None:
    session, graph = session_of(lambda b, x: (b(Relu(), x),), launch=1.0, copy=1.0)
    assert stays(session, graph, GIVEN) == [False]


def test_a_device_that_does_not_weigh_takes_all_it_can() -> None:
    session, graph = session_of(alternating, weighs=False, launch=1.0, copy=1.0)
    assert stays(session, graph, GIVEN) == [False] * 3


def test_nodes_that_stay_on_the_host_ask_for_no_kernel_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setenv("BOLT_NUMBA_STAND_INS", "1")
    monkeypatch.setattr(stand_ins, "compile_later", lambda kernels, then: asked.extend(kernels))
    session, graph = session_of(alternating, copy=1.0)
    stays(session, graph, GIVEN)
    device: Any = devices.device(str(session.device))
    calls = itertools.count(1)
    device.lacking = lambda steps: ["of the third node"] if next(calls) == 3 else []
    assert stays(session, graph, GIVEN[:2]) == [False, False, True]
    assert next(calls) > 4
    assert asked == []


def test_nodes_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays on the host is chosen anew, and nothing else."""
    walked, stayed = list[str](), list[str]()

    def noted(method: str, names: list[str]) -> None:
        usual = getattr(Planner, method)

        def taken(self: Planner, node: Node, more: Any) -> None:
            names.append(node.op.name)
            usual(self, node, more)

        monkeypatch.setattr(Planner, method, taken)

    noted("_add", walked)
    noted("_stay", stayed)
    session, graph = session_of(alternating, copy=1.0)
    assert stays(session, graph, GIVEN) == [False, False, True]
    assert walked == ["Relu", "Relu", "LogCumSumExp", "Relu"]
    assert stayed == ["Relu"]


def test_what_stays_follows_the_shape() -> None:
    session, graph = session_of(alternating, copy=1e-6)
    for rows, is_small in [*((n, True) for n in (1, 2, 3, 5, 6, 7)), (1 << 16, False), (8, True)]:
        given = np.resize(GIVEN, (rows, 4))
        assert stays(session, graph, given)[2] == is_small, rows


def test_costs_of_a_gpu_and_of_the_host_cross() -> None:
    """Small work is quicker on the host, large work on the GPU, copies included."""
    gpu: Any = Cuda("costs", SimulatedGpu("costs"))
    cpu, relu = devices.device("cpu"), Relu()
    wins = []
    for size in (1 << 10, 1 << 22):
        t = TensorType(F32, (size,))
        wins.append(gpu.seconds(relu, [t], [t], 1) < cpu.seconds(relu, [t], [t], 1))
    assert wins == [False, True]
    assert gpu.copy_seconds(1 << 30) > gpu.copy_seconds(1) > cpu.copy_seconds(1)
