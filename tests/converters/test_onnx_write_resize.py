"""Resizes of other formats written as ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bolt_numba.errors import UnsupportedOpError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from tests.converters.test_onnx_write import check
from tests.graphs import make
from tests.rule_cases import i64


def test_coordinates_of_paddle() -> None:
    """Written as pixels' centres, which they are but for a single element."""

    def resized(size: int) -> Callable[[Builder, Value], Any]:
        return lambda b, x: b(make("Resize", mode="cubic", coordinate_transformation_mode="edge_half_pixel"), x, None,
                              None, i64(1, 2, size, 8))  # fmt: skip

    check(resized(3), "Resize", tolerance=1e-5, x=(1, 2, 5, 4))
    spatial = make("Resize", mode="cubic", coordinate_transformation_mode="edge_half_pixel", axes=(2, 3))
    check(lambda b, x: b(spatial, x, None, None, i64(3, 8)), "Resize", tolerance=1e-5, x=("n", 2, 5, 4))
    with pytest.raises(UnsupportedOpError, match="edge_half_pixel"):
        check(resized(1), "Resize", x=(1, 2, 5, 4))
