"""LSTM and GRU layers with weights in float16: half the bytes from the cache in every step, arithmetic in f32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bolt_numba.base.types import F32, Array, TensorType
from bolt_numba.kernels.cpu.halves.f16 import HALF_PANELS, pack_panels_f16, unfit
from bolt_numba.kernels.cpu.products.matmul import product_steps
from bolt_numba.kernels.cpu.recurrent.recurrent import (
    RecurrentLayer,
    can_walk,
    gru_after_fields,
    lstm_fields,
    pack_columns,
    products_by,
    state_buffers,
    steps_of,
)
from bolt_numba.kernels.cpu.recurrent.recurrent_cells import HALVES
from bolt_numba.kernels.extents import Lent
from bolt_numba.kernels.registry import Argument, Context, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.recurrent import GRU, LSTM


def _input_products(layer: RecurrentLayer, bias: Argument, context: Context) -> tuple[Scratch, list[Step]]:
    """As `recurrent`'s, from panels of float16."""
    count, columns = layer.op.gates, layer.gate_columns

    def pack(w: Array, vectors: int) -> Array:
        return pack_panels_f16(pack_columns(w, count, vectors), threads=context.threads)

    panels = layer.packed(context, 1, ("panels of f16", count), pack)
    form = replace(HALF_PANELS, pack=lambda *_, **__: panels)  # packed already: zeros stand for the matrix
    zeros = np.broadcast_to(np.float32(0), (layer.i, columns))
    matrix = Lent(TensorType(F32, zeros.shape, value=zeros), None)

    def make(op: MatMul, ins: Types, outs: Outs, context: Context) -> list[Step]:
        return product_steps(op, ins, context, form)

    return products_by(make, layer, [matrix, Lent.constant(bias, TensorType(F32, (columns,)), context)], context)


def _accepts(op: GRU | LSTM, ins: Types) -> bool:
    """Rows of weights come in twos."""
    return can_walk(op, ins) and ins[2].dims[2] % 2 == 0


def _accepts_after(op: GRU, ins: Types) -> bool:
    """Only where one product serves all gates."""
    return bool(op.linear_before_reset) and _accepts(op, ins)


def _error(op: GRU | LSTM, ins: Types, context: Context) -> float:
    return max(unfit(w, 1, 1.0, context) for w in ins[1:3] if w is not None)


@kernel(LSTM, accepts=_accepts, precision="f16", rank=1, states=state_buffers, error=_error)
def lstm_f16(op: LSTM, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """As `lstm`, weights in float16."""
    layer = RecurrentLayer.of(op, "lstm", ins, HALVES)
    return steps_of(layer, context, lstm_fields(layer), _input_products)


@kernel(GRU, accepts=_accepts_after, precision="f16", rank=1, states=state_buffers, error=_error)
def gru_f16(op: GRU, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """As `gru` with linear_before_reset, weights in float16."""
    layer = RecurrentLayer.of(op, "gru_after", ins, HALVES)
    return steps_of(layer, context, gru_after_fields(layer, context), _input_products)
