"""LSTM, GRU and RNN layers of f32 with constant weights: how they are packed, and the steps that run them.

The kernels are in `recurrent_walk`.  Weights are packed so that the gates of a block of units lie side by side for each
input: [block][input][gate][vectors * LANES], zero-padded.  Input products of long sequences are one matrix product
before the walk (its columns in the order [direction][block][gate][vectors * LANES]); those of a few rows are part of
the walk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.huge_pages import line_aligned
from bolt_numba.base.records import record
from bolt_numba.base.types import BF16, F16, F32, Array, TensorType
from bolt_numba.kernels.common.held import within
from bolt_numba.kernels.cpu.elements import PARTS
from bolt_numba.kernels.cpu.halves.bf16 import product_step
from bolt_numba.kernels.cpu.language.lang import BYTES, LANES
from bolt_numba.kernels.cpu.machine import L2, PAYS_FLOPS
from bolt_numba.kernels.cpu.products.matmul import matmul
from bolt_numba.kernels.cpu.products.pack import aligned_zeros
from bolt_numba.kernels.cpu.products.sweep_bf16 import SLACK, pack_panels_bf16, round_values
from bolt_numba.kernels.cpu.recurrent.recurrent_cells import (
    FOURS,
    FUNCTIONS,
    HALVES,
    NUMBERS,
    PAIRS,
    STATE_HEAD,
    UNPIPELINED,
    Pipelining,
)
from bolt_numba.kernels.cpu.recurrent.recurrent_walk import clear, quantize_state, share_lines, walk
from bolt_numba.kernels.extents import Lent, borrowed
from bolt_numba.kernels.geometry.recurrent import RecurrentSizes
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.registry import Argument, Context, In, Maker, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN, Recurrent

FUSED_ROWS = 2
"""Rows of x (steps times batch) up to which the walk computes the input products itself."""
SHARED_BYTES = L2 // 4
"""Recurrent weights of a direction from which the threads share each step of one sequence."""
PARALLEL_FLOPS = PAYS_FLOPS * 5 // 2
SUMS = 8
"""Sums of a tile that hide the latency of an addition."""
PADDING = 1.15
"""Units of whole blocks to units, at most."""


# ------------------------------------------------------------------------------------------------------------- packing


def pack_gates(w: Array, gates: Sequence[int], count: int, vectors: int) -> Array:
    """[d, count * h, k] -> [d, block, k, gate, vectors * LANES] of the given gates, zero-padded."""
    d, rows, k = w.shape
    hidden, units = rows // count, vectors * LANES
    blocks = -(-hidden // units)
    padded = np.zeros((d, len(gates), blocks * units, k), np.float32)
    padded[:, :, :hidden] = w.reshape(d, count, hidden, k)[:, list(gates)]
    packed = aligned_zeros((d, blocks, k, len(gates), units))
    packed[:] = padded.reshape(d, len(gates), blocks, units, k).transpose(0, 2, 4, 1, 3)
    return packed


def pack_pairs(w: Array, gates: Sequence[int], count: int, vectors: int) -> Array:
    """As `pack_gates`, in pairs of bfloat16: u32 [d, block, ceil(k / 2), gate, vectors * LANES]."""
    packed = pack_gates(w, gates, count, vectors)
    d, blocks, k, *columns = packed.shape
    pairs = np.zeros((d, blocks, -(-k // 2), *columns, 2), BF16)
    pairs[..., 0] = packed[:, :, ::2]
    pairs[:, :, : k // 2, ..., 1] = packed[:, :, 1::2]
    made = aligned_zeros(pairs.shape[:-1]).view(np.uint32)
    made[:] = pairs.view(np.uint32)[..., 0]
    return made


def pack_halves(w: Array, gates: Sequence[int], count: int, vectors: int) -> Array:
    """As `pack_gates`, in f16; k is even."""
    packed = pack_gates(w, gates, count, vectors)
    made = line_aligned(2 * packed.size).view(F16).reshape(packed.shape)
    made[:] = packed
    return made


def pack_columns(w: Array, count: int, vectors: int) -> Array:
    """[d, count * h, k] -> [k, d * block * gate * units]: the matrix of the input products."""
    packed = pack_gates(w, range(count), count, vectors)
    return np.ascontiguousarray(packed.transpose(2, 0, 1, 3, 4).reshape(w.shape[2], -1))


def pack_pipelined(w: Array, count: int, vectors: int) -> Array:
    """[d, count * h, k] -> [d, block, gate * vector, k, LANES]; see `Pipelining`."""
    packed = pack_gates(w, range(count), count, vectors)
    d, blocks, k = packed.shape[:3]
    made = aligned_zeros((d, blocks, count * vectors, k, LANES))
    made[:] = packed.reshape(d, blocks, k, -1, LANES).swapaxes(2, 3)
    return made


def pack_bias(b: Array, count: int, vectors: int, reset_after: bool) -> Array:
    """[d, 2 * count * h] -> [d * block * gate * units], biases added, ``reset_after``: not the hidden gate's."""
    d = b.shape[0]
    w_bias, r_bias = (v.copy() for v in np.split(b.astype(np.float32).reshape(d, 2 * count, -1), 2, axis=1))
    if reset_after:
        r_bias[:, -1] = 0
    return pack_gates((w_bias + r_bias).reshape(d, -1, 1), range(count), count, vectors).reshape(-1)


