"""Operators: what each one means.  ``from bolt_numba.ops import Conv, Relu`` works for all of them."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name[:1].isupper():
        from bolt_numba.ops.registry import OPS

        load_all()
        for made in OPS.values():
            if made.__name__ == name and made.__module__.startswith(f"{__name__}."):
                return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_all() -> None:
    """Import every module below this package: registering its operators in `registry.OPS` is all that each does."""
    import pkgutil  # few processes need all of them

    for info in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(info.name)
