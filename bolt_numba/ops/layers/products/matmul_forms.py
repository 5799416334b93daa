"""Products with weights as GGUF files store them, and rows of such weights."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.types import F32, U8, Array, Dim, TensorType
from bolt_numba.ops.arrays.gather import want_places
from bolt_numba.ops.content import VALUES, bounded, want_index
from bolt_numba.ops.dtypes import INDICES
from bolt_numba.ops.layers.products.forms import FORMS, Form
from bolt_numba.ops.layers.products.matmul import multiplied
from bolt_numba.ops.registry import Op, fresh_dim, op, want_among, want_dtype
from bolt_numba.ops.shapes import want_dims

OptionalArray: TypeAlias = "Array | None"

ROUNDED_TOGETHER = 32
"""Elements of a row of x that are rounded by one scale."""
LEVELS_OF_X = np.float32(127)
LEVELS_OF_TWO, LEVELS_OF_THREE = np.float32(0x7F7F), np.float32(0x7F7F00)
"""Numbers of 16 and 24 bits whose upper bytes, rounded, are signed ones, even if a product in f32 is a little more."""
LEAST_OF_A_GROUP = np.float32(1e-30)
"""Groups of smaller numbers are rounded as if this were their greatest, whose reciprocal is finite."""


def rounded_rows(x: Array, levels: np.float32 = LEVELS_OF_X) -> Array:
    """X [..., k] f32 as it is where 8 bits hold each element, 16 with `LEVELS_OF_TWO`, 24 with three.

    A group of 32 along k has the scale max(abs) / levels, and its elements are rounded to whole multiples of it, half
    to even: none changes by more than half a scale, with 24 bits by one and a half, as f32 has no halves of these.  A
    group that is not finite is NaN.
    """
    *rows, k = x.shape
    count = -(-k // ROUNDED_TOGETHER)
    padded = np.zeros((*rows, count * ROUNDED_TOGETHER), np.float32)
    padded[..., :k] = x
    groups = padded.reshape(*rows, count, ROUNDED_TOGETHER)
    greatest = np.maximum(np.abs(groups).max(axis=-1, keepdims=True, initial=0), LEAST_OF_A_GROUP)
    with np.errstate(invalid="ignore"):
        scales = greatest / levels + (greatest - greatest)
        rounded = np.rint(groups * (levels / greatest)) * scales
    return np.asarray(rounded.reshape(padded.shape)[..., :k])


def width_of(owner: Op, form: str, raw: TensorType) -> tuple[Dim, Dim]:
    """Rows of weights, and weights of a row."""
    want_among(owner, FORMS, form=form)
    want_dtype(owner, "raw", raw.dtype, U8)
    want_dims(owner, "raw", raw, None, None)
    n, row = (fresh_dim("n"), fresh_dim("bytes")) if raw.shape is None else raw.shape
    if not isinstance(row, int):
        return n, fresh_dim("k")
    owner.fail_if(row % FORMS[form].size, "bytes of a row", row, f"a multiple of {FORMS[form].size}")
    return n, row // FORMS[form].size * FORMS[form].block


@op("MatMulForm")
class MatMulForm(Op):
    """y = x @ w^T + bias, where the bytes of w [n, k] are as GGUF files have them.

    x: [..., k] f32 · raw: [n, bytes of a row] u8 · bias: [n] f32 -> y: [..., n] f32.  form: see `FORMS`.
    """

    form: str = "Q8_0"
    data_bounds = bounded(raw=VALUES)

    def infer(self, x: TensorType, raw: TensorType, bias: TensorType | None = None) -> TensorType:
        want_dtype(self, "x", x.dtype, F32)
        n, k = width_of(self, self.form, raw)
        if bias is not None:
            want_dtype(self, "bias", bias.dtype, F32)
            want_dims(self, "bias", bias, n)
        if x.shape is None:
            return TensorType(F32, None)
        self.fail_if(not x.shape, "rank of x", 0, "at least 1")
        last = x.shape[-1]
        self.fail_if(isinstance(last, int) and isinstance(k, int) and last != k, "last dimension of x", last, k)
        return TensorType(F32, (*x.shape[:-1], n))

    def reference(self, x: Array, raw: Array, bias: OptionalArray = None) -> Array:
        weights = weights_of(self, FORMS[self.form], raw)
        y = multiplied(self, x, weights.T)
        return y if bias is None else y + bias


@op("GatherForm")
class GatherForm(Op):
    """y = rows of weights whose bytes are as GGUF files have them; negative indices count from the end.

    raw: [n, bytes of a row] u8 · indices: [i...] i32 or i64 -> y: [i..., k] f32.  form: see `FORMS`.
    """

    form: str = "Q8_0"
    data_bounds = bounded(
        raw=VALUES,
        indices="which rows are read; each index is tested against their number before it is used, else refused",
    )

    def infer(self, raw: TensorType, indices: TensorType) -> TensorType:
        want_dtype(self, "indices", indices.dtype, *INDICES)
        n, k = width_of(self, self.form, raw)
        if indices.shape is None:
            return TensorType(F32, None)
        want_places(self, indices.shape, n)
        return TensorType(F32, (*indices.shape, k))

    def reference(self, raw: Array, indices: Array) -> Array:
        want_index(self, "indices", indices, len(raw))
        rows = weights_of(self, FORMS[self.form], raw[indices.reshape(-1)])
        return rows.reshape(*indices.shape, rows.shape[1])


def weights_of(owner: Op, form: Form, raw: Array) -> Array:
    ask(4 * raw.size * form.block // form.size, f"{owner.name}: weights")
    return form.weights(raw)
