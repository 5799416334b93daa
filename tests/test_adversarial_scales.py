"""Products and convolutions of operands whose scales are far apart, against f64 and beside onnxruntime.

*default*: every element within 2e-5 of the largest value of the result.  *strict*: each element's error, in the unit of
the sum of the magnitudes that it adds (which is what bounds a direct sum), at most four times onnxruntime's largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import bolt_numba as bn
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.types import F32, Array, TensorType

DEFAULT = 2e-5
STRICT = 4.0
FLOOR = 2.0**-23
"""Of the sum of magnitudes: what onnxruntime is counted with where it happens to be nearer."""

CONVS: dict[str, tuple[Conv, tuple[int, ...], tuple[int, ...]]] = {
    "1x1": (Conv(), (1, 128, 24, 24), (96, 128, 1, 1)),
    "1x1 large": (Conv(), (1, 256, 23, 23), (136, 256, 1, 1)),
    "1x1 long": (Conv(), (1, 2048, 14, 14), (256, 2048, 1, 1)),
    "3x3": (Conv(pads=(1, 1, 1, 1)), (1, 64, 28, 28), (64, 64, 3, 3)),
    "3x3 wide": (Conv(pads=(1, 1, 1, 1)), (1, 256, 14, 14), (64, 256, 3, 3)),
    "5x5": (Conv(pads=(2, 2, 2, 2)), (1, 24, 20, 20), (32, 24, 5, 5)),
    "1-D": (Conv(pads=(1, 1)), (1, 64, 200), (64, 64, 3)),
    "depthwise": (Conv(pads=(1, 1, 1, 1), group=64), (1, 64, 28, 28), (64, 1, 3, 3)),
    "grouped": (Conv(pads=(1, 1, 1, 1), group=4), (1, 64, 28, 28), (64, 16, 3, 3)),
}
SCALES = ("even", "channels 2", "channels 3", "channels 4", "filters 4", "halves", "bright points")


def scaled(kind: str, x: Array, w: Array, groups: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Inputs [n, c, spatial...] and filters; channels that are scaled one way in one are scaled back in the other."""
    x, w = x.copy(), w.copy()
    match kind.split():
        case ["channels", width]:
            factors = 10.0 ** rng.uniform(-int(width), int(width), x.shape[1])
            rng.shuffle(factors)
            x *= factors.reshape(1, -1, *[1] * (x.ndim - 2)).astype(F32)
            per_group = factors.reshape(groups, -1)
            for g, rows in enumerate(np.split(w, groups)):
                rows /= per_group[g].reshape(1, -1, *[1] * (w.ndim - 2)).astype(F32)
        case ["filters", width]:
            w *= 10.0 ** rng.uniform(-int(width), int(width), (len(w), *[1] * (w.ndim - 1))).astype(F32)
        case ["halves"]:
            half = x.shape[-1] // 2
            x[..., :half] *= 1e4
            x[..., half:] *= 1e-4
        case ["bright", "points"]:
            flat = x.reshape(*x.shape[:2], -1)
            flat[..., rng.integers(flat.shape[-1], size=3)] *= 1e4
    return x, w


def run_both(op: Any, x: Array, w: Array, numerics: str, *bias: Array) -> tuple[Array, Array]:
    """Our result and onnxruntime's."""
    graph = Graph("one")
    graph.add_output(Builder(graph)(op, graph.add_input("x", TensorType(F32, x.shape)), w, *bias), "y")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    model = to_onnx(graph).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {"x": x})
    return bn.compile(graph, numerics=numerics, threads=2)(x)[0], theirs


def exact(op: Any, x: Array, w: Array) -> tuple[Array, Array]:
    """The result in f64, and the sum of the magnitudes behind each element."""
    return op.reference(x.astype("f8"), w.astype("f8")), op.reference(np.abs(x).astype("f8"), np.abs(w).astype("f8"))


def check(op: Any, x: Array, w: Array, numerics: str) -> None:
    ours, theirs = run_both(op, x, w, numerics)
    wanted, magnitudes = exact(op, x, w)
    error = np.abs(ours - wanted)
    if numerics == "default":
        assert error.max() <= DEFAULT * np.abs(wanted).max()
        return
    unit = np.maximum(magnitudes, np.finfo(F32).tiny)
    assert (error / unit).max() <= STRICT * max((np.abs(theirs - wanted) / unit).max(), FLOOR)


@pytest.mark.parametrize("numerics", ["strict", "default"])
@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("name", CONVS)
def test_convolutions(name: str, kind: str, numerics: str) -> None:
    rng = np.random.default_rng(len(name) + len(kind))
    op, x_shape, w_shape = CONVS[name]
    x, w = rng.standard_normal(x_shape, F32), rng.standard_normal(w_shape, F32)
    check(op, *scaled(kind, x, w, op.group, rng), numerics)


BIASED: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {**CONVS, "product": (MatMul(), (37, 300), (300, 70))}


@pytest.mark.parametrize("sums", ["small", "taken back"])
@pytest.mark.parametrize("name", BIASED)
def test_large_biases_round_once(name: str, sums: str) -> None:
    """A bias far larger than what is added to it, and one that the sum takes back, which leaves what the sum lost."""
    rng = np.random.default_rng(len(name))
    op, x_shape, w_shape = BIASED[name]
    x, w = rng.random(x_shape, F32), rng.random(w_shape, F32)
    plain, channel = op.reference(x, w), (0, slice(None), *[0] * (len(x_shape) - 2))
    bias = -plain[channel] if sums == "taken back" else np.full_like(plain[channel], 1e5)
    bias = bias if name != "product" else -plain[0] if sums == "taken back" else np.full_like(plain[0], 1e5)
    ours, theirs = run_both(op, x, w, "strict", bias)
    exact = op.reference(x.astype("f8"), w.astype("f8"), bias.astype("f8"))
    unit = op.reference(x.astype("f8"), w.astype("f8"), np.abs(bias).astype("f8"))
    least = FLOOR / 2
    assert (np.abs(ours - exact) / unit).max() <= STRICT * max((np.abs(theirs - exact) / unit).max(), least / 4)


@pytest.mark.parametrize("numerics", ["strict", "default"])
@pytest.mark.parametrize(("m", "k", "n"), [(4, 1 << 20, 8), (1, 1 << 16, 40), (64, 4096, 96), (256, 1000, 256)])
def test_long_products(m: int, k: int, n: int, numerics: str) -> None:
    """Sums of one sign are where adding in order loses most."""
    rng = np.random.default_rng(k)
    check(MatMul(), rng.random((m, k), F32), rng.random((k, n), F32), numerics)


@pytest.mark.parametrize("numerics", ["strict", "default"])
def test_products_of_uneven_columns(numerics: str) -> None:
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.uniform(-4, 4, 512)
    x = (rng.standard_normal((96, 512)) * scales).astype(F32)
    check(MatMul(), x, (rng.standard_normal((512, 80)) / scales[:, None]).astype(F32), numerics)


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("numerics", ["strict", "default"])
@pytest.mark.parametrize("name", CONVS)
def test_what_is_not_finite_stays_in_its_window(name: str, numerics: str, value: float) -> None:
    rng = np.random.default_rng(3)
    op, x_shape, w_shape = CONVS[name]
    x, w = rng.standard_normal(x_shape, F32), rng.uniform(0.5, 1, w_shape).astype(F32)
    x[(0, 1, *(s // 2 for s in x_shape[2:]))] = value
    ours, _ = run_both(op, x, w, numerics)
    with np.errstate(invalid="ignore"):
        wanted = op.reference(x, w)
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(wanted))
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(wanted))
