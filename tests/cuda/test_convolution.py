"""Convolutions on the simulated GPU: data are whole numbers, so that every order of sums gives the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.kernels.cuda.convolution.simt import PLAIN_TILES
from bolt_numba.kernels.cuda.convolution.tensor import WARP_TILES
from bolt_numba.ops.layers.products.conv import Conv, ConvTranspose
from bolt_numba.ops.layers.products.integer_products import ConvInteger, QLinearConv
from bolt_numba.ops.pointwise import Relu
from bolt_numba.types import BF16, F16, F32, I8, I32, U8
from tests.cuda.harness import counted, expect

FLOATS = (F32, F16, BF16)
FORMS = (F32, "NHWC"), (F16, "NCHW"), (BF16, "NHWC")
"""Few, as each is a kernel to compile."""
few = settings(max_examples=8, deadline=None, derandomize=True)


def whole(seed: int, shape: Any, dtype: Any = F32, most: int = 2) -> Any:
    """Small whole numbers."""
    return np.random.default_rng(seed).integers(-most, most + 1, tuple(shape)).astype(dtype)


@st.composite
def windows(draw: Any, ranks: Any = (1, 2, 2, 3)) -> dict[str, Any]:
    """Attributes and sizes of a layer: a kernel of any stride, dilation and pads, and an image on which it fits."""
    rank = draw(st.sampled_from(ranks))

    def some(low: int, high: int, count: int = rank) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=count, max_size=count)))

    kernel, dilations = some(1, 3), some(1, 2)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = tuple(span + more for span, more in zip(spans, some(0, 4), strict=True))
    return {
        "kernel": kernel, "sizes": sizes, "images": draw(st.integers(1, 2)),
        "attributes": {"strides": some(1, 3), "dilations": dilations, "pads": some(0, 1, 2 * rank)},
    }  # fmt: skip


def image(layout: str, images: int, channels: int, sizes: Any) -> tuple[int, ...]:
    return (images, *sizes, channels) if layout == "NHWC" else (images, channels, *sizes)


def try_conv(
    maker: str, w: dict[str, Any], group: int, cg: int, kg: int, dtype: Any, layout: str = "NHWC",
    *, bias: bool = True, residual: bool = True, activation: Any = None,
) -> None:  # fmt: skip
    """Hold a maker of Conv against the reference."""
    op = Conv(**w["attributes"], group=group, layout=layout, residual=residual, activation=activation)
    x = whole(0, image(layout, w["images"], group * cg, w["sizes"]), dtype)
    filters = whole(1, (group * kg, cg, *w["kernel"]), dtype)
    plain = Conv(**w["attributes"], group=group, layout=layout)
    shape = plain.reference(x.astype(F32), filters.astype(F32)).shape
    operands = (
        x, filters, whole(2, (group * kg,), dtype) if bias else None, *([whole(3, shape, dtype)] if residual else []),
    )  # fmt: skip
    expect(op, *operands, constants=(1, 2) if bias else (1,), maker=maker, rtol=0 if dtype == F32 else 1e-2)


def try_transposed(
    maker: str, w: dict[str, Any], group: int, cg: int, kg: int, dtype: Any, layout: str = "NHWC"
) -> None:
    """Hold a maker of ConvTranspose against the reference."""
    op = ConvTranspose(**w["attributes"] | {"pads": ()}, group=group, layout=layout, activation=Relu())
    x = whole(0, image(layout, w["images"], group * cg, [min(s, 4) for s in w["sizes"]]), dtype)
    filters = whole(1, (group * cg, kg, *w["kernel"]), dtype)
    rtol = 0 if dtype == F32 else 1e-2
    expect(op, x, filters, whole(2, (group * kg,), dtype), constants=(1, 2), maker=maker, rtol=rtol)


@few
@given(windows(), st.sampled_from([(1, 3, 5), (2, 2, 3), (4, 1, 2)]), st.sampled_from(FORMS), st.booleans())
def test_direct(w: dict[str, Any], channels: tuple[int, int, int], form: Any, more: bool) -> None:
    try_conv("direct", w, *channels, *form, bias=more, residual=more, activation=Relu())


@few
@given(windows((1, 2, 3)), st.sampled_from([(1, 3, 4), (2, 2, 3)]), st.sampled_from(FORMS))
def test_direct_transposed(w: dict[str, Any], channels: tuple[int, int, int], form: Any) -> None:
    try_transposed("direct", w, *channels, *form)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_stays(value: float) -> None:
    x = whole(0, (1, 5, 5, 4))
    x[0, 2, 2, 1] = value
    expect(Conv(layout="NHWC", activation=Relu()), x, whole(1, (4, 4, 3, 3)), constants=(1,), maker="direct")


@few
@given(windows(), st.sampled_from([(1, 3, 5), (1, 16, 33), (2, 8, 9)]), st.booleans())
def test_plain_product(w: dict[str, Any], channels: tuple[int, int, int], more: bool) -> None:
    try_conv("plain_product", w, *channels, F32, bias=more, residual=more, activation=Relu() if more else None)


@few
@given(windows(), st.sampled_from([(1, 3, 5), (1, 16, 33), (2, 8, 9), (1, 40, 16)]), st.booleans())
def test_tensor_product(w: dict[str, Any], channels: tuple[int, int, int], more: bool) -> None:
    dtype, activation = (BF16, Relu()) if w["images"] == 2 else (F16, None)
    try_conv("tensor_product", w, *channels, dtype, bias=more, residual=more, activation=activation)


@few
@given(windows((1, 2, 2, 3)), st.sampled_from([(1, 9, 10), (2, 8, 8)]), st.sampled_from([F32, F16]))
def test_transposed_by_phases(w: dict[str, Any], channels: tuple[int, int, int], dtype: Any) -> None:
    maker = "plain_product" if dtype == F32 else "tensor_product"
    try_transposed(maker, w, *channels, dtype)


@few
@given(windows(), st.sampled_from([3, 4, 6, 16]), st.sampled_from(FLOATS), st.booleans())
def test_depthwise(w: dict[str, Any], channels: int, dtype: Any, more: bool) -> None:
    activation = Relu() if dtype == F16 else None
    try_conv("depthwise", w, channels, 1, 1, dtype, bias=more, residual=more, activation=activation)


@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_slides(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bolt_numba.kernels.cuda.convolution.depthwise.BUSY", 0)
    attributes = {"strides": (1, stride), "dilations": (2, 1), "pads": (1, 1, 0, 2)}
    w = {"kernel": (3, 3), "sizes": (7, 9), "images": 2, "attributes": attributes}
    try_conv("depthwise", w, 16, 1, 1, F16)


def try_bytes(
    maker: str, w: dict[str, Any], group: int, cg: int, kg: int, x_dtype: Any, w_dtype: Any, **more: Any
) -> None:
    """Hold a maker of QLinearConv against the reference: all bytes, with zero points."""
    rng = np.random.default_rng(5)

    def some(dtype: Any, shape: Any) -> Any:
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)

    x, filters = some(x_dtype, (w["images"], *w["sizes"], group * cg)), some(w_dtype, (group * kg, cg, *w["kernel"]))
    x_zero, w_zero = some(x_dtype, ()), np.zeros((), I8) if more.pop("symmetric", True) else some(w_dtype, ())
    w_zero = w_zero.astype(w_dtype)
    plain = ConvInteger(**w["attributes"], group=group, layout="NHWC")
    if more.pop("integer", False):
        expect(plain, x, filters, x_zero, w_zero, constants=(1, 2, 3), maker=maker)
        return
    shape = plain.reference(x, filters, x_zero, w_zero).shape
    scales = rng.uniform(0.01, 0.02, group * kg).astype(F32)
    tail: list[Any] = [np.float32(0.7).reshape(()), some(U8, ())]
    if more.get("residual"):
        tail += [whole(2, (group * kg,), F32), some(U8, shape), np.float32(0.3).reshape(()), some(U8, ())]
    else:
        tail += [whole(2, (group * kg,), I32, 1000)]
    op = QLinearConv(**w["attributes"], group=group, layout="NHWC", **more)
    operands = (x, np.float32(0.02).reshape(()), x_zero, filters, scales, w_zero, *tail)
    constants = [i for i in range(len(operands)) if i not in (0, 9)]
    expect(op, *operands, constants=constants, maker=maker)


KINDS: list[tuple[Any, dict[str, Any]]] = [
    (U8, {"integer": True}), (I8, {}), (U8, {"residual": True, "activation": Relu()}), (I8, {"symmetric": False}),
]  # fmt: skip


@few
@given(windows((1, 2, 2)), st.sampled_from([(1, 16, 8), (1, 3, 5), (2, 4, 8)]), st.sampled_from(KINDS))
def test_bytes_product(w: dict[str, Any], channels: tuple[int, int, int], kind: Any) -> None:
    dtype, more = kind
    try_bytes("bytes_product", w, *channels, dtype, I8 if more.get("symmetric", True) else U8, **more)


@few
@given(windows((1, 2, 3)), st.sampled_from([(4, 1, 1), (2, 3, 2)]), st.sampled_from(KINDS))
def test_bytes_direct(w: dict[str, Any], channels: tuple[int, int, int], kind: Any) -> None:
    dtype, more = kind
    try_bytes("bytes_direct", w, *channels, dtype, I8, **more)


def layer(c: int, k: int, size: int, dtype: Any) -> tuple[Any, ...]:
    """A 3 x 3 layer with pads, whose results fill tiles."""
    return whole(0, (1, size, size, c), dtype), whole(1, (k, c, 3, 3), dtype), whole(2, (k,), dtype)


@pytest.mark.parametrize(("dtype", "maker"), [(F16, "tensor_product"), (F32, "plain_product")])
def test_tiles_have_no_bank_conflicts(dtype: Any, maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = "warp_tile" if dtype == F16 else "plain_tile"
    tile = (WARP_TILES if dtype == F16 else PLAIN_TILES)[0]
    monkeypatch.setattr(f"bolt_numba.kernels.cuda.convolution.conv.{tiles}", lambda *_: tile)
    with counted() as report:
        expect(
            Conv(pads=(1, 1, 1, 1), layout="NHWC"), *layer(32, 128, 12, dtype), constants=(1, 2), maker=maker, rtol=1e-2
        )
    made = report.total("ld.shared", "st.shared", "ldmatrix", "cp.async")
    assert made.wavefronts <= 1.02 * made.ideal
    assert report.efficiency("st.global") > 0.99
    assert report.efficiency("cp.async") > 0.9


@pytest.mark.parametrize(("dtype", "maker"), [(F16, "tensor_product"), (F32, "plain_product")])
def test_long_sums_are_divided(dtype: Any, maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bolt_numba.kernels.cuda.convolution.conv.LEAST_TILES", 2)
    w = {"kernel": (3, 3), "sizes": (5, 4), "images": 1, "attributes": {"pads": (1, 1, 1, 1)}}
    try_conv(maker, w, 1, 40, 20, dtype, activation=Relu())
    try_conv(maker, w, 2, 24, 9, dtype)
