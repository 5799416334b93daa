"""Measured choices: right results whichever kernel wins, measured once, and a damaged file is no harm."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bolt_numba.devices import in_order
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.kernels.registry import QueryContext, candidates, select
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.pointwise import Exp
from bolt_numba.runtime.packs import Packs
from bolt_numba.runtime.region import region_of
from bolt_numba.runtime.reports.tune import Choice, Tuner
from bolt_numba.runtime.runner import Runner
from bolt_numba.types import F32, TensorType
from tests.near import assert_near

rng = np.random.default_rng(0)


def network(size: int = 12, channels: int = 16) -> Graph:
    """Two convolutions that several algorithms can compute, and a function."""
    graph = Graph()
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (1, size, size, channels)))
    for _ in range(2):
        weight = rng.integers(-2, 3, (channels, channels, 3, 3)).astype(F32) / 8
        x = build(Conv(layout="NHWC", pads=(1, 1, 1, 1)), x, weight)
    graph.add_output(build(Exp(), x), "y")
    return graph


def run(graph: Graph, tuner: Tuner, threads: int = 1) -> np.ndarray:
    feed = rng.integers(-2, 3, graph.inputs[0].type.dims).astype(F32) / 8
    runner = Runner(region_of(graph), threads, Packs(numerics="fast"), in_order(), tuner=tuner)
    (got,) = runner.run([feed])
    assert_near(got, interpret(graph, {"x": feed})["y"], 1e-4)
    return got


@pytest.mark.parametrize("threads", [1, 2])
def test_the_second_session_measures_nothing(tmp_path: Path, threads: int) -> None:
    file, graph = tmp_path / "tuned.json", network()
    first = Tuner(threads, file)
    measured = []
    save = first.save
    first.save = lambda: (measured.append(first.measured), save())  # type: ignore[method-assign]
    run(graph, first, threads)
    assert measured[0] >= 1
    known = file.read_text()
    second = Tuner(threads, file)
    run(graph, second, threads)
    assert second.measured == 0
    assert file.read_text() == known


@pytest.mark.parametrize("kernel", ["conv", "winograd_2", "winograd_4", "winograd_6"])
def test_a_choice_is_obeyed(tmp_path: Path, kernel: str) -> None:
    graph = network()
    tuner = Tuner(1, tmp_path / "tuned.json")
    run(graph, tuner)
    tuner._known = {key: Choice(kernel, False) for key in tuner._known}
    runner = Runner(region_of(graph), 1, Packs(numerics="fast"), in_order(), tuner=tuner)
    prepared = runner.prepare([np.zeros(graph.inputs[0].type.dims, F32)])
    assert [job.runner for job in prepared.plan.jobs if isinstance(job.op, Conv)] == [kernel, kernel]
    run(graph, tuner)


def test_a_kernel_that_is_gone_is_measured_again(tmp_path: Path) -> None:
    file, graph = tmp_path / "tuned.json", network()
    run(graph, Tuner(1, file))
    rows = json.loads(file.read_text())
    file.write_text(json.dumps({key: ["long gone", True] for key in rows}))
    run(graph, Tuner(1, file))
    names = {kernel for kernel, _ in json.loads(file.read_text()).values()}
    assert names <= {"conv", "winograd_2", "winograd_4", "winograd_6"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": ["b"]}', "\x00"])
def test_a_damaged_file_counts_as_empty(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tuned.json"
    file.write_text(text)
    run(network(), Tuner(1, file))
    assert json.loads(file.read_text())


def test_only_where_there_is_something_to_choose(tmp_path: Path) -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(F32, (3, 5)))
    graph.add_output(Builder(graph)(Exp(), x), "y")
    run(graph, Tuner(1, tmp_path / "tuned.json"))
    assert not (tmp_path / "tuned.json").exists()


def test_candidates_begin_with_the_expected_one() -> None:
    types = [TensorType(F32, (1, 56, 56, 64)), TensorType(F32, (64, 64, 3, 3), value=np.zeros((64, 64, 3, 3), F32))]
    op, fast = Conv(layout="NHWC", pads=(1, 1, 1, 1)), QueryContext(numerics="fast")
    expected, found = select(op, types, fast), [e.name for e in candidates(op, types, fast)]
    assert expected is not None
    assert found[0] == expected.name
    assert {"winograd_6", "winograd_4", "winograd_2", "conv"} <= set(found)
