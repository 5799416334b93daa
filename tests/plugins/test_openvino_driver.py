"""OpenVINO as a device: operators against references, operands where they lie, kept models, what it is kept from."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy as np
import pytest

from bolt_numba.errors import DeviceError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.pointwise import Add, Cast
from bolt_numba.passes.partition.marking import lowered
from bolt_numba.plugins.drivers.openvino.device import OpenVinoDriver
from bolt_numba.plugins.drivers.openvino.table import TABLE
from bolt_numba.plugins.interface import Accelerator, CompileContext
from bolt_numba.types import F32, I64, U8, Sym, TensorType
from tests.cases import CASES
from tests.graphs import make
from tests.plugins.drivers import agrees, layer, near, opened, wanted_of

pytest.importorskip("openvino", reason="the SDK of this device")
BUILT = sorted(TABLE.load())
BY_NAME = {op.name: op for op in CASES}


@pytest.fixture(scope="module")
def device() -> Accelerator:
    return opened(OpenVinoDriver())


@pytest.mark.parametrize("name", BUILT)
def test_operator_agrees_with_its_reference(device: Accelerator, name: str) -> None:
    ran, refused = agrees(device, BY_NAME[name], 1e-3)
    assert ran, refused


@pytest.mark.parametrize("shapes", ["fixed", "free"])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_recurrent_layers_of_either_layout_and_of_sizes_that_change(name: str, layout: int, shapes: str) -> None:
    device, rng, graph = opened(OpenVinoDriver(), shapes=shapes), np.random.default_rng(0), Graph("layer")
    op: Any = make(name, direction="bidirectional", layout=layout)
    sizes = [(Sym("t"), Sym("n"), 4), (Sym("n"), Sym("t"), 4)][layout] if shapes == "free" else (5, 5, 4)
    x = graph.add_input("x", TensorType(F32, sizes))
    weights = [rng.standard_normal(s).astype(F32) * 0.3 for s in ((2, op.gates * 3, 4), (2, op.gates * 3, 3))]
    build = Builder(graph)
    for value in build.node(op, x, *weights).outputs:
        graph.add_output(value)
    graph = lowered(graph, device)
    assert {device.supports(node) for node in graph.nodes} == {True}
    request = device.compile(graph, CompileContext()).request()
    for rows in ((5, 5), (2, 7), (7, 1)) if shapes == "free" else ((5, 5),):
        given = rng.standard_normal((*rows, 4)).astype(F32)
        wanted = op.reference(given, *weights)
        made = [np.empty_like(a) for a in wanted]
        request.run([given], made)
        near(made, list(wanted))


def test_others_are_refused_with_a_reason(device: Accelerator) -> None:
    graph = Graph("others")
    build = Builder(graph)
    x = graph.add_input("x", TensorType(I64, (3,)))
    y = graph.add_input("y", TensorType(F32, (3,)))
    none = graph.add_input("z", TensorType(F32, (3, 0)))
    assert "64" in str(device.supports(build.node(Add(), x, x)))
    assert "without elements" in str(device.supports(build.node(Add(), none, none)))
    assert "bytes" in str(device.supports(build.node(Cast(U8), y))) or "cut" in str(device.supports(graph.nodes[-1]))
    assert opened(OpenVinoDriver(), int64="narrow").supports(build.node(Add(), x, x)) is True


def test_it_is_asked_once_for_layers_of_all_sizes() -> None:
    device = opened(OpenVinoDriver())
    graph = Graph("layers")
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (1, 3, 16, 16)))
    for size, filters in ((3, 8), (8, 16), (16, 32)):
        x = build(Conv(pads=(1, 1, 1, 1)), x, np.ones((filters, size, 3, 3), F32), np.ones(filters, F32))
    empty = graph.add_input("empty", TensorType(F32, (0, 3, 16, 16)))
    answers = [device.supports(node) for node in graph.nodes]
    none = build.node(Conv(pads=(1, 1, 1, 1)), empty, np.ones((8, 3, 3, 3), F32), np.ones(8, F32))
    assert answers == [True] * 3
    assert "without elements" in str(device.supports(none))
    asked: Any = device
    assert len(asked._answers) == 2


def test_sizes_may_change_from_run_to_run() -> None:
    device = opened(OpenVinoDriver(), shapes="free")
    assert device.shapes == "free"
    graph = layer(Sym("rows"))
    request = device.compile(graph, CompileContext()).request()
    for rows in (1, 7, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(F32)
        made = [np.empty((rows, n), F32) for n in (96, 64)]
        request.run([x], made)
        near(made, wanted_of(graph, x))


def test_operands_are_read_and_written_where_they_lie_and_never_kept(device: Accelerator) -> None:
    graph = layer(2)
    request = device.compile(graph, CompileContext()).request()
    x, made = np.ones((2, 64), F32), [np.zeros((2, n), F32) for n in (96, 64)]
    request.run([x], made)
    x[:] = -2  # the same memory with other content
    request.run([x], made)
    near(made, wanted_of(graph, x))
    others = [np.zeros((2, n), F32) for n in (96, 64)]
    before = [a.copy() for a in made]
    y = np.full((2, 64), 3, F32)
    y.flags.writeable = False
    request.run([y], others)
    near(others, wanted_of(graph, y))
    near(made, before)
    gone = [weakref.ref(a) for a in (x, *made)]
    del x, made
    assert all(r() is None for r in gone)


def test_requests_run_beside_each_other(device: Accelerator) -> None:
    graph = layer(2)
    compiled = device.compile(graph, CompileContext())
    requests = [compiled.request() for _ in range(3)]
    for i, request in enumerate(requests):
        x = np.full((2, 64), i, F32)
        made = [np.zeros((2, n), F32) for n in (96, 64)]
        request.run([x], made)
        near(made, wanted_of(graph, x))


def test_what_is_kept_makes_the_same(device: Accelerator) -> None:
    graph, context = layer(2), CompileContext()
    blob = device.compile(graph, context).serialise()
    assert blob is not None
    compiled = device.restore(blob, graph, context)
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(F32)
    made = [np.empty((2, n), F32) for n in (96, 64)]
    compiled.request().run([x], made)
    near(made, wanted_of(graph, x))
    with pytest.raises(RuntimeError):
        device.restore(blob[:100], graph, context)


def test_a_failure_of_a_run_is_an_exception(device: Accelerator) -> None:
    request = device.compile(layer(2), CompileContext()).request()
    with pytest.raises(RuntimeError):
        request.run([np.zeros((2, 63), F32)], [np.zeros((2, n), F32) for n in (96, 64)])


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(DeviceError, match=r"'TPU', wanted one of .*CPU"):
        opened(OpenVinoDriver(), device="TPU")


def test_a_missing_package_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OpenVinoDriver().missing() == ""
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert "not installed" in OpenVinoDriver().missing()


def test_the_precision_is_that_of_the_property() -> None:
    rng, graph = np.random.default_rng(0), layer(16)
    x = rng.standard_normal((16, 64)).astype(F32)
    made = [np.empty((16, n), F32) for n in (96, 64)]
    compiled: Any = opened(OpenVinoDriver(), precision="f32").compile(graph, CompileContext(threads=2))
    compiled.request().run([x], made)
    near(made, wanted_of(graph, x))
    assert compiled.model.get_property("INFERENCE_NUM_THREADS") == 2
    assert compiled.model.get_property("INFERENCE_PRECISION_HINT").to_dtype() == F32
