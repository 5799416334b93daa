"""Operators: what each one means."""

from __future__ import annotations

import importlib


def load_all() -> None:
    """Import every module of this package: registering its operators in `registry.OPS` is all that each does."""
    import pkgutil  # few processes need all of them

    for info in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{info.name}")
