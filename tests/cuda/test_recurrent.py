"""Recurrent layers on the simulated GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bolt_numba.errors import DataError
from bolt_numba.kernels.cuda.recurrent.layers import ALONE_BYTES
from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN
from bolt_numba.types import F16, F32, Array
from tests.cuda.harness import expect, run_op

FUNCTIONS = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Softsign", "Softplus")


def operands(
    op: Any, t: int, n: int, i: int, h: int, dtype: Any = F32, *, bias: bool = True,
    lengths: Any = None, peep: bool = False,
) -> list[Array | None]:  # fmt: skip
    """x, w, r, b, lengths, states and peepholes."""
    random = np.random.default_rng(0)

    def drawn(*dims: int, swap: bool = False) -> Array:
        made = random.uniform(-0.5, 0.5, dims).astype(dtype)
        return np.ascontiguousarray(made.swapaxes(0, 1)) if swap and op.layout else made

    d, g = op.directions, op.gates * h
    states: list[Array | None] = [drawn(d, n, h, swap=True) for _ in range(op.states)]
    made = [drawn(t, n, i, swap=True), drawn(d, g, i), drawn(d, g, h), drawn(d, 2 * g) if bias else None]
    return [*made, None if lengths is None else np.array(lengths, np.int32), *states, *([drawn(d, 3 * h)] * peep)]


@pytest.mark.parametrize(
    ("op", "sizes", "more"),
    [
        (RNN(), (3, 2, 5, 7), {}),
        (RNN(direction="bidirectional", activations=("Relu", "Tanh"), clip=0.3), (3, 3, 5, 9), {"lengths": (3, 0, 2)}),
        (LSTM(direction="bidirectional"), (3, 2, 5, 7), {"bias": False}),
        (LSTM(direction="reverse", input_forget=True, layout=1), (4, 2, 5, 33), {"lengths": (4, 1), "peep": True}),
        (GRU(direction="bidirectional", linear_before_reset=True), (2, 9, 5, 40), {"lengths": (*(2,) * 8, 1)}),
        (GRU(direction="reverse", layout=1, clip=0.4), (3, 3, 5, 19), {"lengths": (3, 1, 2), "bias": False}),
        (GRU(), (2, 1, 3, 150), {}),  # a launch for each step
        (LSTM(), (2, 2, 3, 130), {}),
    ],
    ids=lambda x: x.name if isinstance(x, (RNN, LSTM, GRU)) else "",
)
def test_all_attributes(op: Any, sizes: Any, more: Any) -> None:
    assert ALONE_BYTES == 1 << 18, "the last two cases are meant to exceed it"
    expect(op, *operands(op, *sizes, **more), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", [LSTM(), GRU(linear_before_reset=True)], ids=lambda op: op.name)
def test_halves(op: Any) -> None:
    """States are f32 from step to step, so the result is as near as one rounding."""
    expect(op, *operands(op, 6, 2, 5, 7, F16), rtol=2e-3, atol=5e-4)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    takes_beta = name in ("Affine", "ScaledTanh", "HardSigmoid")
    op = RNN(activations=(name,), activation_alpha=(0.4,), activation_beta=(0.7,) if takes_beta else ())
    expect(op, *operands(op, 2, 1, 3, 5), rtol=1e-5)


@pytest.mark.parametrize("length", [-1, 4])
def test_a_length_that_is_none(length: int) -> None:
    op = RNN()
    with pytest.raises(DataError, match="RNN"):
        run_op(op, *operands(op, 3, 2, 5, 7, lengths=(2, length)))
