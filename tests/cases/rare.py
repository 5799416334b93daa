"""Cases of signal processing, regions of interest, and operators that few networks use."""

from __future__ import annotations

import numpy as np

from bolt_numba.ops import detection as d
from bolt_numba.ops import rare as r
from bolt_numba.ops import signal as s
from bolt_numba.types import F32, F64, I8, I32, I64, U8, Array
from tests.cases import Case, cases
from tests.cases.draw import Draw, axis_of, flags, pick, real, shapes, small, whole


def scalar(value: float, dtype: object = I64) -> Array:
    return np.array(value, dtype=dtype)  # type: ignore[call-overload, no-any-return]


@cases(r.BitCast)
def bit_cast(draw: Draw, op: type[r.BitCast]) -> Case:
    source, to = pick(draw, (F32, I32), (I32, F32), (F64, I64), (I8, U8), (U8, I8))
    return Case(op(to), (whole(draw, shapes(draw, 0, 3, 200), 1, 100, source),))


@cases(r.CumProd)
def cum_prod(draw: Draw, op: type[r.CumProd]) -> Case:
    x = whole(draw, shapes(draw, 1, 3, 60), -2, 2, pick(draw, F32, I64))
    return Case(op(draw(flags), draw(flags)), (x, scalar(axis_of(draw, x.ndim), pick(draw, I64, I32))))


@cases(r.Det)
def det(draw: Draw, op: type[r.Det]) -> Case:
    m = pick(draw, 1, 2, 3, 4)
    return Case(op(), (real(draw, (*shapes(draw, 0, 2, 20), m, m)),), exact=False, rtol=1e-3)


@cases(r.Col2Im)
def col2im(draw: Draw, op: type[r.Col2Im]) -> Case:
    block = (pick(draw, 1, 2, 3), pick(draw, 1, 2, 3))
    strides, dilations = (pick(draw, 1, 2), pick(draw, 1, 2)), (pick(draw, 1, 2), 1)
    pads = tuple(pick(draw, 0, 1) for _ in range(4))
    outs = (draw(small) + 2, draw(small) + 2)
    image = tuple(
        (outs[i] - 1) * strides[i] + (block[i] - 1) * dilations[i] + 1 - pads[i] - pads[2 + i] for i in range(2)
    )
    x = whole(draw, (2, 3 * block[0] * block[1], outs[0] * outs[1]))
    return Case(op(dilations, pads, strides), (x, np.array(image), np.array(block)))


@cases(r.ReverseSequence)
def reverse_sequence(draw: Draw, op: type[r.ReverseSequence]) -> Case:
    x = whole(draw, shapes(draw, 2, 4, 500), -50, 50)
    batch = pick(draw, 0, 1)
    return Case(op(batch, 1 - batch), (x, whole(draw, (x.shape[batch],), 1, x.shape[1 - batch], I64)))


@cases(r.TensorScatter)
def tensor_scatter(draw: Draw, op: type[r.TensorScatter]) -> Case:
    past = whole(draw, shapes(draw, 2, 4, 500), -50, 50)
    axis = pick(draw, *range(1, past.ndim))
    room = past.shape[axis]
    length = pick(draw, *range(1, room + 1))
    dims = list(past.shape)
    dims[axis] = length
    mode = pick(draw, "linear", "circular")
    top = room - 1 if mode == "circular" else room - length
    places = whole(draw, (len(past),), 0, top, I64)
    update = whole(draw, dims, 51, 99)
    inputs = (past, update, places) if mode == "circular" or draw(flags) else (past, update)
    return Case(op(pick(draw, axis, axis - past.ndim), mode), inputs)


