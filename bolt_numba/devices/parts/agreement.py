"""Whether what a device computed is what we compute, but for rounding: the self-check."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bolt_numba.base.types import Array, dtype_name


def disagreement(got: Sequence[Array], wanted: Sequence[Array], tolerance: float) -> str:
    """Where outputs differ by more than rounding, or "".

    tolerance: the largest difference that is accepted, over the largest finite value wanted.  Integers may differ by
    one besides.  Whether they are finite has to be alike, and so have bools but for a part of them as large.
    """
    for place, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if b.dtype.kind == "b":
            share = float(np.mean(a != b)) if b.size else 0.0
            if share > tolerance:
                return f"output {place}: got {100 * share:.3g} % other truths, wanted at most {100 * tolerance:.3g} %"
        elif b.size:
            text = _numbers(np.asarray(a, np.float64), np.asarray(b, np.float64), tolerance, b.dtype.kind in "iu")
            if text:
                return f"output {place} of {dtype_name(b.dtype)}: {text}"
    return ""


def _numbers(a: Array, b: Array, tolerance: float, are_whole: bool) -> str:
    sound = np.isfinite(b)
    odd = ~sound
    if not np.array_equal(np.isfinite(a), sound) or not np.array_equal(a[odd], b[odd], equal_nan=True):
        return f"got {int(np.sum(~np.isfinite(a)))} numbers that are not finite, wanted {int(np.sum(odd))} of the same"
    if not sound.any():
        return ""
    worst, largest = float(np.abs(a[sound] - b[sound]).max()), float(np.abs(b[sound]).max())
    limit = tolerance * largest + (1.0 if are_whole else tolerance * 1e-3)
    return "" if worst <= limit else f"got a difference of {worst:.3g}, wanted at most {limit:.3g}"
