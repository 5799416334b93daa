"""DynamicQuantizeLSTM: input and recurrent products of bytes, in the walk of all recurrent layers.

x is quantised at once and multiplied for all steps by `sweep_bytes`; the state is quantised in each step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F32, U8, AnyDType, Array, TensorType
from bolt_numba.kernels.cpu.elementwise.quantize_range import range_steps
from bolt_numba.kernels.cpu.products.matmul_integer import matmul_bytes
from bolt_numba.kernels.cpu.products.pack import aligned_zeros
from bolt_numba.kernels.cpu.recurrent.recurrent import (
    RecurrentLayer,
    can_walk,
    lstm_fields,
    pack_columns,
    pack_gates,
    state_buffers,
    steps_of,
)
from bolt_numba.kernels.cpu.recurrent.recurrent_cells import FOURS
from bolt_numba.kernels.extents import Lent, borrowed
from bolt_numba.kernels.registry import Argument, Context, In, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.products.integer_products import QLinearMatMul
from bolt_numba.ops.layers.recurrent_quantized import DynamicQuantizeLSTM

GATES = 4
W_NUMBERS, R_NUMBERS = (8, 9), (10, 11)
"""Operands: scale and zero point."""
MOST_DEPTH = 1 << 15
"""Numbers of a row whose products with bytes never leave 32 bits."""


def centre(dtype: Any) -> int:
    """What must be taken from weights to make signed bytes of them."""
    return 128 if dtype == U8 else 0


def pack_fours(w: Array, vectors: int) -> Array:
    """[d, 4 h, k] bytes -> signed ones, i32 [d, block, ceil(k / 4), gate, vectors * LANES] of four each."""
    packed = pack_gates(w.astype(np.int16) - centre(w.dtype), range(GATES), GATES, vectors)
    d, blocks, k, *columns = packed.shape
    deep = np.zeros((d, blocks, -(-k // 4) * 4, *columns), np.int8)
    deep[:, :, :k] = packed
    fours = deep.reshape(d, blocks, -1, 4, *columns).transpose(0, 1, 2, 4, 5, 3)
    made = aligned_zeros((d, blocks, fours.shape[2], *columns)).view(np.int32)
    made[:] = np.ascontiguousarray(fours).view(np.int32)[..., 0]
    return made


def pack_row_sums(w: Array, vectors: int) -> Array:
    """[d, 4 h, k] bytes -> sums of rows of signed ones, i32 [d * block * gate * vectors * LANES]."""
    sums = (w.astype(np.int64) - centre(w.dtype)).sum(2, keepdims=True)
    return pack_gates(sums, range(GATES), GATES, vectors).reshape(-1).astype(np.int32)


def _input_bytes(layer: RecurrentLayer, bias: Argument, context: Context) -> tuple[Scratch, list[Step]]:
    """Steps of x w^T + bias for all steps of time, [rows of x, columns of `pack_columns`]."""
    w = layer.ins[1]
    rows, columns, k = layer.t * layer.n, layer.gate_columns, layer.i
    middle = centre(w.dtype)
    scales = _in_columns(layer, W_NUMBERS[0], w.dims[1], context)
    zeros = _in_columns(layer, W_NUMBERS[1], w.dims[1], context, middle, w.dtype)
    levels, scale, zero = Scratch(rows * k), Scratch(4), Scratch(1)
    steps = range_steps(In(0), levels, scale, zero, rows * k, context)
    matrix = layer.packed(context, 1, ("bytes",), lambda v, n: pack_columns(v, GATES, n).astype(v.dtype))
    x = Lent(TensorType(U8, (rows, k)), levels), Lent(TensorType(F32, ()), scale), Lent(TensorType(U8, ()), zero)

    def lent(made: Any, dtype: AnyDType, *dims: int) -> Lent:
        return Lent.constant(made, TensorType(dtype, (*dims, columns)), context)

    weights = lent(matrix, w.dtype, k), lent(scales, F32), lent(zeros, w.dtype)
    ins = (*x, *weights, None, None, lent(bias, F32))
    to = Scratch(4 * rows * columns)
    out = Lent(TensorType(F32, (rows, columns)), to)
    return to, [*steps, *borrowed(matmul_bytes, QLinearMatMul(), ins, [out], context)]


def _in_columns(
    layer: RecurrentLayer, index: int, rows: int, context: Context, less: int = 0, of: AnyDType | None = None
) -> Any:
    """Scales or zero points [d] or [d, rows] less a number, one for each column of packed gates.

    of: as bytes of this dtype, with ``less`` where there are no rows.
    """

    def pack(v: Array, vectors: int) -> Array:
        each = np.broadcast_to(v.reshape(len(v), -1), (len(v), rows)).astype(np.float32) - less
        made = pack_gates(each[..., None], range(GATES), GATES, vectors).reshape(-1)
        return made if of is None else (made + less).astype(of)

    return layer.packed(context, index, ("in columns", rows, less, *(() if of is None else (of.str,))), pack)


def _accepts(op: DynamicQuantizeLSTM, ins: Types) -> bool:
    weights = (ins[1], ins[2], *(ins[i] for i in (*W_NUMBERS, *R_NUMBERS)))
    if any(t.known is None for t in weights) or not can_walk(op, ins):
        return False
    return max(ins[1].dims[2], ins[2].dims[2]) < MOST_DEPTH


def _states(op: DynamicQuantizeLSTM, ins: Types) -> frozenset[tuple[int, int]]:
    """As of `LSTM`, but each step of time reads the whole state before it."""
    return state_buffers(op, ins) - {(5, 1)}


@kernel(DynamicQuantizeLSTM, accepts=_accepts, states=_states)
def lstm_bytes(op: DynamicQuantizeLSTM, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Constant weights, which stay bytes; activations of `FUNCTIONS`, the same in both directions."""
    layer = RecurrentLayer.of(op, "lstm", ins, FOURS)
    r = ins[2]
    fields = lstm_fields(layer)
    fields["r_scales"] = _in_columns(layer, R_NUMBERS[0], r.dims[1], context)
    fields["r_zeros"] = _in_columns(layer, R_NUMBERS[1], r.dims[1], context, centre(r.dtype))
    fields["r"] = layer.packed(context, 2, ("fours",), pack_fours)
    fields["r_sums"] = layer.packed(context, 2, ("row sums",), pack_row_sums)
    return steps_of(layer, context, fields, _input_bytes)
