"""Whole networks on the simulated GPU agree with the CPU, and no node of numbers is left to the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import bolt_numba as bn
from bench import zoo
from bolt_numba.quantize import quantize
from bolt_numba.runtime.copies import NOT_WORTH_IT
from bolt_numba.types import Array
from tests.cuda.networks import NAMES, light

SIDES = dict.fromkeys(NAMES, 32) | dict.fromkeys(("bvlc_alexnet", "inception_v1", "zfnet512"), 64)
"""Pixels a side, the fewest that the windows of a network fit into."""
TOLERANCE = {"f32": 1e-4, "f16": 1e-2, "bf16": 8e-2}
"""Norm of the difference over the norm of the CPU's result."""


def agree(path: Path, feeds: Mapping[str, Array], precision: str, device: str = "cuda-sim") -> Any:
    """Run a model on both devices and compare all results; the session of the GPU."""
    wanted = bn.compile(path)(**feeds)
    session = bn.compile(path, device=device, precision=precision)
    for name, got in session(**feeds).items():
        assert got.dtype == wanted[name].dtype
        difference = np.linalg.norm(got.astype(np.float64) - wanted[name])
        assert difference <= TOLERANCE[precision] * max(np.linalg.norm(wanted[name]), 1e-6), name
    assert_on_gpu(session)
    return session


def assert_on_gpu(session: Any) -> None:
    """Only shape arithmetic and what no copy is worth may run elsewhere."""
    elsewhere = [r for r in session.report() if r["device"] in ("cpu", "host") and NOT_WORTH_IT not in r["runner"]]
    assert not elsewhere


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("name", NAMES)
def test_light_networks(name: str, tmp_path: Path) -> None:
    model, feeds = light(name, SIDES[name])
    agree(saved(model, tmp_path), feeds, "f16")


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_light_networks_in_f32(name: str, tmp_path: Path) -> None:
    model, feeds = light(name, SIDES[name])
    agree(saved(model, tmp_path), feeds, "f32")


@pytest.mark.parametrize("precision", ["f32", "f16", "bf16"])
def test_a_small_transformer(precision: str, tmp_path: Path) -> None:
    path = saved(zoo.bert(3, layers=2, width=64, heads=4, seq=24)(1), tmp_path)
    agree(path, zoo.normal_feeds(path), precision)


@pytest.mark.parametrize(("cell", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_recurrent_networks(cell: str, gates: int, tmp_path: Path) -> None:
    """Two layers, nine steps."""
    n, width = zoo.Network(5), 24
    x = n.input("input", 9, 2, width)
    for _ in range(2):
        w, r = (n.normal(1, gates * width, width, scale=0.2) for _ in range(2))
        y = n.add(cell, x, w, r, n.normal(1, 2 * gates * width, scale=0.1), hidden_size=width)
        x = n.add("Squeeze", y, n.constant([1], "i8"))
    path = saved(n.model(x), tmp_path)
    agree(path, zoo.normal_feeds(path), "f32")


DIGITS = Path(__file__).parents[2] / "examples" / "digits"


def digits(count: int) -> Array:
    return np.random.default_rng(2).random((count, 1, 8, 8), np.float32)


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("name", ["digits", "binary"])
def test_digits(name: str, precision: str) -> None:
    agree(DIGITS / f"{name}.onnx", {"image": digits(4)}, precision)


def test_digits_in_bytes() -> None:
    """Codes differ by one level at most, as a sum may be rounded to either side; few do."""
    given = digits(6)
    graph = quantize(bn.load(DIGITS / "digits.onnx"), [{"image": given}], timed=False).graph
    (wanted,) = bn.compile(graph)(image=given).values()
    session = bn.compile(graph, device="cuda-sim")
    (got,) = session(image=given).values()
    np.testing.assert_array_equal(got.argmax(axis=1), wanted.argmax(axis=1))
    assert np.abs(got - wanted).max() <= 2e-2
    assert any("QLinear" in row["op"] for row in session.report())
    assert_on_gpu(session)
