"""Products of warp groups on a simulated GPU of the Hopper kind; data are whole numbers, so that all sums are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba import devices
from bolt_numba.errors import DeviceError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cuda.products import matmul_wgmma
from bolt_numba.kernels.cuda.products.tensor import TENSOR_TILES
from bolt_numba.kernels.cuda.products.wgmma import GROUP_TILES
from bolt_numba.kernels.registry import QueryContext
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.integer_products import MatMulInteger, QLinearMatMul
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Relu
from bolt_numba.passes.pipeline import STAGES
from bolt_numba.types import BF16, F16, F32, I8, U8, Sym, TensorType
from tests.cuda import harness
from tests.cuda.fake_driver import FakeDriver, Result
from tests.cuda.harness import counted, expect
from tests.cuda.test_driver import session_on
from tests.cuda.test_products import some_bytes, whole

HOPPER: Any = devices.device("cuda-sim:sm_90a")
FORMS = [(F16, False, False), (BF16, True, False), (F16, False, True), (BF16, True, True), (F16, True, False)]
"""By tile: dtype, and which operands lie transposed."""


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    if harness.GPU.driver.arch != HOPPER.driver.arch:
        monkeypatch.setattr(harness, "GPU", HOPPER)


@pytest.mark.parametrize("tile", range(len(GROUP_TILES)))
def test_tiles(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ragged tiles, several for a block or none, one or several matrices, and stages that are used again."""
    dtype, trans_a, trans_b = FORMS[tile]
    form = GROUP_TILES[tile]
    op = MatMul(trans_a, trans_b, activation=Relu(), residual=True, alpha=0.5)
    monkeypatch.setattr(matmul_wgmma, "GROUP_TILES", (form,))

    @settings(max_examples=3, deadline=None, derandomize=True)
    @given(
        st.integers(1, form.m // 8 + 2), st.integers(1, form.n // 8 + 2), st.integers(1, 70),
        st.sampled_from([((), ()), ((2,), (2,)), ((3,), ())]), st.integers(1, 3),
    )  # fmt: skip
    def run(m: int, n: int, k: int, batches: Any, processors: int) -> None:
        m, n, k, (left, right) = 8 * m, 8 * n, 8 * k, batches
        a, b = (*left, *((k, m) if trans_a else (m, k))), (*right, *((n, k) if trans_b else (k, n)))
        monkeypatch.setattr(harness.GPU.driver, "processors", processors)
        rest = whole(2, (n,), dtype), whole(3, (*left, m, n), dtype)
        expect(op, whole(0, a, dtype), whole(1, b, dtype), *rest, maker="matmul_wgmma", rtol=0)

    run()


def test_sums_in_parts_are_added_in_f32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.GPU.driver, "processors", 5)
    arrays = whole(0, (40, 1160), F16), whole(1, (1160, 24), F16), whole(2, (24,), F16)
    expect(MatMul(), *arrays, maker="matmul_wgmma", rtol=0)


@pytest.mark.parametrize("form", ["sums", "bytes"])
def test_bytes(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_wgmma, "GROUP_TILES", GROUP_TILES[-1:])
    m, n, k = 72, 150, 272
    if form == "sums":
        a, b = some_bytes(0, (2, m, k), I8), some_bytes(1, (2, k, n), I8)
        expect(MatMulInteger(), a, b, some_bytes(2, (), I8), some_bytes(3, (), I8), maker="matmul_bytes_wgmma")
        return
    scale = np.random.default_rng(2).uniform(0.01, 0.02, (n,)).astype(F32)
    a, b, rest = some_bytes(0, (m, k), U8), some_bytes(1, (k, n), I8), some_bytes(7, (m, n), I8)
    others = scale[0], some_bytes(3, (), U8), b, scale, some_bytes(4, (n,), I8), np.float32(40.0), np.uint8(7)
    op = QLinearMatMul(residual=True, activation=Relu())
    arrays = a, *others, whole(6, (n,), np.int32, 900), rest, scale[1], np.int8(-3)
    expect(op, *arrays, constants=(3, 4, 5, 8), maker="matmul_bytes_wgmma")


@pytest.mark.parametrize("constants", [(), (1,)])
def test_tf32_on_request(constants: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_wgmma, "GROUP_TILES", GROUP_TILES[:1])
    a = np.random.default_rng(0).standard_normal((140, 100)).astype(F32)
    b = whole(1, (100, 270) if constants else (270, 100))
    op = MatMul(trans_b=not constants)
    expect(op, a, b, constants=constants, maker="matmul_tf32_wgmma", numerics="fast", rtol=2e-3, atol=2e-2)


ENDING: dict[str, Any] = {"residual": True, "activation": Relu()}
"""That of `test_tiles`, so that kernels are the same."""


def test_rows_of_weights_are_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_wgmma, "GROUP_TILES", GROUP_TILES[:1])
    arrays = whole(0, (24, 72), F16), whole(1, (72, 13), F16), whole(2, (13,), F16), whole(3, (24, 13), F16)
    expect(MatMul(**ENDING), *arrays, constants=(1,), maker="matmul_wgmma", rtol=0)


