"""Binary layers on the simulated GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.ops.layers.products.binary import PACKS, BinaryConv, BinaryMatMul, BinaryPack
from bolt_numba.ops.pointwise import Relu
from bolt_numba.types import F32, I32
from tests.cuda.harness import expect
from tests.cuda.test_convolution import whole, windows

few = settings(max_examples=8, deadline=None, derandomize=True)


@pytest.mark.parametrize("compare", [*PACKS])
@pytest.mark.parametrize("axis", [1, 2])
def test_pack(compare: str, axis: int) -> None:
    x = whole(0, (2, 33, 40))
    x[0, 1, :3] = np.nan, np.inf, -np.inf
    expect(BinaryPack(axis, compare), x, whole(1, (x.shape[axis] if axis == 2 else 1,)))


def weights(shape: Any) -> Any:
    return np.where(whole(1, shape) > 0, np.float32(0.5), np.float32(-0.5))


def words(shape: Any, compare: str) -> Any:
    return BinaryPack(-1, compare).reference(whole(0, shape), np.zeros(1, F32))


@few
@given(windows((1, 2, 3)), st.sampled_from([(1, 5, 34), (1, 40, 3), (2, 32, 8)]), st.sampled_from(["gt", "sign", "01"]),
       st.sampled_from([-1, 0, 1]), st.booleans())  # fmt: skip
def test_conv(w: dict[str, Any], channels: tuple[int, int, int], kind: str, outside: int, more: bool) -> None:
    group, cg, kg = channels
    x = words((w["images"], *w["sizes"], group * cg), "gt" if kind == "01" else kind)
    filters = weights((group * kg, cg, *w["kernel"]))
    common = dict(**w["attributes"], group=group, layout="NHWC", outside=outside, zero_one=kind == "01")
    op = BinaryConv(**common)
    if not more:
        expect(op, x, filters, None, None, whole(4, (group * kg,), I32, 9), constants=(1, 4))
        return
    residual = whole(2, op.reference(x, filters).shape)
    fused = BinaryConv(**common, residual=True, activation=Relu())
    expect(fused, x, filters, whole(3, (group * kg,)), residual, constants=(1, 2))


@pytest.mark.parametrize("compare", ["gt", "sign"])
def test_matmul(compare: str) -> None:
    expect(BinaryMatMul(), words((2, 3, 70), compare), weights((70, 35)), whole(2, (35,)), constants=(1, 2))
