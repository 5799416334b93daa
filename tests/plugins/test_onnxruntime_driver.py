"""onnxruntime as a device: operators against references, operands where they lie, free shapes, kept models."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy as np
import pytest

from bolt_numba.errors import DeviceError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.quantize import RangeRounded
from bolt_numba.ops.layers.norm import LRN
from bolt_numba.ops.layers.resize import GridSample
from bolt_numba.ops.pointwise import Add
from bolt_numba.ops.registry import Op
from bolt_numba.plugins.drivers.onnxruntime import OrtDriver
from bolt_numba.plugins.interface import Accelerator, CompileContext
from bolt_numba.types import F32, I64, Sym, TensorType
from tests.cases import CASES
from tests.missing import NO_SPELLING
from tests.plugins.drivers import agrees, layer, near, opened, run_graph, wanted_of

pytest.importorskip("onnxruntime", reason="the SDK of this device")
LACKS = NO_SPELLING | {
    *("Between", "DFT", "Dropout", "DynamicQuantizeLSTM", "GroupQueryAttention", "ImageDecoder"),
    *("LabelEncoder", "MatMulExperts", "Multinomial", "RandomNormal", "RandomUniform", "RegexFullMatch"),
    *("StringConcat", "StringNormalizer", "StringSplit", "Tokenizer", "TreeEnsemble"),
}
"""Operators that it does not get: what ONNX has no words for, and random numbers, texts and forms of one engine."""
CONSTANTS = {"ConstantOfShape", "Range", "GatherForm"}
"""Operators whose operands are all planned by content: no graph has them with an input.  One has a constant first."""
SORTED = sorted(CASES, key=lambda op: op.name)


@pytest.fixture(scope="module")
def device() -> Accelerator:
    return opened(OrtDriver())


@pytest.mark.parametrize("op", SORTED, ids=[op.name for op in SORTED])
def test_operator_agrees_with_its_reference(device: Accelerator, op: type[Op]) -> None:
    # What only our products of bytes make use of is written as the floats: half a level of 255 off.
    ran, refused = agrees(device, op, 4e-3 if op is RangeRounded else 1e-3)
    if op.name in LACKS:
        assert not ran
        assert refused
    else:
        more = "pytest tests/converters/test_onnx_write.py says what is missing"
        assert ran or op.name in CONSTANTS, f"{op.name}: {refused}: {more}"


def test_sizes_may_change_from_run_to_run(device: Accelerator) -> None:
    graph = layer(Sym("rows"))
    compiled = device.compile(graph, CompileContext())
    request = compiled.request()
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


def test_what_is_kept_makes_the_same(device: Accelerator) -> None:
    graph, context = layer(2), CompileContext()
    blob = device.compile(graph, context).serialise()
    assert blob is not None
    compiled = device.restore(blob, graph, context)
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(F32)
    made = [np.empty((2, n), F32) for n in (96, 64)]
    compiled.request().run([x], made)
    near(made, wanted_of(graph, x))
    with pytest.raises(ValueError, match="smaller"):
        device.restore(blob[:100], graph, context)


def test_weights_are_not_copied_into_the_model(device: Accelerator) -> None:
    graph = layer(2)
    compiled: Any = device.compile(graph, CompileContext())
    (kept,) = compiled.weights.values()
    assert kept is graph.nodes[0].inputs[1].const  # type: ignore[union-attr]


def test_a_failure_of_a_run_is_an_exception(device: Accelerator) -> None:
    request = device.compile(layer(2), CompileContext()).request()
    with pytest.raises(RuntimeError):
        request.run([np.zeros((2, 63), F32)], [np.zeros((2, n), F32) for n in (96, 64)])


@pytest.mark.parametrize("level", ["disable", "basic", "extended", "all"])
def test_every_level_gives_the_same(level: str) -> None:
    graph = layer(2)
    x = np.ones((2, 64), F32)
    near(
        run_graph(opened(OrtDriver(), optimisation=level, spinning=False), graph, [x], wanted_of(graph, x)),
        wanted_of(graph, x),
    )


def test_an_unknown_provider_is_named() -> None:
    with pytest.raises(DeviceError, match=r"NoSuchProvider.*CPUExecutionProvider"):
        opened(OrtDriver(), provider="NoSuchProvider")


def test_reasons_say_what_is_missing(device: Accelerator) -> None:
    graph = Graph("points")
    build = Builder(graph)
    x, at = (graph.add_input(n, TensorType(F32, s)) for n, s in (("x", (1, 1, 4, 4)), ("at", (1, 2, 2, 2))))
    assert device.supports(build.node(GridSample(mode="cubic", padding_mode="border"), x, at)) is True
    row = graph.add_input("row", TensorType(F32, (1, 4, 4)))
    assert "images of 4 axes" in str(device.supports(build.node(LRN(3), row)))
    wide = graph.add_input("n", TensorType(I64, (3,)))
    assert device.supports(build.node(Add(), wide, wide)) is True


def test_a_missing_package_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OrtDriver().missing() == ""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "not installed" in OrtDriver().missing()
