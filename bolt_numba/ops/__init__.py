"""Operators: what each one means.  ``from bolt_numba.ops import Conv, Relu`` works for all of them."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bolt_numba.base.files.folder_index import remember, remembered

if TYPE_CHECKING:
    from bolt_numba.ops.registry import Op


ANNOUNCED = "bolt_numba.operators"


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


def find(name: str) -> type[Op] | None:
    """The class of an operator, from the one module that has it; None where there is none of that name."""
    from bolt_numba.ops.registry import OPS

    if name not in OPS:
        module = _modules().get(name)
        if isinstance(module, str) and module.startswith(f"{__name__}."):
            importlib.import_module(module)
        if name not in OPS:
            load_all()
        if name not in OPS:
            load_announced()
    return OPS.get(name)


@functools.cache
def load_announced() -> None:
    """Import what installed packages announce as modules with operators, once, when a file has an unknown one.

    They are entry points of the group `bolt_numba.operators`.  Raises BoltError where a module cannot be
    imported.
    """
    from importlib.metadata import entry_points  # 10 ms that other processes do without

    from bolt_numba.base.errors import BoltError

    for entry in entry_points(group=ANNOUNCED):
        try:
            entry.load()
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            raise BoltError(f"operators of {entry.name!r}: got {found}, wanted a module") from error


@functools.cache
def _modules() -> dict[str, Any]:
    """Modules by operator, remembered between processes."""
    from bolt_numba.ops.registry import OPS

    found = remembered("operators", Path(__path__[0]))
    if not isinstance(found, dict):
        load_all()
        found = {name: made.__module__ for name, made in OPS.items() if made.__module__.startswith(f"{__name__}.")}
        remember("operators", Path(__path__[0]), found)
    return found
