"""Plans of a region that has planned other sizes are those from scratch: for every operator, and for graphs.

What does not fit is refused alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bolt_numba.devices import in_order
from bolt_numba.errors import BoltError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.kernels.registry import Record, Scratch
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.reduce import ReduceMean
from bolt_numba.ops.arrays.shape import Concat, Reshape
from bolt_numba.ops.control import ControlFlow
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.layers.norm import LayerNormalization
from bolt_numba.ops.layers.pool import AveragePool
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Mul, Relu, Sigmoid
from bolt_numba.ops.registry import Op
from bolt_numba.runtime import choices, packs
from bolt_numba.runtime.packs import MakerContext, Packs
from bolt_numba.runtime.plan import Plan, Planner
from bolt_numba.runtime.region import Region, region_of
from bolt_numba.runtime.slots import Slot
from bolt_numba.types import F32, STRING, Array, Sym, TensorType
from tests.cases import CASES, Case
from tests.level import few

EXAMPLES = int(os.environ.get("BOLT_NUMBA_TEST_EXAMPLES", few(8, 1)))
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 64, 100)


def planned(region: Region, packs: Packs, types: Sequence[TensorType], threads: int = 2) -> Plan:
    return Planner(region, MakerContext(threads, packs, in_order())).plan(types)


def described(plan: Plan) -> list[Any]:
    """All that a plan decides, so that plans can be compared."""
    rows: list[Any] = [sorted((m.name, n) for m, n in plan.memory.arenas.items()), plan.cut is None]
    for job in plan.jobs:
        scratch = {id(a): i for i, a in enumerate(_scratches(job.steps or ()))}
        steps = [
            (s.kernel.name, id(s.kernel), s.parallel, s.in_bands, _args(s.args, scratch)) for s in job.steps or ()
        ]
        placed = [place for key, place in job.scratch.items() if key in scratch]
        slots = [None if s is None else _slot(s) for s in (*job.ins, *job.outs)]
        rows.append((job.name, job.runner, job.device.name, steps, placed, slots, job.inplace, job.states))
    return [*rows, [_slot(s) for s in plan.results]]


def _scratches(steps: Sequence[Any]) -> Iterator[Scratch]:
    return iter({id(a): a for s in steps for a in s.args.values() if isinstance(a, Scratch)}.values())


def _args(args: Any, scratch: dict[int, int]) -> dict[str, Any]:
    return {name: _arg(arg, scratch) for name, arg in args.items()}


def _arg(arg: Any, scratch: dict[int, int]) -> Any:
    if isinstance(arg, np.ndarray):
        return arg.dtype, arg.shape, arg.tobytes()
    if type(arg) is Scratch:
        return "workspace", scratch[id(arg)], arg.nbytes
    if type(arg) is Record:
        return arg.kernel.name, _args(arg.args, scratch)
    return (type(arg), repr(arg)) if isinstance(arg, (int, float)) else arg if not hasattr(arg, "address") else id(arg)


def _slot(slot: Slot) -> Any:
    root, offset = slot.root()
    return slot.name, slot.type, slot.kind, slot.index, offset, slot.pitch, slot.result, root.name, root.place


def check(graph: Graph, sizes: Sequence[Sequence[TensorType]]) -> int:
    """Plan one set of input types after the other, in one region and in new ones; how many ways the former keeps."""
    region, packs = region_of(graph), Packs()
    for types in [*sizes, sizes[0]]:
        try:
            wanted: Any = described(planned(region_of(graph), Packs(), types))
        except BoltError as error:
            wanted = type(error), str(error)
        try:
            got: Any = described(planned(region, packs, types))
        except BoltError as error:
            got = type(error), str(error)
        assert got == wanted, types
    return len(region.choices)


def one_node(case: Case, count: int = 1) -> Graph | None:
    """A graph of one node whose operands that are no constants have sizes of their own; or of several alike.

    Constants of the others hold the same numbers in other places, but those that decide shapes.
    """
    graph = Graph()
    build = Builder(graph)
    operands: list[Value | None] = []
    constants: dict[int, Array] = {}
    for i, array in enumerate(case.inputs):
        if array is None:
            operands.append(None)
        elif i in case.op.value_inputs or (i and array.size > 1):
            operands.append(build.const(array))
            constants |= {} if i in case.op.value_inputs else {i: array}
        else:
            shape = tuple([Sym(f"d{i}_{axis}") for axis in range(array.ndim)])
            operands.append(graph.add_input(f"x{i}", TensorType(array.dtype, shape)))
    for number in range(count):
        for i, array in constants.items() if number else ():
            operands[i] = build.const(np.roll(array, number))
        try:
            made = build(case.op, *operands)
        except BoltError:  # symbols leave too much open, or numbers may not stand elsewhere
            return None
        for value in made if isinstance(made, tuple) else [made]:
            graph.add_output(value)
    return graph


def resized(case: Case, graph: Graph, change: dict[int, int]) -> list[TensorType]:
    """Types of the inputs for a case, with other sizes; sizes that are equal stay so."""
    arrays = [case.inputs[int(v.name[1:])] for v in graph.inputs]
    return [TensorType(a.dtype, tuple([change.get(d, d) for d in a.shape])) for a in arrays if a is not None]


def check_nodes_alike(case: Case) -> None:
    """What a node takes over from one like it, whose constants hold other numbers, is what would be planned for it."""
    graph = one_node(case, 3)
    if graph is None:
        return
    types, ways = resized(case, graph, {}), list[Any]()
    with pytest.MonkeyPatch.context() as patch:
        for module in (choices, packs):
            patch.setattr(module, "KEYED_ELEMENTS", 0)  # makers see the content of none
        for found in (choices.Choices.found, lambda *_: None):
            patch.setattr(choices.Choices, "found", found)
            try:
                ways.append(described(planned(region_of(graph), Packs(), types)))
            except BoltError as error:
                ways.append((type(error), str(error)))
    assert ways[0] == ways[1]


def is_planned(op: type[Op]) -> bool:
    return not issubclass(op, ControlFlow) and not op.has_side_state


@pytest.mark.parametrize("op", sorted(filter(is_planned, CASES), key=lambda op: op.name), ids=lambda op: op.name)
def test_every_operator(op: type[Op]) -> None:
    kept = 0

    @settings(
        deadline=None, database=None, derandomize=True, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck)
    )
    @given(case=CASES[op](), draw=st.data())
    def run(case: Case, draw: st.DataObject) -> None:
        nonlocal kept
        graph = one_node(case)
        if graph is None or not graph.inputs or any(v.type.dtype == STRING for v in graph.inputs):
            return
        known = sorted({d for array in case.inputs if array is not None for d in array.shape})
        changes: list[dict[int, int]] = [{}]
        for _ in range(4):
            some = draw.draw(st.sets(st.sampled_from(known), max_size=2)) if known else set()
            changes.append({d: draw.draw(st.sampled_from(SIZES)) for d in sorted(some)})
        kept += check(graph, [resized(case, graph, change) for change in changes])
        check_nodes_alike(case)

    run()
    assert kept or EXAMPLES < 8 or op.name not in USUAL


def test_nodes_alike_whose_content_decides() -> None:
    check_nodes_alike(Case(Gather(0), (np.ones((5, 4), F32), np.array([0, 1, 3]))))


USUAL = {
    "Add", "AveragePool", "Cast", "Clip", "Concat", "Conv", "ConvTranspose", "FusedAttention", "Gather", "Gemm",
    "LayerNormalization", "MatMul", "MaxPool", "Mul", "ReduceMean", "Relu", "Slice", "Softmax", "Split", "Transpose",
}  # fmt: skip
"""Operators of most models, which are in the memo."""


def networks() -> Iterator[tuple[str, Graph, list[list[TensorType]]]]:
    """Graphs with sizes that differ from plan to plan, and what to plan one after the other."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return rng.integers(-3, 4, shape).astype(F32)

    graph = Graph()
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (Sym("n"), Sym("h"), Sym("w"), 3)))
    for channels, stride, kernel in ((16, 2, 3), (32, 1, 1), (32, 1, 3)):
        pads, c = (kernel // 2,) * 4, x.type.shape[-1]
        conv = Conv(layout="NHWC", strides=(stride, stride), pads=pads, activation=Relu())
        x = build(conv, x, weights(channels, c, kernel, kernel), weights(channels))
    x = build(Conv(layout="NHWC", pads=(1, 1, 1, 1), group=32), x, weights(32, 1, 3, 3), weights(32))
    pooled = build(AveragePool(kernel_shape=(2, 2), strides=(2, 2), layout="NHWC"), x)
    joined = build(Concat(axis=3), pooled, build(Sigmoid(), pooled))
    graph.add_output(build(Mul(), joined, build(ReduceMean(), joined, np.array([1, 2]))), "y")
    images = [(1, 32, 32), (1, 32, 48), (1, 64, 48), (2, 64, 48), (1, 6, 8), (1, 320, 8), (1, 3, 1), (3, 33, 47)]
    yield "images", graph, [[TensorType(F32, (*size, 3))] for size in images]
    graph = Graph()
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (Sym("n"), Sym("length"), 64)))
    for _ in range(2):
        q, k, v = (
            build(Reshape(), build(MatMul(), x, weights(64, 64), weights(64)), np.array([0, 0, 4, 16])) for _ in "qkv"
        )
        mixed = build(FusedAttention(0.25, False, "SHD", "SHD", "SHD", "SHD"), q, k, v)
        x = build(Add(), x, build(Reshape(), mixed, np.array([0, 0, 64])))
        x = build(LayerNormalization(), x, weights(64), weights(64))
    graph.add_output(x, "y")
    lengths = [(1, 16), (1, 32), (2, 32), (1, 1), (1, 7), (5, 130), (1, 16)]
    yield "layers", graph, [[TensorType(F32, (*size, 64))] for size in lengths]


@pytest.mark.parametrize(("graph", "sizes"), [pytest.param(*row[1:], id=row[0]) for row in networks()])
def test_networks(graph: Graph, sizes: list[list[TensorType]]) -> None:
    nodes = len(graph.nodes)
    assert 5 <= check(graph, sizes) < nodes * len(sizes)
