"""Plug-ins by name: those that a program registers, and those that installed packages announce.

A package announces a driver by an entry point of the group `bolt_numba.plugins`: its name is the device's, what it
names makes the `DeviceDriver`.  Nothing here imports an SDK, and a plug-in that is broken is one that is missing.
"""

from __future__ import annotations

import importlib
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from bolt_numba.base.errors import DeviceError, OptionError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.plugins.interface import COMMON, INTERFACE, Accelerator, DeviceDriver, MakeDriver, Property, Setting

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from bolt_numba.passes.rewrite import Rule

GROUP = "bolt_numba.plugins"
"""Of the entry points that name drivers."""
STAY = "off"
"""What a placement calls no device."""
OURS = ("cpu", "cuda", "host")
"""Devices of this package, whose names no plug-in may have."""
WITH_US = {
    "onnxruntime": "bolt_numba.plugins.drivers.onnxruntime:OrtDriver",
    "jax": "bolt_numba.plugins.drivers.jax.device:JaxDriver",
    "openvino": "bolt_numba.plugins.drivers.openvino.device:OpenVinoDriver",
}
"""Plug-ins that come with this package, as an entry point names them; one that a package announces goes before."""
_NAME = re.compile(r"\w[\w.+-]{0,63}")
_OF_SEVERAL = re.compile(r"[\w+-]{1,64}")
"""What a caller may write behind a device and a colon, so that a session has several of one driver."""
"""What a device may be called: a part of names of files, and a word on the command line and in placements."""
SHAPES = ("fixed", "ranges", "free")
"""What `Accelerator.shapes` may be."""
SAID_LETTERS = 400
"""Characters of what an exception says that are told."""
Made = TypeVar("Made", bound=MakeDriver)

_makers: dict[str, MakeDriver] = {}
_drivers: dict[str, DeviceDriver] = {}
_lock = threading.RLock()
renew_after_fork(sys.modules[__name__], "_lock", threading.RLock)


def register_driver(make: Made) -> Made:
    """Let sessions name the device of a driver; may stand above its class.

    make: a class of drivers, or a function that makes one; called at once.  A second driver of a name takes the place
    of the first for sessions to come.  Raises DeviceError where the driver is none, or its name is taken by ours.
    """
    driver = _checked(make(), "")
    with _lock:
        _makers[driver.name], _drivers[driver.name] = make, driver
    return make


def unregister_driver(name: str) -> None:
    """Forget what `register_driver` was given; sessions that have the device keep it."""
    with _lock:
        _makers.pop(name, None)
        _drivers.pop(name, None)


def names() -> list[str]:
    """Of all plug-ins, whether they work here or not."""
    return sorted(_makers.keys() | _entry_points().keys())


def is_known(name: str) -> bool:
    """Whether a plug-in has this name, which may have one of the caller's behind a colon."""
    kind, colon, which = name.partition(":")
    return (not colon or _OF_SEVERAL.fullmatch(which) is not None) and (kind in _makers or kind in _entry_points())


def kind_of(name: str) -> str:
    """The name of the driver of a device: of ``simnpu:left`` that is ``simnpu``."""
    return name.partition(":")[0]


def driver(name: str) -> DeviceDriver:
    """The driver of this name, of which there is one in a process.

    Raises DeviceError when there is none of the name, or what its package announces does not work here.
    """
    name = kind_of(name)
    found = _drivers.get(name)
    if found is not None:
        return found
    with _lock:
        entry = _entry_points().get(name)
        if entry is None:
            raise OptionError(f"device: got {name!r}, wanted one of {', '.join(map(repr, names())) or 'no plug-in'}")
        with loading(entry):
            return _drivers.setdefault(name, _checked(entry.load()(), name))


def source_of(name: str) -> tuple[str, bool]:
    """What makes the driver of a name, as an entry point names it, and whether a package announces it."""
    name = kind_of(name)
    with _lock:
        make: Any = _makers.get(name)
        if make is None:
            return _entry_points()[name].value, True
        return f"{getattr(make, '__module__', '')}:{getattr(make, '__qualname__', '')}", False


def known_driver(name: str, value: str, is_announced: bool) -> DeviceDriver | None:
    """The driver of a name if it is the one that `source_of` told earlier; packages are the same as then.

    Raises what its package raises.
    """
    name = kind_of(name)
    with _lock:
        if (name in _makers) == is_announced:
            return None
        if not is_announced:
            return _drivers[name] if source_of(name)[0] == value else None
        if name not in _drivers:
            module, _, attribute = value.partition(":")
            made: Any = getattr(importlib.import_module(module), attribute)
            _drivers[name] = _checked(made(), name)
        return _drivers[name]


@contextmanager
def loading(entry: EntryPoint) -> Iterator[None]:
    """Within, what a package announces as a device is loaded; whatever is wrong with it is a DeviceError."""
    try:
        yield
    except DeviceError:
        raise
    except Exception as error:
        raise DeviceError(f"device {entry.name!r}: {entry.value}: cannot be loaded: {text_of(error)}") from error


def obstacle(name: str) -> str:
    """Why a plug-in cannot be used here; empty where it can."""
    try:
        return str(driver(name).missing() or "")
    except Exception as error:
        return text_of(error)


