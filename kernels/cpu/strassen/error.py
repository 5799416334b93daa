"""How far Strassen's algorithm may be from the exact sum, and what balances its sums.  No kernels here.

Sums of `strassen` mix two rows of inputs, two columns of weights, and channels q and q' of the two halves of K.
Channels differ in size by any factor, but what is large in the inputs is small in the weights where a result needs
both.  So channel q' is multiplied by the power of two that makes the largest weights of both equal, and the weights are
divided by it: then nothing is mixed that counts for more than the largest result of its channels.

With D_k the largest magnitude of channel k in both rows and b_k the largest of its weights, the four results of a pair
have roundings of standard size u sqrt(9/4 K sum over k of (D_k b_k)^2): there are 18 squares of D b in each of K/2
terms, and a sum has the roundings of half its terms.  The unit is what results of the two rows may be, max over columns
j of sqrt(sum over k of (D_k w_kj)^2).  For no D is the ratio of the two sums greater than max over k of
b_k / sqrt(sum over j of l_j w_kj^2), whatever the weights l_j of sum 1 (a strategy in a game against D).
`mixing` begins with even ones and moves them to the columns of channels that have few large weights.  Where each of K
channels has one column of its own, the ratio is sqrt(K); filters of networks have 4 to 13.
Source: Higham, "Accuracy and Stability", section 23.2; Higham and Mary, "A new approach to probabilistic rounding error
analysis", 2019.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.kernels.cpu.language.lang import LANES
from bolt_numba.kernels.cpu.products.pack import aligned_empty
from bolt_numba.kernels.registry import MOST_ERROR

UNIT = 2.0**-24
WORST = 0.9
"""The largest error of a layer over its largest value, in the standard size: measured, with inputs and filters of all
kinds, up to 0.85."""
SUMMED = 4
"""Variance of what making the sums rounds, in that of a product: measured."""
LEAST_PART = 2.0**-30
"""Largest weight of a channel over that of the layer, under which its inputs count as if it were this large."""
STEPS = 4
"""Weights of columns that `mixing` tries."""
RANGE = 2.0**40
"""Largest weights above this, or under its inverse, may leave the range of numbers when they are balanced."""


@cache
def even_scales(half: int) -> Array:
    """[2 * half + LANES] f32: scales of filters that are not known."""
    made = aligned_empty((2 * half + LANES,))
    made.fill(1)
    return made


def largest_weights(w: Array) -> tuple[Array, Array]:
    """[k] f32 of [n, k]: each channel's largest magnitude, none under `LEAST_PART` of the greatest; which are above."""
    found = np.maximum(w.max(0), -w.min(0)).astype(np.float32, copy=False)
    least = np.float32(LEAST_PART) * found.max()
    return np.maximum(found, least), found >= least


def _is_ordinary(largest: Array) -> bool:
    return bool(1 / RANGE < largest.max() < RANGE)


def scales_of(w: Array) -> Array:
    """[2 * half + LANES] f32 of [n, k]: by what channels of the second half are multiplied, the inverses, any rest."""
    half = w.shape[1] // 2
    return _scales(largest_weights(w)[0], half)


def _scales(largest: Array, half: int) -> Array:
    if not _is_ordinary(largest):
        return even_scales(half)
    made = even_scales(half).copy()
    exponents = np.rint(np.log2(largest[half:] / largest[:half])).astype(np.int32)
    made[:half] = np.ldexp(np.float32(1), exponents)
    made[half : 2 * half] = np.ldexp(np.float32(1), -exponents)
    return made


def balance(w: Array) -> Array:
    """`scales_of` [n, k], the last of the rest being the bound of the error over the largest value.

    Infinite where a weight is not finite, or all are 0.
    """
    half = w.shape[1] // 2
    largest, counts = largest_weights(w)
    made = _scales(largest, half).copy()
    made[-1] = math.inf
    if _is_ordinary(largest):
        left = made[:half] * largest[:half] / largest[half:]  # of the difference of the two halves
        uneven = np.maximum(1, np.concatenate([1 / left, left]))
        error = UNIT * WORST * math.sqrt(4.5 * (half + SUMMED))
        squares = np.divide(w, largest, dtype=np.float32)
        np.square(squares, out=squares)
        if not counts.all():
            squares, uneven = squares[:, counts], uneven[counts]
        made[-1] = error * mixing(squares, uneven, MOST_ERROR / error)
    return made


def mixing(squares: Array, uneven: Array, enough: float) -> float:
    """The ratio above for squares [n, k] of weights, each channel's largest being 1.

    uneven: [k], by what the largest weight that is mixed with a channel's exceeds its own.  enough: where it may end.
    """
    columns, found = np.full(len(squares), 1 / len(squares), np.float32), math.inf
    for _ in range(STEPS):
        seen = columns @ squares
        found = min(found, float((uneven / np.sqrt(seen)).max()))
        if found <= enough:
            break
        columns *= squares @ (1 / np.square(seen))
        columns /= columns.sum()
    return found
