"""Recurrent layers whose activations are rounded to 8 bits before each product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bolt_numba.ops.layers.recurrent import LSTM, Function, State
from bolt_numba.ops.registry import op
from bolt_numba.types import F32, Array


def rounded(x: Array, axis: int | None) -> Array:
    """``x`` at the 256 levels that its range over ``axis`` (None: all of it) with 0 allows, in x's dtype.

    A range with a NaN is none: steps of 1 from 0, and NaN is 0, as for DynamicQuantizeLinear.
    """
    low, high = (f(x, axis=axis, keepdims=True, initial=0) for f in (np.min, np.max))
    scale = np.where(high > low, (high - low) / x.dtype.type(255), 1).astype(x.dtype)
    zero, level = np.clip(np.rint(-low / scale), 0, 255), np.rint(x / scale)
    zero = np.where(np.isnan(zero), 0, zero)
    level = np.where(np.isnan(level), 0, level + zero)
    return np.asarray((np.clip(level, 0, 255) - zero) * scale, dtype=x.dtype)


@op("DynamicQuantizeLSTM")
class DynamicQuantizeLSTM(LSTM):
    """LSTM with dynamically quantised activations and float weights that hold what integer ones mean.

    x is rounded by the range of the whole sequence, h in each step by the range of each sequence of the batch.
    Operands and results: see `LSTM`.  Source: the operator of this name of onnxruntime (com.microsoft).
    """

    def seen(self, x: Array) -> Array:
        return rounded(x.astype(F32, copy=False), None).astype(x.dtype, copy=False)

    def cell(
        self, r: Array, b: Array, peepholes: Array | None, functions: Sequence[Function]
    ) -> Callable[[Array, State], State]:
        step: Any = super().cell(r, b, peepholes, functions)
        return lambda inputs, state: step(inputs, (rounded(state[0], 1), *state[1:]))
