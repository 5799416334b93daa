"""Weights stay in the file: what a reader sees is what protobuf would have given, wherever tensors lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import helper, numpy_helper

import bolt_numba as bn
from bolt_numba.converters.onnx import reading
from bolt_numba.converters.onnx.reading.payload import payload, without_payloads
from bolt_numba.converters.wire import fields
from bolt_numba.errors import InvalidModelError
from bolt_numba.ir.interpret import interpret
from tests.near import assert_near


def _model() -> onnx.ModelProto:
    """Weights as initializer, as attribute, and in the branches of an If."""
    rng = np.random.default_rng(0)
    w, c, t, e = (numpy_helper.from_array(rng.standard_normal((20, 20)).astype("f4"), n) for n in "wcte")
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Add", ["y", value.name], [name])], name, [],
            [helper.make_tensor_value_info(name, 1, None)], [value],
        )
        for name, value in (("then", t), ("else", e))
    }  # fmt: skip
    nodes = [
        helper.make_node("Constant", [], ["c"], value=c),
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Mul", ["m", "c"], ["y"]),
        helper.make_node("If", ["cond"], ["z"], **branches),
    ]
    inputs = [helper.make_tensor_value_info("x", 1, (20, 20)), helper.make_tensor_value_info("cond", 9, ())]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("z", 1, None)], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_all_large_payloads_are_cut_out_and_found_again() -> None:
    data = _model().SerializeToString()
    with without_payloads(data) as rest:
        assert len(rest) < len(data) - 4 * 1600 + 4 * 64
        cut = onnx.ModelProto.FromString(bytes(rest))
        raw = payload(cut.graph.initializer[0].raw_data)
        assert raw is not None
        assert raw.tobytes() == _model().graph.initializer[0].raw_data
        assert np.shares_memory(raw, np.frombuffer(data, np.uint8))
    assert payload(cut.graph.initializer[0].raw_data) is None, "a ticket is void when reading is over"


@pytest.mark.parametrize("cond", [True, False])
def test_result_is_that_of_onnx(cond: bool, tmp_path: Path) -> None:
    model = _model()
    file = tmp_path / "model.onnx"
    file.write_bytes(model.SerializeToString())
    feeds = {"x": np.eye(20, dtype="f4"), "cond": np.array(cond)}
    (want,) = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    assert_near(interpret(bn.load(file), feeds)["z"], want, 1e-6)
    assert_near(bn.compile(file)(feeds)["z"], want, 1e-5)


def test_long_lists_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forest's attributes have a million numbers, each a field: no payload is among them."""
    long = list(range(5000))
    nodes = [helper.make_node("Odd", ["x"], ["y"], ints=long, floats=[float(i) for i in long], texts=["a"] * 5000)]
    model = _model()
    model.graph.node.extend(nodes)
    walked = []

    def counted(*args: Any) -> Any:
        for field in fields(*args):
            walked.append(field)
            yield field

    monkeypatch.setattr(reading.payload, "fields", counted)
    with without_payloads(model.SerializeToString()) as rest:
        assert onnx.ModelProto.FromString(bytes(rest)).graph.node[-1] == nodes[0]
    assert len(walked) < 200


def test_large_files_are_mapped(tmp_path: Path) -> None:
    w = np.arange(1 << 19, dtype="f4").reshape(1 << 10, -1)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [helper.make_tensor_value_info("x", 1, (1, 1 << 10))],
        [helper.make_tensor_value_info("y", 1, None)], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    file = tmp_path / "large.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), file)
    (value,) = bn.load(file).constants()
    assert value.const is not None
    assert not value.const.flags.owndata
    assert not value.const.flags.writeable
    np.testing.assert_array_equal(value.const, w)


def test_a_payload_of_the_wrong_length_is_refused() -> None:
    model = _model()
    model.graph.initializer[0].raw_data += bytes(4)
    with pytest.raises(InvalidModelError, match="1604 bytes, wanted 1600"):
        bn.load(model.SerializeToString())


def test_no_file_can_forge_a_ticket() -> None:
    model = _model()
    model.graph.initializer[0].raw_data = bytes(32)
    model.graph.initializer[0].dims[:] = [8]
    del model.graph.node[:]
    model.graph.output[0].name = "w"
    (value,) = bn.load(model.SerializeToString()).constants()
    assert value.const is not None
    assert value.const.tobytes() == bytes(32)


@pytest.mark.parametrize("data", [b"", b"\x0b", b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", bytes(3)])
def test_what_cannot_be_walked_goes_to_the_parser_unchanged(data: bytes) -> None:
    with without_payloads(data) as rest:
        assert rest == data
