"""What `infer` says when little is known, and when operands do not fit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bolt_numba.errors import BoltError, DTypeError, ShapeError
from bolt_numba.ir.build import infer_types
from bolt_numba.ops.arrays import gather, quantize, reduce, shape
from bolt_numba.ops.layers import norm, pool, recurrent, resize
from bolt_numba.ops.layers.attention import attention
from bolt_numba.ops.layers.products import conv, matmul
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.types import F32, I32, I64, U8, AnyDType, Sym, TensorType, type_of
from tests.cases import CASES

ALL = sorted((op for op in CASES if op.name not in ("If", "Loop", "Scan", "Foreign")), key=lambda op: op.name)
run_each = settings(
    max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("op", ALL, ids=[op.name for op in ALL])
@run_each
@given(data=st.data())
def test_shapes_alone_give_the_rank_and_true_dimensions(op: type[Op], data: st.DataObject) -> None:
    """Contents are unknown: a dimension that depends on them is a symbol, the others are right."""
    case = data.draw(CASES[op]())
    types = [None if a is None else TensorType(a.dtype, a.shape) for a in case.inputs]
    for kind, result in zip(infer_types(case.op, types), result_tuple(case.op.reference(*case.inputs)), strict=True):
        assert kind.dtype == result.dtype
        if kind.shape is not None:
            assert all(isinstance(d, Sym) or d == n for d, n in zip(kind.shape, result.shape, strict=True))


@pytest.mark.parametrize("op", ALL, ids=[op.name for op in ALL])
@run_each
@given(data=st.data())
def test_unknown_ranks_are_no_error(op: type[Op], data: st.DataObject) -> None:
    case = data.draw(CASES[op]())
    types = [None if a is None else TensorType(a.dtype, None) for a in case.inputs]
    for kind, result in zip(infer_types(case.op, types), result_tuple(case.op.reference(*case.inputs)), strict=True):
        assert kind.dtype == result.dtype
        assert kind.shape is None or len(kind.shape) == result.ndim


def t(*dims: int, dtype: AnyDType = F32) -> TensorType:
    return TensorType(dtype, dims)


def ints(*values: int) -> TensorType:
    return type_of(np.array(values, dtype=I64))


SCALAR = type_of(np.array(3, dtype=I64))
IMAGE, FILTERS = t(1, 4, 8, 8), t(6, 4, 3, 3)

WRONG: list[tuple[type[BoltError], Op, tuple[Any, ...], str]] = [
    (ShapeError, matmul.MatMul(), (t(2, 3), t(4, 5)), "rows of b: got 4, wanted 3"),
    (ShapeError, matmul.MatMul(), (t(2, 3), t(3, 5), t(4)), r"shape of bias: got f32\[4\], wanted \[5\]"),
    (DTypeError, matmul.MatMul(), (t(2, 3), t(3, 5, dtype=I32)), "dtypes of operands: got f32 and i32"),
    (ShapeError, matmul.MatMul(residual=True), (t(2, 3), t(3, 5)), "residual operand"),
    (ShapeError, matmul.Einsum("ij,jk->ik"), (t(2, 3),), "number of operands: got 1, wanted 2"),
    (ShapeError, matmul.Einsum("ij,jk->ix"), (t(2, 3), t(3, 4)), "output subscripts"),
    (ShapeError, conv.Conv(), (t(1, 5, 8, 8), FILTERS), "channels of x: got 5, wanted 4"),
    (ShapeError, conv.Conv(group=4), (IMAGE, t(6, 1, 3, 3)), "number of filters: got 6, wanted a multiple of group 4"),
    (ShapeError, conv.Conv(), (t(1, 4, 2, 8), FILTERS), "padded size of x: got 2, wanted at least 3"),
    (ShapeError, conv.Conv(strides=(1,)), (IMAGE, FILTERS), "length of strides: got 1, wanted 2"),
    (ShapeError, conv.Conv(strides=(0, 1)), (IMAGE, FILTERS), "strides"),
    (ShapeError, conv.Conv(auto_pad="SAME"), (IMAGE, FILTERS), "auto_pad: got SAME"),
    (ShapeError, conv.Conv(layout="CHWN"), (IMAGE, FILTERS), "layout: got CHWN"),
    (DTypeError, conv.Conv(), (t(1, 4, 8, 8, dtype=U8), t(6, 4, 3, 3, dtype=U8)), "dtype of x: got u8"),
    (ShapeError, conv.ConvTranspose(), (t(1, 5, 8, 8), FILTERS), "first dimension of w: got 6, wanted 5"),
    (ShapeError, pool.MaxPool((2,)), (IMAGE,), "rank of x"),
    (ShapeError, norm.LRN(0), (IMAGE,), "size: got 0, wanted at least 1"),
    (ShapeError, norm.BatchNormalization(), (IMAGE, t(4), t(4), t(4), t(3)), r"of var: got f32\[3\], wanted \[4\]"),
    (ShapeError, norm.GroupNormalization(3), (IMAGE, t(4), t(4)), "channels of x: got 4"),
    (ShapeError, norm.LayerNormalization(3), (t(2, 3), t(3)), "axis: got 3, wanted -2 to 1"),
    (ShapeError, reduce.ReduceSum(), (t(2, 3), ints(0, -2)), "axes"),
    (DTypeError, reduce.Softmax(), (t(2, dtype=I64),), "dtype of x: got i64"),
    (ShapeError, reduce.TopK(), (t(2, 3), ints(4)), "k: got 4, wanted 0 to 3"),
    (ShapeError, shape.Reshape(), (t(2, 3), ints(4, -1)), "shape: got .*, wanted a divisor"),
    (ShapeError, shape.Reshape(), (t(2, 3), ints(-1, -1)), "at most one of them -1"),
    (ShapeError, shape.Reshape(), (t(2, 3), ints(2, 2)), "wanted 6 elements"),
    (ShapeError, shape.Squeeze(), (t(2, 3), ints(0)), "got 2, wanted 1"),
    (ShapeError, shape.Transpose((0, 0)), (t(2, 3),), "perm: got"),
    (ShapeError, shape.Concat(0), (t(2, 3), t(2, 4)), r"\[2, 3\] and \[2, 4\], wanted equal sizes but along axis 0"),
    (ShapeError, shape.Split(0, 2), (t(5), ints(2, 2)), "split: got .*, wanted lengths that add up to 5"),
    (ShapeError, shape.Slice(), (t(5), ints(0), ints(2), ints(0), ints(0)), "steps: got 0"),
    (ShapeError, shape.Expand(), (t(2, 3), ints(2, 4)), "shapes to broadcast"),
    (ShapeError, shape.Pad("mirror"), (t(5), ints(1, 1)), "mode: got mirror"),
    (ShapeError, shape.Pad(), (t(2), ints(-2, -1)), "pads"),
    (ShapeError, shape.Range(), (SCALAR, SCALAR, type_of(np.array(0, dtype=I64))), "delta: got 0"),
    (ShapeError, shape.DepthToSpace(2), (t(1, 6, 2, 2),), "channels of x: got 6, wanted a multiple of 4"),
    (ShapeError, gather.Gather(2), (t(2, 3), ints(0)), "axis: got 2"),
    (DTypeError, gather.Gather(), (t(2, 3), t(1)), "dtype of indices: got f32, wanted i64, i32"),
    (ShapeError, gather.GatherND(), (t(2, 3), t(4, 3, dtype=I64)), "last dimension of indices: got 3, wanted 1 to 2"),
    (ShapeError, gather.ScatterND("sub"), (t(2, 3), t(1, 1, dtype=I64), t(1, 3)), "reduction: got sub"),
    (ShapeError, resize.Resize(), (IMAGE,), "operands: got"),
    (ShapeError, resize.Resize(), (IMAGE, None, None, ints(2, 2)), r"shape of sizes: got i64\[2\], wanted \[4\]"),
    (ShapeError, recurrent.LSTM(), (t(5, 1, 3), t(1, 16, 2), t(1, 16, 4)), r"of w: got .*, wanted \[1, 16, 3\]"),
    (ShapeError, recurrent.GRU(direction="back"), (t(5, 1, 3), t(1, 12, 3), t(1, 12, 4)), "direction: got back"),
    (ShapeError, attention.FusedAttention(), (t(5, 4), t(6, 3), t(6, 2)), "rows of b: got 3, wanted 4"),
    (DTypeError, quantize.QuantizeLinear(), (t(3, dtype=U8), t()), "dtype of x: got u8"),
    (ShapeError, quantize.DequantizeLinear(0), (t(3, dtype=U8), t(2)), r"of scale: got f32\[2\], wanted \[1 or 3\]"),
]


@pytest.mark.parametrize(
    ("kind", "op", "operands", "text"), WRONG, ids=[f"{w[1].name}-{i}" for i, w in enumerate(WRONG)]
)
def test_wrong_operands_are_named(kind: type[BoltError], op: Op, operands: tuple[Any, ...], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        infer_types(op, operands)
    assert re.match(rf"{op.name}: .+: got .+, wanted .+", str(caught.value))
