"""Devices by name, and the only place outside ``kernels/`` that knows kernels of the CPU.

`bolt_numba.runtime.device` says what a device owes the runtime; CONTRIBUTING.md says how to add one.  A package
announces devices by entry points of the group `bolt_numba.devices`: each has a device's name, and names a module whose
import registers that.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from bolt_numba.base.errors import DeviceError, OptionError
from bolt_numba.base.forks import renew_after_fork

if TYPE_CHECKING:
    from bolt_numba.runtime.device import Device

LAST = ("cpu", "host")
"""What runs nodes that no preferred device takes, in order; the last one takes all."""
GROUP = "bolt_numba.devices"
"""Of the entry points that name modules with devices."""
APART = {"cuda-sim": "bolt-numba-simulator"}
"""Devices of this repository that are not in this package, and the distribution of each in the folder `simulator`."""


def _own(name: str) -> Callable[[], Device]:
    return lambda: import_module(f"{__name__}.{name}").DEVICE


def _gpu(which: str) -> Device:
    made: Device = import_module(f"{__name__}.cuda.device").gpu(which)
    return made


_makers: dict[str, Callable[[], Device]] = {name: _own(name) for name in LAST}
_families: dict[str, Callable[[str], Device]] = {"cuda": _gpu}
_known: dict[str, Device] = {}
_lock = threading.RLock()
renew_after_fork(sys.modules[__name__], "_lock", threading.RLock)


def register(name: str, make: Callable[[], Device]) -> None:
    """Let sessions name a device; ``make`` is called when the first one does.

    Raises DeviceError when the name is taken.
    """
    _want_free(name)
    _makers[name] = make


def register_family(name: str, make: Callable[[str], Device]) -> None:
    """Let sessions name devices of which there are several; ``make`` is called once for each.

    make: gets what a session writes behind the name and a colon, as "1" of ``cuda:1``; ``""`` for the name alone.
    Raises DeviceError when the name is taken.
    """
    _want_free(name)
    _families[name] = make


def _want_free(name: str) -> None:
    if _is_here(name):
        raise DeviceError(f"device: got a second {name!r}, wanted another name")


def names() -> list[str]:
    """What sessions may name, but for plug-ins."""
    from bolt_numba.plugins import registry

    return sorted({*_makers, *_families, *registry.announced(GROUP)})


def _is_here(name: str) -> bool:
    return name in _makers or name.partition(":")[0] in _families


def is_known(name: str) -> bool:
    """Whether a device of this name, none of a plug-in, is registered, or is now, as a package announces it."""
    if not _is_here(name):
        from bolt_numba.plugins import registry

        with _lock:
            entry = registry.announced(GROUP).get(name.partition(":")[0])
            if entry is not None:
                with registry.loading(entry):
                    entry.load()
    return _is_here(name)


def device(name: str) -> Device:
    """The device of this name, of which there is one in a process.  Raises DeviceError when it does not work here."""
    found = _known.get(name)
    if found is None:
        with _lock:
            found = _known.get(name)
            if found is None:
                found = _made(name)
                found = _known[name] = _known.setdefault(found.name, found)
    return found


def _made(name: str) -> Device:
    if not is_known(name):
        raise OptionError(f"device: got {name!r}, wanted {choices(name)}")
    family, _, which = name.partition(":")
    return _makers[name]() if name in _makers else _families[family](which)


def choices(given: object) -> str:
    """What to name, or to install, in the place of what names no device, for errors."""
    asked = [given] if isinstance(given, str) else given if isinstance(given, (list, tuple)) else []
    for name in asked:
        if isinstance(name, str) and (package := APART.get(name.partition(":")[0])) and not is_known(name):
            return f"the package {package} beside it: pip install ./simulator, in a copy of the repository"
    from bolt_numba.plugins import registry

    known = ", ".join(map(repr, dict.fromkeys([*names(), *registry.names()])))
    return f"one of {known}, or several of these in order of preference"


def others(wanted: str | Sequence[str]) -> list[str]:
    """Those of the names that are none of the devices that are registered, each once."""
    asked = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, (list, tuple)) else []
    return list(dict.fromkeys(name for name in asked if isinstance(name, str) and not _is_here(name)))


def plug_ins(wanted: str | Sequence[str]) -> list[str]:
    """Those of the names that are plug-ins', which a session opens by itself."""
    found = others(wanted)
    if not found:
        return []
    from bolt_numba.plugins import registry  # sessions without plug-ins do without

    return [name for name in found if registry.is_known(name)]


def in_order(wanted: str | Sequence[str] = ()) -> tuple[Device, ...]:
    """The devices that are wanted (one, or several in order of preference), then the others of `LAST`.

    Raises OptionError for an unknown name.
    """
    asked = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(asked, (list, tuple)) or any(not isinstance(n, str) or not is_known(n) for n in asked):
        given = [*wanted] if isinstance(wanted, tuple) else wanted
        raise OptionError(f"device: got {given!r}, wanted {choices(given)}")
    return tuple(dict.fromkeys(device(name) for name in (*asked, *LAST)))
