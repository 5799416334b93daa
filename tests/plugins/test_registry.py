"""Plug-ins by name: registered by a program or announced by a package, sound or broken, with their properties."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bolt_numba
from bolt_numba import devices
from bolt_numba.errors import DeviceError
from bolt_numba.plugins import registry
from bolt_numba.plugins.interface import COMMON, INTERFACE
from tests.plugins.plain_driver import PlainDriver, register_plain


def test_a_driver_is_registered_and_forgotten() -> None:
    driver = register_plain()
    assert registry.driver("plain") is driver
    assert "plain" in registry.names()
    assert registry.is_known("plain")
    registry.unregister_driver("plain")
    assert not registry.is_known("plain")
    with pytest.raises(DeviceError, match="got 'plain', wanted one of"):
        registry.driver("plain")


def test_a_class_is_registered_by_a_decorator() -> None:
    class Other(PlainDriver):
        name = "other-plain"

    assert registry.register_driver(Other) is Other
    assert registry.driver("other-plain").name == "other-plain"
    registry.unregister_driver("other-plain")


ODD = ("../up", "a/b", "..", "a\x1b[2J", "a\n", "x" * 100, "a->b", "a#b")
"""Names that are no part of a file's name, or no word of a placement."""


def test_our_own_names_are_taken() -> None:
    assert set(registry.OURS) == {*devices.LAST, "cuda"}
    assert all(map(devices.is_known, registry.OURS))
    for name in registry.OURS:
        with pytest.raises(DeviceError, match=f"device '{name}': name of the driver"):
            registry.register_driver(type("Bad", (PlainDriver,), {"name": name}))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (dict, "driver: got a dict, wanted a DeviceDriver"),
        (type("Old", (PlainDriver,), {"interface": INTERFACE + 1}), f"interface of the driver: got {INTERFACE + 1}"),
        (type("Unnamed", (PlainDriver,), {"name": ""}), "name of the driver: got ''"),
        (type("Comma", (PlainDriver,), {"name": "a,b"}), "name of the driver: got 'a,b'"),
        *((type("Odd", (PlainDriver,), {"name": name}), "wanted a word of") for name in ODD),
        (type("Off", (PlainDriver,), {"name": "off"}), "name of the driver: got 'off'"),
        (type("Clash", (PlainDriver,), {"properties": COMMON}), "wanted names that not all devices have"),
    ],
)
def test_what_is_no_driver_is_refused(made: Any, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        registry.register_driver(made)


def test_properties_have_kinds_and_choices() -> None:
    driver = PlainDriver()
    found = registry.settings_of(driver, {"chip": "two", "speed": "7", "self_check": "yes", "tolerance": 1})
    assert found["chip"] == "two"
    assert found["speed"] == 7
    assert found["self_check"] is True
    assert found["tolerance"] == 1.0
    assert found["max_compiled"] == COMMON["max_compiled"].default
    assert registry.own_settings(found) == {"chip": "two", "speed": 7}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"chips": "two"}, "device 'plain': got 'chips', wanted one of min_nodes"),
        ({"chip": "three"}, r"plain.chip: got 'three', wanted one of 'one', 'two'"),
        ({"chip": 3}, "plain.chip: got 3, wanted a text"),
        ({"speed": "fast"}, "plain.speed: got 'fast', wanted a whole number"),
        ({"speed": True}, "plain.speed: got True, wanted a whole number"),
        ({"speed": 1.5}, "plain.speed: got 1.5, wanted a whole number"),
        ({"self_check": "maybe"}, "plain.self_check: got 'maybe', wanted True or False"),
        ({"tolerance": 10**400}, "plain.tolerance: got 1000"),
        (["chip"], "device 'plain': got a list, wanted values by name"),
    ],
)
def test_other_properties_are_refused(given: Any, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        registry.settings_of(PlainDriver(), given)


ANNOUNCED = """
import sys
sys.path[:0] = {paths!r}
from bolt_numba.plugins import registry
print(registry.names() and sorted(n for n in registry.names() if n in ("plain", "broken", "gone")))
print(registry.driver("plain").vendor)
for name in ("plain", "broken", "gone"):
    print(registry.obstacle(name))
"""


def test_packages_announce_drivers_and_broken_ones_are_only_missing(tmp_path: Path) -> None:
    info = tmp_path / "vendor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor\nVersion: 1.0\n")
    lines = ["plain = plain_driver:PlainDriver", "broken = vendor_broken:Driver", "gone = vendor_gone:Driver"]
    (info / "entry_points.txt").write_text("\n".join(["[bolt_numba.plugins]", *lines]) + "\n")
    (tmp_path / "vendor_broken.py").write_text("raise RuntimeError('no such chip')\n")
    paths = [str(tmp_path), str(Path(__file__).parent), str(Path(bolt_numba.__file__).parent.parent)]
    code = ANNOUNCED.format(paths=paths)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, vendor, plain, broken, gone = done.stdout.splitlines()
    assert names == "['broken', 'gone', 'plain']"
    assert (vendor, plain) == ("tests", "")
    assert broken.endswith("vendor_broken:Driver: cannot be loaded: RuntimeError: no such chip")
    assert "cannot be loaded: ModuleNotFoundError: No module named 'vendor_gone'" in gone


@pytest.mark.parametrize(("name", "least"), [("min_nodes", 0), ("max_compiled", 1), ("tolerance", 0)])
def test_numbers_that_mean_nothing_are_refused(name: str, least: int) -> None:
    assert registry.settings_of(PlainDriver(), {name: least})[name] == least
    wrong: list[object] = [least - 1, str(least - 1)] + ([float("nan")] if name == "tolerance" else [])
    for value in wrong:
        with pytest.raises(DeviceError, match=rf"properties: plain.{name}: got {value!r}, wanted {least} or more"):
            registry.settings_of(PlainDriver(), {name: value})
