"""Products of rows with the matrices that are chosen for each of them."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.types import F32, Array, TensorType
from bolt_numba.ops.arrays.gather import want_places
from bolt_numba.ops.content import bounded, want_between
from bolt_numba.ops.dtypes import INDICES
from bolt_numba.ops.layers.products.forms import FORMS
from bolt_numba.ops.layers.products.matmul import multiplied
from bolt_numba.ops.layers.products.matmul_forms import weights_of, width_of
from bolt_numba.ops.registry import Op, op, want_dtype
from bolt_numba.ops.shapes import want_dims


@op("MatMulExperts")
class MatMulExperts(Op):
    """y[..., i, :] = x[..., i, :] @ w[ids[..., i]]^T, where the bytes of w [experts, n, k] are as GGUF files have them.

    x: [..., used, k] f32, or [..., 1, k] where all have the same · raw: [experts, n, bytes of a row] u8 · ids: [...,
    used] i32 or i64 -> y: [..., used, n] f32.  form: see `FORMS`.
    """

    form: str = "Q8_0"
    data_bounds = bounded(
        raw="any bytes are weights",
        ids="whose weights are read; each is tested against their number before it is used, else refused",
    )

    def infer(self, x: TensorType, raw: TensorType, ids: TensorType) -> TensorType:
        want_dtype(self, "x", x.dtype, F32)
        want_dtype(self, "ids", ids.dtype, *INDICES)
        want_dims(self, "raw", raw, None, None, None)
        n, k = width_of(self, self.form, raw.with_shape(None if raw.shape is None else raw.shape[1:]))
        if ids.shape is None:
            return TensorType(F32, None)
        self.fail_if(not ids.shape, "rank of ids", 0, "at least 1")
        if raw.shape is not None:
            want_places(self, ids.shape, raw.shape[0])
        want_dims(self, "x", x, *ids.shape[:-1], None, k)
        used, each = ids.shape[-1], 1 if x.shape is None else x.shape[-2]
        is_told = isinstance(each, int) and isinstance(used, int)
        self.fail_if(is_told and each not in (1, used), "rows of x", each, f"1 or {used}, as ids")
        return TensorType(F32, (*ids.shape, n))

    def reference(self, x: Array, raw: Array, ids: Array) -> Array:
        want_between(self, "ids", ids, 0, len(raw) - 1)
        rows = np.broadcast_to(x, (*ids.shape, x.shape[-1])).reshape(-1, x.shape[-1])
        y = np.empty((len(rows), raw.shape[1]), np.float32)
        for expert in np.unique(ids):
            of_it = ids.reshape(-1) == expert
            y[of_it] = multiplied(self, rows[of_it], weights_of(self, FORMS[self.form], raw[expert]).T)
        return y.reshape(*ids.shape, raw.shape[1])
