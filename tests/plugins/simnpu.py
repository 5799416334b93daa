"""What tests ask of SimNPU (examples/simnpu), which is imported from its folder as an installed package would be."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "simnpu"))

import simnpu_sdk as sdk
from simnpu_driver import SimDriver
from simnpu_driver.operators import OPERATORS

from bolt_numba.ir.graph import Graph
from bolt_numba.plugins.interface import Accelerator, CompileContext
from bolt_numba.types import Array

__all__ = ["BYTES", "CHIPS", "OPERATORS", "TOLERANCE", "SimDriver", "computed", "opened", "sdk"]
BYTES = ("QLinearConv", "QLinearMatMul", "QuantizeLinear", "DequantizeLinear")
"""Operators that sim300 alone has."""
CHIPS = ("sim100", "sim200", "sim300")
TOLERANCE = {"sim100": 0.03, "sim200": 1e-5, "sim300": 0.05}
"""Of results against ours, as a share of the greatest: numbers of 8 bits, of 24, and 256 levels."""


def opened(**given: Any) -> Any:
    """An opened chip with these properties, the others as they are by default."""
    driver = SimDriver()
    return driver.open({name: made.default for name, made in driver.properties.items()} | given)


def computed(accelerator: Accelerator, graph: Graph, *inputs: Array) -> list[Array]:
    """What the device makes of a graph of static shapes; all is given back."""
    outputs = [_poisoned(value.type.dims, value.type.dtype) for value in graph.outputs]
    with closing(accelerator.compile(graph, CompileContext())) as compiled, closing(compiled.request()) as request:
        request.run(inputs, outputs)
    return outputs


def _poisoned(shape: tuple[int, ...], dtype: Any) -> Array:
    made = np.empty(shape, dtype)
    made.reshape(-1).view(np.uint8)[...] = 0xC3
    return made
