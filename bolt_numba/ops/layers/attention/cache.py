"""Attention of decoders that keep the keys and values of earlier positions."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import numpy as np

from bolt_numba.base.types import F16, F32, I8, I32, Array, Dim, TensorType
from bolt_numba.ops.arrays.reduce import masked_softmax
from bolt_numba.ops.content import VALUES, bounded, want_between
from bolt_numba.ops.dtypes import FLOATS, INDICES, same_dtype, widened
from bolt_numba.ops.registry import Op, fresh_dim, normalise_axis, op, want_among, want_dtype, want_dtypes
from bolt_numba.ops.shapes import known_dims, known_ints, shape_of, want_dims, want_one

OptionalArray: TypeAlias = "Array | None"

SCALE_BYTES = 4
"""Behind the codes of a row, where a cache of bytes has a scale for each."""
LARGEST_CODE, ONE_CODE = np.float32(127), np.float32(1 / 127)
LEAST_OF_A_ROW = np.float32(1e-30)
"""Rows of smaller numbers are rounded as if this were their greatest, whose reciprocal is finite."""


def coded(rows: Array, width: int) -> Array:
    """Rows [..., d] as ``width`` bytes i8: whole numbers from -128 on; of d + 4, multiples of the scale behind them.

    The scale is max(abs) / 127.  Halves are rounded to even.  A row that is not finite has the scale NaN.
    """
    rows = rows.astype(F32)
    factor, scales = np.float32(1), np.zeros((*rows.shape[:-1], 0), I8)
    with np.errstate(invalid="ignore"):
        if width > rows.shape[-1]:
            greatest = np.maximum(np.abs(rows).max(axis=-1, keepdims=True, initial=0), LEAST_OF_A_ROW)
            scales = (greatest * ONE_CODE + (greatest - greatest)).view(I8)
            factor = LARGEST_CODE / greatest
        found = rows * factor
        codes = np.rint(np.minimum(np.where(found > -128, found, np.float32(-128)), LARGEST_CODE))
    return np.concatenate([codes.astype(I8), scales], axis=-1)


def decoded(rows: Array, size: int) -> Array:
    """What rows of a cache [..., width] stand for, [..., size]."""
    if rows.dtype != I8:
        return widened(rows)
    codes = rows[..., :size].astype(F32)
    return codes if rows.shape[-1] == size else codes * np.ascontiguousarray(rows[..., size:]).view(F32)


def divided(dim: Dim, parts: int) -> int | None:
    """The size of one of so many parts; None where it is not known."""
    return dim // parts if isinstance(dim, int) else None


def _by_heads(x: Array, heads: int) -> Array:
    """[n, length, heads * size] -> [n, heads, length, size]."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).swapaxes(1, 2)


