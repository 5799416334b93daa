"""Arrays made from a shape or a rule: constants, ranges, diagonals, triangles."""

from __future__ import annotations

import math

import numpy as np

from bolt_numba.base.follow import is_followed
from bolt_numba.base.types import BOOL, F32, F64, I16, I32, I64, AnyDType, Array, TensorType, dtype_name
from bolt_numba.ops.content import PLANNED, bounded
from bolt_numba.ops.dtypes import INDICES, NUMBERS, nothing, same_dtype
from bolt_numba.ops.registry import Op, fresh_dim, op, want_dtype, want_dtypes
from bolt_numba.ops.shapes import known_dims, shape_in, shape_of, want_dims, want_one


@op("Range")
class Range(Op):
    """y = start, start + delta, ... before limit.  Operands: scalars of one number dtype.  Source: ONNX Range-11."""

    value_inputs = (0, 1, 2)
    moves_memory = True
    data_bounds = bounded(start=PLANNED, limit=PLANNED, delta=PLANNED)

    def infer(self, start: TensorType, limit: TensorType, delta: TensorType) -> TensorType:
        dtype = same_dtype(self, start, limit, delta)
        want_dtype(self, "start", dtype, F32, F64, I16, I32, I64)
        want_one(self, start=start, limit=limit, delta=delta)
        if all(t.known is not None for t in (start, limit, delta)):
            args = [t.known for t in (start, limit, delta)]
            return TensorType(dtype, (self._count(*args),))  # type: ignore[arg-type]  # none is None
        ends = [known_dims(t) for t in (start, limit, delta)] if dtype.kind == "i" else [None]
        if any(e is None for e in ends):
            return TensorType(dtype, (fresh_dim("range"),))
        (first,), (last,), (step,) = ends  # type: ignore[misc]  # none is None
        if not isinstance(step, int) or step < 1:
            return TensorType(dtype, (fresh_dim("range"),))
        return TensorType(dtype, ((last - first + (step - 1)) // step,))

    def _count(self, start: Array, limit: Array, delta: Array) -> int:
        given = [v.reshape(-1)[0].item() for v in (start, limit, delta)]
        if is_followed(given):  # followed ones are whole, of floats too
            given = [int(n) if type(n) is float and n.is_integer() else n for n in given]
        a, b, d = given
        self.fail_if(d == 0, "delta", d, "not 0")
        if all(isinstance(n, int) for n in given):
            steps: int = -((a - b) // d)
            return max(steps, 0)
        count: float = (b - a) / d
        self.fail_if(not abs(count) < math.inf, "start, limit and delta", (a, b, d), "a finite number of steps")
        return max(math.ceil(count), 0)

    def reference(self, start: Array, limit: Array, delta: Array) -> Array:
        steps = np.arange(self._count(start, limit, delta)).astype(start.dtype)
        return np.asarray(start.reshape(-1)[0] + steps * delta.reshape(-1)[0], dtype=start.dtype)


@op("ConstantOfShape")
class ConstantOfShape(Op):
    """y = an array of one value.  shape: [r] i64 -> y: ``dtype``.  Source: ONNX ConstantOfShape-25."""

    value: float | int | bool = 0.0
    dtype: AnyDType = F32
    value_inputs = (0,)
    moves_memory = True
    data_bounds = bounded(shape=PLANNED)

    def infer(self, shape: TensorType) -> TensorType:
        want_dtype(self, "shape", shape.dtype, *INDICES)
        want_dims(self, "shape", shape, None)
        dims = known_dims(shape)
        if dims is not None and any(isinstance(d, int) and d < 0 for d in dims):
            raise self.fail("shape", dims, "dimensions of at least 0")
        if self.dtype.kind in "iu" and not np.iinfo(self.dtype).min <= self.value <= np.iinfo(self.dtype).max:
            raise self.fail("value", self.value, f"one that {dtype_name(self.dtype)} holds")
        return TensorType(self.dtype, shape_in(shape))

    def reference(self, shape: Array) -> Array:
        return np.full([int(d) for d in shape], self.value, dtype=self.dtype)


@op("Trilu")
class Trilu(Op):
    """y = x with zeros (empty strings) below (upper) or above the k-th diagonal of its last two axes.

    x: [..., M, N] any · k: scalar i64, 0 without it -> y: like x.  Source: ONNX Trilu-14.
    """

    upper: bool = True
    data_bounds = bounded(k="how much of a row is cleared; held to the corners of the matrix")

    def infer(self, x: TensorType, k: TensorType | None = None) -> TensorType:
        if x.shape is not None and len(x.shape) < 2:
            raise self.fail("rank of x", len(x.shape), "at least 2")
        want_dtypes(self, INDICES, k=k)
        want_one(self, k=k)
        return TensorType(x.dtype, x.shape)

    def reference(self, x: Array, k: Array | None = None) -> Array:
        diagonal = 0 if k is None else int(k.reshape(-1)[0])
        rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])[None, :]
        kept = columns - rows >= diagonal if self.upper else columns - rows <= diagonal
        return np.where(kept, x, np.array(nothing(x.dtype), x.dtype))


@op("EyeLike")
class EyeLike(Op):
    """y = ones on the k-th diagonal, else zeros.

    x: [M, N] any -> y: like x, of ``dtype`` if given.  Source: ONNX EyeLike-22.
    """

    dtype: AnyDType | None = None
    k: int = 0

    def infer(self, x: TensorType) -> TensorType:
        want_dtype(self, "y", self.dtype or x.dtype, *NUMBERS, BOOL)
        return TensorType(self.dtype or x.dtype, shape_of(self, "x", x, 2))

    def reference(self, x: Array) -> Array:
        return np.eye(x.shape[0], x.shape[1], k=self.k).astype(self.dtype or x.dtype)
