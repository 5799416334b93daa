"""Devices by name, and the only place outside ``kernels/`` that knows kernels of the CPU.

`bolt_numba.runtime.device` says what a device owes the runtime; CONTRIBUTING.md says how to add one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from bolt_numba.base.forks import renew_after_fork
from bolt_numba.errors import DeviceError

if TYPE_CHECKING:
    from bolt_numba.runtime.device import Device

LAST = ("cpu", "host")
"""What runs nodes that no preferred device takes, in order; the last one takes all."""


def _own(name: str) -> Callable[[], Device]:
    return lambda: import_module(f"{__name__}.{name}").DEVICE


_makers: dict[str, Callable[[], Device]] = {name: _own(name) for name in LAST}
FAMILIES = ("cuda", "cuda-sim")
"""Devices of which there are several: which one follows behind a colon (``cuda:1``, ``cuda-sim:sm_90a``)."""
_known: dict[str, Device] = {}
_lock = threading.RLock()
renew_after_fork(sys.modules[__name__], "_lock", threading.RLock)


def register(name: str, make: Callable[[], Device]) -> None:
    """Let sessions name a device; ``make`` is called when the first one does.

    Raises DeviceError when the name is taken.
    """
    if _is_known(name):
        raise DeviceError(f"device: got a second {name!r}, wanted another name")
    _makers[name] = make


def names() -> list[str]:
    """What sessions may name."""
    return sorted((*_makers, *FAMILIES))


def _is_known(name: str) -> bool:
    return name in _makers or name.partition(":")[0] in FAMILIES


def device(name: str) -> Device:
    """The device of this name, of which there is one in a process.  Raises DeviceError when it does not work here."""
    found = _known.get(name)
    if found is None:
        with _lock:
            found = _known.get(name)
            if found is None:
                found = _known[name] = _makers[name]() if name in _makers else _of_family(name)
    return found


def _of_family(name: str) -> Device:
    if not _is_known(name):
        raise DeviceError(f"device: got {name!r}, wanted one of {', '.join(map(repr, names()))}")
    family, _, which = name.partition(":")
    made: Device = import_module(f"{__name__}.cuda.family").make(family, which)
    return made if made.name == name else _known.setdefault(made.name, made)


def others(wanted: str | Sequence[str]) -> list[str]:
    """Those of the names that are none of ours, each once."""
    asked = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, (list, tuple)) else []
    return list(dict.fromkeys(name for name in asked if isinstance(name, str) and not _is_known(name)))


def plug_ins(wanted: str | Sequence[str]) -> list[str]:
    """Those of the names that are plug-ins', which a session opens by itself."""
    found = others(wanted)
    if not found:
        return []
    from bolt_numba.hardware import registry  # sessions without plug-ins do without

    return [name for name in found if registry.is_known(name)]


def in_order(wanted: str | Sequence[str] = ()) -> tuple[Device, ...]:
    """The devices that are wanted (one, or several in order of preference), then the others of `LAST`."""
    asked = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(asked, (list, tuple)) or any(not isinstance(n, str) or not _is_known(n) for n in asked):
        from bolt_numba.hardware import registry

        known = ", ".join(map(repr, dict.fromkeys([*names(), *registry.names()])))
        raise DeviceError(f"device: got {wanted!r}, wanted one of {known}, or several of these in order of preference")
    return tuple(dict.fromkeys(device(name) for name in (*asked, *LAST)))
