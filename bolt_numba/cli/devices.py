"""Devices for people: what sessions may name and why not, and which nodes of a model a plug-in gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from bolt_numba.base.errors import BoltError
from bolt_numba.base.records import record
from bolt_numba.cli import console
from bolt_numba.cli.options import Json
from bolt_numba.compiling import compile as compile_model
from bolt_numba.devices import LAST, device, names
from bolt_numba.ir.graph import Graph
from bolt_numba.plugins import registry
from bolt_numba.plugins.interface import COMMON


@record()
class _Listed:
    """A row: state is "ready", or why not."""

    device: str
    kind: str
    vendor: str
    version: str
    state: str
    properties: list[dict[str, Any]]


def devices(as_json: Json = False) -> None:
    """List all devices that `--device` takes: which work here, with versions and properties, and why others do not."""
    rows = [*_ours(), *map(_plug_in, registry.names())]
    if as_json:
        console.write_json([vars(row) for row in rows])
        return
    columns = ("device", "kind", "vendor", "version", "state")
    console.table("", columns, [[getattr(row, c) for c in columns] for row in rows])
    for row in rows:
        if row.properties:
            console.write("")
            cells = [(p["name"], p["default"], ", ".join(map(str, p["choices"])), p["what"]) for p in row.properties]
            console.table(f"--property {row.device}.NAME=VALUE", ("name", "default", "may be", "what"), cells)
    common = [(name, str(p.default), p.what) for name, p in COMMON.items()]
    console.write("")
    console.table("properties of all plug-ins", ("name", "default", "what"), common)


def show_parts(graph: Graph, options: Mapping[str, Any], as_json: bool) -> None:
    """Which nodes of a graph the plug-ins of a session get, as lines of a placement, and why they refuse others."""
    with compile_model(graph, **options) as session:
        report = session.report()
    if as_json:
        console.write_json({"devices": report.devices, "nodes": report.placed})
        return
    for row in report.devices:
        console.write(f"{row['device']} {row['version']}: {row['state']}")
    rows = []
    for node in report.placed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in node["reasons"].items())
        rows.append((node["part"] or "-", node["line"], reasons))
    console.table("", ("part", "node, as --placement takes it", "why not"), rows)
    counts = Counter(f"on {node['device']}" if node["device"] else "here" for node in report.placed)
    console.write(", ".join(f"{count} node{'s' * (count != 1)} {name}" for name, count in counts.most_common()))


def _ours() -> list[_Listed]:
    rows = [_Listed(name, "kernels", "", device(name).describe(), "ready", []) for name in LAST]
    from bolt_numba.devices.cuda.library import found  # imports what few have

    try:
        gpus = found()
    except BoltError as error:
        rows.append(_Listed("cuda", "kernels", "", "", str(error), []))
    else:
        rows += [_Listed(f"cuda:{i}", "kernels", "", text, "ready", []) for i, text in enumerate(gpus)]
    return rows + [_joined(name) for name in names() if name not in registry.OURS]


def _joined(name: str) -> _Listed:
    """A device with kernels that is none of this package."""
    try:
        return _Listed(name, "kernels", "", device(name).describe(), "ready", [])
    except BoltError as error:
        return _Listed(name, "kernels", "", "", str(error), [])


def _plug_in(name: str) -> _Listed:
    """A plug-in, opened for its version where it works."""
    row = _Listed(name, "plug-in", "", "", registry.obstacle(name), [])
    try:
        driver = registry.driver(name)
    except BoltError:  # the obstacle says it
        return row
    row.vendor = driver.vendor
    row.properties = [
        {"name": key, "default": p.default, "choices": list(p.choices), "what": p.what}
        for key, p in driver.properties.items()
    ]
    if not row.state:
        try:
            accelerator = registry.opened(driver, registry.settings_of(driver, {}))
            row.version = accelerator.version
            accelerator.close()
        except Exception as error:  # whatever is wrong with somebody's device is the answer
            row.state = f"{type(error).__name__}: {error}"
    row.state = row.state or "ready"
    return row
