"""How far two results of a scenario are apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class DisagreementError(ValueError):
    """Two results differ in kind: another text, another number of things."""


def distance(wanted: Any, got: Any, where: str = "result") -> float:
    """Largest difference of two numbers, in parts of the number or of one, whichever is larger; 0.0: equal.

    Texts, names and lengths must be equal.  Raises DisagreementError where they are not.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(got, Mapping) or set(wanted) != set(got):
            raise DisagreementError(f"{where}: got {got!r:.200}, wanted {wanted!r:.200}")
        return max((distance(wanted[k], got[k], f"{where}.{k}") for k in wanted), default=0.0)
    if isinstance(wanted, list | tuple):
        if not isinstance(got, list | tuple) or len(wanted) != len(got):
            raise DisagreementError(f"{where}: got {got!r:.200}, wanted {wanted!r:.200}")
        pairs = enumerate(zip(wanted, got, strict=True))
        return max((distance(w, g, f"{where}[{i}]") for i, (w, g) in pairs), default=0.0)
    a, b = np.asarray(wanted), np.asarray(got)
    if a.dtype.kind not in "fiub" or b.dtype.kind not in "fiub":
        if not np.array_equal(a, b):
            raise DisagreementError(f"{where}: got {got!r:.200}, wanted {wanted!r:.200}")
        return 0.0
    if a.shape != b.shape:
        raise DisagreementError(f"{where}: got shape {b.shape}, wanted {a.shape}")
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b) / np.maximum(1.0, np.abs(a)))
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max(initial=0.0))
