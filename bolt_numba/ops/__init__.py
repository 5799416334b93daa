"""Operators: what each one means."""

from __future__ import annotations

import importlib


def load_all() -> None:
    """Import every module below this package: registering its operators in `registry.OPS` is all that each does."""
    import pkgutil  # few processes need all of them

    for info in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(info.name)
