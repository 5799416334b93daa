"""The plug-ins of one session: opened, given to the stage that partitions the graph, reported on, closed."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from bolt_numba.base.errors import BoltError, OptionError
from bolt_numba.base.files.regular import read_text
from bolt_numba.base.options import Options
from bolt_numba.devices import in_order
from bolt_numba.devices.parts.device import Plugin
from bolt_numba.devices.parts.failures import Failures
from bolt_numba.devices.parts.opened import Opened
from bolt_numba.devices.parts.own import Settings
from bolt_numba.ir.graph import Graph, Node
from bolt_numba.passes.partition.partition import Candidate, Decision, Partition
from bolt_numba.passes.partition.placement import Placement
from bolt_numba.passes.rewrite import Rule
from bolt_numba.plugins import registry
from bolt_numba.plugins.buckets import buckets_of
from bolt_numba.runtime.device import Device
from bolt_numba.runtime.reports.report import Report, report_of
from bolt_numba.runtime.runner import Runner

MOST_BYTES = 1 << 26
"""Bytes of a placement."""


class _Noting:
    """An accelerator as the partition asks it: what it raises is taken note of."""

    def __init__(self, opened: Opened) -> None:
        self._opened, self._accelerator = opened, opened.accelerator()
        self.lowerings: Sequence[Rule] = registry.lowerings_of(opened.driver, self._accelerator)
        self.shapes: str = self._accelerator.shapes

    def supports(self, node: Node) -> bool | str:
        try:
            return self._accelerator.supports(node)
        except Exception as error:
            return self._opened.failures.add(self._opened.name, "supports", error, node.name, [node.name])

    def seconds(self, node: Node) -> float | None:
        return self._accelerator.seconds(node)

    def copy_seconds(self, nbytes: int) -> float:
        return self._accelerator.copy_seconds(nbytes)


class Plugins:
    """Opened devices, of which a graph gets its parts.

    by_name: devices, in order of preference, those that could be opened.  missing: of the others, why not.  decisions:
    where the nodes of the graph went, and why.
    """

    def __init__(self, failures: Failures, placement: Placement, settings: Settings) -> None:
        self.failures, self.placement, self.settings = failures, placement, settings
        self.decisions: list[Decision] = []
        self.by_name: dict[str, Plugin] = {}
        self.missing: dict[str, str] = {}

    def add(self, name: str, properties: Mapping[str, Any], opened: Opened | None = None) -> None:
        """Open a device unless it is; where that fails the session does without, if it may."""
        reason: Exception | str = registry.obstacle(name)
        if not reason:
            driver = registry.driver(name)
            settings = registry.settings_of(driver, properties)
            buckets_of(str(settings["buckets"]))  # raises for what is none
            opened = opened or Opened(driver, settings, self.failures, name)
            try:
                registry.lowerings_of(driver, opened.accelerator())
            except Exception as error:
                reason = error
            else:
                self.by_name[name] = Plugin(opened, self.settings)
                weakref.finalize(self, opened.close)
                return
        self.missing[name] = self.failures.add(name, "open", reason)

    def in_order(self, asked: Sequence[str]) -> tuple[Device, ...]:
        """The devices of a session that asked for these, but for those that are missing."""
        names = [name for name in asked if name not in self.missing]
        found: list[Device] = [self.by_name.get(name) or in_order([name])[0] for name in names]
        return tuple(dict.fromkeys([*found, *in_order(())]))

    @property
    def devices(self) -> list[str]:
        """Names of those that could be opened, in order of preference."""
        return list(self.by_name)

    def __call__(self, graph: Graph) -> None:
        """Put nodes of a graph into parts for the devices, in place."""
        found = [Candidate(n, _Noting(d.opened), int(d.opened.settings["min_nodes"])) for n, d in self.by_name.items()]
        made = Partition(found, self.placement, self._seconds)
        made(graph)
        self.decisions = made.decisions
        for name in self.by_name:
            self.failures.check_first(name, "supports")

    def _seconds(self, node: Node) -> float:
        """Roughly what a node takes on the first of the other devices."""
        home, ins = self.settings.devices[0], [None if v is None else v.type for v in node.operands]
        return home.seconds(node.op, ins, [v.type for v in node.outputs], self.settings.options.thread_count)

    def report(self, runner: Runner) -> Report:
        """Of a session: beside what runs where, what became of the devices, and why nodes are not there."""
        made = report_of(runner)
        made.devices += [self._facts(name, device) for name, device in self.by_name.items()]
        made.devices += [self._missing(name, reason) for name, reason in self.missing.items()]
        made.placed += [
            {"node": r.node, "line": r.line, "device": r.device, "part": r.part, "reasons": dict(r.reasons)}
            for r in self.decisions
        ]
        return made

    def _facts(self, name: str, device: Plugin) -> dict[str, Any]:
        opened = device.opened
        state = f"lost: {opened.lost}" if opened.lost else "open"
        own = {"device": name, "vendor": opened.driver.vendor, "version": opened.version, "state": state}
        return own | {"failures": dict(self.failures.by_device.get(name, {})), "properties": dict(opened.settings)}

    def _missing(self, name: str, reason: str) -> dict[str, Any]:
        failures = dict(self.failures.by_device.get(name, {}))
        return {"device": name, "vendor": "", "version": "", "state": reason, "failures": failures, "properties": {}}

    def close(self) -> None:
        """Let go what is compiled, and the devices."""
        for device in self.by_name.values():
            device.forget()
            device.opened.close()


def plugins_of(named: Sequence[str], options: Options, already: Mapping[str, Opened]) -> Plugins:
    """The plug-ins of a session of these options.

    named: devices of the options that are plug-ins'.  already: devices by name that are open.
    Raises OptionError for properties that a device has not, and DeviceError for a device that is missing where the
    session forbids to do without.
    """
    given = options.properties or {}
    for name in given:
        if name not in named:
            raise OptionError(f"properties: got some of {name!r}, wanted those of {', '.join(map(repr, named))}")
    asked = (options.device,) if isinstance(options.device, str) else options.device
    home = in_order([name for name in asked if name not in named])
    failures = next((opened.failures for opened in already.values()), None) or Failures(options.fallback)
    made = Plugins(failures, placement_of(options.placement), Settings(options, home))
    for name in named:
        made.add(name, given.get(name, {}), already.get(name))
    return made


def placement_of(given: Any) -> Placement:
    """A placement, the text of one, or a file that holds it.  Raises BoltError where it is none of these."""
    if given is None or isinstance(given, Placement):
        return given or Placement()
    if isinstance(given, os.PathLike) or (isinstance(given, str) and "\n" not in given and os.path.isfile(given)):
        try:
            return Placement.parse(read_text(given, MOST_BYTES, "a placement, lines of text", BoltError))
        except OSError as error:
            raise BoltError(f"{os.fspath(given)}: got {error.strerror!r}, wanted a placement, lines of text") from error
    if not isinstance(given, str):
        raise OptionError(f"placement: got a {type(given).__name__}, wanted a text, a path or a Placement")
    return Placement.parse(given)
