"""Matrix products, convolutions, attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.hardware.drivers.openvino.table import NotThereError, OvSite, builds, constant
from bolt_numba.types import F32, I64


@builds("MatMul", by_rank=True)
def matmul(s: OvSite, op: Any, a: Any, b: Any, bias: Any = None) -> Any:
    """The product, then the factor and the bias as nodes of their own."""
    flags = (op.trans_a and s.rank(0) > 1, op.trans_b and s.rank(1) > 1)
    y = s.v.matmul(a, b, *flags)
    if op.alpha != 1:
        y = s.v.multiply(y, s.like(op.alpha))
    return y if bias is None else s.v.add(y, bias)


@builds("Einsum")
def einsum(s: OvSite, op: Any, *xs: Any) -> Any:
    equation = op.equation.replace(" ", "")
    s.want("->" in equation and equation.islower() and "." not in equation, "an equation with what is implied")
    terms = equation.partition("->")[0].split(",")
    s.want(all(len(set(t)) == len(t) for t in terms), "a diagonal")
    return s.v.einsum(list(xs), equation)


def spatial(s: OvSite) -> int:
    """How many spatial axes an image has."""
    count = s.rank() - 2
    s.want(1 <= count <= 3, "images of other than 1 to 3 axes")
    return count


def padding(s: OvSite, windows: Any) -> tuple[list[int], list[int], str]:
    """Pads at begins and ends, and who computes them."""
    rank = len(windows.kernel)
    if windows.auto_pad.startswith("SAME") and s.type(0).is_static:
        windows = windows.resolved(s.dims()[2:])
    if windows.auto_pad.startswith("SAME"):
        return [0] * rank, [0] * rank, windows.auto_pad.lower()
    if windows.auto_pad == "VALID":
        return [0] * rank, [0] * rank, "explicit"
    return list(windows.pads[:rank]), list(windows.pads[rank:]), "explicit"


def _with_bias(s: OvSite, y: Any, bias: Any) -> Any:
    if bias is None:
        return y
    return s.v.add(y, s.v.reshape(bias, s.i64(1, -1, *[1] * spatial(s)), False))


def _grouped(s: OvSite, w: Any, group: int) -> Any:
    """Filters with an axis for the groups; constants stay constants."""
    dims = s.dims(1)
    shape = (group, dims[0] // group, *dims[1:])
    value = s.node.inputs[1]
    if value is not None and value.const is not None:
        return constant(s.v, value.const.reshape(shape))
    return s.v.reshape(w, s.i64(*shape), False)


@builds("Conv", by_rank=True)
def conv(s: OvSite, op: Any, x: Any, w: Any, bias: Any = None) -> Any:
    spatial(s)
    windows = op.windows(s.dims(1)[2:])
    begins, ends, auto = padding(s, windows)
    rest = (list(windows.strides), begins, ends, list(windows.dilations), auto)
    if op.group == 1:
        return _with_bias(s, s.v.convolution(x, w, *rest), bias)
    return _with_bias(s, s.v.group_convolution(x, _grouped(s, w, op.group), *rest), bias)


@builds("ConvTranspose")
def conv_transpose(s: OvSite, op: Any, x: Any, w: Any, bias: Any = None) -> Any:
    """With the pads and the room that follow from the sizes."""
    rank, kernel = spatial(s), s.dims(1)[2:]
    windows = op.windows(kernel)
    if op.output_shape or op.auto_pad.startswith("SAME"):
        pads, extra = _from_sizes(s, op, windows)
    else:
        pads, extra = (windows.pads if op.auto_pad == "NOTSET" else (0,) * (2 * rank)), op.output_padding
    given: dict[str, Any] = {
        "strides": list(windows.strides), "pads_begin": list(pads[:rank]), "pads_end": list(pads[rank:]),
        "dilations": list(windows.dilations), "auto_pad": "explicit", "output_padding": list(extra) or [0] * rank,
    }  # fmt: skip
    if op.group == 1:
        return _with_bias(s, s.v.convolution_backprop_data(x, w, **given), bias)
    return _with_bias(s, s.v.group_convolution_backprop_data(x, _grouped(s, w, op.group), **given), bias)


def _from_sizes(s: OvSite, op: Any, windows: Any) -> tuple[Sequence[int], list[int]]:
    """Pads and output_padding that make the wanted sizes of these."""
    sizes, rank = s.dims()[2:], len(windows.kernel)
    pads = op.resolved_pads(sizes, windows.kernel)
    outs = op.output_dims(sizes, windows.kernel)
    extra = []
    for i, size in enumerate(sizes):
        plain = (size - 1) * windows.strides[i] + windows.spans[i] - pads[i] - pads[rank + i]
        extra.append(int(outs[i]) - plain)
    if min(extra) < 0 or any(e >= stride for e, stride in zip(extra, windows.strides, strict=True)):
        raise NotThereError("a result that is larger than what its input reaches")
    return pads, extra


@builds("FusedAttention")
def attention(s: OvSite, op: Any, q: Any, k: Any = None, v: Any = None, mask: Any = None) -> Any:
    """Two products and the softmax between them, which OpenVINO fuses by itself."""
    s.want(not op.causal, "a triangle of hidden keys")
    if op.packed:
        axis = s.const(np.array(s.rank() - 2, I64))
        q, k, v = s.v.split(q, axis, 3).outputs()
    ranks = [s.rank(i if s.given(i) else 0) for i in range(3)]
    s.want(len(set(ranks)) == 1, "operands of several ranks")
    s.want(not any(s.is_small(i) for i in (1, 2)), "few keys or values that are constants, which it fails to compile")
    q, k, v = (
        _heads(s, x, rank) if layout == "SHD" else x
        for x, layout, rank in zip((q, k, v), op.layouts, ranks, strict=True)
    )
    scores = s.v.multiply(s.v.matmul(q, k, False, True), s.const(np.array(op.scale, F32)))
    if mask is not None:
        s.want(_is_finite(s), "a mask that may hide whole rows")
        scores = s.v.add(scores, mask)
    y = s.v.matmul(s.v.softmax(scores, -1), v, False, False)
    return _heads(s, y, max(ranks)) if op.y_layout == "SHD" else y


def _heads(s: OvSite, x: Any, rank: int) -> Any:
    """The axes of heads and positions exchanged."""
    return s.v.transpose(x, s.i64(*range(rank - 3), rank - 2, rank - 3, rank - 1))


def _is_finite(s: OvSite) -> bool:
    """Whether no key is hidden by infinity: a whole row of them is 0 with us, and NaN with OpenVINO."""
    known = s.type(3).known
    return known is None or bool(np.isfinite(known).all())
