"""Normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.hardware.drivers.openvino.table import OvSite, builds
from bolt_numba.types import F32


def _along_channels(s: OvSite, x: Any) -> Any:
    return s.v.reshape(x, s.i64(1, -1, *[1] * (s.rank() - 2)), False)


@builds("BatchNormalization", by_rank=True)
def batch_norm(s: OvSite, op: Any, x: Any, *statistics: Any) -> Any:
    return s.v.batch_norm_inference(x, *statistics, float(op.epsilon))


@builds("InstanceNormalization")
def instance_norm(s: OvSite, op: Any, x: Any, scale: Any, bias: Any) -> Any:
    s.want(s.rank() > 2, "images without spatial axes")
    y = s.v.mvn(x, s.i64(*range(2, s.rank())), True, float(op.epsilon), "inside_sqrt")
    return s.v.add(s.v.multiply(y, _along_channels(s, scale)), _along_channels(s, bias))


@builds("GroupNormalization")
def group_norm(s: OvSite, op: Any, x: Any, scale: Any, bias: Any) -> Any:
    s.want(s.rank() > 2, "images without spatial axes")
    return s.v.group_normalization(x, scale, bias, op.num_groups, float(op.epsilon))


@builds("LayerNormalization", by_rank=True)
def layer_norm(s: OvSite, op: Any, x: Any, scale: Any, bias: Any = None) -> Any:
    s.want(not op.stats, "the statistics")
    first = op.axis % s.rank()
    y = s.v.mvn(x, s.i64(*range(first, s.rank())), True, float(op.epsilon), "inside_sqrt")
    y = s.v.multiply(y, scale)
    return y if bias is None else s.v.add(y, bias)


@builds("RMSNormalization")
def rms_norm(s: OvSite, op: Any, x: Any, scale: Any) -> Any:
    axes = s.i64(*range(op.axis % s.rank(), s.rank()))
    mean = s.v.reduce_mean(s.v.multiply(x, x), axes, True)
    return s.v.multiply(s.v.divide(x, s.v.sqrt(s.v.add(mean, s.const(np.array(op.epsilon, F32))))), scale)


@builds("LRN")
def lrn(s: OvSite, op: Any, x: Any) -> Any:
    s.want(op.size % 2 == 1, "an even number of neighbours")
    s.want(s.rank() == 4, "images of other than 2 axes")
    return s.v.lrn(x, s.i64(1), float(op.alpha), float(op.beta), float(op.bias), op.size)


@builds("LpNormalization")
def lp_norm(s: OvSite, op: Any, x: Any) -> Any:
    """0 where the norm is 0."""
    s.want(s.rank() > 0, "the norm of a number")
    norm = (s.v.reduce_l1 if op.p == 1 else s.v.reduce_l2)(x, s.i64(op.axis), True)
    zero = s.v.equal(norm, s.like(0))
    return s.v.divide(x, s.v.select(zero, s.like(1), norm))
