"""Convolutions joined with the depthwise ones behind them: the same bits, inside their buffers, on any threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bolt_numba import compile
from bolt_numba.devices import cpu
from bolt_numba.ir.build import Builder, infer_types
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cpu.convolution import bands
from bolt_numba.kernels.cpu.convolution.bands import choose_rows, joined
from bolt_numba.kernels.cpu.convolution.conv import THIN_CHANNELS, conv
from bolt_numba.kernels.cpu.convolution.depthwise import depthwise
from bolt_numba.kernels.registry import Entry
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.pointwise import Clip, HardSwish, Relu
from bolt_numba.runtime.device import Device
from bolt_numba.types import Array, TensorType
from tests.harness import PlainContext, Planned, run_planned, types_of

ENTRY = Entry(Conv, "cpu", "f32", conv, lambda op, ins: True, 0, "bands")


@dataclass
class Pair:
    """Two convolutions and their operands."""

    first: Conv
    second: Conv
    one: list[Array | None]
    two: list[Array | None]
    numerics: str = "default"

    def outs(self) -> tuple[list[TensorType], list[TensorType]]:
        between = infer_types(self.first, types_of(self.one))
        after = infer_types(self.second, [between[0].with_value(None), *types_of(self.two, [True] * len(self.two))])
        return [t.with_value(None) for t in between], [t.with_value(None) for t in after]

    def planned(self, threads: int) -> Planned | None:
        context, (between, after) = PlainContext(threads, numerics=self.numerics), self.outs()
        (a,) = conv(self.first, types_of(self.one), between, context)
        kinds = [between[0], *types_of(self.two, [i < 2 for i in range(len(self.two))])]
        (b,) = depthwise(self.second, kinds, after, context)
        step = joined(a, b, len(self.one), between[0].dims[1], threads)
        inputs = types_of([*self.one, *self.two])
        return None if step is None else Planned(self.second, ENTRY, inputs, after, [step])

    def reference(self) -> Array:
        return self.second.reference(self.first.reference(*self.one), *self.two)  # type: ignore[arg-type, return-value]


@pytest.fixture(autouse=True, scope="module")
def _small_images_too() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bands, "WHOLE_BYTES", 0)
        yield


@st.composite
def pairs(draw: Callable[[Any], Any]) -> Pair:
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))

    def whole(*shape: int) -> Array:
        return rng.integers(-3, 4, shape).astype(np.float32)

    h, wd, k = draw(st.sampled_from((8, 12, 15))), draw(st.integers(5, 9)), draw(st.sampled_from((5, 16, 21)))
    taps, images = draw(st.sampled_from((1, 1, 3))), 1
    c = 5 if taps == 1 else THIN_CHANNELS
    if taps == 1 and draw(st.booleans()):
        images = 2
    pad, size, stride = taps // 2, draw(st.sampled_from((3, 5))), draw(st.sampled_from((1, 2)))
    around = tuple(draw(st.integers(0, size // 2)) for _ in range(4))
    residual = draw(st.booleans())
    first = Conv((1, 1), (pad,) * 4, layout="NHWC", activation=draw(st.sampled_from((None, Relu(), Clip(-9.0, 40.0)))))
    second = Conv((stride, stride), around, (), k, layout="NHWC", residual=residual)
    one = [whole(images, h, wd, c), whole(k, c, taps, taps), whole(k)]
    made = Pair(first, second, one, [whole(k, 1, size, size)], draw(st.sampled_from(("default", "strict"))))
    made.two.append(whole(k) if draw(st.booleans()) else None)
    if residual:
        made.two.append(_like(made, whole))
    return made


def _like(pair: Pair, whole: Callable[..., Array]) -> Array:
    """A residual of the result's shape."""
    plain = Pair(pair.first, replace(pair.second, residual=False), pair.one, pair.two)
    return whole(*plain.outs()[1][0].dims)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pairs())
def test_the_same_as_one_after_the_other(pair: Pair) -> None:
    planned = pair.planned(1)
    assert planned is not None
    (got,) = run_planned(planned, [*pair.one, *pair.two], (1,))
    np.testing.assert_array_equal(got, pair.reference())


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pairs())
def test_threads_begin_inside_an_image(pair: Pair) -> None:
    for threads in (2, 3):
        planned = pair.planned(threads)
        if planned is not None:
            (got,) = run_planned(planned, [*pair.one, *pair.two], (threads,))
            np.testing.assert_array_equal(got, pair.reference())


def _graph(rng: np.random.Generator) -> Graph:
    g = Graph()
    b = Builder(g)
    x = g.add_input("x", TensorType(np.dtype("f4"), (1, 16, 24, 20)))
    y = b(HardSwish(), b(Conv(), x, rng.standard_normal((40, 16, 1, 1), np.float32)))
    y = b(Relu(), b(Conv(pads=(1, 1, 1, 1), group=40), y, rng.standard_normal((40, 1, 3, 3), np.float32)))
    g.add_output(b(Conv(), y, rng.standard_normal((8, 40, 1, 1), np.float32)), "y")
    return g


@pytest.mark.parametrize("threads", [1, 2])
def test_a_session_joins_them_and_keeps_the_bits(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 16, 24, 20), np.float32)}
    monkeypatch.setattr(cpu.Cpu, "join", Device.join)
    apart = compile(_graph(np.random.default_rng(0)), threads=threads)
    (wanted,) = apart.run(None, feeds)
    monkeypatch.undo()
    monkeypatch.setattr(cpu, "BETWEEN_BYTES", 0)
    together = compile(_graph(np.random.default_rng(0)), threads=threads)
    (got,) = together.run(None, feeds)
    np.testing.assert_array_equal(got, wanted)
    assert "conv + depthwise" in [row["runner"] for row in together.report()]
    assert "conv + depthwise" not in [row["runner"] for row in apart.report()]


def test_rows_of_a_band_divide_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands, "BAND_BYTES", 448 << 10)
    assert choose_rows(112, 43008, 2, 1) == 8
    assert 112 % choose_rows(112, 43008, 2, 2) == 0
    assert choose_rows(7, 1 << 20, 2, 1) == 7
    assert choose_rows(7, 1 << 20, 2, 2) == 0
