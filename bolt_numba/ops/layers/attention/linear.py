"""Layers that remember by a state of fixed size: linear attention, and the short convolution before it."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.budget import CALL, spend
from bolt_numba.base.types import Array, TensorType
from bolt_numba.ops.dtypes import FLOATS, same_dtype, widened
from bolt_numba.ops.pointwise.references import sigmoid
from bolt_numba.ops.registry import Op, op, want_among, want_dtype
from bolt_numba.ops.shapes import shape_of, want_dims

RULES = ("linear", "gated", "delta", "gated_delta")


@op("LinearAttention")
class LinearAttention(Op):
    """Attention by a state [d, e] of each head, which every position changes: y_t = scale * q_t S_t.

    ``linear``: S_t = S_(t-1) + k_t (x) v_t.  ``gated``: S_(t-1) is multiplied by exp(decay_t) first.  ``delta``: what
    is added to S is k_t (x) beta_t (v_t - k_t S) instead.  ``gated_delta``: both.

    q: [n, t, q_num_heads * d] · k: [n, t, any * d] · v: [n, t, kv_num_heads * e] · past: [n, kv_num_heads, d, e], zeros
    if omitted · decay: [n, t, kv_num_heads], or that times d, a number for each row of the state · beta: [n, t,
    kv_num_heads or 1] -> y: [n, t, max(q_num_heads, kv_num_heads) * e], present as past.  Numbers of heads divide each
    other, and neighbours share what there is less of.  scale 0: 1 / sqrt(d).  A past that is the memory of the present
    is changed in place.
    Source: ONNX LinearAttention-27; with several states for a head of queries or keys as onnxruntime has it.
    """

    q_num_heads: int
    kv_num_heads: int
    scale: float = 0.0
    update_rule: str = "gated_delta"

    @property
    def is_gated(self) -> bool:
        return "gated" in self.update_rule

    @property
    def is_delta(self) -> bool:
        return "delta" in self.update_rule

    @property
    def heads(self) -> int:
        """Those of y."""
        return max(self.q_num_heads, self.kv_num_heads)

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        past: TensorType | None = None,
        decay: TensorType | None = None,
        beta: TensorType | None = None,
    ) -> tuple[TensorType, TensorType]:
        dtype = same_dtype(self, q, k, v, past, decay, beta)
        want_dtype(self, "q", dtype, *FLOATS)
        want_among(self, RULES, update_rule=self.update_rule)
        heads, states = self.q_num_heads, self.kv_num_heads
        if min(heads, states) < 1 or max(heads, states) % min(heads, states):
            raise self.fail("q_num_heads", heads, f"a multiple or a divisor of kv_num_heads {states}")
        for name, gate, wanted in (("decay", decay, self.is_gated), ("beta", beta, self.is_delta)):
            if wanted and gate is None:
                raise self.fail(name, "none", f"one, for update_rule {self.update_rule}")
        shape, keys, values = (shape_of(self, name, x, 3) for name, x in (("q", q), ("k", k), ("v", v)))
        for name, found, parts in (("q", shape, heads), ("v", values, states)):
            if found is not None and isinstance(found[2], int) and (found[2] % parts or not found[2]):
                raise self.fail(f"last dimension of {name}", found[2], f"a multiple of {parts} heads")
        if shape is None or keys is None or values is None:
            return TensorType(dtype, None), TensorType(dtype, None)
        n, t = shape[:2]
        d = shape[2] // heads
        want_dims(self, "k", k, n, t, None)
        if isinstance(d, int) and isinstance(keys[2], int) and (not keys[2] or keys[2] % d or states % (keys[2] // d)):
            raise self.fail("last dimension of k", keys[2], f"a divisor of {states} heads, of {d} each")
        want_dims(self, "v", v, n, t, None)
        state = (n, states, d, values[2] // states)
        want_dims(self, "past", past, *state)
        want_dims(self, "decay", decay, n, t, (states, states * d))
        want_dims(self, "beta", beta, n, t, (states, 1))
        return TensorType(dtype, (n, t, self.heads * state[3])), TensorType(dtype, state)

    def reference(
        self,
        q: Array,
        k: Array,
        v: Array,
        past: Array | None = None,
        decay: Array | None = None,
        beta: Array | None = None,
    ) -> tuple[Array, Array]:
        n, t = q.shape[:2]
        d, e = q.shape[2] // self.q_num_heads, v.shape[2] // self.kv_num_heads

        def by_heads(x: Array, heads: int) -> Array:
            own = widened(x).reshape(n, t, x.shape[2] // d, d)
            return np.repeat(own, heads // own.shape[2], axis=2)

        queries, keys = by_heads(q, self.heads), by_heads(k, self.kv_num_heads)
        values = widened(v).reshape(n, t, self.kv_num_heads, e)
        state = np.zeros((n, self.kv_num_heads, d, e), values.dtype) if past is None else widened(past)
        y = np.zeros((n, t, self.heads, e), values.dtype)
        scale = y.dtype.type(self.scale or 1 / np.sqrt(d))
        spend(t * (8 * CALL + 4 * state.size), self.name)
        for i in range(t):
            if self.is_gated and decay is not None:
                state = state * np.exp(widened(decay)[:, i].reshape(n, self.kv_num_heads, -1, 1))
            new, key = values[:, i], keys[:, i, :, :, None]
            if self.is_delta and beta is not None:
                new = (new - (state * key).sum(axis=2)) * widened(beta)[:, i, :, None]
            state = state + key * new[:, :, None, :]
            seen = np.repeat(state, self.heads // self.kv_num_heads, axis=1)
            y[:, i] = np.matmul(queries[:, i, :, None, :], seen)[:, :, 0] * scale
        merged = y.reshape(n, t, self.heads * e)
        return merged.astype(q.dtype, copy=False), state.astype(q.dtype, copy=False)


@op("CausalConvWithState")
class CausalConvWithState(Op):
    """A convolution of each channel with what stood before: y_i = b + sum_j w_j z_(i + j * dilation), z = past, x.

    x: [n, c, t] · w: [c, 1, k] · b: [c] · past: [n, c, (k - 1) * dilation], zeros if omitted -> y as x, and the last
    positions of z, as past.  swish: y * sigmoid(y) in the place of y.  A past that is the memory of the present is
    changed in place.
    Source: ONNX CausalConvWithState-27; dilation as onnxruntime has it.
    """

    swish: bool = False
    dilation: int = 1

    def infer(
        self, x: TensorType, w: TensorType, b: TensorType | None = None, past: TensorType | None = None
    ) -> tuple[TensorType, TensorType]:
        dtype = same_dtype(self, x, w, b, past)
        want_dtype(self, "x", dtype, *FLOATS)
        self.fail_if(self.dilation < 1, "dilation", self.dilation, "at least 1")
        shape, taps = shape_of(self, "x", x, 3), shape_of(self, "w", w, 3)
        if shape is None or taps is None:
            return TensorType(dtype, None), TensorType(dtype, None)
        n, c, _ = shape
        want_dims(self, "w", w, c, 1, None)
        self.fail_if(taps[2] == 0, "last dimension of w", 0, "at least 1")
        held = (n, c, (taps[2] - 1) * self.dilation)
        want_dims(self, "b", b, c)
        want_dims(self, "past", past, *held)
        return TensorType(dtype, shape), TensorType(dtype, held)

    def reference(self, x: Array, w: Array, b: Array | None = None, past: Array | None = None) -> tuple[Array, Array]:
        n, c, t = x.shape
        held = (w.shape[2] - 1) * self.dilation
        before = np.zeros((n, c, held), x.dtype) if past is None else past
        whole = np.concatenate([before, x], axis=2)
        y = np.zeros(x.shape, widened(x).dtype) + (0 if b is None else widened(b)[:, None])
        spend(w.shape[2] * (CALL + x.size), self.name)
        for j in range(w.shape[2]):
            at = j * self.dilation
            y = y + widened(w)[:, :, j] * widened(whole)[:, :, at : at + t]
        if self.swish:
            y = y * sigmoid(y)
        return y.astype(x.dtype, copy=False), np.ascontiguousarray(whole[:, :, t:])
