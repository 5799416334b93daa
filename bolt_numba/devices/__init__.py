"""Devices by name, and the only place outside ``kernels/`` that knows kernels of the CPU.

`bolt_numba.runtime.device` says what a device owes the runtime; CONTRIBUTING.md says how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from bolt_numba.errors import DeviceError

if TYPE_CHECKING:
    from bolt_numba.runtime.device import Device

LAST = ("cpu", "host")
"""What runs nodes that no preferred device takes, in order; the last one takes all."""


def _own(name: str) -> Callable[[], Device]:
    return lambda: import_module(f"{__name__}.{name}").DEVICE


_makers: dict[str, Callable[[], Device]] = {name: _own(name) for name in LAST}
_makers["cuda-sim"] = lambda: import_module(f"{__name__}.cuda.sim").DEVICE
_known: dict[str, Device] = {}


def register(name: str, make: Callable[[], Device]) -> None:
    """Let sessions name a device; ``make`` is called when the first one does.

    Raises DeviceError when the name is taken.
    """
    if name in _makers:
        raise DeviceError(f"device: got a second {name!r}, wanted another name")
    _makers[name] = make


def names() -> list[str]:
    """What sessions may name."""
    return sorted(_makers)


def device(name: str) -> Device:
    """The device of this name, of which there is one in a process."""
    found = _known.get(name)
    return _known.setdefault(name, _makers[name]()) if found is None else found


def in_order(wanted: str | Sequence[str] = ()) -> tuple[Device, ...]:
    """The devices that are wanted (one, or several in order of preference), then the others of `LAST`."""
    asked = [wanted] if isinstance(wanted, str) else wanted
    known = f"{', '.join(map(repr, names()))}, or several of these in order of preference"
    if not isinstance(asked, (list, tuple)) or any(not isinstance(n, str) or n not in _makers for n in asked):
        raise DeviceError(f"device: got {wanted!r}, wanted one of {known}")
    return tuple(device(name) for name in dict.fromkeys((*asked, *LAST)))
