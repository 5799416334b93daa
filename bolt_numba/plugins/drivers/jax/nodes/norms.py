"""Normalisations."""

from __future__ import annotations

from typing import Any

from bolt_numba.base.types import F32
from bolt_numba.plugins.drivers.jax.table import FLOATS, JaxSite, builds


def along_channels(v: Any, rank: int) -> Any:
    """One number for each channel, against [n, c, spatial...]."""
    return v.reshape(-1, *(1,) * (rank - 2))


def _centred(s: JaxSite, x: Any, axes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """X less its mean, the mean, and the variance."""
    mean = s.np.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    return centred, mean, s.np.mean(centred * centred, axis=axes, keepdims=True)


@builds("BatchNormalization", dtypes=FLOATS, by_rank=True)
def batch_norm(s: JaxSite, op: Any, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    rank = s.rank()
    factor = scale / s.np.sqrt(variance + float(op.epsilon))
    y = (x - along_channels(mean, rank)) * along_channels(factor, rank) + along_channels(bias, rank)
    return y.astype(x.dtype)


@builds("InstanceNormalization", "GroupNormalization", dtypes=FLOATS, by_rank=True)
def group_norm(s: JaxSite, op: Any, x: Any, scale: Any, bias: Any) -> Any:
    """Over each channel, or each group of them, and the spatial axes."""
    s.want(s.rank() > 2, "images without spatial axes")
    n, c = s.dims()[:2]
    grouped = x.reshape(n, op.num_groups if op.name == "GroupNormalization" else c, -1)
    centred, _, variance = _centred(s, grouped, (2,))
    y = (centred / s.np.sqrt(variance + float(op.epsilon))).reshape(x.shape)
    return y * along_channels(scale, s.rank()) + along_channels(bias, s.rank())


@builds("LayerNormalization", dtypes=FLOATS, by_rank=True)
def layer_norm(s: JaxSite, op: Any, x: Any, scale: Any, bias: Any = None) -> Any:
    centred, mean, variance = _centred(s, x, tuple(range(s.axis(op.axis), s.rank())))
    inverse = 1 / s.np.sqrt(variance + float(op.epsilon))
    y = centred * inverse * scale
    y = y if bias is None else y + bias
    return (y, mean.astype(F32), inverse.astype(F32)) if op.stats else y


@builds("RMSNormalization", dtypes=FLOATS, by_rank=True)
def rms_norm(s: JaxSite, op: Any, x: Any, scale: Any) -> Any:
    mean = s.np.mean(x * x, axis=tuple(range(s.axis(op.axis), s.rank())), keepdims=True)
    y = (x / s.np.sqrt(mean + float(op.epsilon))).astype(x.dtype)
    return (y * scale).astype(scale.dtype)


@builds("LRN", dtypes=FLOATS)
def lrn(s: JaxSite, op: Any, x: Any) -> Any:
    before = (op.size - 1) // 2
    squares = s.np.pad(x * x, [(0, 0), (before, op.size - 1 - before)] + [(0, 0)] * (s.rank() - 2))
    total = sum(squares[:, i : i + s.dims()[1]] for i in range(op.size))
    return x / (op.bias + op.alpha / op.size * total) ** op.beta


@builds("LpNormalization", dtypes=FLOATS)
def lp_norm(s: JaxSite, op: Any, x: Any) -> Any:
    """0 where the norm is 0."""
    total = s.np.sum(s.np.abs(x) if op.p == 1 else x * x, axis=op.axis, keepdims=True)
    norm = total if op.p == 1 else s.np.sqrt(total)
    return s.np.where(norm == 0, 0, x / s.np.where(norm == 0, 1, norm))
