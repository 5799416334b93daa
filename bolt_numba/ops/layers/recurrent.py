"""Recurrent layers over whole sequences: RNN, GRU, LSTM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from bolt_numba.base.budget import BLAS, CALL, spend
from bolt_numba.base.records import record
from bolt_numba.base.types import I32, Array, Shape, TensorType
from bolt_numba.ops.content import bounded, want_between
from bolt_numba.ops.dtypes import FLOATS, same_dtype, widened
from bolt_numba.ops.registry import Op, op, want_among, want_dtype, want_dtypes
from bolt_numba.ops.shapes import shape_of, want_dims

Function: TypeAlias = Callable[[Array], Array]
State: TypeAlias = tuple[Array, ...]
Step: TypeAlias = Callable[[Array, State], State]
"""A step's input products and the state -> the new state, whose first part is y."""

DIRECTIONS = ("forward", "reverse", "bidirectional")


def _sigmoid(v: Any, x: Any) -> Any:
    e = v.exp(-v.abs(x))
    return v.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


_FUNCTIONS: dict[str, Callable[[Any, Any, float, float], Any]] = {
    "relu": lambda v, x, a, b: v.maximum(x, 0),
    "tanh": lambda v, x, a, b: v.tanh(x),
    "sigmoid": lambda v, x, a, b: _sigmoid(v, x),
    "affine": lambda v, x, a, b: x * x.dtype.type(a) + x.dtype.type(b),
    "leakyrelu": lambda v, x, a, b: v.where(x >= 0, x, x * x.dtype.type(a)),
    "thresholdedrelu": lambda v, x, a, b: v.where(x > a, x, 0).astype(x.dtype),
    "scaledtanh": lambda v, x, a, b: x.dtype.type(a) * v.tanh(x * x.dtype.type(b)),
    "hardsigmoid": lambda v, x, a, b: v.clip(x * x.dtype.type(a) + x.dtype.type(b), 0, 1),
    "elu": lambda v, x, a, b: v.where(x >= 0, x, x.dtype.type(a) * v.expm1(v.minimum(x, 0))),
    "softsign": lambda v, x, a, b: x / (1 + v.abs(x)),
    "softplus": lambda v, x, a, b: v.maximum(x, 0) + v.log1p(v.exp(-v.abs(x))),
}
"""Of x and the operator's alpha and beta; v: NumPy, or a module of arrays that is like it."""
ALPHA = {"affine": 1.0, "leakyrelu": 0.01, "thresholdedrelu": 1.0, "scaledtanh": 1.0, "hardsigmoid": 0.2, "elu": 1.0}
BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}


def _bound(v: Any, name: str, alpha: float, beta: float) -> Function:
    function = _FUNCTIONS[name]
    return lambda x: function(v, x, alpha, beta)


