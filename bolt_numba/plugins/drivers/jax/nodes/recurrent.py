"""Recurrent layers and transforms of signals."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import I32
from bolt_numba.ops.arrays.signal import DFT
from bolt_numba.ops.layers.recurrent import Recurrent
from bolt_numba.plugins.drivers.jax.table import FLOATS, WIDE, JaxSite, builds


@builds("RNN", "GRU", "LSTM", dtypes=FLOATS, others={4: (I32,)})
def recurrent(s: JaxSite, op: Recurrent, x: Any, w: Any, r: Any, b: Any = None, lens: Any = None, *more: Any) -> Any:
    """A walk along the sequence; beyond its length a state stays, and the result is 0."""
    *initial, p = (*more, None, None, None)[:3] if op.name == "LSTM" else (*(*more, None)[:1], None)
    data = x if op.layout == 0 else s.np.swapaxes(x, 0, 1)
    (t, n), hidden = data.shape[:2], r.shape[-1]
    if lens is None:
        lengths: Any = np.full(n, t)
    else:
        lengths = s.inside(lens, [t + 1], False)
    bias = np.zeros((op.directions, 2 * op.gates * hidden), data.dtype) if b is None else b
    ys, last = [], []
    for d, functions in enumerate(op.functions(s.np)):
        times = np.arange(t)[:, None]
        order: Any = np.broadcast_to(times, (t, n))
        if op.direction == "reverse" or d == 1:
            order = s.np.where(times < lengths, lengths - 1 - times, times)
        state = tuple(_initial(s, op, v, d, n, hidden, data.dtype) for v in initial)
        columns = np.broadcast_to(np.arange(n), (t, n))
        walked = s.np.asarray(data).at[(order, columns)].get(mode="clip") @ s.np.asarray(w[d]).T
        cell = op.cell(s.np.asarray(r[d]), s.np.asarray(bias[d]), None if p is None else s.np.asarray(p[d]), functions)

        def step(state: Any, given: Any, cell: Any = cell) -> Any:
            inputs, active = given
            new = cell(inputs, state)
            kept = tuple(s.np.where(active, a, b) for a, b in zip(new, state, strict=True))
            return kept, s.np.where(active, new[0], 0)

        active = s.np.broadcast_to((times < lengths)[..., None], (t, n, 1))
        state, made = s.lax.scan(step, state, (walked, active))
        ys.append(s.np.zeros_like(made).at[(order, columns)].set(made))
        last.append(state)
    y, states = s.np.stack(ys, 1), [s.np.stack(each) for each in zip(*last, strict=True)]
    if op.layout == 1:
        y, states = y.transpose(2, 0, 1, 3), [v.swapaxes(0, 1) for v in states]
    return y, *states


def _initial(s: JaxSite, op: Recurrent, v: Any, d: int, n: int, hidden: int, dtype: Any) -> Any:
    if v is None:
        return s.np.zeros((n, hidden), dtype)
    return s.np.asarray(v[d] if op.layout == 0 else v[:, d])


@builds("DFT", dtypes=WIDE)
def dft(s: JaxSite, op: DFT, x: Any, length: Any = None, axis: Any = None) -> Any:
    along = s.axis(s.ints(2, "axis")[0] if s.given(2) else -2)
    n = s.ints(1, "the length")[0] if s.given(1) else op._length(s.dims()[along], None)
    z = x[..., 0] if s.dims()[-1] == 1 else s.lax.complex(x[..., 0], x[..., 1])
    if op.inverse and op.onesided:
        return s.np.fft.irfft(z, n, axis=along)[..., None].astype(x.dtype)
    y = (s.np.fft.ifft if op.inverse else s.np.fft.fft)(z, n, axis=along)
    if op.onesided:
        y = s.lax.slice_in_dim(y, 0, n // 2 + 1, axis=along)
    return s.np.stack([y.real, y.imag], axis=-1).astype(x.dtype)
