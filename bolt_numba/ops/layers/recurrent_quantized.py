"""Recurrent layers of weights in 8 bits, whose activations are rounded to 8 bits before each product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import F32, I8, U8, Array, TensorType
from bolt_numba.ops.content import VALUES, bounded
from bolt_numba.ops.layers.recurrent import LSTM, Function, Step
from bolt_numba.ops.registry import op, want_dtype
from bolt_numba.ops.shapes import want_dims

NUMBERS = ("w_scale", "w_zero_point", "r_scale", "r_zero_point")
"""The operands behind those of an LSTM."""


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


def _meant(w: Array, scale: Array, zero: Array) -> Array:
    """What integer weights [d, rows, k] mean, f32; scale and zero: [d] or [d, rows]."""
    shape = (len(w), -1, 1)
    return np.asarray((w.astype(F32) - zero.reshape(shape).astype(F32)) * scale.reshape(shape), F32)


@op("DynamicQuantizeLSTM")
class DynamicQuantizeLSTM(LSTM):
    """LSTM of weights in 8 bits, with dynamically quantised activations.

    w: [d, 4 h, i] and r: [d, 4 h, h], u8 or i8 · the other operands of `LSTM` · w_scale, r_scale: [d] or [d, 4 h] f32 ·
    w_zero_point, r_zero_point: like them, of w's and r's dtype.  x is rounded by the range of the whole sequence, h in
    each step by the range of each sequence of the batch.  Results: see `LSTM`.
    Source: the operator of this name of onnxruntime (com.microsoft), its weights transposed.
    """

    data_bounds = LSTM.data_bounds | bounded(w=VALUES, r=VALUES, w_zero_point=VALUES, r_zero_point=VALUES)

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        r: TensorType,
        b: TensorType | None = None,
        sequence_lens: TensorType | None = None,
        initial_h: TensorType | None = None,
        initial_c: TensorType | None = None,
        p: TensorType | None = None,
        w_scale: TensorType | None = None,
        w_zero_point: TensorType | None = None,
        r_scale: TensorType | None = None,
        r_zero_point: TensorType | None = None,
    ) -> tuple[TensorType, ...]:
        want_dtype(self, "x", x.dtype, F32)
        for what, t, scale, zero in (("w", w, w_scale, w_zero_point), ("r", r, r_scale, r_zero_point)):
            want_dtype(self, what, t.dtype, U8, I8)
            self._want_numbers(what, t, scale, zero)
        wide, recurrent = TensorType(F32, w.shape), TensorType(F32, r.shape)
        return self.infer_states(x, wide, recurrent, b, sequence_lens, [initial_h, initial_c], p)

    def _want_numbers(self, what: str, t: TensorType, scale: TensorType | None, zero: TensorType | None) -> None:
        """Raise unless there is a scale and a zero point for each direction, or for each row of each."""
        for name, given, dtype in ((f"{what}_scale", scale, F32), (f"{what}_zero_point", zero, t.dtype)):
            if given is None:
                raise self.fail(name, None, "one for each direction, or for each row")
            want_dtype(self, name, given.dtype, dtype)
            if given.shape is not None and t.shape is not None:
                want_dims(self, name, given, *t.shape[: 2 if len(given.shape) == 2 else 1])

    def reference(
        self, x: Array, w: Array, r: Array, b: Array | None = None, sequence_lens: Array | None = None, *rest: Any
    ) -> tuple[Array, ...]:
        initial_h, initial_c, p, *numbers = rest
        weights = _meant(w, *numbers[:2]), _meant(r, *numbers[2:])
        return self.run(x, *weights, b, sequence_lens, [initial_h, initial_c], p)

    def seen(self, x: Array) -> Array:
        return rounded(x, None)

    def cell(self, r: Array, b: Array, peepholes: Array | None, functions: Sequence[Function]) -> Step:
        step: Any = super().cell(r, b, peepholes, functions)
        return lambda inputs, state: step(inputs, (rounded(state[0], 1), *state[1:]))