@op("GroupQueryAttention")
class GroupQueryAttention(Op):
    """Causal attention where each of the kv_num_heads keys and values serves several queries, with a cache.

    q: [n, s, num_heads * d] · k, v: [n, s, kv_num_heads * d] · past_k, past_v: [n, kv_num_heads, p, d] ·
    seqlens_k: [n] or [n, 1] i32, valid keys of each sequence less one · total: i32 [] or [1], the greatest number of
    valid keys · bias: added to the scores, broadcast from [n or 1, num_heads or 1, s, total] · sink: [num_heads], the
    score of a further key of each head that has no value -> y: [n, s, num_heads * d], present_k, present_v: [n,
    kv_num_heads, max(p, total), d].  New keys go behind the valid past ones of their sequence, of which there are none
    where s is total; a past that is the memory of the present is appended to in place.  Caches may be f16 where all
    else is f32, or i8, with d or d + 4 bytes a row: new rows are rounded then (see `coded`).  local_window: keys that
    a query sees, itself included (below 0: all; 0: none, so y is 0); softcap c above 0: c * tanh(scores / c); smooth:
    all sinks are 0.
    Source: the operator of this name of onnxruntime (com.microsoft), rotated and unpacked operands.
    """

    num_heads: int
    kv_num_heads: int
    scale: float = 0.0
    softcap: float = 0.0
    local_window: int = -1
    smooth: bool = False
    value_inputs = (6,)
    narrow_inputs = (3, 4)
    data_bounds = bounded(
        past_k=VALUES,
        past_v=VALUES,
        seqlens_k=(
            "which rows of the cache are read and written; tested against the cache and the bias when the "
            "table of heads is made, else refused"
        ),
        total="the length of the cache, planned by value where it exceeds the past or is negative",
    )
    bounds: ClassVar[dict[int, tuple[int, int]]] = {6: (3, 2)}

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        past_k: TensorType | None,
        past_v: TensorType | None,
        seqlens_k: TensorType,
        total: TensorType,
        bias: TensorType | None = None,
        sink: TensorType | None = None,
    ) -> tuple[TensorType, ...]:
        dtype = same_dtype(self, q, k, v, bias, sink)
        want_dtype(self, "q", dtype, *FLOATS)
        held = dtype if past_k is None else same_dtype(self, past_k, past_v)
        want_dtype(self, "past_k", held, dtype, I8, *([F16] if dtype == F32 else []))
        want_dtypes(self, (I32,), seqlens_k=seqlens_k, total=total)
        if self.num_heads < 1 or self.kv_num_heads < 1 or self.num_heads % self.kv_num_heads:
            raise self.fail("num_heads", self.num_heads, f"a multiple of kv_num_heads {self.kv_num_heads}")
        shape, keys = shape_of(self, "q", q, 3), shape_of(self, "k", k, 3)
        past = shape_of(self, "past_k", past_k, 4)
        if shape is None or keys is None or (past_k is not None and past is None):
            return TensorType(dtype, shape), TensorType(held, None), TensorType(held, None)
        for what, dim, heads in (("q", shape[2], self.num_heads), ("k", keys[2], self.kv_num_heads)):
            if isinstance(dim, int) and dim % heads:
                raise self.fail(f"last dimension of {what}", dim, f"a multiple of {heads}")
        (n, s, width), size = shape, divided(keys[2], self.kv_num_heads)
        if divided(width, self.num_heads) not in (size, None) and size is not None:
            raise self.fail("size of heads of q and k", (width, keys[2]), "one")
        want_dims(self, "k", k, n, s, None)
        want_dims(self, "v", v, n, s, keys[2])
        if (past_k is None) != (past_v is None):
            raise self.fail("past_k and past_v", "one", "both or none")
        row = (size, size + SCALE_BYTES) if held == I8 and size is not None else size
        want_dims(self, "past_k", past_k, n, self.kv_num_heads, None, row)
        want_dims(self, "past_v", past_v, n, self.kv_num_heads, *((None, row) if past is None else past[2:]))
        want_dims(self, "seqlens_k", seqlens_k, *((n, 1) if len(seqlens_k.shape or ()) == 2 else (n,)))
        want_one(self, total=total)
        want_dims(self, "sink", sink, self.num_heads)
        length = self._length(n, s, 0 if past is None else past[2], total, bias)
        width = keys[2] // self.kv_num_heads if past is None or held != I8 else past[3]
        present = TensorType(held, (keys[0], self.kv_num_heads, length, width))
        return TensorType(dtype, shape), present, present

    def _length(self, n: Dim, s: Dim, held: Dim, total: TensorType, bias: TensorType | None) -> Dim:
        """Positions of the present, for a past of ``held``; raises ShapeError for a total or a bias that does not fit.

        A total that is not greater than the past may stand at its bound, so the bias is not held against it.
        """
        length: Dim = held if known_dims(total) == [held] else fresh_dim("present")
        scores: Dim | None = None
        if total.known is not None and isinstance(held, int):
            (whole,) = known_ints(total) or [0]
            if whole < 0 or (isinstance(s, int) and held < whole < s):
                raise self.fail("total", whole, f"at least the {s} new keys")
            length, scores = max(held, whole), whole if whole > held else None
        want_dims(self, "bias", bias, (1, n), (1, self.num_heads), s, scores)
        columns = bias.shape[3] if bias is not None and bias.shape is not None else s
        if isinstance(s, int) and isinstance(columns, int) and columns < s:
            raise self.fail("shape of bias", bias, f"at least {s} keys")
        return length

    def reference(
        self,
        q: Array,
        k: Array,
        v: Array,
        past_k: OptionalArray,
        past_v: OptionalArray,
        seqlens_k: Array,
        total: Array,
        bias: OptionalArray = None,
        sink: OptionalArray = None,
    ) -> tuple[Array, Array, Array]:
        n, s = q.shape[:2]
        whole = int(total.reshape(-1)[0])
        if s != whole:
            room = max(whole, 0 if past_k is None else past_k.shape[2])
            most = room if bias is None else min(room, bias.shape[3])
            want_between(self, "seqlens_k", seqlens_k, s - 1, most - 1)
        valid = seqlens_k.reshape(-1).astype(np.int64) + 1
        before = np.zeros(n, np.int64) if s == whole else valid - s
        queries = _by_heads(widened(q), self.num_heads)
        keys = self._present(_by_heads(k, self.kv_num_heads), past_k, before, whole)
        values = self._present(_by_heads(v, self.kv_num_heads), past_v, before, whole)
        y = np.zeros_like(queries)
        group = self.num_heads // self.kv_num_heads
        scale = queries.dtype.type(self.scale or 1 / np.sqrt(queries.shape[-1]))
        for b in range(n):
            seen = before[b] + s if s == whole else valid[b]
            size = queries.shape[-1]
            own_k, own_v = (np.repeat(decoded(x[b, :, :seen], size), group, axis=0) for x in (keys, values))
            scores = np.matmul(queries[b], own_k.swapaxes(-1, -2)) * scale
            if self.softcap > 0:
                scores = np.tanh(scores / scores.dtype.type(self.softcap)) * scores.dtype.type(self.softcap)
            if bias is not None:
                if bias.shape[3] < seen:
                    raise self.fail("last dimension of bias", bias.shape[3], f"at least the {seen} valid keys")
                scores = scores + widened(bias[b if bias.shape[0] > 1 else 0, :, :, :seen])
            rows, columns = before[b] + np.arange(s)[:, None], np.arange(seen)[None, :]
            hidden = columns > rows
            if self.local_window >= 0:
                hidden |= columns <= rows - self.local_window
            scores = np.where(hidden, scores.dtype.type(-np.inf), scores)
            y[b] = np.matmul(self._weights(scores, sink), own_v)
        merged = np.ascontiguousarray(y.swapaxes(1, 2)).reshape(q.shape)
        return merged.astype(q.dtype, copy=False), keys, values

    def _weights(self, scores: Array, sink: OptionalArray) -> Array:
        """Softmax of [num_heads, s, keys], with the sinks among what is summed."""
        if sink is None and not self.smooth:
            return np.asarray(masked_softmax(scores, -1))
        drain = np.zeros(len(scores), scores.dtype) if sink is None else widened(sink).astype(scores.dtype)
        columns = np.broadcast_to(drain[:, None, None], (*scores.shape[:-1], 1))
        return np.asarray(masked_softmax(np.concatenate([scores, columns], axis=-1), -1)[..., :-1])

    def _present(self, new: Array, past: OptionalArray, before: Array, whole: int) -> Array:
        """The cache with new rows behind the valid ones; rows that hold nothing are those of the past, or 0."""
        n, heads, s, size = new.shape
        held, width, dtype = (0, size, new.dtype) if past is None else (*past.shape[2:], past.dtype)
        present = np.zeros((n, heads, max(held, whole), width), dtype)
        new = coded(new, width) if dtype == I8 else new
        for b, start in enumerate(before):
            if past is not None and start > 0:
                present[b, :, :start] = past[b, :, :start]
            with np.errstate(over="ignore"):
                present[b, :, start : start + s] = new[b]
        return present