def text_of(error: Exception) -> str:
    """An exception in one line; our own say enough by themselves."""
    try:
        text = " ".join(str(error)[:SAID_LETTERS].split())
    except Exception:  # whatever is wrong with somebody's class of errors
        text = ""
    return text if isinstance(error, DeviceError) and text else f"{type(error).__name__}: {text}".rstrip(": ")


def settings_of(driver: DeviceDriver, given: Mapping[str, Any]) -> dict[str, Setting]:
    """All properties of a device with what they are set to.

    Raises OptionError for a property that it has not, and for a value of another kind or beyond the choices.
    """
    known = {**COMMON, **driver.properties}
    if not isinstance(given, Mapping):
        raise OptionError(f"properties: device {driver.name!r}: got a {type(given).__name__}, wanted values by name")
    for name in given:
        if name not in known:
            raise OptionError(f"properties: device {driver.name!r}: got {name!r}, wanted one of {', '.join(known)}")
    return {name: _setting(driver.name, name, known[name], given) for name in known}


_KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _setting(device: str, name: str, known: Property, given: Mapping[str, Any]) -> Setting:
    """A value of the default's kind; texts, as a command line has them, are read as such."""
    value, kind = given.get(name, known.default), type(known.default)
    made: Any = value
    if kind is bool and isinstance(value, str):
        made = True if value.lower() in _TRUE else False if value.lower() in _FALSE else value
    elif kind in (int, float) and isinstance(value, (str, int)) and not isinstance(value, bool):
        try:
            made = kind(value)
        except (ValueError, OverflowError):
            made = value
    if type(made) is not kind:
        raise OptionError(f"properties: {device}.{name}: got {value!r:.80}, wanted {_KINDS[kind]}")
    if known.choices and made not in known.choices:
        wanted = ", ".join(map(repr, known.choices))
        raise OptionError(f"properties: {device}.{name}: got {value!r:.80}, wanted one of {wanted}")
    if known.least is not None and not float(made) >= known.least:
        raise OptionError(f"properties: {device}.{name}: got {value!r:.80}, wanted {known.least} or more")
    return made


def own_settings(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Those that the device itself obeys, and the runtime does not."""
    return {name: value for name, value in settings.items() if name not in COMMON}


def opened(driver: DeviceDriver, settings: Mapping[str, Setting]) -> Accelerator:
    """The device, open.  Raises what the driver does, and DeviceError where it gives something else."""
    made: Any = driver.open(own_settings(settings))
    if not isinstance(made, Accelerator):
        raise DeviceError(f"device {driver.name!r}: open: got a {type(made).__name__}, wanted an Accelerator")
    version, shapes = getattr(made, "version", None), getattr(made, "shapes", None)
    if not isinstance(version, str):
        raise DeviceError(f"device {driver.name!r}: version: got a {type(version).__name__}, wanted a text")
    if shapes not in SHAPES:
        raise DeviceError(f"device {driver.name!r}: shapes: got {shapes!r}, wanted one of {SHAPES}")
    return made


def lowerings_of(driver: DeviceDriver, accelerator: Accelerator) -> Sequence[Rule]:
    """The rules of an open device; raises DeviceError where they are none."""
    from bolt_numba.passes.rewrite import Rule

    found = accelerator.lowerings
    if any(not isinstance(rule, Rule) for rule in found):
        raise DeviceError(f"device {driver.name!r}: lowerings: got what is no rule, wanted what @rule makes")
    return found


def _checked(driver: Any, name: str) -> DeviceDriver:
    """A driver that fits; name: what its package announces it as, if that is known."""
    if not isinstance(driver, DeviceDriver):
        raise DeviceError(f"device {name!r}: driver: got a {type(driver).__name__}, wanted a DeviceDriver")
    own = getattr(driver, "name", None)
    if not isinstance(own, str) or not _NAME.fullmatch(own):
        what = "a word of letters, digits and '_.+-'"
        raise DeviceError(f"device {name!r}: name of the driver: got {own!r:.80}, wanted {what}")
    if own in (*OURS, STAY) or (name and own != name):
        raise DeviceError(f"device {name or own!r}: name of the driver: got {own!r}, wanted {name or 'another one'}")
    if driver.interface != INTERFACE:
        raise DeviceError(f"device {own!r}: interface of the driver: got {driver.interface!r}, wanted {INTERFACE}")
    if clash := driver.properties.keys() & COMMON.keys():
        raise DeviceError(f"device {own!r}: properties: got {sorted(clash)}, wanted names that not all devices have")
    return driver


@cache
def announced(group: str) -> dict[str, EntryPoint]:
    """What installed packages announce, by name, looked for once."""
    from importlib.metadata import entry_points  # 10 ms that sessions without plug-ins do without

    return {entry.name: entry for entry in entry_points(group=group)}


@cache
def _entry_points() -> dict[str, EntryPoint]:
    """The drivers that come with this package, and those of others."""
    from importlib.metadata import EntryPoint

    found = {name: EntryPoint(name, value, GROUP) for name, value in WITH_US.items()}
    return found | {name: entry for name, entry in announced(GROUP).items() if name not in OURS}
