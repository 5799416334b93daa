"""One operator on an SDK: the cases of its reference, compiled by an accelerator and run, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings

from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.dtypes import plain_bools
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Relu
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.passes.partition.marking import lowered
from bolt_numba.plugins.interface import Accelerator, CompileContext, DeviceDriver
from bolt_numba.types import F32, Array, TensorType, type_of
from tests.cases import CASES, Case
from tests.near import assert_near

EXAMPLES = 4
ROUNDED = {"BetweenBytes", "QLinearConv", "QLinearMatMul", "QuantizeLinear", "DynamicQuantizeLinear"}
"""Operators whose bytes are rounded from sums, so that another order of summation may give the next byte."""
few = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def opened(driver: DeviceDriver, **properties: Any) -> Accelerator:
    """A device with its defaults but for what is given."""
    return driver.open({name: p.default for name, p in driver.properties.items()} | properties)


def graph_of(case: Case, constant: Callable[[int], bool]) -> tuple[Graph, list[Array]]:
    """A graph of one node, and what its inputs take; constant: says which operands are."""
    graph = Graph(case.op.name)
    build, operands, feeds = Builder(graph), [], []
    for i, array in enumerate(case.inputs):
        if array is None:
            operands.append(None)
        elif i in case.op.value_inputs or constant(i):
            operands.append(build.const(array))
        else:
            operands.append(graph.add_input(f"x{i}", type_of(array).with_value(None)))
            feeds.append(np.array(array, order="C"))
    node = build.node(case.op, *operands)
    for value in node.outputs:
        graph.add_output(value)
    return graph, feeds


def run_graph(device: Accelerator, graph: Graph, feeds: list[Array], wanted: list[Array]) -> list[Array]:
    """Results in buffers of the types that the reference gives; inputs must stay as they are."""
    compiled = device.compile(graph, CompileContext(threads=1))
    request = compiled.request()
    made = [np.full(w.shape, 0xAB, np.uint8).astype(w.dtype) for w in wanted]
    before = [a.tobytes() for a in feeds]
    request.run(feeds, made)
    assert before == [a.tobytes() for a in feeds]
    request.close()
    compiled.close()
    return made


def agrees(device: Accelerator, op: type[Op], tolerance: float) -> tuple[int, set[str]]:
    """Compare an operator with its reference on the cases that a device supports.

    The operands behind the first are constants in some.  Gives how many ran, and why the others did not.
    """
    ran, tried, refused = 0, 0, set()

    def check(case: Case) -> None:
        nonlocal ran, tried
        tried += 1
        is_layer = tried % 2 == 0
        graph, feeds = graph_of(case, lambda i: is_layer and i > 0)
        graph = lowered(graph, device)
        answers = [device.supports(node) for node in graph.nodes]
        if not graph.inputs or not all(answer is True for answer in answers):
            refused.update(answer for answer in answers if isinstance(answer, str))
            return
        with np.errstate(all="ignore"):
            wanted = [plain_bools(np.asarray(r)) for r in result_tuple(case.op.reference(*case.inputs))]
        for got, want in zip(run_graph(device, graph, feeds, wanted), wanted, strict=True):
            if want.dtype.kind == "f":
                assert_near(got, want, max(case.rtol, tolerance), str(case), floor=0.02)
            else:
                step = want.dtype.itemsize == 1 and op.name in ROUNDED
                np.testing.assert_allclose(got, want, rtol=0, atol=step, err_msg=str(case))
        ran += 1

    few(given(CASES[op]())(check))()
    if not ran:  # most cases are of another kind
        settings(few, max_examples=5 * EXAMPLES)(given(CASES[op]())(check))()
    return ran, refused


def layer(rows: Any, seed: int = 3) -> Graph:
    """A product, a bias, an activation, whose weights are large enough to stand outside the model."""
    rng = np.random.default_rng(seed)
    graph = Graph("layer")
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (rows, 64)))
    w, b = rng.standard_normal((64, 96)).astype(F32), rng.standard_normal(96).astype(F32)
    graph.add_output(build(Relu(), build(MatMul(), x, w, b)))
    graph.add_output(build(Add(), x, x))
    return graph


def wanted_of(graph: Graph, x: Array) -> list[Array]:
    w, b = (v.const for v in graph.nodes[0].inputs[1:])
    assert w is not None
    assert b is not None
    return [np.maximum(x @ w + b, 0), x + x]


def near(got: list[Array], want: list[Array]) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
