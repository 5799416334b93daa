"""Weights stored in fewer bits: sizes, errors, what a session makes of them, and damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.cli import app
from bolt_numba.errors import BoltError, InvalidModelError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.encode import one_in_a_byte, two_in_a_byte
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.store import load_bolt, to_bytes
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.control import If
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Relu
from bolt_numba.quantize import with_stored_weights
from bolt_numba.types import BOOL, F32, I64, Array, TensorType
from tests.near import assert_near

RNG = np.random.default_rng(7)


def real(*dims: int) -> Array:
    return RNG.standard_normal(dims).astype(F32)


def net() -> Graph:
    graph = Graph("net")
    x, words = graph.add_input("x", TensorType(F32, (1, 40, 9, 9))), graph.add_input("words", TensorType(I64, (9,)))
    b = Builder(graph)
    y = b(Relu(), b(Conv(pads=(1, 1, 1, 1)), x, b.const(real(48, 40, 3, 3) / 20), b.const(real(48))))
    y = b(MatMul(), b(Transpose((0, 2, 3, 1)), y), b.const(real(48, 70) / 7))
    y = b(Add(), y, b(Gather(0), b.const(real(50, 70)), words))
    graph.add_output(b(MatMul(trans_b=True), y, b.const(real(33, 70) / 8)), "y")
    return graph


FEED: dict[str, Any] = {"x": real(1, 40, 9, 9), "words": np.arange(9)}


@pytest.mark.parametrize(("form", "part", "tolerance"), [
    ("f16", 0.51, 1e-3), ("bf16", 0.51, 1e-2), ("int8", 0.42, 0.02), ("int4", 0.29, 0.25),
])  # fmt: skip
def test_files_are_smaller_and_mean_nearly_the_same(form: str, part: float, tolerance: float, tmp_path: Path) -> None:
    graph = net()
    made = with_stored_weights(graph, form)
    assert [w.shape for w in made.weights] == [(48, 40, 3, 3), (48, 70), (50, 70), (33, 70)]
    made.save(tmp_path / "made.bolt")
    assert (tmp_path / "made.bolt").stat().st_size < part * len(to_bytes(graph)) + 3000
    session = bn.compile(tmp_path / "made.bolt")
    (got,) = session(FEED)
    assert_near(got, bn.compile(graph)(FEED)[0], tolerance)
    assert_near(got, bn.compile(made.graph)(FEED)[0], 0)
    kinds = {node.op.name for node in session.optimised.nodes}
    assert kinds == {"Add", "Conv", "Gather", "MatMul", "Transpose"} | ({"Cast"} if "f" in form else set())  # of rows
    assert all(w.sqnr > {"f16": 60, "bf16": 45, "int8": 38, "int4": 15}[form] for w in made.weights)
    made.save(tmp_path / "made.onnx")
    assert_near(bn.compile(tmp_path / "made.onnx")(FEED)[0], got, 1e-6)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_two_numbers_of_four_bits_share_a_byte(dtype: Any, count: int) -> None:
    for value in range(16):
        number = value - 16 if value > 7 and dtype is ml_dtypes.int4 else value
        wanted = np.full(count, number, np.int8).astype(dtype)
        raw = two_in_a_byte(wanted.view(np.uint8))
        assert raw.size == -(-count // 2)
        np.testing.assert_array_equal(one_in_a_byte(raw, count, np.dtype(dtype)), wanted)


def test_what_cannot_be_stored() -> None:
    with pytest.raises(BoltError, match="store: got 'f8', wanted one of f16, bf16, int8, int4"):
        with_stored_weights(net(), "f8")


@pytest.mark.parametrize("factor", [1e6, 1e-6, 1e-30])
def test_weights_whose_digits_half_cannot_hold(factor: float) -> None:
    graph = Graph("far")
    x = graph.add_input("x", TensorType(F32, (2, 64)))
    b = Builder(graph)
    graph.add_output(b(MatMul(), x, b.const(real(64, 64) * F32.type(factor))), "y")
    with pytest.raises(BoltError, match="got no weights of f32"):
        with_stored_weights(graph, "f16")
    assert len(with_stored_weights(graph, "bf16").weights) == 1


def test_damaged_files_are_refused() -> None:
    whole = to_bytes(with_stored_weights(net(), "int4").graph)
    load_bolt(whole)
    for at in (len(whole) - 3000, len(whole) - 40):
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        with pytest.raises(InvalidModelError, match="checksum is wrong"):
            load_bolt(bytes(damaged))
    with pytest.raises(InvalidModelError):
        load_bolt(whole[:-64])


def test_convert_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bn.save(net(), tmp_path / "net.bolt")

    def call(*args: object) -> tuple[int, str, str]:
        return app.run(["convert", str(tmp_path / "net.bolt"), *map(str, args)]), *capsys.readouterr()

    code, out, err = call("--store", "int8", "-o", tmp_path / "small.bolt")
    assert not code, err
    assert "int8: 4 weights" in out
    assert (tmp_path / "small.bolt").stat().st_size < 0.5 * (tmp_path / "net.bolt").stat().st_size
    code, out, err = call("--store", "f16", "--json", "-o", tmp_path / "half.bolt")
    assert not code, err
    assert json.loads(out)["stored"][0].startswith("f16: 4 weights")
    for wrong, said in ((("--store", "f8"), "got 'f8'"), (("--store", "f16", "--pack"), "--pack")):
        code, out, err = call(*wrong, "-o", tmp_path / "no.bolt")
        assert code
        assert said in err
        assert not (tmp_path / "no.bolt").exists()


def test_bodies_of_control_flow_are_stored_too() -> None:
    def body(name: str) -> Graph:
        made = Graph(name)
        x = made.add_input("x", TensorType(F32, (1, 64)))
        made.add_output(Builder(made)(MatMul(), x, real(64, 64)), "y")
        return made

    graph = Graph("net")
    x, flag = graph.add_input("x", TensorType(F32, (1, 64))), graph.add_input("flag", TensorType(BOOL, ()))
    graph.add_output(Builder(graph)(If(body("then"), body("else")), flag, x), "y")
    before, given = len(to_bytes(graph)), real(1, 64)
    made = with_stored_weights(graph, "f16")
    assert len(made.weights) == 2
    assert len(to_bytes(made.graph)) < 0.6 * before == 0.6 * len(to_bytes(graph))
    for flag_given in (np.array(True), np.array(False)):
        got, wanted = (bn.compile(g)(x=given, flag=flag_given)[0] for g in (made.graph, graph))
        assert_near(got, wanted, 1e-3)
