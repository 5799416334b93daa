"""What a user wants where: how lines are read, which nodes they fit, and what they do to parts."""

from __future__ import annotations

import re
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.errors import BoltError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.passes.partition.partition import Candidate, Partition
from bolt_numba.passes.partition.placement import Placement, line_of
from bolt_numba.types import F32, TensorType
from tests.graphs import graphs, make
from tests.plugins.picky import Picky, chain, parted, parts_of


def placed(text: str, *names: str, min_nodes: int = 1) -> list[list[str]]:
    """Parts of a chain Neg(1), Abs(2), Neg(3), Relu(4), Neg(5) for a device that takes all of them."""
    graph = chain("Neg", "Abs", "Neg", "Relu", "Neg")
    candidates = [Candidate(name, Picky("Neg", "Abs", "Relu"), min_nodes) for name in names or ("npu",)]
    return parts_of(parted(graph, *candidates, placement=Placement.parse(text))[0])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", [["1", "2", "3", "4", "5"]]),
        ("Abs", [["1"], ["3", "4", "5"]]),
        ("Neg:2", [["1", "2"], ["4", "5"]]),
        ("Neg::3", [["1", "2"], ["4", "5"]]),
        ("Neg:2:3", [["1", "2"], ["4", "5"]]),
        ("Abs-Relu", [["1"], ["3"], ["5"]]),
        ("Abs\r\nRelu\r\n", [["1"], ["3"], ["5"]]),
        ("\ufeff  Abs : 1 : 2  \t\n\n  # Relu\nRelu # the last one", [["1"], ["3"], ["5"]]),
        (" - Abs - - Relu -", [["1"], ["3"], ["5"]]),
        ("node:[24]", [["1"], ["3"], ["5"]]),
        ("node: * -> off\nnode:[345] -> npu", [["3", "4", "5"]]),
        ("Neg -> cpu\nnode:3 -> npu", [["2", "3", "4"]]),
        ("Neg:x", [["2", "3", "4", "5"]]),
    ],
)
def test_lines_keep_nodes_here(text: str, parts: list[list[str]]) -> None:
    assert placed(text) == parts


def test_a_line_gives_nodes_to_a_device_whatever_their_number_and_the_order_of_devices() -> None:
    assert placed("Relu -> b", "a", "b") == [["1", "2", "3"], ["4"], ["5"]]
    assert placed("Relu -> npu\nAbs - Relu", min_nodes=2) == []
    assert placed("Abs\nRelu\nnode:5 -> npu", min_nodes=2) == [["5"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Abs\n Neg -> gpu", "placement: line 2 (Neg -> gpu): got 'gpu', wanted npu, off"),
        ("Neg ->", "placement: line 1 (Neg ->): got nothing behind '->', wanted a device or 'off'"),
        (" -> npu", "placement: line 1 (-> npu): got nothing that names nodes, wanted an operator"),
        ("node:", "placement: line 1 (node:): got nothing that names nodes, wanted an operator"),
        ("Neg:a:b:c", "placement: line 1 (Neg:a:b:c): got 4 parts, wanted operator:inputs:outputs"),
        ("Abs-:x", "placement: line 1 (Abs-:x): got 2 parts, wanted operator:inputs:outputs"),
    ],
)
def test_what_makes_no_sense_is_refused_by_line(text: str, message: str) -> None:
    with pytest.raises(BoltError, match=f"^{re.escape(message)}$"):
        placed(text)


def test_lines_that_fit_nothing_are_named() -> None:
    with pytest.warns(UserWarning, match=r"line 2 \(Softmax:x\): no node is like that"):
        placed("Abs\nSoftmax:x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        placed("Abs\nRelu\n# Softmax")


def test_a_node_that_the_device_refuses_stays_with_its_reason() -> None:
    graph = chain("Neg", "Abs")
    made, partition = parted(graph, Candidate("npu", Picky("Neg")), placement=Placement.parse("Abs -> npu"))
    assert parts_of(made) == [["1"]]
    assert partition.decisions[1].reasons == {"npu": "it knows no Abs"}


NAMES = st.text(st.sampled_from("ab-:,>#\\ *[é/.\n\r\u2028"), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(names=st.lists(NAMES, min_size=4, max_size=4, unique=True))
def test_the_line_of_a_node_fits_it_whatever_its_tensors_are_called(names: list[str]) -> None:
    graph = Graph("names")
    x, y = (graph.add_input(name, TensorType(F32, (2,))) for name in names[:2])
    build = Builder(graph)
    first, second = (build.node(make("Add"), x, y, name=name) for name in names[2:])
    placement = Placement.parse(line_of(second))
    assert [line is not None for line in placement.find([first, second])[0]] == [False, True]


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(graph=graphs())
def test_pasting_all_lines_of_a_report_keeps_all_nodes_here(graph: Graph) -> None:
    names = sorted({node.op.name for node in graph.nodes})
    partition = Partition([Candidate("npu", Picky(*names, "Neg", "Relu"))])
    partition(graph.clone())
    text = "\n".join(decision.line for decision in partition.decisions)
    made, again = parted(graph, *partition.candidates, placement=Placement.parse(text))
    assert parts_of(made) == []
    assert not any(decision.device for decision in again.decisions)


def test_thousands_of_lines_for_thousands_of_nodes_are_found_quickly() -> None:
    graph = chain(*("Neg",) * 5000)
    text = "\n".join(map(line_of, graph.nodes))
    start = time.process_time()
    found, _ = Placement.parse(text).find(graph.nodes)
    assert time.process_time() - start < 2
    assert [line is not None and line.number for line in found] == np.arange(1, 5001).tolist()


def test_a_long_line_is_read_quickly() -> None:
    start = time.process_time()
    placement = Placement.parse(f"Neg{' ' * 100_000}-{' ' * 100_000}Relu")
    assert time.process_time() - start < 2
    assert [s.operator for line in placement.lines for s in line.selectors] == ["Neg", "Relu"]


HOSTILE = {
    "one operator 20000 times": "Neg" + "-Neg" * 20_000,
    "stars": "node:" + "*a" * 400 + "b",
    "brackets": "node:" + "[" * 900,
    "3000 patterns": "".join(f"node:*q{i}*\n" for i in range(3000)),
    "no text": "node:\0\ud800",
    "a name without end": "N" * 300_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_lines_cost_little_and_messages_stay_short(text: str) -> None:
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        placed(text)
    assert time.process_time() - start < 3
    assert all(len(str(w.message)) < 400 for w in caught)


def test_a_pattern_has_an_end() -> None:
    with pytest.raises(BoltError, match="got a pattern of 1001 characters, wanted 1000"):
        Placement.parse("node:" + "*" * 1001)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="the system has no /dev/zero")
def test_a_device_is_no_placement() -> None:
    with pytest.raises(BoltError, match=r"/dev/zero: got a device, wanted a file"):
        bn.compile(chain("Neg"), device=["onnxruntime", "cpu"], placement=Path("/dev/zero"))


@pytest.mark.parametrize("content", [bytes(range(256)), None])
def test_a_file_that_is_none_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "placement.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BoltError, match=r"placement\.txt: got .*, wanted a placement"):
        bn.compile(chain("Neg"), device=["onnxruntime", "cpu"], placement=path)


def test_a_backslash_at_the_end_of_a_comment_is_nothing() -> None:
    lines = Placement.parse("# C:\\models\\\nRelu # D:\\\r\nNeg").lines
    assert [(line.number, line.selectors[0].operator) for line in lines] == [(2, "Relu"), (3, "Neg")]
