"""How tests compare numbers that were rounded: one rule for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_near(got: Any, wanted: Any, tolerance: float, name: str = "", *, floor: float = 0.0) -> None:
    """All elements are within ``tolerance`` times the largest finite magnitude of ``wanted`` (at least ``floor``).

    NaN and infinities stand in the same places.  The limit is not that of each element: the error of a sum grows with
    its terms, so where they cancel a small result has the error of large ones, and which one is left depends on the
    order of summation, that is, on the processor.
    """
    a, b = np.asarray(got), np.asarray(wanted)
    assert a.shape == b.shape, f"{name}: got shape {a.shape}, wanted {b.shape}"
    a, b = a.astype(np.float64), b.astype(np.float64)
    scale = np.abs(b[np.isfinite(b)]).max(initial=floor)
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=name)
