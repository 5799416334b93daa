"""Parts for devices: what is marked, what is joined, and that nothing else changes."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from bolt_numba.cli.app import app
from bolt_numba.converters.formats import load
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.errors import DTypeError, ShapeError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.dot import Mark, colour_of, to_dot
from bolt_numba.ir.drawing import to_svg
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.parts import dissolve
from bolt_numba.ir.spec import verify
from bolt_numba.ir.store import load_bolt, to_bytes
from bolt_numba.ir.text import to_text
from bolt_numba.ops.foreign import Foreign
from bolt_numba.ops.pointwise import HardSigmoid, HardSwish
from bolt_numba.passes.partition.clusters import clusters
from bolt_numba.passes.partition.marking import lowered
from bolt_numba.passes.partition.partition import Candidate, Partition
from bolt_numba.passes.partition.placement import Placement
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.passes.rewrite import nested
from bolt_numba.plugins.lowering import apart
from bolt_numba.types import F32, I64, STRING, Sym, TensorType, type_of
from tests.graphs import choice, feeds_of, graphs, integers, make
from tests.near import assert_near
from tests.pipeline_graphs import NETWORKS
from tests.pipeline_graphs import graph as network
from tests.plugins.picky import Picky, chain, parted, parts_of, same

EXAMPLES = settings(max_examples=40, deadline=None, derandomize=True, database=None)
RNG = np.random.default_rng(0)


# --- clusters --------------------------------------------------------------------------------------------------------


def check_clusters(reads: Sequence[Collection[int]], marked: Sequence[bool], found: Sequence[Sequence[int]]) -> None:
    """Each item once, unmarked ones alone, operands first (so there is no cycle), and nothing could be joined."""
    place = {item: k for k, group in enumerate(found) for item in group}
    assert sorted(place) == list(range(len(marked)))
    assert sum(map(len, found)) == len(marked)
    assert all(len(group) == 1 or all(marked[i] for i in group) for group in found)
    edges = {(place[a], place[b]) for b, operands in enumerate(reads) for a in operands if place[a] != place[b]}
    assert all(a < b for a, b in edges)
    after: list[set[int]] = [set() for _ in found]
    for a, b in edges:
        after[a].add(b)
    reach = [0] * len(found)
    for a in reversed(range(len(found))):
        for b in after[a]:
            reach[a] |= reach[b] | 1 << b
    for a, b in edges:
        if marked[found[a][0]] and marked[found[b][0]]:
            assert any(reach[between] >> b & 1 for between in after[a] if between != b)


def random_reads(rng: random.Random, count: int, span: int, most: int) -> list[set[int]]:
    each = (range(rng.randint(0, most) if i else 0) for i in range(count))
    return [{rng.randrange(max(0, i - span), i) for _ in times} for i, times in enumerate(each)]


def test_clusters_of_random_graphs_are_convex_and_as_large_as_they_may_be() -> None:
    for seed in range(600):
        rng = random.Random(seed)
        reads = random_reads(rng, rng.randrange(25), rng.choice([2, 5, 30]), 3)
        marked = [rng.random() < rng.choice([0.3, 0.6, 0.9]) for _ in reads]
        check_clusters(reads, marked, clusters(reads, marked))


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_five_thousand_nodes_take_less_than_a_second(share: float) -> None:
    rng = random.Random(1)
    reads = random_reads(rng, 5000, 5000, 3)
    marked = [rng.random() < share for _ in reads]
    start = time.process_time()
    found = clusters(reads, marked)
    assert time.process_time() - start < 1
    check_clusters(reads, marked, found)


def test_ten_operators_of_which_three_are_not_supported_give_two_parts() -> None:
    graph = chain("Abs", "Neg", "Abs", *("Neg",) * 6, "Abs")
    made, partition = parted(graph, Candidate("npu", Picky("Neg")))
    assert parts_of(made) == [["2"], ["4", "5", "6", "7", "8", "9"]]
    assert [row.part for row in partition.decisions] == ["", "npu.0", "", *["npu.1"] * 6, ""]
    assert partition.decisions[0].reasons == {"npu": "it knows no Abs"}
    same(graph, made)


def test_branches_meet_in_one_part_and_a_way_round_does_not() -> None:
    graph = Graph("branches")
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (4,)))
    first = b(make("Neg"), x, name="first")
    left, right = b(make("Relu"), first, name="left"), b(make("Relu"), first, name="right")
    met = b(make("Add"), left, right, name="met")
    graph.add_output(b(make("Add"), met, b(make("Abs"), first, name="round"), name="last"), "y")
    made, _ = parted(graph, Candidate("npu", Picky("Neg", "Relu", "Add")))
    assert parts_of(made) == [["first", "left", "right", "met"], ["last"]]
    same(graph, made)


@EXAMPLES
@given(graph=graphs(), data=st.data())
def test_parts_of_random_graphs_compute_the_same(graph: Graph, data: st.DataObject) -> None:
    names = sorted({node.op.name for each in nested(graph) for node in each.nodes})
    one, two = (data.draw(st.lists(st.sampled_from(names), unique=True)) if names else [] for _ in range(2))
    targets = Candidate("a", Picky(*one), data.draw(st.integers(1, 3))), Candidate("b", Picky(*two))
    made, partition = parted(graph, *targets)
    same(graph, made)
    inside = [name for part in parts_of(made) for name in part]
    outside = [n.name for each in nested(made) for n in each.nodes if not isinstance(n.op, Foreign)]
    assert sorted([*inside, *outside]) == sorted(n.name for each in nested(graph) for n in each.nodes)
    assert all(bool(row.part) == bool(row.device) for row in partition.decisions)
    assert sorted(row.node for row in partition.decisions if row.part) == sorted(inside)
    stored = load_bolt(to_bytes(made))
    assert to_text(stored) == to_text(made)
    again = load_bolt(to_bytes(made))
    for each in nested(again):
        dissolve(each)
    assert sorted(to_text(again).splitlines()) == sorted(to_text(load_bolt(to_bytes(graph))).splitlines())
    same(graph, run_pipeline(graph, partition=Partition(targets), check=True))
    same(graph, run_pipeline(stored, check=True))
    same(graph, load(to_onnx(made).SerializeToString()))


def test_what_no_device_gets() -> None:
    """All of it computes, so that only the reason keeps it."""
    graph = Graph("stays")
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (Sym("n"), 4)))
    words = graph.add_input("words", TensorType(STRING, (2,)))
    size = b(make("Shape"), x, name="shape")
    first = b(make("Gather"), size, np.array([0]), name="first")
    shape = b(make("Concat", axis=0), first, np.array([2, 2]), name="joined")
    y = b(make("Reshape"), x, shape, name="reshaped")
    count = graph.add_input("count", TensorType(I64, (1,)))
    more = b(make("Add"), count, np.array([1]), name="one more")
    graph.add_output(b(make("Tile"), count, more, name="tiled"), "tiled")
    graph.add_output(b(make("NonZero"), y, name="by data"), "places")
    graph.add_output(b(make("RandomUniform"), np.array([3]), name="random"), "random")
    graph.add_output(b(make("Add"), np.ones(2, F32), np.ones(2, F32), name="constant"), "constant")
    graph.add_output(b(make("StringConcat"), words, words, name="text"), "text")
    graph.add_output(b(make("SequenceConstruct"), y, y, name="list"), "list")
    graph.add_output(choice(b, x, True), "chosen")
    made, partition = parted(graph, Candidate("npu", Half(random.Random(), 1)))
    reasons = {decision.node: decision.reasons.get("npu") for decision in partition.decisions}
    assert reasons == {
        **dict.fromkeys(("shape", "first", "joined"), "it computes with shapes"),
        "reshaped": None,
        "one more": "its result decides shapes",
        "tiled": "what operand 1 holds decides its shape",
        "by data": "sizes of its operands do not tell that of its result",
        "random": "its results are random or depend on earlier runs",
        "constant": "all of its operands are constants",
        "text": "not all of its values are arrays of numbers",
        "list": "not all of its values are arrays of numbers",
        "If": "control flow: what is in its graphs is looked at by itself",
        "Neg": None,
        "Relu": None,
    }
    assert parts_of(made) == [["reshaped"], ["Neg"], ["Relu"]]
    (part,) = [node for node in made.nodes if isinstance(node.op, Foreign)]
    assert [part.inputs[i].name for i in part.op.value_inputs if part.inputs[i]] == ["joined"]


@pytest.mark.parametrize(("n", "m"), [(1, 2), (3, 4), (2, 6)])
def test_a_part_infers_types_from_the_shapes_that_it_is_given(n: int, m: int) -> None:
    graph = Graph("dynamic")
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (Sym("n"), Sym("m"), 6)))
    size = b(make("Shape"), x)
    half = b(make("Mul"), b(make("Gather"), size, np.array([1])), np.array([2]))
    shape = b(make("Concat", axis=0), b(make("Gather"), size, np.array([0])), half, np.array([-1]))
    graph.add_output(b(make("MatMul"), b(make("Reshape"), b(make("Relu"), x), shape), integers(RNG, 3, 5)), "y")
    made, _ = parted(graph, Candidate("npu", Half(random.Random(), 1)))
    assert [n.op.name for n in made.nodes] == ["Shape", "Gather", "Mul", "Gather", "Concat", "Foreign"]
    feeds = {"x": integers(RNG, n, m, 6)}
    np.testing.assert_array_equal(interpret(made, feeds)["y"], interpret(graph, feeds)["y"])
    part = made.nodes[-1]
    types = [TensorType(F32, (n, m, 6)), type_of(np.array([n, 2 * m, -1]))]
    assert part.op.infer(*types) == (TensorType(F32, (n, 2 * m, 5)),)


def test_a_part_refuses_operands_that_its_graph_does_not_take() -> None:
    made, _ = parted(chain("Neg"), Candidate("npu", Picky("Neg")))
    op = made.nodes[0].op
    with pytest.raises(ShapeError, match=r"Foreign: operands: got 2, wanted 1"):
        op.infer(TensorType(F32, (2, 3)), TensorType(F32, (2, 3)))
    with pytest.raises(DTypeError, match=r"Foreign: dtype of operand 0: got i64, wanted f32"):
        op.infer(TensorType(I64, (2, 3)))
    with pytest.raises(ShapeError, match=r"Foreign: shape of operand 0: got f32\[2, 4\], wanted \[2, 3\]"):
        op.infer(TensorType(F32, (2, 4)))


def test_parts_hold_no_parts() -> None:
    """Each level of a chain of them would infer all those below once more."""
    made, _ = parted(chain("Neg"), Candidate("npu", Picky("Neg")))
    with pytest.raises(ShapeError, match=r"Foreign: graph: got a Foreign \(npu.0\), wanted operators without graphs"):
        Foreign(made, "npu")


def test_small_parts_go_to_the_next_device() -> None:
    graph = chain("Neg", "Abs", "Neg", "Neg")
    first, second = Candidate("first", Picky("Neg"), 2), Candidate("second", Picky("Neg", "Abs"))
    made, partition = parted(graph, first, second)
    assert parts_of(made) == [["1", "2"], ["3", "4"]]
    assert [decision.device for decision in partition.decisions] == ["second", "second", "first", "first"]
    assert partition.decisions[0].reasons == {"first": "its part has fewer nodes than min_nodes: 1 of 2"}
    made, _ = parted(graph, second, first)
    assert parts_of(made) == [["1", "2", "3", "4"]]


def test_giving_a_part_up_lets_its_neighbours_meet() -> None:
    """The way round 2 goes by way of a part that is too small: without it, 1 and 3 are one part."""
    graph = Graph("round")
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (4,)))
    one = b(make("Neg"), x, name="1")
    two = b(make("Abs"), b(make("Relu"), b(make("Abs"), one), name="2"))
    graph.add_output(b(make("Add"), b(make("Neg"), one, name="3"), two, name="4"), "y")
    made, _ = parted(graph, Candidate("npu", Picky("Neg", "Relu", "Add"), 2))
    assert parts_of(made) == [["1", "3"]]
    same(graph, made)


@pytest.mark.parametrize(("there", "copy", "here", "good"), [(2, 4, 10, True), (2, 5, 10, False), (0, 6, 10, False)])
def test_a_part_whose_copies_take_longer_than_it_gains_stays_here(
    there: int, copy: int, here: int, good: bool
) -> None:
    graph = chain("Neg", "Abs", "Neg")
    device = Picky("Neg", seconds=there * 1e-6, copy=copy * 1e-6)
    made, partition = parted(graph, Candidate("npu", device), seconds=lambda node: here * 1e-6)
    assert parts_of(made) == ([["1"], ["3"]] if good else [])
    if not good:
        wanted = f"its part takes {there + 2 * copy} us there with copies, and {here} us here"
        assert partition.decisions[0].reasons == {"npu": wanted}
    made, _ = parted(graph, Candidate("npu", device), placement=Placement.parse("Neg -> npu"), seconds=lambda node: 0.0)
    assert parts_of(made) == [["1"], ["3"]]


class Broken(Picky):
    """Its driver fails in whatever is asked for the operators named."""

    def supports(self, node: Node) -> bool | str:
        if node.op.name in self.names:
            raise OSError("the cable is loose")
        return True

    def seconds(self, node: Node) -> float | None:
        raise OSError("the cable is loose")


def test_a_driver_that_fails_when_it_is_asked_refuses() -> None:
    graph = chain("Neg", "Abs")
    made, partition = parted(graph, Candidate("npu", Broken("Abs")), seconds=lambda node: 1.0)
    assert parts_of(made) == [["1"]]
    assert partition.decisions[1].reasons == {"npu": "it fails to say: OSError: the cable is loose"}


LOWERINGS = apart(HardSwish, HardSigmoid)


def test_what_a_device_lacks_is_marked_where_its_lowerings_take_it_apart() -> None:
    graph = chain("HardSwish", "HardSigmoid", "Neg")
    device = Picky("Mul", "Add", "Clip", "Neg", lowerings=LOWERINGS)
    made, _ = parted(graph, Candidate("npu", device))
    assert parts_of(made) == [["1", "2", "3"]]
    (op,) = (node.op for node in made.nodes)
    assert isinstance(op, Foreign)
    assert [n.op.name for n in op.graph.nodes] == ["HardSwish", "HardSigmoid", "Neg"]
    low = lowered(op.graph, device)
    assert [n.op.name for n in low.nodes] == ["Mul", "Add", "Clip", "Mul", "Mul", "Add", "Clip", "Neg"]
    feeds = {v.name: a for v, a in zip(low.inputs, feeds_of(graph).values(), strict=True)}
    wanted, got = (next(iter(interpret(each, feeds).values())) for each in (op.graph, low))
    np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_lowerings_leave_alone_what_the_device_supports_and_say_what_still_lacks() -> None:
    graph = chain("HardSwish", "HardSigmoid", "Neg")
    device = Picky("Mul", "HardSigmoid", lowerings=LOWERINGS)
    made, partition = parted(graph, Candidate("npu", device))
    (op,) = (node.op for node in made.nodes if isinstance(node.op, Foreign))
    assert [n.op.name for n in lowered(op.graph, device).nodes] == ["HardSigmoid", "Mul", "HardSigmoid"]
    assert partition.decisions[2].reasons == {"npu": "it knows no Neg"}
    _, partition = parted(graph, Candidate("npu", Picky("Mul", "Add", lowerings=LOWERINGS)))
    assert partition.decisions[0].reasons == {"npu": "it knows no HardSwish; taken apart: Clip: it knows no Clip"}


def test_stored_parts_of_devices_that_a_session_lacks_are_dissolved_and_others_stay() -> None:
    graph = chain("Neg", "Abs", "Relu", "Abs")
    made, _ = parted(graph, Candidate("a", Picky("Neg", "Relu")), Candidate("b", Picky("Abs")))
    assert [node.op.device for node in made.nodes if isinstance(node.op, Foreign)] == ["a", "b", "a", "b"]
    kept = run_pipeline(made, partition=Partition([Candidate("a", Picky())]), check=True)
    assert [getattr(node.op, "device", node.op.name) for node in kept.nodes] == ["a", "Abs", "a", "Abs"]
    again = run_pipeline(made, partition=Partition([Candidate("a", Picky("Abs"))]), check=True)
    assert parts_of(again) == [["1"], ["2"], ["3"], ["4"]]
    assert [node.op.name for node in run_pipeline(made).nodes] == [node.op.name for node in run_pipeline(graph).nodes]


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_in_random_halves_pass_all_stages(name: str) -> None:
    graph = network(name)
    feeds = feeds_of(graph, n=6)
    wanted = interpret(graph, feeds)
    for seed in range(2):
        rng = random.Random(seed)
        partition = Partition([Candidate("npu", Half(rng))])
        made = run_pipeline(graph, partition=partition, check=True)
        assert all(d.reasons == {"npu": "it does not like it"} for d in partition.decisions if not d.device)
        for key, array in interpret(made, feeds).items():
            assert_near(array, wanted[key], 1e-5)


class Half(Picky):
    """It takes every other node, at random."""

    def __init__(self, rng: random.Random, share: float = 0.6) -> None:
        super().__init__()
        self.rng, self.share = rng, share

    def supports(self, node: Node) -> bool | str:
        return self.rng.random() < self.share or "it does not like it"


def test_pictures_show_parts_in_the_colour_of_their_device() -> None:
    made, _ = parted(chain("Neg", "Abs", "Neg"), Candidate("a", Picky("Neg")), Candidate("b", Picky("Abs")))
    first, second, third = map(colour_of, made.nodes)
    assert first == third != second
    dot = to_dot(made, {"b.1": Mark("compiled")})
    assert dot.count(f'fillcolor="{first}"') == dot.count(f'bgcolor="{first}"') == 2
    assert dot.count(f'fillcolor="{second}"') == 1
    svg = to_svg(made, {"b.1": Mark("compiled")})
    assert svg.count(f'fill="{first}"') == 4
    assert svg.count(f'fill="{second}"') == 2
    assert 'class="n">compiled<' in svg


def test_inspect_counts_parts_and_their_nodes_by_device(tmp_path: Path) -> None:
    made, _ = parted(chain("Neg", "Abs", "Neg", "Relu"), Candidate("a", Picky("Neg", "Relu")))
    (tmp_path / "m.bolt").write_bytes(to_bytes(made))
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "m.bolt"), "--json"])
    facts = json.loads(shown.stdout)
    assert facts["nodes"] == 4
    assert facts["operators"] == {"Neg": 2, "Abs": 1, "Relu": 1}
    assert facts["devices"] == {"a": {"parts": 2, "nodes": 3}}
    table = CliRunner().invoke(app, ["inspect", str(tmp_path / "m.bolt")]).output
    assert re.search(r"device +parts +nodes\s+[-─━ ]*\s*a +2 +3", table)


def dynamic(graph: Graph) -> None:
    """What exporters write for x.reshape(n, 2m, 3) @ w, of the shape of a value within, and a result that tells it."""
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (Sym("n"), Sym("m"), 6)))
    y = b(make("Relu"), x, name="relu")
    size = b(make("Shape"), y, name="size")
    first = b(make("Gather"), size, np.array([0]), name="n")
    half = b(make("Mul"), b(make("Gather"), size, np.array([1]), name="m"), np.array([2]), name="2m")
    shape = b(make("Concat", axis=0), first, half, np.array([-1]), name="shape")
    z = b(make("MatMul"), b(make("Reshape"), y, shape, name="reshape"), integers(RNG, 3, 5), name="product")
    graph.add_output(z, "z")
    repeats = b(make("Concat", axis=0), first, np.array([1, 1]))
    graph.add_output(b(make("Abs"), b(make("Tile"), z, repeats, name="tile")), "y")


class Free(Picky):
    """It compiles for any shapes, so that it has to compute them."""

    shapes = "free"


ALONG = ["relu", "size", "n", "m", "2m", "shape", "reshape", "product"]


@pytest.mark.parametrize(
    ("device", "text", "parts"),
    [
        (Picky("Relu", "Reshape", "MatMul"), "", [ALONG]),
        (Free("Relu", "Reshape", "MatMul", "Shape", "Gather", "Mul", "Concat"), "", [ALONG]),
        (Free("Relu", "Reshape", "MatMul", "Shape", "Gather", "Mul"), "", [["relu"], ["reshape", "product"]]),
        (Picky("Relu", "Reshape", "MatMul"), "Gather::m", [["relu"], ["reshape", "product"]]),
        (Picky("Reshape", "MatMul"), "", [["reshape", "product"]]),
    ],
)
def test_shapes_of_its_own_values_are_computed_in_a_part(device: Picky, text: str, parts: list[list[str]]) -> None:
    graph = Graph("dynamic")
    dynamic(graph)
    made, partition = parted(graph, Candidate("npu", device), placement=Placement.parse(text))
    assert [[name.removesuffix(".0").removesuffix(".1") for name in part] for part in parts_of(made)] == parts
    assert {"size", "n"} <= {node.name for node in made.nodes}
    assert [d.part for d in partition.decisions if d.node == "shape"] == ["npu.0" if "shape" in parts[0] else ""]
    same(graph, made)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 1 << 30))
def test_random_graphs_that_compute_shapes_have_no_cycles_and_compute_the_same(seed: int) -> None:
    rng = random.Random(seed)
    graph = Graph("shapes")
    b, values = Builder(graph), [graph.add_input("x", TensorType(F32, (Sym("n"), 4)))]
    lengths: list[Value] = []
    for _ in range(rng.randint(3, 14)):
        x, y = rng.choice(values[-4:]), rng.choice(values)
        if rng.random() < 0.5:
            values.append(b(make("Add"), x, y) if rng.random() < 0.5 else b(make("Neg"), x))
            continue
        length = b(make("Gather"), b(make("Shape"), y), np.array([0]))
        for _ in range(rng.randint(0, 2)):
            length = b(make("Mul"), length, np.array([1]))
        lengths.append(length)
        flat = b(make("Reshape"), x, b(make("Concat", axis=0), length, np.array([2, 2])))
        values.append(b(make("Reshape"), flat, b(make("Concat", axis=0), length, np.array([-1]))))
    graph.add_output(values[-1], "y")
    graph.add_output(rng.choice(values[1:]), "z")
    if lengths:
        graph.add_output(rng.choice(lengths), "length")
    graph.drop_dead()
    names = ["Add", "Neg", "Reshape", "Shape", "Gather", "Mul", "Concat"]
    kinds = [rng.choice([Picky, Free])(*rng.sample(names, rng.randint(1, 7))) for _ in "ab"]
    made, _ = parted(graph, Candidate("a", kinds[0], rng.randint(1, 2)), Candidate("b", kinds[1]))
    verify(made, "recognise")
    same(graph, made)
    for each in nested(made):
        dissolve(each)
    verify(made, "recognise")
    same(graph, made)
