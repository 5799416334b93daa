"""LSTM, GRU and RNN: the input products of all steps, then the walk along the sequences."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BF16, F16, F32, dtype_name
from bolt_numba.kernels.common.held import within
from bolt_numba.kernels.cuda.declare import CudaKernel
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.recurrent.gru import gru_after_walk, gru_walk
from bolt_numba.kernels.cuda.recurrent.inputs import products_kernel
from bolt_numba.kernels.cuda.recurrent.walk import WARPS, lstm_walk, rnn_walk
from bolt_numba.kernels.geometry.recurrent import RecurrentSizes
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN, Recurrent

ALONE_BYTES = 1 << 18
"""Recurrent weights of a direction that one block reads in about the time of a launch; it then walks by itself."""
STATE_BYTES = 48 * 1024
"""Shared memory that a block has without asking for more."""
MOST_ROWS = 8
"""Sequences of a block."""

WALKS: dict[type[Recurrent], Callable[[int, tuple[str, ...], str, int], CudaKernel]] = {RNN: rnn_walk, LSTM: lstm_walk}


@record(frozen=True)
class RecurrentNode(RecurrentSizes):
    """One node, and how blocks share it."""

    @property
    def dtype(self) -> Any:
        return self.ins[0].dtype

    @property
    def rows(self) -> int:
        """Sequences of a block."""
        return next(r for r in (1, 2, 4, 8) if r >= min(self.n, MOST_ROWS) or 8 * r * self.h > STATE_BYTES)

    @property
    def alone(self) -> bool:
        """Whether a block walks along its sequences by itself."""
        return bool(self.op.gates * self.h * self.h * self.dtype.itemsize <= ALONE_BYTES)

    def activations(self) -> list[tuple[tuple[str, ...], list[float]]]:
        """For each direction the names of its functions, and alpha and beta of each."""
        return [(tuple(n for n, _, _ in each), [v for f in each for v in f[1:]]) for each in self.op.activated()]


def _accepts(op: Recurrent, ins: Types) -> bool:
    x, r = ins[0], ins[2]
    if any(t is not None and not t.is_static for t in ins):
        return False
    return x.dtype in (F32, F16, BF16) and x.size > 0 and 0 < 4 * r.dims[2] <= STATE_BYTES


@kernel(RNN, LSTM, GRU, device="cuda", accepts=_accepts)
def recurrent(op: Recurrent, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """All attributes of ONNX; a launch for each step of time where the weights are large."""
    layer, dtype = RecurrentNode(op, ins, *RecurrentNode.sizes_of(op, ins)), dtype_name(outs[0].dtype)
    rows, d, every = layer.t * layer.n, op.directions, 4 * op.directions * layer.n * layer.h
    pre = Scratch(4 * rows * d * op.gates * layer.h)
    columns = d * op.gates * layer.h
    products: dict[str, Argument] = {"x": In(0), "w": In(1), "y": pre, "rows": rows, "columns": columns, "k": layer.i}
    args: dict[str, Argument] = {
        "pre": pre, "r": In(2), "b": layer.optional(3), "lengths": layer.optional(4), "h0": layer.optional(5),
        "hs": Scratch(2 * every), "y": Out(0), "last_h": Out(1), "steps": layer.t, "n": layer.n, "h": layer.h,
        "directions": d, "backward": int(op.direction == "reverse"), "units": layer.h if layer.alone else WARPS,
        "pt": 1 if op.layout else layer.n, "pb": layer.t if op.layout else 1,
        "clip": np.inf if op.clip is None else op.clip, **layer.state_strides(layer.dtype.itemsize),
    }  # fmt: skip
    if isinstance(op, LSTM):
        args |= {"c0": layer.optional(6), "cs": Scratch(every), "last_c": Out(2), "p": layer.optional(7)}
        args |= {"input_forget": int(op.input_forget)}
    two = isinstance(op, GRU) and not op.linear_before_reset
    if two:
        args["kept"] = Scratch(2 * every)
    steps: list[Step] = []
    if args["lengths"] is not None:
        args["lengths"], steps = within(op, ins, 4, "sequence_lens", layer.n, 0, layer.t, PARTS)
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
