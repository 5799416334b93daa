"""Several devices of one driver in a session, each with properties of its own, its precision for one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ops.pointwise import Add, Relu, Tanh
from bolt_numba.types import F32, TensorType
from tests.conftest import Done
from tests.plugins.simnpu import SimDriver

TWO = {"simnpu:left": {"chip": "sim100", "supported": "Add,Relu"}, "simnpu:right": {"supported": "Tanh"}}
PLACED = "Add - Relu -> simnpu:left\nTanh -> simnpu:right"
X = np.linspace(-1, 1, 8, dtype=F32).reshape(2, 4)


@pytest.fixture(autouse=True)
def driver() -> Iterator[None]:
    bn.plugins.register_driver(SimDriver)
    yield
    bn.plugins.unregister_driver("simnpu")


@pytest.fixture
def graph() -> bn.Graph:
    made = bn.Graph("g")
    b = Builder(made)
    x = made.add_input("x", TensorType(F32, (2, 4)))
    made.add_output(b(Tanh(), b(Relu(), b(Add(), x, np.ones(4, F32)))), "y")
    return made


def test_two_chips_of_one_driver(graph: bn.Graph) -> None:
    device = ["simnpu:left", "simnpu:right", "cpu"]
    session = bn.compile(graph, device=device, properties=TWO, placement=PLACED, fallback="forbid")
    for made in (session, session.clone()):
        np.testing.assert_allclose(made(X)["y"], np.tanh(np.maximum(X + 1, 0)), atol=0.01)
    report = session.report()
    assert [(row["device"], row["nodes"]) for row in report] == [
        ("simnpu:left", ["Add", "Relu"]),
        ("simnpu:right", ["Tanh"]),
    ]
    session.close()
    chips = {row["device"]: row["properties"]["chip"] for row in report.devices}
    assert chips == {"simnpu:left": "sim100", "simnpu:right": "sim200"}


def test_the_command_line_names_them(graph: bn.Graph, tmp_path: Path, call: Callable[..., Done]) -> None:
    bn.save(graph, tmp_path / "g.bolt")
    properties = [f"{device}.{name}={text}" for device, given in TWO.items() for name, text in given.items()]
    (tmp_path / "placed.txt").write_text(PLACED)
    options = [text for given in properties for text in ("--property", given)]
    done = call(
        "inspect", tmp_path / "g.bolt", "--device", "simnpu:left,simnpu:right", *options,
        "--placement", tmp_path / "placed.txt", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert {"simnpu:left", "simnpu:right"} <= set(json.dumps(json.loads(done.out)).replace('"', " ").split())


@pytest.mark.parametrize("device", [["simnpu", "simnpu"], ("cpu", "simnpu:a", "simnpu:a"), ["cpu", "cpu"]])
def test_the_same_device_twice_is_refused(graph: bn.Graph, device: Any) -> None:
    with pytest.raises(bn.DeviceError, match=r"^device: got '(simnpu|simnpu:a|cpu)' twice, wanted each device once"):
        bn.compile(graph, device=device)


@pytest.mark.parametrize("name", ["simnpu:", "simnpu:a b", "simnpu:a.b", "simnpu:../a", "nosuch:a"])
def test_names_that_cannot_be(graph: bn.Graph, name: str) -> None:
    with pytest.raises(bn.DeviceError, match=r"^device: got .*, wanted one of .*'cpu', .*'simnpu'"):
        bn.compile(graph, device=[name, "cpu"])


def test_properties_are_those_of_the_name_that_is_given(graph: bn.Graph) -> None:
    with pytest.raises(bn.DeviceError, match="properties: got some of 'simnpu', wanted those of 'simnpu:a'"):
        bn.compile(graph, device=["simnpu:a", "cpu"], properties={"simnpu": {"chip": "sim100"}})


def test_a_precision_for_each() -> None:
    """One of OpenVINO in halves, one in f32; what is left of the session in its own precision."""
    pytest.importorskip("openvino", reason="pip install openvino")
    graph = bn.load(Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx")
    x = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
    wide, narrow = (
        bn.compile(graph, device=[name, "cpu"], properties={name: {"precision": precision}}, fallback="forbid")
        for name, precision in (("openvino:wide", "f32"), ("openvino:narrow", "bf16"))
    )
    assert [row["properties"]["precision"] for s in (wide, narrow) for row in s.report().devices] == ["f32", "bf16"]
    for session in (wide, narrow):
        np.testing.assert_allclose(session(x)[0], bn.compile(graph)(x)[0], atol=0.05)
    both = bn.compile(
        graph, device=["openvino:wide", "openvino:narrow", "cpu"], precision="bf16", fallback="forbid",
        properties={"openvino:wide": {"precision": "f32"}, "openvino:narrow": {"precision": "bf16"}},
    )  # fmt: skip
    assert {row["device"]: row["properties"]["precision"] for row in both.report().devices} == {
        "openvino:wide": "f32",
        "openvino:narrow": "bf16",
    }
    assert both.options.precision == "bf16"
