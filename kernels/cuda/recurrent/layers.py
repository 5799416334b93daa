"""LSTM, GRU and RNN: the input products of all steps, then the walk along the sequences."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BF16, F16, F32, AnyDType, dtype_name
from bolt_numba.kernels.cuda.declare import CudaKernel
from bolt_numba.kernels.cuda.recurrent.gru import gru_after_walk, gru_walk
from bolt_numba.kernels.cuda.recurrent.inputs import products_kernel
from bolt_numba.kernels.cuda.recurrent.lengths import check_lengths
from bolt_numba.kernels.cuda.recurrent.walk import WARPS, lstm_walk, rnn_walk
from bolt_numba.kernels.registry import Argument, Context, Fault, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.recurrent import ALPHA, BETA, GRU, LSTM, RNN, Recurrent

ALONE_BYTES = 1 << 18
"""Recurrent weights of a direction that one block reads in about the time of a launch; it then walks by itself."""
STATE_BYTES = 48 * 1024
"""Shared memory that a block has without asking for more."""
MOST_ROWS = 8
"""Sequences of a block."""

WALKS: dict[type[Recurrent], Callable[[int, tuple[str, ...], str, int], CudaKernel]] = {RNN: rnn_walk, LSTM: lstm_walk}


@record(frozen=True)
class RecurrentNode:
    """One node and its sizes: steps, batch, inputs, hidden units."""

    op: Recurrent
    ins: Types
    t: int
    n: int
    i: int
    h: int

    @staticmethod
    def of(op: Recurrent, ins: Types) -> RecurrentNode:
        x, r = ins[0], ins[2]
        t, n = x.dims[:2] if op.layout == 0 else (x.dims[1], x.dims[0])
        return RecurrentNode(op, ins, t, n, x.dims[2], r.dims[2])

    @property
    def dtype(self) -> AnyDType:
        return self.ins[0].dtype

    @property
    def rows(self) -> int:
        """Sequences of a block."""
        return next(r for r in (1, 2, 4, 8) if r >= min(self.n, MOST_ROWS) or 8 * r * self.h > STATE_BYTES)

    @property
    def alone(self) -> bool:
        """Whether a block walks along its sequences by itself."""
        return bool(self.op.gates * self.h * self.h * self.dtype.itemsize <= ALONE_BYTES)

    def given(self, index: int) -> In | None:
        return In(index) if len(self.ins) > index and self.ins[index] is not None else None

    def strides(self) -> dict[str, Argument]:
        """Rows of input products, and bytes of y and of states, between steps, directions and sequences."""
        d, row = self.op.directions, self.dtype.itemsize * self.h
        if self.op.layout == 0:
            return {"pt": self.n, "pb": 1, "yt": d * self.n * row, "yd": self.n * row, "yb": row, "sd": self.n * row,
                    "sb": row}  # fmt: skip
        return {"pt": 1, "pb": self.t, "yt": d * row, "yd": row, "yb": self.t * d * row, "sd": row, "sb": d * row}

    def activations(self) -> list[tuple[tuple[str, ...], list[float]]]:
        """For each direction the names of its functions, and alpha and beta of each."""
        op, each = self.op, len(self.op.defaults)
        names = [n.lower() for n in op.activations] or [n.lower() for n in op.defaults] * op.directions
        alphas, betas = iter(op.activation_alpha), iter(op.activation_beta)
        settings = [
            (next(alphas, ALPHA[n]) if n in ALPHA else 0.0, next(betas, BETA[n]) if n in BETA else 0.0) for n in names
        ]
        parts = [slice(k, k + each) for k in range(0, len(names), each)]
        return [(tuple(names[p]), list(itertools.chain.from_iterable(settings[p]))) for p in parts]


def _accepts(op: Recurrent, ins: Types) -> bool:
    x, r = ins[0], ins[2]
    if any(t is not None and not t.is_static for t in ins):
        return False
    return x.dtype in (F32, F16, BF16) and x.size > 0 and 0 < 4 * r.dims[2] <= STATE_BYTES


@kernel(RNN, LSTM, GRU, device="cuda", accepts=_accepts)
def recurrent(op: Recurrent, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """All attributes of ONNX; a launch for each step of time where the weights are large."""
    layer, dtype = RecurrentNode.of(op, ins), dtype_name(outs[0].dtype)
    rows, d, every = layer.t * layer.n, op.directions, 4 * op.directions * layer.n * layer.h
    pre = Scratch(4 * rows * d * op.gates * layer.h)
    columns = d * op.gates * layer.h
    products: dict[str, Argument] = {"x": In(0), "w": In(1), "y": pre, "rows": rows, "columns": columns, "k": layer.i}
    args: dict[str, Argument] = {
        "pre": pre, "r": In(2), "b": layer.given(3), "lengths": layer.given(4), "h0": layer.given(5),
        "hs": Scratch(2 * every), "y": Out(0), "last_h": Out(1), "steps": layer.t, "n": layer.n, "h": layer.h,
        "directions": d, "backward": int(op.direction == "reverse"), "units": layer.h if layer.alone else WARPS,
        "clip": np.inf if op.clip is None else op.clip, **layer.strides(),
    }  # fmt: skip
    if isinstance(op, LSTM):
        args |= {"c0": layer.given(6), "cs": Scratch(every), "last_c": Out(2), "p": layer.given(7)}
        args |= {"input_forget": int(op.input_forget)}
    two = isinstance(op, GRU) and not op.linear_before_reset
    if two:
        args["kept"] = Scratch(2 * every)
    steps = []
    if args["lengths"] is not None:
        checked: dict[str, Argument] = {"lengths": In(4), "fault": Fault(4), "n": layer.n, "steps": layer.t}
        steps.append(Step(check_lengths, checked))
    return [*steps, Step(products_kernel(dtype), products), *_walks(layer, dtype, args, 2 if two else 1)]


def _walks(layer: RecurrentNode, dtype: str, args: dict[str, Argument], stages: int) -> list[Step]:
    """Launches of the walk: for all directions together where their functions are the same."""
    op, functions = layer.op, layer.activations()
    make = WALKS.get(type(op)) or (gru_walk if stages == 2 else gru_after_walk)
    if functions[0] == functions[-1]:
        functions = functions[:1]
    times = [(0, layer.t)] if layer.alone else [(t, t + 1) for t in range(layer.t)]
    turns = [(0, stages)] if layer.alone else [(s, s + 1) for s in range(stages)]
    steps = []
    for (t0, t1), (s0, s1), d0 in itertools.product(times, turns, range(len(functions))):
        names, settings = functions[d0]
        numbers = dict(zip(("fa", "fb", "ga", "gb", "aa", "ab"), (*settings, 0.0, 0.0), strict=False))
        numbers |= {"t0": t0, "t1": t1, "d0": d0, "count": op.directions // len(functions), "s0": s0, "s1": s1}
        walk = make(layer.rows, names, dtype, 4 if layer.h % 4 == 0 else 1)
        steps.append(Step(walk, {name: args[name] if name in args else numbers[name] for name in walk.fields}))
    return steps


def samples() -> list[CudaKernel]:
    """Kernels for the table of resources."""
    lstm, gru = ("sigmoid", "tanh", "tanh"), ("sigmoid", "tanh")
    return [
        lstm_walk(8, lstm, "f32", 4), lstm_walk(1, lstm, "f16", 4), lstm_walk(8, lstm, "f16", 1),
        rnn_walk(4, ("tanh",), "bf16", 4), gru_walk(8, gru, "f32", 4), gru_after_walk(8, gru, "f16", 4), check_lengths,
        products_kernel("f32"), products_kernel("f16"),
    ]  # fmt: skip
