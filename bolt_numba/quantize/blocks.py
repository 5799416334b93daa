"""Weights [n, k] as integers of 4 or 8 bits with a scale for each block of a row: nearest ones, or by GPTQ."""

from __future__ import annotations

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import F32, F64, Array

RATIOS = tuple(1 - 0.04 * i for i in range(11))
"""Parts of a block's range of which the one with the least squared error is taken: to cut off few may pay."""
DAMPING = 0.01
"""What is added to the diagonal of the second moments, over its mean, so that they can be inverted."""
COLUMNS = 128
"""Columns of GPTQ whose errors are handed on to all later ones together."""
LEAST_SCALE = np.finfo(F32).tiny


@record()
class Blocks:
    """codes: whole numbers [n, k] f32, from low to high · scale, zero: [n, blocks] f32 · block: numbers that share."""

    codes: Array
    scale: Array
    zero: Array
    block: int

    @property
    def real(self) -> Array:
        """What they mean."""
        k = self.codes.shape[1]
        scale, zero = (np.repeat(v, min(self.block, k), axis=1)[:, :k] for v in (self.scale, self.zero))
        return np.asarray((self.codes - zero) * scale)


def _steps(w: Array, bits: int, symmetric: bool, ratios: tuple[float, ...]) -> tuple[Array, Array]:
    """Scale and zero point [n] of rows [n, k] of one block each, those of least squared error among ``ratios``."""
    low, high = np.minimum(w.min(axis=1), 0), np.maximum(w.max(axis=1), 0)
    if symmetric:
        high = np.maximum(high, -low)
        low = -high
    levels = 2**bits - (2 if symmetric else 1)
    best, found = np.full(len(w), np.inf), (np.ones(len(w), F32), np.zeros(len(w), F32))
    for ratio in ratios:
        scale = np.maximum((high - low) * F32.type(ratio / levels), LEAST_SCALE)
        zero = np.zeros(len(w), F32) if symmetric else np.clip(np.rint(-low * F32.type(ratio) / scale), 0, levels)
        error = np.square(_meant(w, scale, zero, bits, symmetric) - w).sum(axis=1)
        better = error < best
        best = np.where(better, error, best)
        found = np.where(better, scale, found[0]), np.where(better, zero, found[1])
    return found[0].astype(F32), found[1].astype(F32)


def _codes(w: Array, scale: Array, zero: Array, bits: int, symmetric: bool) -> Array:
    """Whole numbers of rows."""
    low, high = (1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1) if symmetric else (0, 2**bits - 1)
    return np.asarray(np.clip(np.rint(w / scale[:, None]) + zero[:, None], low, high))


def _meant(w: Array, scale: Array, zero: Array, bits: int, symmetric: bool) -> Array:
    return np.asarray((_codes(w, scale, zero, bits, symmetric) - zero[:, None]) * scale[:, None])


def nearest(w: Array, bits: int, block: int, symmetric: bool, search: bool = False) -> Blocks:
    """The nearest whole numbers, of the whole range of each block or (``search``) of the part of least error."""
    blocks = len(w), -(-w.shape[1] // block)
    made = Blocks(np.empty_like(w), np.empty(blocks, F32), np.empty(blocks, F32), block)
    for b in range(made.scale.shape[1]):
        part = slice(b * block, (b + 1) * block)
        scale, zero = _steps(w[:, part], bits, symmetric, RATIOS if search else RATIOS[:1])
        made.scale[:, b], made.zero[:, b] = scale, zero
        made.codes[:, part] = _codes(w[:, part], scale, zero, bits, symmetric)
    return made


def gptq(w: Array, moments: Array, bits: int, block: int, symmetric: bool) -> Blocks:
    """Column by column; what rounding one adds to products of the data, later ones take away as well as they can.

    moments: [k, k], the sum of products of each two inputs.  Source: Frantar et al., GPTQ (2022), with its order of
    columns kept and the scale of a block from its weights as they are when it begins.
    """
    k = w.shape[1]
    left, made = w.astype(F64), nearest(w, bits, block, symmetric)
    upper = _inverse_factor(moments)
    for start in range(0, k, COLUMNS):
        end = min(start + COLUMNS, k)
        errors = np.zeros((len(w), end - start))
        for i in range(start, end):
            b = i // block
            if i % block == 0:
                part = left[:, i : i + block].astype(F32)
                made.scale[:, b], made.zero[:, b] = _steps(part, bits, symmetric, RATIOS)
            numbers = made.scale[:, b], made.zero[:, b]
            made.codes[:, i] = _codes(left[:, i : i + 1].astype(F32), *numbers, bits, symmetric)[:, 0]
            error = (left[:, i] - (made.codes[:, i] - numbers[1]) * numbers[0]) / upper[i, i]
            left[:, i:end] -= np.outer(error, upper[i, i:end])
            errors[:, i - start] = error
        left[:, end:] -= errors @ upper[start:end, end:]
    return made


def _inverse_factor(moments: Array) -> Array:
    """Upper triangle U with U^T U the inverse of the damped second moments."""
    dense = moments.astype(F64)
    mean = float(np.mean(np.diag(dense)))
    dense[np.diag_indices(len(dense))] += DAMPING * mean if mean > 0 else 1.0
    return np.asarray(np.linalg.cholesky(np.linalg.inv(dense)).T)
