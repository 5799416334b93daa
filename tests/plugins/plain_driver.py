"""A driver for tests: the "device" computes a graph by our interpreter, and fails where a test throws a switch.

`register_plain()` gives a fresh one, whose attributes are the switches and whose counts tell what was called.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from bolt_numba.ir import store
from bolt_numba.ir.graph import Graph, Node
from bolt_numba.ir.interpret import interpret
from bolt_numba.plugins import interface, registry
from bolt_numba.plugins.interface import Accelerator, CompileContext, Compiled, DeviceDriver, Property, Request
from bolt_numba.types import Array


class PlainDriver(DeviceDriver):
    """Takes all operators unless ``only`` names those that it takes.

    fails: exceptions by what they stop ("open", "supports", "compile", "restore", "request", "run", "serialise",
    "close"), or functions that are called there, with the number of the call from 1.  wrong: added to all that is
    computed.  calls: how often each of these was asked for; live: what is open at the moment.
    """

    name = "plain"
    vendor = "tests"
    properties: ClassVar[Mapping[str, Property]] = {
        "chip": Property("which one", "one", ("one", "two")),
        "speed": Property("of nothing", 3),
    }

    def __init__(self) -> None:
        self.fails: dict[str, Any] = {}
        self.only: set[str] | None = None
        self.wrong = 0.0
        self.absent = ""
        self.version = f"1.0-{os.urandom(4).hex()}"  # what other tests left in a cache is none of ours
        self.shapes: interface.Shapes = "fixed"
        self.lowerings: Sequence[Any] = ()
        self.calls: Counter[str] = Counter()
        self.live: Counter[str] = Counter()
        self.compiled: list[Graph] = []
        self.opened_with: Mapping[str, Any] = {}
        self.idle = False
        """Whether runs compute nothing, to time what stands around them."""
        self.lock = threading.Lock()

    def missing(self) -> str:
        return self.absent

    def open(self, properties: Mapping[str, Any]) -> Accelerator:
        self.opened_with = dict(properties)
        self.called("open")
        return PlainAccelerator(self)

    def called(self, what: str) -> None:
        """Count a call, and fail if that is wanted."""
        with self.lock:
            self.calls[what] += 1
            number = self.calls[what]
        failure: Any = self.fails.get(what)
        if isinstance(failure, BaseException):
            throw(failure)
        if failure is not None:
            failure(number)

    def holds(self, what: str, by: int) -> None:
        """Count something open."""
        with self.lock:
            self.live[what] += by


class PlainAccelerator(Accelerator):
    def __init__(self, driver: PlainDriver) -> None:
        self.driver, self.version, self.shapes = driver, driver.version, driver.shapes
        self.lowerings = driver.lowerings
        driver.holds("accelerator", 1)

    def supports(self, node: Node) -> bool | str:
        self.driver.called("supports")
        if self.driver.only is None or node.op.name in self.driver.only:
            return True
        return f"{node.op.name} is none of {sorted(self.driver.only)}"

    def compile(self, graph: Graph, context: CompileContext) -> Compiled:
        self.driver.called("compile")
        self.driver.compiled.append(graph)
        return PlainCompiled(self.driver, graph)

    def restore(self, blob: bytes, graph: Graph, context: CompileContext) -> Compiled:
        self.driver.called("restore")
        return PlainCompiled(self.driver, store.load_bolt(pickle.loads(blob)["graph"]))

    def close(self) -> None:
        self.driver.holds("accelerator", -1)
        self.driver.called("close")


class PlainCompiled(Compiled):
    def __init__(self, driver: PlainDriver, graph: Graph) -> None:
        self.driver, self.graph = driver, graph
        driver.holds("compiled", 1)

    def request(self) -> Request:
        self.driver.called("request")
        return PlainRequest(self.driver, self.graph)

    def serialise(self) -> bytes | None:
        self.driver.called("serialise")
        return pickle.dumps({"graph": store.to_bytes(self.graph)})

    @property
    def nbytes(self) -> int:
        return 1000

    def close(self) -> None:
        self.driver.holds("compiled", -1)
        self.driver.called("close")


class PlainRequest(Request):
    def __init__(self, driver: PlainDriver, graph: Graph) -> None:
        self.driver, self.graph = driver, graph
        self.is_busy = threading.Lock()
        driver.holds("request", 1)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if self.driver.idle:
            return
        assert self.is_busy.acquire(blocking=False), "two runs of one request at once"
        try:
            assert all(a.flags.c_contiguous for a in (*inputs, *outputs))
            for array in outputs:  # what a device leaves behind when it fails half-way
                array[...] = 77 if array.dtype.kind != "b" else True
            self.driver.called("run")
            feeds = dict(zip([v.name for v in self.graph.inputs], inputs, strict=True))
            made = interpret(self.graph, feeds)
            for name, target in zip(self.graph.output_names, outputs, strict=True):
                target[...] = made[name]
                if self.driver.wrong and target.dtype.kind == "f":
                    target += self.driver.wrong
        finally:
            self.is_busy.release()

    def counts(self) -> Mapping[str, int]:
        return {} if self.driver.idle else {"copies": 2, "bytes": 100}

    def close(self) -> None:
        self.driver.holds("request", -1)
        self.driver.called("close")


def throw(error: BaseException) -> NoReturn:
    """Raise another one like it: an exception that is raised keeps all frames that it went through."""
    raise type(error)(*error.args)


def nth(number: int, error: BaseException) -> Callable[[int], None]:
    """For `PlainDriver.fails`: fail at the call of this number alone."""

    def fail(count: int) -> None:
        if count == number:
            throw(error)

    return fail


def after(number: int, error: BaseException) -> Callable[[int], None]:
    """Fail at all calls behind the first so many."""

    def fail(count: int) -> None:
        if count > number:
            throw(error)

    return fail


def register_plain() -> PlainDriver:
    """A fresh driver, which sessions to come call "plain"."""
    made = PlainDriver()
    registry.register_driver(lambda: made)
    return made
