"""Drivers that keep to nothing: whatever they raise or return, a session computes right and says what it was."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.devices.parts.failures import REASONS, Failures
from bolt_numba.devices.parts.opened import Opened
from bolt_numba.errors import DeviceError, ShapeError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.foreign import Foreign
from bolt_numba.plugins import blobs, registry
from bolt_numba.plugins.interface import Accelerator, Compiled, DeviceDriver, Request
from bolt_numba.types import F32, Sym, TensorType
from tests.graphs import make
from tests.plugins.parts import chain


class OddError(Exception):
    """An exception that cannot even be told."""

    def __str__(self) -> str:
        raise ValueError("no text")


class OddText:
    """An answer that cannot be shown."""

    def __repr__(self) -> str:
        raise ValueError("no text")


def boom(*given: Any) -> Any:
    raise RuntimeError("boom")


def odd(*given: Any) -> Any:
    raise OddError


def forgets(request: Any, inputs: Any, outputs: Any) -> None:
    """Writes what cannot be right, and no error."""
    outputs[0][...] = np.nan


def spoils(request: Any, inputs: Any, outputs: Any) -> None:
    """Writes to what it shall only read."""
    for array in (*inputs, *outputs):
        array[...] = 0


def beyond(request: Any, inputs: Any, outputs: Any) -> None:
    """Writes as if sizes were rounded up."""
    for array in outputs:
        ctypes.memset(array.ctypes.data + array.nbytes, 0, 16)


class Vendor(DeviceDriver):
    """Takes all nodes and computes them by references, but for what `PATCHES` replaces."""

    name = "vendor"
    patches: ClassVar[dict[str, Any]] = {}

    def missing(self) -> str:
        return ""

    def open(self, properties: Any) -> Any:
        def patched(kind: type, **own: Any) -> Any:
            prefix = kind.__name__.lower() + "."
            own |= {k.removeprefix(prefix): v for k, v in self.patches.items() if k.startswith(prefix)}
            return type(f"Odd{kind.__name__}", (kind,), own)()

        def compile(accelerator: Any, graph: Graph, context: Any) -> Any:
            def run(request: Any, inputs: Any, outputs: Any) -> None:
                made = interpret(graph, {v.name: np.array(a) for v, a in zip(graph.inputs, inputs, strict=True)})
                for output, array in zip(outputs, made.values(), strict=True):
                    output[...] = array

            return patched(Compiled, request=lambda compiled: patched(Request, run=run))

        return patched(Accelerator, version="1", supports=lambda a, node: node.op.name != "Tanh", compile=compile)


@pytest.fixture(autouse=True)
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Vendor, "patches", {})
    registry.register_driver(Vendor)
    yield
    registry.unregister_driver("vendor")


def network() -> Graph:
    graph = Graph("net")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 4)))
    graph.add_output(b(make("Add"), b(make("Tanh"), b(make("Mul"), x, x)), b(make("Neg"), x)), "y")
    return graph


GRAPH = network()
X = np.random.default_rng(0).standard_normal((3, 4)).astype(F32)
WANTED = interpret(GRAPH, {"x": X})["y"]
RIGHT = ""
"""What the report says where nothing went wrong."""

CASES: dict[str, tuple[str, Any, str]] = {
    "well": ("accelerator.version", "1", RIGHT),
    "open gives nothing": ("accelerator.__new__", lambda kind: None, "open: device 'vendor': open: got a NoneType"),
    "a version that is none": ("accelerator.version", None, "version: got a NoneType, wanted a text"),
    "a version that fails": ("accelerator.version", property(boom), "open: RuntimeError: boom"),
    "shapes of its own": ("accelerator.shapes", "any", "shapes: got 'any', wanted one of ('fixed'"),
    "supports says nothing": ("accelerator.supports", lambda a, node: None, "it says a NoneType, wanted"),
    "supports says what cannot be told": ("accelerator.supports", lambda a, node: OddText(), "it says a OddText"),
    "supports says yes": ("accelerator.supports", lambda a, node: "", "it does not support it"),
    "supports fails oddly": ("accelerator.supports", odd, "OddError"),
    "compile gives nothing": ("accelerator.compile", lambda a, graph, context: None, "compile: got a NoneType"),
    "compile fails oddly": ("accelerator.compile", odd, "compile: OddError"),
    "compile spoils the graph": (
        "accelerator.compile",
        lambda a, graph, context: graph.nodes.clear(),
        "got a NoneType",
    ),
    "lowerings are no rules": ("accelerator.lowerings", (5,), "lowerings: got what is no rule"),
    "a cost that is no number": ("accelerator.seconds", lambda a, node: "fast", RIGHT),
    "copies of no cost": ("accelerator.copy_seconds", lambda a, nbytes: float("nan"), RIGHT),
    "costs fail": ("accelerator.copy_seconds", boom, RIGHT),
    "request gives nothing": ("compiled.request", lambda compiled: None, "load: got a NoneType, wanted a Request"),
    "request fails oddly": ("compiled.request", odd, "load: OddError"),
    "serialise fails": ("compiled.serialise", boom, RIGHT),
    "serialise gives text": ("compiled.serialise", lambda compiled: "text", RIGHT),
    "size fails": ("compiled.nbytes", property(boom), RIGHT),
    "run fails oddly": ("request.run", odd, "run: OddError"),
    "run never ends": ("request.run", lambda request, ins, outs: request.run(ins, outs), "run: RecursionError"),
    "run has no memory": ("request.run", lambda request, ins, outs: bytearray(1 << 62), "run: MemoryError"),
    "run is wrong": ("request.run", forgets, "self-check"),
    "run spoils inputs": ("request.run", spoils, "self-check"),
    "run writes beyond": ("request.run", beyond, "self-check: it wrote beyond its operands"),
    "run writes nothing": ("request.run", lambda request, ins, outs: None, "self-check"),
    "run stops": ("request.run", lambda request, ins, outs: next(iter(())), "run: StopIteration"),
    "counts fail": ("request.counts", boom, RIGHT),
    "counts are odd": ("request.counts", lambda request: {"copies": "many", 3: None}, RIGHT),
    "closing fails": ("request.close", boom, RIGHT),
}


@pytest.mark.filterwarnings("ignore:device 'vendor'. open")
@pytest.mark.parametrize("case", CASES)
def test_a_session_computes_right_and_says_why(case: str) -> None:
    what, patch, told = CASES[case]
    Vendor.patches[what] = patch
    properties = {"vendor": {"self_check": told.startswith("self-check"), "cache": case.startswith("serialise")}}
    with bn.compile(GRAPH, device=["vendor", "cpu"], properties=properties, threads=1) as session:
        for _ in range(4):
            np.testing.assert_allclose(session(x=X)["y"], WANTED, rtol=1e-5)
        session.profile(x=X, runs=1)
        report = session.report()
    said = str([report.devices, [row["reasons"] for row in report.placed], [row.get("fallbacks") for row in report]])
    if told:
        assert told in said
    else:
        assert all(not row["failures"] for row in report.devices), said
        assert sum(row.get("runs", 0) for row in report) >= 4
        assert all(not row.get("fallbacks") for row in report), said


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("what", ["accelerator.supports", "accelerator.compile", "compiled.request", "request.run"])
def test_who_interrupts_is_heard(what: str, error: type[BaseException]) -> None:
    """An interrupt is no failure of a device; the next session is well."""

    def interrupted(*given: Any) -> Any:
        raise error

    Vendor.patches[what] = interrupted
    with pytest.raises(error):
        bn.compile(GRAPH, device=["vendor", "cpu"], threads=1)(x=X)
    Vendor.patches.clear()
    with bn.compile(GRAPH, device=["vendor", "cpu"], threads=1) as session:
        np.testing.assert_allclose(session(x=X)["y"], WANTED, rtol=1e-5)
        assert not any(row.get("fallbacks") for row in session.report())


def test_a_device_that_cannot_say_why_it_restores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Vendor.patches["accelerator.restore"] = odd
    monkeypatch.setattr(blobs, "read", lambda name: b"of another release")
    with bn.compile(GRAPH, device=["vendor", "cpu"], threads=1) as session:
        np.testing.assert_allclose(session(x=X)["y"], WANTED, rtol=1e-5)
        notes = [row["notes"] for row in session.report() if row["op"] == "Foreign"]
    assert notes
    assert all(note["restore: OddError"] == 1 for note in notes)


@pytest.mark.parametrize("what", ["request", "compiled"])
def test_what_a_device_gives_twice_is_refused(what: str) -> None:
    """Two runs at once need a request each, and what is closed for one part must stay open for another."""
    opened = Opened(Vendor(), {"self_check": False}, Failures("allow"))
    compiled = Once()
    loaded = opened.load(compiled)
    assert loaded.begin()
    loaded.request()
    with pytest.raises(DeviceError, match="in use, wanted a new one"):
        loaded.request() if what == "request" else opened.load(compiled)
    loaded.end()
    loaded.retire()
    assert opened.load(compiled).begin()


class Once(Compiled):
    """Has one request."""

    def __init__(self) -> None:
        self.one = type("Single", (Request,), {"run": forgets})()

    def request(self) -> Request:
        return self.one


def test_reasons_do_not_pile_up() -> None:
    """A device may say something else each time, and say it at length."""
    number = itertools.count()

    def fails(*given: Any) -> Any:
        raise RuntimeError(f"{next(number)} {'x' * 100_000}")

    failures = Failures("allow")
    for _ in range(3 * REASONS):
        try:
            fails()
        except RuntimeError as error:
            failures.add("vendor", "run", error)
    kept = failures.by_device["vendor"]
    assert sum(kept.values()) == 3 * REASONS
    assert len(kept) == REASONS + 1
    assert max(map(len, kept)) < 1000


def test_parts_within_parts_are_refused_at_once() -> None:
    """A file may claim to nest what no partition would; looking at it must not take longer with each level."""
    graph = chain("Relu")
    start = time.process_time()
    outer = Graph("outer")
    x = outer.add_input("x", TensorType(F32, (2, 3)))
    outer.add_output(Builder(outer)(Foreign(graph, "vendor"), x), "y")
    another = Graph("another")
    x = another.add_input("x", TensorType(F32, (2, 3)))
    with pytest.raises(ShapeError, match="Foreign: graph: got a Foreign"):
        Builder(another)(Foreign(outer, "vendor"), x)
    assert time.process_time() - start < 5
