"""Recurrent layers and transforms of signals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.types import I32
from bolt_numba.ops.layers.recurrent import ALPHA, BETA
from bolt_numba.plugins.drivers.jax.table import FLOATS, WIDE, JaxSite, builds

Function: TypeAlias = Callable[[Any], Any]


def _function(s: JaxSite, name: str, a: float, b: float) -> Function:
    """An activation by its name."""
    v = s.np
    table: dict[str, Function] = {
        "relu": lambda x: v.maximum(x, 0),
        "tanh": v.tanh,
        "sigmoid": s.lax.logistic,
        "affine": lambda x: x * a + b,
        "leakyrelu": lambda x: v.where(x >= 0, x, x * a),
        "thresholdedrelu": lambda x: v.where(x > a, x, 0),
        "scaledtanh": lambda x: a * v.tanh(x * b),
        "hardsigmoid": lambda x: v.clip(x * a + b, 0, 1),
        "elu": lambda x: v.where(x >= 0, x, a * v.expm1(v.minimum(x, 0))),
        "softsign": lambda x: x / (1 + v.abs(x)),
        "softplus": lambda x: v.logaddexp(x, v.zeros((), x.dtype)),
    }
    return table[name]


def _functions(s: JaxSite, op: Any) -> list[list[Function]]:
    """Activations of each direction; alphas and betas go in order to those that take one."""
    names = [n.lower() for n in op.activations] or [n.lower() for n in op.defaults] * op.directions
    alphas, betas, each = iter(op.activation_alpha), iter(op.activation_beta), len(op.defaults)
    found = [
        _function(s, n, next(alphas, ALPHA[n]) if n in ALPHA else 0.0, next(betas, BETA[n]) if n in BETA else 0.0)
        for n in names
    ]
    return [found[i : i + each] for i in range(0, len(found), each)]


def _clipped(s: JaxSite, op: Any, f: Function) -> Function:
    return f if op.clip is None else lambda x: f(s.np.clip(x, -op.clip, op.clip))


def _rnn(s: JaxSite, op: Any, r: Any, b: Any, p: Any, functions: list[Function]) -> Any:
    f = _clipped(s, op, functions[0])
    wb, rb = s.np.split(b, 2)
    return lambda inputs, state: (f(inputs + state[0] @ r.T + wb + rb),)


def _gru(s: JaxSite, op: Any, r: Any, b: Any, p: Any, functions: list[Function]) -> Any:
    f, g = (_clipped(s, op, each) for each in functions)
    rz, rr, rh = s.np.split(r, 3)
    wbz, wbr, wbh, rbz, rbr, rbh = s.np.split(b, 6)

    def step(inputs: Any, state: Any) -> Any:
        h = state[0]
        xz, xr, xh = s.np.split(inputs, 3, axis=1)
        update, reset = f(xz + h @ rz.T + wbz + rbz), f(xr + h @ rr.T + wbr + rbr)
        seen = reset * (h @ rh.T + rbh) if op.linear_before_reset else (reset * h) @ rh.T + rbh
        return ((1 - update) * g(xh + seen + wbh) + update * h,)

    return step


def _lstm(s: JaxSite, op: Any, r: Any, b: Any, p: Any, functions: list[Function]) -> Any:
    f, g = (_clipped(s, op, each) for each in functions[:2])
    bias = b[: b.shape[0] // 2] + b[b.shape[0] // 2 :]
    parts = None if p is None else s.np.split(p, 3)

    def seen(gate: int, x: Any, c: Any) -> Any:
        return x if parts is None else x + parts[gate] * c

    def step(inputs: Any, state: Any) -> Any:
        h, c = state
        xi, xo, xf, xc = s.np.split(inputs + h @ r.T + bias, 4, axis=1)
        i = f(seen(0, xi, c))
        forget = 1 - i if op.input_forget else f(seen(2, xf, c))
        new = forget * c + i * g(xc)
        return f(seen(1, xo, new)) * functions[2](new), new

    return step


CELLS = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}


@builds(*CELLS, dtypes=FLOATS, others={4: (I32,)})
def recurrent(s: JaxSite, op: Any, x: Any, w: Any, r: Any, b: Any = None, lens: Any = None, *more: Any) -> Any:
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
    for d, functions in enumerate(_functions(s, op)):
        times = np.arange(t)[:, None]
        order: Any = np.broadcast_to(times, (t, n))
        if op.direction == "reverse" or d == 1:
            order = s.np.where(times < lengths, lengths - 1 - times, times)
        state = tuple(_initial(s, op, v, d, n, hidden, data.dtype) for v in initial)
        columns = np.broadcast_to(np.arange(n), (t, n))
        walked = s.np.asarray(data).at[(order, columns)].get(mode="clip") @ s.np.asarray(w[d]).T
        cell = CELLS[op.name](s, op, r[d], bias[d], None if p is None else p[d], functions)

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


def _initial(s: JaxSite, op: Any, v: Any, d: int, n: int, hidden: int, dtype: Any) -> Any:
    if v is None:
        return s.np.zeros((n, hidden), dtype)
    return s.np.asarray(v[d] if op.layout == 0 else v[:, d])


@builds("DFT", dtypes=WIDE)
def dft(s: JaxSite, op: Any, x: Any, length: Any = None, axis: Any = None) -> Any:
    along = s.axis(s.ints(2, "axis")[0] if s.given(2) else -2)
    n = s.ints(1, "the length")[0] if s.given(1) else op._length(s.dims()[along], None)
    z = x[..., 0] if s.dims()[-1] == 1 else s.lax.complex(x[..., 0], x[..., 1])
    if op.inverse and op.onesided:
        return s.np.fft.irfft(z, n, axis=along)[..., None].astype(x.dtype)
    y = (s.np.fft.ifft if op.inverse else s.np.fft.fft)(z, n, axis=along)
    if op.onesided:
        y = s.lax.slice_in_dim(y, 0, n // 2 + 1, axis=along)
    return s.np.stack([y.real, y.imag], axis=-1).astype(x.dtype)
