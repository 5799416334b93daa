"""What the names in generated text stand for: words, helpers, functions of vectors, types, constants."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from bolt_numba.kernels.cpu.language import lang, vmath, vtrig
from bolt_numba.kernels.cpu.language.lang import BYTES, LANES, ceil_div, split
from bolt_numba.kernels.geometry.scalars import SCALARS, TYPES
from bolt_numba.kernels.jit import Inline

_CONSTANTS = {"inf": math.inf, "nan": math.nan, "LANES": LANES, "BYTES": BYTES, "math": math, "np": np}
_HELPERS = {**SCALARS, "split": split, "ceil_div": ceil_div}


def _meaning(name: str) -> Any:
    for table in (TYPES, _CONSTANTS, _HELPERS):
        if name in table:
            return table[name]
    for module in (vmath, vtrig):
        if isinstance(getattr(module, name, None), Inline):
            return getattr(module, name)
    return getattr(lang, name) if name in lang.WORDS else None


@functools.lru_cache(maxsize=256)
def scope_of(text: str) -> Mapping[str, Any]:
    """What the names in generated text stand for; all who ask get the same mapping, so nobody may change it."""
    found = {name: _meaning(name) for name in sorted(set(re.findall(r"[A-Za-z_]\w*", text)))}
    return MappingProxyType({name: value for name, value in found.items() if value is not None})