def test_no_bank_is_met_twice_and_sectors_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_wgmma, "GROUP_TILES", GROUP_TILES[:1])
    arrays = whole(0, (128, 128), F16), whole(1, (128, 256), F16), whole(2, (256,), F16), whole(3, (128, 256), F16)
    with counted() as report:
        expect(MatMul(**ENDING), *arrays, maker="matmul_wgmma", rtol=0)
    shared = report.total()
    assert shared.wavefronts == shared.ideal
    assert report.efficiency("ld.global.v2", "st.global") == 1
    assert report.executed() < 100 * 128 * 256 // (4 * 32), "a warp stores 4 sums of each thread at once"
    assert report.executed("wgmma.mma_async") == 4 * 128 * 256 * 128 // (64 * 256 * 16)


def maker_of(device: Any, a: tuple[int, ...], b: tuple[int, ...], **settings: Any) -> str:
    entry = device.select(MatMul(**settings), [TensorType(F16, a), TensorType(F16, b)], QueryContext())
    return str(entry.name)


def test_large_products_take_warp_groups_where_there_are_any() -> None:
    large = (4096, 4096)
    for settings_ in ({}, {"trans_a": True}, {"trans_b": True}):
        assert maker_of(HOPPER, large, large, **settings_) == "matmul_wgmma"
        assert maker_of(devices.device("cuda-sim"), large, large, **settings_) == "matmul_halves"
    assert maker_of(HOPPER, (16, 512, 512), (16, 512, 512)) == "matmul_wgmma"
    assert maker_of(HOPPER, (32, 64), (64, 64)) == "matmul_halves"


def test_what_the_gpu_cannot_copy_by_boxes_goes_by_warps() -> None:
    assert maker_of(HOPPER, (4096, 4095), (4095, 4096)) == "matmul_halves"
    assert maker_of(HOPPER, (4, 1, 1024, 1024), (3, 1024, 1024)) == "matmul_halves"


X, W = (64, 128), whole(1, (128, 136))


def session(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of one product of halves, which is small; fake: of a GPU of the Hopper kind."""
    monkeypatch.setattr(matmul_wgmma, "TENSOR_TILES", TENSOR_TILES[:1])
    graph = Graph("product")
    graph.add_output(Builder(graph)(MatMul(), graph.add_input("x", TensorType(F32, X)), W), "y")
    return session_on(fake, graph, precision="f16")


def test_tensors_are_described_once_for_a_graph_that_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver(capability=90)
    run = session(fake, monkeypatch)
    for seed in range(3):
        x = whole(seed, X)
        np.testing.assert_array_equal(run(x=x)["y"], x @ W)
    assert "matmul_wgmma" in [row["runner"] for row in run.report()]
    assert fake.counts["cuTensorMapEncodeTiled"] == 2
    assert fake.counts["cuGraphLaunch"] == 2


def test_a_tensor_that_the_driver_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver(capability=90)
    run = session(fake, monkeypatch)
    fake.failing["cuTensorMapEncodeTiled"] = int(Result.CUDA_ERROR_INVALID_VALUE)
    with pytest.raises(DeviceError, match=r"describing a tensor of \(128, 64, 1\) .*: got CUDA_ERROR_INVALID_VALUE"):
        run(x=whole(0, X))
    fake.failing.clear()
    np.testing.assert_array_equal(run(x=whole(0, X))["y"], whole(0, X) @ W)


LAYER = Conv(layout="NHWC", residual=True, activation=Relu())


def test_pixels_of_convolutions_of_one_tap_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_wgmma, "GROUP_TILES", GROUP_TILES[2:3])
    x, w, y = (2, 7, 9, 72), (40, 72, 1, 1), (2, 7, 9, 40)
    arrays = whole(0, x, F16), whole(1, w, F16), whole(2, (40,), F16), whole(3, y, F16)
    expect(LAYER, *arrays, constants=(1, 2), maker="pixels_wgmma", rtol=0)


def test_strides_pads_groups_and_more_taps_are_no_rows() -> None:
    def maker(side: int, size: int = 1, **settings: Any) -> str:
        w = whole(1, (256, 256 // settings.get("group", 1), size, size), F16)
        types = [TensorType(F16, (64, side, side, 256)), TensorType(F16, w.shape, value=w)]
        entry = HOPPER.select(Conv(layout="NHWC", **settings), types, QueryContext())
        return str(entry.name)

    assert maker(56) == "pixels_wgmma"
    others: list[dict[str, Any]] = [
        {"strides": (2, 2)}, {"group": 2}, {"size": 3, "pads": (1, 1, 1, 1)}, {"strides": (2, 2), "pads": (1, 1, 0, 0)}
    ]  # fmt: skip
    assert [maker(56, **settings) for settings in others[:3]] == ["tensor_product"] * 3
    assert maker(2, **others[3]) == "tensor_product"


def test_new_shapes_are_planned_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one plan decided serves others: boxes, tiles and parts follow from the sizes of each."""
    monkeypatch.setattr(matmul_wgmma, "TENSOR_TILES", TENSOR_TILES[:1])
    graph = Graph("rows")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 128)))
    graph.add_output(Builder(graph)(MatMul(), x, W), "y")
    run = bn.compile(graph, device="cuda-sim:sm_90a", precision="f16", stages=STAGES[-1:], stand_ins=False)
    for n in (64, 40, 72, 8, 136, 64, 200):
        x = whole(n, (n, 128))
        np.testing.assert_array_equal(run(x=x)["y"], x @ W)
        assert "matmul_wgmma" in " ".join(row["runner"] for row in run.report())
