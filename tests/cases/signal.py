"""Cases of signal processing."""

from __future__ import annotations

import numpy as np

from bolt_numba.ops.arrays import signal as s
from bolt_numba.types import F32, F64, I64, Array
from tests.cases import Case, cases
from tests.cases.draw import Draw, flags, pick, real, shapes


def scalar(value: float, dtype: object = I64) -> Array:
    return np.array(value, dtype=dtype)  # type: ignore[call-overload, no-any-return]


@cases(s.DFT)
def dft(draw: Draw, op: type[s.DFT]) -> Case:
    inverse, onesided = pick(draw, (False, False), (False, True), (True, False), (True, True))
    parts = pick(draw, 1, 2) if onesided is inverse else 2 if inverse else 1
    dims = (*shapes(draw, 1, 3, 60), pick(draw, 2, 3, 4, 5, 8, 15, 16, 67), parts)
    axis = len(dims) - 2 if onesided and inverse else pick(draw, *range(len(dims) - 1), -2)
    x = real(draw, dims)
    length = scalar(pick(draw, 1, 4, 6, 9, 71)) if draw(flags) else None
    if inverse and onesided:  # frequencies of a real signal
        n = 2 * (dims[-2] - 1) if length is None else int(length)
        x[..., 0, 1:] = x[..., n // 2 :, 1:] = 0
    return Case(op(inverse, onesided), (x, length, scalar(axis)), exact=False)


@cases(s.STFT)
def stft(draw: Draw, op: type[s.STFT]) -> Case:
    length = pick(draw, 1, 2, 4, 7, 8, 12, 15, 30, 32, 50, 128)
    signal = real(draw, (2, length + pick(draw, 0, 16, 29), 1))
    window = real(draw, (length,)) if draw(flags) else None
    given = scalar(length) if window is None or draw(flags) else None
    return Case(op(draw(flags)), (signal, scalar(pick(draw, 1, 3, 8)), window, given), exact=False)


@cases(s.MelWeightMatrix)
def mel_weight_matrix(draw: Draw, op: type[s.MelWeightMatrix]) -> Case:
    bands, length = pick(draw, 4, 8), pick(draw, 16, 64)
    edges = (scalar(pick(draw, 0.0, 20.0), F32), scalar(pick(draw, 4000.0, 7900.0), F32))
    return Case(op(pick(draw, F32, F64)), (scalar(bands), scalar(length), scalar(16000), *edges), exact=False)