@cases(s.DFT)
def dft(draw: Draw, op: type[s.DFT]) -> Case:
    inverse, onesided = pick(draw, (False, False), (False, True), (True, False), (True, True))
    parts = 1 if onesided and not inverse else 2
    dims = (*shapes(draw, 1, 3, 60), pick(draw, 4, 5, 8), parts)
    axis = len(dims) - 2 if onesided and inverse else pick(draw, *range(len(dims) - 1), -2)
    x = real(draw, dims)
    if inverse and onesided:
        x[..., 0, 1] = x[..., -1, 1] = 0  # frequencies of a real signal
    length = scalar(pick(draw, 4, 6, 9)) if draw(flags) and not inverse else None
    return Case(op(inverse, onesided), (x, length, scalar(axis)), exact=False)


@cases(s.STFT)
def stft(draw: Draw, op: type[s.STFT]) -> Case:
    signal = real(draw, (2, pick(draw, 20, 33), 1))
    length = pick(draw, 4, 7, 8)
    window = real(draw, (length,)) if draw(flags) else None
    given = scalar(length) if window is None or draw(flags) else None
    return Case(op(draw(flags)), (signal, scalar(pick(draw, 1, 3, 8)), window, given), exact=False)


@cases(s.MelWeightMatrix)
def mel_weight_matrix(draw: Draw, op: type[s.MelWeightMatrix]) -> Case:
    bands, length = pick(draw, 4, 8), pick(draw, 16, 64)
    edges = (scalar(pick(draw, 0.0, 20.0), F32), scalar(pick(draw, 4000.0, 7900.0), F32))
    return Case(op(pick(draw, F32, F64)), (scalar(bands), scalar(length), scalar(16000), *edges), exact=False)


@cases(d.RoiAlign)
def roi_align(draw: Draw, op: type[d.RoiAlign]) -> Case:
    x = real(draw, (2, 3, 9, 11))
    begins = real(draw, (4, 2), -2.0, 8.0)
    rois = np.concatenate([begins, begins + real(draw, (4, 2), 0.5, 9.0)], axis=1)
    operator = op(
        pick(draw, "avg", "max"),
        pick(draw, 1, 2, 3),
        pick(draw, 1, 2),
        pick(draw, 0, 1, 2),
        pick(draw, 1.0, 0.5),
        pick(draw, "half_pixel", "output_half_pixel"),
    )
    return Case(operator, (x, rois, whole(draw, (4,), 0, 1, I64)), exact=False, rtol=1e-4)


@cases(d.MaxRoiPool)
def max_roi_pool(draw: Draw, op: type[d.MaxRoiPool]) -> Case:
    x = real(draw, (2, 3, 9, 11))
    begins = whole(draw, (4, 2), -2, 8)
    corners = np.concatenate([begins, begins + whole(draw, (4, 2), 0, 9)], axis=1)
    rois = np.concatenate([whole(draw, (4, 1), 0, 1), corners], axis=1)
    return Case(op((pick(draw, 1, 2, 3), pick(draw, 1, 2)), pick(draw, 1.0, 0.5)), (x, rois))


@cases(d.DeformConv)
def deform_conv(draw: Draw, op: type[d.DeformConv]) -> Case:
    group, og = pick(draw, 1, 2), pick(draw, 1, 2)
    kernel, strides = (pick(draw, 1, 2, 3), pick(draw, 1, 2)), (pick(draw, 1, 2), 1)
    pads = (pick(draw, 0, 1), 0, 1, 0)
    x, w = real(draw, (2, 4, 6, 7)), real(draw, (4, 4 // group, *kernel))
    operator = op(strides, pads, (), group, offset_group=og)
    outs = operator.windows(kernel).static_dims(operator, x.shape[2:])
    taps = og * kernel[0] * kernel[1]
    offset = real(draw, (2, 2 * taps, *outs), -1.5, 1.5)
    bias = real(draw, (4,)) if draw(flags) else None
    mask = real(draw, (2, taps, *outs), 0.0, 1.0) if draw(flags) else None
    return Case(operator, (x, w, offset, bias, mask), exact=False, rtol=1e-3)