def pack_reset_bias(b: Array, vectors: int) -> Array:
    """[d, 6 * h] -> [d * block * units]: the hidden gate's recurrent bias."""
    return pack_gates(b.astype(np.float32)[:, -(b.shape[1] // 6) :, None], (0,), 1, vectors).reshape(-1)


# ------------------------------------------------------------------------------------------------------------- layers


MOST_ROWS = 6
"""Sequences of a tile, at most."""


def choose_rows(n: int, most: int) -> int:
    """Sequences of a tile for a batch of ``n``; what a walk over the weights costs grows with them beyond two."""

    def cost(rows: int) -> int:
        return n // rows * max(rows, 2) + n % rows * 2

    return min(range(1, min(n, max(most, 1)) + 1), key=lambda rows: (cost(rows), -rows))


@record(frozen=True)
class RecurrentLayer(RecurrentSizes):
    """One node, its sizes and its tile (see `recurrent_walk`)."""

    kind: str
    vectors: int
    rows: int
    deep: int = NUMBERS
    """What a lane of packed weights holds; see `recurrent_cells`."""

    @staticmethod
    def of(op: Recurrent, kind: str, ins: Types, deep: int = NUMBERS) -> RecurrentLayer:
        t, n, inputs, hidden = RecurrentLayer.sizes_of(op, ins)
        lengths, sums = ins[4] if len(ins) > 4 else None, {"gru": 2}.get(kind, op.gates)
        rows = choose_rows(n, min((target().registers - 8) // sums, MOST_ROWS)) if lengths is None else 1
        wanted = -(-hidden // LANES)
        vectors = 1
        while rows * sums * vectors < SUMS and rows * sums * 2 * vectors <= target().registers - 4:
            if -(-wanted // (2 * vectors)) * 2 * vectors > PADDING * wanted:
                break
            vectors *= 2
        return RecurrentLayer(op, ins, t, n, inputs, hidden, kind, vectors, rows, deep)

    @property
    def blocks(self) -> int:
        return -(-self.h // (self.vectors * LANES))

    @property
    def groups(self) -> int:
        """Directions times groups of ``rows`` sequences."""
        return self.op.directions * -(-self.n // self.rows)

    @property
    def pipelining(self) -> Pipelining:
        """Input products that the walk makes itself: those of one long sequence, where registers allow."""
        pipelining = Pipelining.of(self.kind, self.vectors)
        long = self.n == 1 and self.given(4) is None and self.t >= 2 * pipelining.steps and self.deep == NUMBERS
        return pipelining if long and target().registers >= 32 else UNPIPELINED

    @property
    def names(self) -> tuple[str, ...]:
        """Activations of the first direction."""
        return tuple(name for name, _, _ in self.op.activated()[0])

    def given(self, index: int) -> TensorType | None:
        return self.ins[index] if len(self.ins) > index else None

    @property
    def gate_columns(self) -> int:
        """Columns of all gates, in whole vectors."""
        return self.op.directions * self.blocks * self.op.gates * self.vectors * LANES

    def packed(self, context: Context, index: int, key: Any, pack: Any) -> Any:
        """What ``pack`` makes of a constant operand."""
        return context.packed(self.ins[index].known, ("recurrent", *key, self.vectors), lambda a: pack(a, self.vectors))

    def strides(self) -> dict[str, Argument]:
        """Bytes between steps, directions and sequences."""
        xt, xb = (self.n, 1) if self.op.layout == 0 else (1, self.t)
        return {"xt": 4 * self.i * xt, "xb": 4 * self.i * xb, **self.state_strides(4)}

    def state(self, index: int) -> Argument:
        if self.given(index) is not None:
            return In(index)
        return np.zeros(self.op.directions * self.n * self.h, np.float32)


def can_walk(op: Recurrent, ins: Types) -> bool:
    """Whether weights are constant and activations known, the same in both directions."""
    x, weights = ins[0], (*ins, None)[1:4]
    if not all(t.is_static for t in ins if t is not None):
        return False
    if x.dtype != F32 or not x.size or any(t is not None and t.known is None for t in weights):
        return False
    found = op.activated()
    if op.activation_alpha or op.activation_beta or any(n not in FUNCTIONS for n, _, _ in found[0]):
        return False
    return bool(found[0] == found[-1])


# -------------------------------------------------------------------------------------------------------------- makers

Products: TypeAlias = "Callable[[RecurrentLayer, Argument, Context], tuple[Scratch, list[Step]]]"


def _input_products(layer: RecurrentLayer, bias: Argument, context: Context) -> tuple[Scratch, list[Step]]:
    """Steps of x w^T + bias for all steps, [rows of x, columns of `pack_columns`]."""
    count = layer.op.gates
    if layer.deep == PAIRS:
        return _input_pairs(layer, bias, context)
    matrix = layer.packed(context, 1, ("columns", count), lambda w, v: pack_columns(w, count, v))
    wanted = TensorType(F32, (layer.i, layer.gate_columns)), TensorType(F32, (layer.gate_columns,))
    rest = [Lent.constant(made, t, context) for made, t in zip((matrix, bias), wanted, strict=True)]
    return products_by(matmul, layer, rest, context)


def products_by(
    make: Maker, layer: RecurrentLayer, rest: Sequence[Lent], context: Context
) -> tuple[Scratch, list[Step]]:
    """Steps of the product of all x with a matrix, and where its result is; rest: the matrix and the bias."""
    rows, matrix = layer.t * layer.n, rest[0]
    columns = matrix.type.dims[1]
    x, to = Lent(TensorType(F32, (rows, layer.i)), In(0)), Scratch(4 * rows * columns)
    return to, borrowed(make, MatMul(), [x, *rest], [Lent(TensorType(F32, (rows, columns)), to)], context)


def _input_pairs(layer: RecurrentLayer, bias: Argument, context: Context) -> tuple[Scratch, list[Step]]:
    """The same of pairs."""
    count, sizes = layer.op.gates, (layer.t * layer.n, layer.gate_columns, layer.i)

    def pack(w: Array, vectors: int) -> Array:
        return pack_panels_bf16(pack_columns(w, count, vectors), threads=context.threads)

    panels = layer.packed(context, 1, ("panels of pairs", count), pack)

    def make(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
        return [product_step(op, panels, bias, sizes, context)]

    return products_by(make, layer, [Lent(TensorType(F32, (layer.i, layer.gate_columns)), None)], context)


def _bias(layer: RecurrentLayer, context: Context) -> Any:
    count, after = layer.op.gates, layer.kind == "gru_after"
    if layer.given(3) is None:
        return aligned_zeros((layer.gate_columns,))
    return layer.packed(context, 3, ("bias", count, after), lambda b, v: pack_bias(b, count, v, after))


def _weights(layer: RecurrentLayer, context: Context, index: int, gates: Sequence[int]) -> Any:
    count, pack = layer.op.gates, {PAIRS: pack_pairs, HALVES: pack_halves}.get(layer.deep, pack_gates)
    return layer.packed(context, index, (layer.deep, count, *gates), lambda w, v: pack(w, gates, count, v))


def steps_of(
    layer: RecurrentLayer, context: Context, extra: dict[str, Argument], products: Products = _input_products
) -> list[Step]:
    """The input products, if they are not part of the walk, and the walk.

    extra: fields of the walk.  products: makes gates without the state's part, and the steps that do.
    """
    op, count, d = layer.op, layer.op.gates, layer.op.directions
    bias, made = _bias(layer, context), []  # type: tuple[Argument, list[Step]]
    lengths: Argument = None
    if layer.given(4) is not None:
        lengths, checks = within(op, layer.ins, 4, "sequence_lens", layer.n, 0, layer.t, PARTS)
        made += checks
    row = layer.blocks * count * layer.vectors * BYTES  # bytes of one direction's gates
    work = -(-layer.rows * (count + 1) * layer.vectors * BYTES // 64) * 64
    rounded = STATE_HEAD + 4 * layer.h  # of one state, more than enough
    room = 64 + -(-layer.rows * rounded // 64) * 64 + SLACK
    rounding = {PAIRS: round_values, FOURS: quantize_state}.get(layer.deep)
    args: dict[str, Argument] = {
        "x": In(0), "start": bias, "w": None, "pd": row, "pt": 0, "pb": 0, "h0": layer.state(5), "y": Out(0),
        "r": None, "last_h": Out(1), "hidden": layer.h, "inputs": layer.i, "batch": layer.n, "directions": d,
        "steps": layer.t,
        "backward": int(op.direction == "reverse"), "lengths": lengths,
        "work": Scratch(context.threads * work), "work_step": work, "claims": None,
        "rounding": rounding, "rounded_step": room, "rounded_row": rounded,
        "rounded": None if rounding is None else Scratch(context.threads * room),
        "clip": np.inf if op.clip is None else op.clip, "input_forget": 0,
        **dict.fromkeys(("c0", "last_c", "peepholes", "r_hidden", "reset_bias", "gates", "w_pipelined", "bias")),
        **dict.fromkeys(("r_sums", "r_scales", "r_zeros")),
        **layer.strides(), **extra,
    }  # fmt: skip
    if args["r"] is None:
        args["r"] = _weights(layer, context, 2, range(2 if layer.kind == "gru" else count))
    fused, pipelining = layer.t * layer.n <= FUSED_ROWS and layer.deep == NUMBERS, layer.pipelining
    if fused:
        args["w"] = _weights(layer, context, 1, range(count))
    elif pipelining.steps:
        columns = layer.packed(context, 1, (("pipelined", count)), lambda w, v: pack_pipelined(w, count, v))
        args |= {"start": Scratch(layer.t * d * row), "pt": d * row, "w_pipelined": columns, "bias": bias}
    else:
        args["start"], steps = products(layer, bias, context)
        made += steps
        t_rows, b_rows = (layer.n, 1) if op.layout == 0 else (1, layer.t)
        args |= {"pt": t_rows * d * row, "pb": b_rows * d * row}
    program = walk(layer.kind, layer.vectors, layer.rows, layer.names, pipelining, layer.deep)
    if layer.groups < context.threads and layer.h * row // abs(layer.deep) >= SHARED_BYTES:
        lines = 64 * share_lines(layer.blocks)
        args["claims"] = Scratch(lines)
        return [*made, Step(clear, {"to": args["claims"], "nbytes": lines}, False), Step(program, args)]
    flops = layer.t * layer.n * d * (layer.h + (layer.i if fused else 0)) * layer.h * count
    return [*made, Step(program, args, (layer.groups > 1) & (flops >= PARALLEL_FLOPS))]


def state_buffers(op: Recurrent, ins: Types) -> frozenset[tuple[int, int]]:
    """(initial state, last state) that may be one buffer.

    The whole initial h is read in the first step of time and the last h written in the last; of c only the elements
    that are computed are touched.
    """
    pairs = {(6, 2)} if isinstance(op, LSTM) else set()
    if ins[0].dims[op.layout] > 1:
        pairs.add((5, 1))
    return frozenset(pairs)


@kernel(LSTM, accepts=can_walk, states=state_buffers)
def lstm(op: LSTM, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Constant weights; activations of `FUNCTIONS`, the same in both directions."""
    layer = RecurrentLayer.of(op, "lstm", ins)
    return steps_of(layer, context, lstm_fields(layer))


@kernel(LSTM, accepts=can_walk, precision="bf16", rank=1, states=state_buffers)
def lstm_bf16(op: LSTM, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """As `lstm`; states are rounded where they meet their weights."""
    layer = RecurrentLayer.of(op, "lstm", ins, PAIRS)
    return steps_of(layer, context, lstm_fields(layer))


def lstm_fields(layer: RecurrentLayer) -> dict[str, Argument]:
    """Fields of the walk that other layers have not."""
    cells: dict[str, Argument] = {"c0": layer.state(6), "last_c": Out(2), "peepholes": layer.optional(7)}
    return cells | {"input_forget": int(isinstance(layer.op, LSTM) and layer.op.input_forget)}


@kernel(GRU, accepts=can_walk, states=state_buffers)
def gru(op: GRU, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Constant weights; activations of `FUNCTIONS`, the same in both directions."""
    if op.linear_before_reset:
        return _gru_after(RecurrentLayer.of(op, "gru_after", ins), context)
    layer = RecurrentLayer.of(op, "gru", ins)
    states = layer.groups * layer.rows * layer.blocks * layer.vectors * BYTES
    return steps_of(layer, context, {"r_hidden": _weights(layer, context, 2, (2,)), "gates": Scratch(3 * states)})


def _gru_after(layer: RecurrentLayer, context: Context) -> list[Step]:
    return steps_of(layer, context, gru_after_fields(layer, context))


def gru_after_fields(layer: RecurrentLayer, context: Context) -> dict[str, Argument]:
    """Fields of the walk that other layers have not."""
    bias = aligned_zeros((layer.op.directions * layer.blocks * layer.vectors * LANES,))
    if layer.given(3) is not None:
        bias = layer.packed(context, 3, ("reset bias",), pack_reset_bias)
    return {"reset_bias": bias}


def _accepts_after(op: GRU, ins: Types) -> bool:
    """Only where one product serves all gates."""
    return bool(op.linear_before_reset) and can_walk(op, ins)


@kernel(GRU, accepts=_accepts_after, precision="bf16", rank=1, states=state_buffers)
def gru_bf16(op: GRU, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """As `gru` with linear_before_reset; states are rounded where they meet their weights."""
    return _gru_after(RecurrentLayer.of(op, "gru_after", ins, PAIRS), context)


@kernel(RNN, accepts=can_walk, states=state_buffers)
def rnn(op: RNN, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Constant weights; activations of `FUNCTIONS`, the same in both directions."""
    return steps_of(RecurrentLayer.of(op, "rnn", ins), context, {})