@record(frozen=True)
class Recurrent(Op):
    """Attributes, shapes and the walk along the sequence that the three layers share.

    x: [t, n, i] · w: [d, gates * h, i] · r: [d, gates * h, h] · b: [d, 2 * gates * h] · sequence_lens: [n] i32 ·
    initial states: [d, n, h] -> y: [t, d, n, h], last states: [d, n, h].  With layout=1 n comes first: x [n, t, i],
    y [n, t, d, h], states [n, d, h].  All but sequence_lens of one float dtype.  Beyond its length y is 0.
    """

    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0
    gates: ClassVar[int]
    states: ClassVar[int]
    defaults: ClassVar[tuple[str, ...]]
    data_bounds = bounded(
        sequence_lens=(
            "how many steps are walked; tested against the time axis on a copy that all threads read, else refused"
        ),
    )

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def activated(self) -> list[list[tuple[str, float, float]]]:
        """For each direction the names of its activations, with alpha and beta; raises ShapeError.

        Alphas and betas go in order to those that take one.
        """
        names = [n.lower() for n in self.activations] or [n.lower() for n in self.defaults] * self.directions
        each = len(self.defaults)
        if len(names) != each * self.directions or any(n not in _FUNCTIONS for n in names):
            raise self.fail("activations", self.activations, f"{each * self.directions} of {', '.join(_FUNCTIONS)}")
        alphas, betas = iter(self.activation_alpha), iter(self.activation_beta)
        found = [
            (n, next(alphas, ALPHA[n]) if n in ALPHA else 0.0, next(betas, BETA[n]) if n in BETA else 0.0)
            for n in names
        ]
        return [found[i : i + each] for i in range(0, len(found), each)]

    def functions(self, v: Any = np) -> list[list[Function]]:
        """Activations of each direction.  v: NumPy, or a module of arrays that is like it."""
        return [[_bound(v, *each) for each in found] for found in self.activated()]

    def infer_states(
        self,
        x: TensorType,
        w: TensorType,
        r: TensorType,
        b: TensorType | None,
        sequence_lens: TensorType | None,
        initial: Sequence[TensorType | None],
        peepholes: TensorType | None = None,
    ) -> tuple[TensorType, ...]:
        """Types of y and of the last states; raises ShapeError or DTypeError."""
        dtype = same_dtype(self, x, w, r, b, *initial, peepholes)
        want_dtype(self, "x", dtype, *FLOATS)
        want_among(self, DIRECTIONS, direction=self.direction)
        want_among(self, (0, 1), layout=self.layout)
        self.functions()
        want_dtypes(self, (I32,), sequence_lens=sequence_lens)
        shape, rows = shape_of(self, "x", x, 3), shape_of(self, "r", r, 3)
        if shape is None or rows is None:
            return (TensorType(dtype, None),) * (1 + self.states)
        hidden, d, gates = rows[2], self.directions, self.gates * rows[2]
        if self.hidden_size is not None and isinstance(hidden, int) and hidden != self.hidden_size:
            raise self.fail("hidden_size", self.hidden_size, f"{hidden}, the last dimension of r")
        t, n = (shape[0], shape[1]) if self.layout == 0 else (shape[1], shape[0])
        y: Shape = (t, d, n, hidden) if self.layout == 0 else (n, t, d, hidden)
        state: Shape = (d, n, hidden) if self.layout == 0 else (n, d, hidden)
        want_dims(self, "w", w, d, gates, shape[2])
        want_dims(self, "r", r, d, gates, hidden)
        want_dims(self, "b", b, d, 2 * gates)
        want_dims(self, "sequence_lens", sequence_lens, n)
        for what, given in zip(("initial_h", "initial_c"), initial, strict=False):
            want_dims(self, what, given, *state)
        want_dims(self, "p", peepholes, d, 3 * hidden)
        return (TensorType(dtype, y), *(TensorType(dtype, state),) * self.states)

    def run(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None,
        sequence_lens: Array | None,
        initial: Sequence[Array | None],
        peepholes: Array | None = None,
    ) -> tuple[Array, ...]:
        """Y and the last states, in x's dtype."""
        data = self.seen(widened(x))
        data = data if self.layout == 0 else data.swapaxes(0, 1)
        (t, n), hidden = data.shape[:2], r.shape[-1]
        lengths = np.full(n, t) if sequence_lens is None else sequence_lens.astype(np.int64)
        want_between(self, "sequence_lens", lengths, 0, t)
        y = np.zeros((t, self.directions, n, hidden), dtype=data.dtype)
        last = [np.zeros((self.directions, n, hidden), dtype=data.dtype) for _ in range(self.states)]
        bias = np.zeros((self.directions, 2 * self.gates * hidden), dtype=data.dtype) if b is None else widened(b)
        spend(self.directions * t * (8 * CALL + w[0].size * n // BLAS + r[0].size * n // BLAS), self.name)
        for d, functions in enumerate(self.functions()):
            backward = self.direction == "reverse" or d == 1
            times = np.broadcast_to(np.arange(t)[:, None], (t, n))
            order = np.where(times < lengths, lengths - 1 - times, times) if backward else times
            columns = np.broadcast_to(np.arange(n), (t, n))
            state = tuple(self._initial(s, d, n, hidden, data.dtype) for s in initial)
            inputs = data[order, columns] @ widened(w[d]).T  # the products that do not wait for the state
            cell = self.cell(widened(r[d]), bias[d], None if peepholes is None else widened(peepholes[d]), functions)
            for step in range(t):
                active = (step < lengths)[:, None]
                new = cell(inputs[step], state)
                y[order[step], d, columns[step]] = np.where(active, new[0], 0)
                state = tuple(np.where(active, a, s) for a, s in zip(new, state, strict=True))
            for whole, s in zip(last, state, strict=True):
                whole[d] = s
        if self.layout == 1:
            y, last = y.transpose(2, 0, 1, 3), [s.swapaxes(0, 1) for s in last]
        return tuple(np.ascontiguousarray(v).astype(x.dtype, copy=False) for v in (y, *last))

    def reference(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        sequence_lens: Array | None = None,
        *rest: Array | None,
    ) -> tuple[Array, ...]:
        """Rest: the initial states, then the peepholes of a layer that has any."""
        *initial, peepholes = (*rest, *(None,) * (self.states + 1))[: self.states + 1]
        return self.run(x, w, r, b, sequence_lens, initial, peepholes)

    def seen(self, x: Array) -> Array:
        """What the layer makes of its input before all else."""
        return x

    def _initial(self, state: Array | None, d: int, n: int, hidden: int, dtype: Any) -> Array:
        if state is None:
            return np.zeros((n, hidden), dtype=dtype)
        return widened(state[d] if self.layout == 0 else state[:, d])

    def clipped(self, x: Array) -> Array:
        """``x`` limited to -clip…clip."""
        return x if self.clip is None else x.clip(-self.clip, self.clip)

    def cell(self, r: Array, b: Array, peepholes: Array | None, functions: Sequence[Function]) -> Step:
        """What makes the steps; it takes arrays of NumPy, or of a module that is like it."""
        raise NotImplementedError(self.name)


@record(frozen=True)
class OneState(Recurrent):
    """A layer whose state is its result."""

    states = 1

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        r: TensorType,
        b: TensorType | None = None,
        sequence_lens: TensorType | None = None,
        initial_h: TensorType | None = None,
    ) -> tuple[TensorType, ...]:
        return self.infer_states(x, w, r, b, sequence_lens, [initial_h])


@op("RNN")
class RNN(OneState):
    """h = f(x w^T + h r^T + wb + rb).  Operands and results: see `Recurrent`.  Source: ONNX RNN-22."""

    gates = 1
    defaults = ("Tanh",)

    def cell(self, r: Array, b: Array, peepholes: Array | None, functions: Sequence[Function]) -> Step:
        wb, rb = b.reshape(2, r.shape[-1])

        def step(inputs: Array, state: State) -> State:
            return (functions[0](self.clipped(inputs + state[0] @ r.T + wb + rb)),)

        return step


@op("GRU")
class GRU(OneState):
    """Gates z, r, h: h' = g(x wh^T + (r * h) rh^T + biases), h = (1 - z) * h' + z * h.

    linear_before_reset: h' = g(x wh^T + wbh + r * (h rh^T + rbh)).  Operands and results: see `Recurrent`.
    Source: ONNX GRU-22.
    """

    linear_before_reset: bool = False
    gates = 3
    defaults = ("Sigmoid", "Tanh")

    def cell(self, r: Array, b: Array, peepholes: Array | None, functions: Sequence[Function]) -> Step:
        f, g = functions
        hidden = r.shape[-1]
        rz, rr, rh = r.reshape(3, hidden, hidden)
        wbz, wbr, wbh, rbz, rbr, rbh = b.reshape(6, hidden)

        def step(inputs: Array, state: State) -> State:
            h = state[0]
            xz, xr, xh = inputs.reshape(len(inputs), 3, hidden).swapaxes(0, 1)
            update = f(self.clipped(xz + h @ rz.T + wbz + rbz))
            reset = f(self.clipped(xr + h @ rr.T + wbr + rbr))
            seen = reset * (h @ rh.T + rbh) if self.linear_before_reset else (reset * h) @ rh.T + rbh
            fresh = g(self.clipped(xh + seen + wbh))
            return ((1 - update) * fresh + update * h,)

        return step


@op("LSTM")
class LSTM(Recurrent):
    """Gates i, o, f, c: c' = f * c + i * g(...), h = o * act(c'); peepholes [d, 3 h] add p * c to i, o and f.

    input_forget: f = 1 - i.  Operands and results: see `Recurrent`; the last states are h and c.  Source: ONNX LSTM-22.
    """

    input_forget: bool = False
    gates = 4
    states = 2
    defaults = ("Sigmoid", "Tanh", "Tanh")

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
    ) -> tuple[TensorType, ...]:
        return self.infer_states(x, w, r, b, sequence_lens, [initial_h, initial_c], p)

    def cell(self, r: Array, b: Array, peepholes: Array | None, functions: Sequence[Function]) -> Step:
        f, g, act = functions
        bias = b[: b.size // 2] + b[b.size // 2 :]
        parts = None if peepholes is None else peepholes.reshape(3, r.shape[-1])

        def seen(gate: int, x: Array, c: Array) -> Array:
            """A gate that sees the cell by its peephole: 0 times a cell that is infinite would be NaN."""
            return x if parts is None else x + parts[gate] * c

        def step(inputs: Array, state: State) -> State:
            h, c = state
            xi, xo, xf, xc = (inputs + h @ r.T + bias).reshape(len(inputs), 4, r.shape[-1]).swapaxes(0, 1)
            i = f(self.clipped(seen(0, xi, c)))
            forget = 1 - i if self.input_forget else f(self.clipped(seen(2, xf, c)))
            new = forget * c + i * g(self.clipped(xc))
            o = f(self.clipped(seen(1, xo, new)))
            return o * act(new), new  # the cell itself is not clipped, as in onnxruntime

        return step