@op("TensorScatter")
class TensorScatter(Op):
    """y = a cache with new entries written along its sequence axis.

    past: [n, ..., max length, ...] any · update: the same but for the axis · write_indices: [n] i64, zeros if omitted.
    mode: ``linear``, or ``circular`` where places wrap around.  Source: ONNX TensorScatter-24.
    """

    axis: int = -2
    mode: str = "linear"
    data_bounds = bounded(
        write_indices=(
            "which rows are written; tested against the axis on a copy that the kernel reads, else refused; "
            "circular: taken modulo the axis"
        ),
    )

    def infer(self, past: TensorType, update: TensorType, write_indices: TensorType | None = None) -> TensorType:
        same_dtype(self, past, update)
        want_among(self, ("linear", "circular"), mode=self.mode)
        want_dtypes(self, INDICES, write_indices=write_indices)
        if past.shape is not None:
            axis = normalise_axis(self, self.axis, len(past.shape))
            if axis == 0:
                raise self.fail("axis", self.axis, "another than that of the batch")
            want_dims(self, "update", update, *past.shape[:axis], None, *past.shape[axis + 1 :])
            want_dims(self, "write_indices", write_indices, past.shape[0])
            room, length = past.shape[axis], None if update.shape is None else update.shape[axis]
            if isinstance(room, int) and isinstance(length, int) and length > room:
                raise self.fail(f"dimension {axis} of update", length, f"at most {room}")
        return TensorType(past.dtype, past.shape)

    def reference(self, past: Array, update: Array, write_indices: Array | None = None) -> Array:
        y = past.copy()
        axis = normalise_axis(self, self.axis, past.ndim)
        starts = np.zeros(len(past), int) if write_indices is None else write_indices
        if self.mode == "linear" and update.size:
            want_between(self, "write_indices", starts, 0, past.shape[axis] - update.shape[axis])
        for target, new, start in zip(y, update, starts, strict=True):
            places = start + np.arange(new.shape[axis - 1])
            if self.mode == "circular":
                places = places % past.shape[axis]
            np.moveaxis(target, axis - 1, 0)[places] = np.moveaxis(new, axis - 1, 0)
        return y
