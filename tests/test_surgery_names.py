"""Inputs and outputs get other names, and names that are taken or unknown are refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from bolt_numba import surgery
from bolt_numba.converters.onnx.reading.read import read_model
from bolt_numba.errors import BoltError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.spec import verify
from tests.graphs import feeds_of
from tests.rule_cases import graph_of, o


@pytest.fixture
def net() -> Graph:
    def build(b: Builder, x: Value, y: Value) -> Any:
        a = b(o("Relu"), x, name="a")
        return b(o("Sub"), a, y, name="d"), a

    return graph_of(build, {"x": ("n", 3), "y": ("n", 3)})


def names(graph: Graph) -> tuple[list[str], list[str]]:
    return [v.name for v in graph.inputs], graph.output_names


def test_names(net: Graph) -> None:
    made = surgery.with_names(net, {"x": "y", "y": "x", "out0": "first"})
    assert names(made) == (["y", "x"], ["first", "out1"])
    assert names(net) == (["x", "y"], ["out0", "out1"])
    verify(made)
    data = feeds_of(net)
    wanted, got = interpret(net, data), interpret(made, {"y": data["x"], "x": data["y"]})
    for a, b in zip(wanted.values(), got.values(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert names(read_model(surgery.to_onnx(made))) == names(made)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"xx": "z"}, "input or output: got 'xx', wanted 'x'"),
        ({"a": "z"}, "input or output: got 'a'"),
        ({"x": "a"}, "name for 'x': got 'a', wanted a text that no other tensor has"),
        ({"x": "z", "y": "z"}, "name for 'y': got 'z'"),
        ({"x": ""}, "name for 'x': got ''"),
        ({"x": "\udc80"}, "name for 'x': got "),
        ({"x": 3}, "name for 'x': got 3"),
    ],
)
def test_names_that_are_refused(net: Graph, given: dict[str, Any], text: str) -> None:
    with pytest.raises(BoltError, match=text):
        surgery.with_names(net, given)


def test_surgery_is_an_attribute_that_loads_when_it_is_named() -> None:
    code = (
        "import sys, bolt_numba as bn; assert 'bolt_numba.surgery' not in sys.modules; assert 'surgery' in dir(bn)\n"
        "assert bn.surgery is sys.modules['bolt_numba.surgery']"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
