"""A part of the graph and what its device has compiled for it; whatever fails, our own program computes the part."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from bolt_numba.base.errors import DeviceError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.types import Array, TensorType
from bolt_numba.devices.parts.failures import count
from bolt_numba.devices.parts.opened import Loaded, Opened
from bolt_numba.devices.parts.own import OwnProgram, Settings
from bolt_numba.ir.graph import Graph
from bolt_numba.plugins import blobs
from bolt_numba.plugins.buckets import buckets_of, has_rows, mixing, next_size
from bolt_numba.plugins.interface import Accelerator, CompileContext, Compiled, DeviceFullError, DeviceLostError
from bolt_numba.plugins.preparing import Wanted, prepared, wanted
from bolt_numba.plugins.registry import text_of

IN_A_ROW = 3
"""Runs that may fail one after another before a device is asked no more for a part."""
MOST_REFUSED = 256
"""Sets of shapes of which a part knows that the device has nothing for them."""
EMPTY = "operands without elements are left to us"
Made = TypeVar("Made")


class StageError(Exception):
    """A device failed in a stage; the cause stands behind it."""

    def __init__(self, stage: str, cause: Exception) -> None:
        super().__init__(stage)
        self.stage, self.cause = stage, cause


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Whatever is raised here is a `StageError` of this stage."""
    try:
        yield
    except Exception as error:
        raise StageError(name, error) from error


class Part:
    """A subgraph for a device, with what it did.  Safe to call from many threads at once.

    name: for people.  graph: as it was partitioned.  runs: of the device; fallbacks: runs of our own program by
    reason.  notes: what else went wrong, by reason.  refused: why the device has nothing for a `Wanted`.
    """

    def __init__(self, name: str, graph: Graph, opened: Opened, settings: Settings) -> None:
        self.name, self.graph, self.opened, self.settings = name, graph, opened, settings
        self.nodes = [node.name for node in graph.nodes]
        self.own = OwnProgram(graph, settings)
        self.runs, self.fallbacks, self.notes = 0, Counter[str](), Counter[str]()
        self.counts, self.last = Counter[str](), dict[str, int]()
        self.given_up, self.refused = "", dict[Hashable, str]()
        self.rows, self.sizes = self._rows()
        self._kept: dict[Hashable, Loaded] = {}
        self._in_a_row = 0
        self.lock, self.tally = threading.RLock(), threading.RLock()
        renew_after_fork(self, "lock", threading.RLock)
        renew_after_fork(self, "tally", threading.RLock)

    def _rows(self) -> tuple[str, tuple[int, ...]]:
        """The symbol whose axis is padded, and to which sizes; none where rows may depend on each other."""
        for symbol, sizes in buckets_of(str(self.opened.settings["buckets"])).items():
            reason = mixing(self.graph, symbol)
            if not reason:
                return symbol, sizes
            self.notes[f"buckets: {reason}"] += 1
        return "", ()

    # --- what the device has compiled --------------------------------------------------------------------------------

    def asked(self, types: Sequence[TensorType]) -> Wanted:
        """What a plan of these types asks for."""
        if any(not t.size for t in types):
            return replace(wanted(self.graph, types, "fixed"), is_empty=True)
        if not self.sizes or self.opened.shapes != "fixed":
            return wanted(self.graph, types, self.opened.shapes)
        have = [has_rows(v.type, self.rows) for v in self.graph.inputs]
        size = next(t.dims[0] for t, has in zip(types, have, strict=True) if has)
        full = next_size(size, self.sizes)
        padded = [t.with_shape((full, *t.dims[1:])) if has else t for t, has in zip(types, have, strict=True)]
        made = wanted(self.graph, padded, "fixed")
        return made if full == size else replace(made, rows=(size, full))

    def prepare(self, wanted: Wanted) -> Loaded | None:
        """What serves a plan, compiled now unless it was before; None where our own program has to.

        Raises DeviceError where the session forbids that.
        """
        with self.lock:
            if wanted.is_empty:
                return None
            reason = self.why_not(wanted)
            if reason:
                self.opened.failures.check(self.opened.name, reason, self.name, self.nodes)
                return None
            found = self._kept.get(wanted.key)
            if found is not None and found.is_usable:
                self._kept[wanted.key] = self._kept.pop(wanted.key)  # the one used last stands last
                return found
            try:
                with self.opened.in_use():
                    made = self._made(wanted)
            except StageError as error:
                self._refused(wanted, self.failed(error.stage, error.cause))
                return None
            self._kept[wanted.key] = made
            for old in list(self._kept)[: -max(1, int(self.opened.settings["max_compiled"]))]:
                self._kept.pop(old).retire()
            return made

    def go_on(self, wanted: Wanted, loaded: Loaded, runs: int, counts: Mapping[str, int]) -> None:
        """Have something serve that was loaded without the graph, and has run so often."""
        with self.lock, self.tally:
            self._kept[wanted.key] = loaded
            self.runs += runs
            self.counts.update(counts)

    def serves(self, wanted: Wanted, loaded: Loaded) -> bool:
        """Whether this is what serves a plan."""
        return self._kept.get(wanted.key) is loaded

    def held(self) -> dict[int, int]:
        """Bytes of the device that compiled graphs hold, as far as the device knows."""
        with self.lock:
            return {id(each): each.nbytes for each in self._kept.values() if each.is_usable}

    def why_not(self, wanted: Wanted) -> str:
        """Why the device is not asked; "" where it is."""
        if wanted.is_empty:
            return EMPTY
        return self.opened.lost or self.given_up or self.refused.get(wanted.key, "")

    def _made(self, wanted: Wanted) -> Loaded:
        with stage("open"):
            accelerator = self.opened.accelerator()
        with stage("convert"):
            graph = prepared(self.graph, wanted.types, accelerator)
        ranges = dict(zip([v.name for v in graph.inputs], wanted.ranges, strict=bool(wanted.ranges)))
        own = self.settings.options
        context = CompileContext(own.thread_count, own.precision, ranges)
        name = self._blob(graph, accelerator, context)
        loaded = self._restored(name, lambda blob: accelerator.restore(blob, graph, context)) if name else None
        if loaded is None:
            with stage("compile"):
                compiled = self.with_room(lambda: accelerator.compile(graph, context))
                loaded = self.opened.load(_checked(compiled))
        loaded.blob = name
        return loaded

    def _blob(self, graph: Graph, accelerator: Accelerator, context: CompileContext) -> str:
        """The name by which the compiled graph is kept; "" where it is not."""
        if not self.opened.settings["cache"]:
            return ""
        try:
            return blobs.name_of(graph, self.opened.driver, accelerator.version, self.opened.settings, context)
        except Exception as error:
            self.note("cache", error)
            return ""

    def _restored(self, name: str, restore: Callable[[bytes], Compiled]) -> Loaded | None:
        """What was kept by an earlier process, if the device takes it."""
        try:
            blob = blobs.read(name)
            if blob is None:
                return None
            loaded = self.opened.load(_checked(self.with_room(lambda: restore(blob))))
        except DeviceLostError as error:
            raise StageError("restore", error) from error
        except Exception as error:
            self.note("restore", error)
            return None
        loaded.source = "cached"
        return loaded

    def with_room(self, do: Callable[[], Made]) -> Made:
        """Do something; once more where the device was full, and had something that is not in use."""
        try:
            return do()
        except DeviceFullError:
            if not self.opened.make_room():
                raise
        return do()

    # --- what happened -----------------------------------------------------------------------------------------------

    def failed(self, stage: str, cause: Exception | str) -> str:
        """Take note that the device failed; its reason.  Raises DeviceError where the session forbids a fallback."""
        if isinstance(cause, DeviceLostError):
            self.opened.lost = self.opened.lost or f"{stage}: {cause}"
        return self.opened.failures.add(self.opened.name, stage, cause, self.name, self.nodes)

    def note(self, stage: str, cause: Exception) -> None:
        """Something failed for which the device itself makes up."""
        with self.tally:
            count(self.notes, f"{stage}: {text_of(cause)}")

    def succeeded(self, counts: Any) -> None:
        """A run of the device is over."""
        with self.tally:
            self.runs += 1
            self._in_a_row = 0
            if counts:
                self.last = dict(counts)
                self.counts.update(self.last)

    def refuse(self, wanted: Wanted, reason: str) -> None:
        """Have the device compute this no more."""
        with self.lock:
            self._refused(wanted, reason)
            loaded = self._kept.pop(wanted.key, None)
        if loaded is not None:
            loaded.retire()

    def _refused(self, wanted: Wanted, reason: str) -> None:
        """Take note; what was refused longest ago may be asked for again."""
        self.refused[wanted.key] = reason
        for old in list(self.refused)[:-MOST_REFUSED]:
            del self.refused[old]

    def failed_run(self, reason: str) -> None:
        """A run failed where ours did not.  After some in a row the device is asked no more for this part."""
        with self.tally:
            self._in_a_row += 1
            if self._in_a_row >= IN_A_ROW:
                self.given_up = f"{reason} ({IN_A_ROW} times in a row)"

    def compute(self, reason: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Have our own program fill the outputs."""
        with self.tally:
            count(self.fallbacks, reason)
        self.own.run(inputs, outputs)

    def facts(self, types: Sequence[TensorType]) -> dict[str, Any]:
        """What people are told of the part in a plan of these types."""
        wanted = self.asked(types)
        reason, loaded = self.why_not(wanted), self._kept.get(wanted.key)
        state = f"fallback: {reason}" if reason else "not compiled" if loaded is None else loaded.source
        with self.tally:
            counts = {"copies": self.counts["copies"], "bytes": self.counts["bytes"]}
            made = {"nodes": list(self.nodes), "state": state, "runs": self.runs, **counts}
            return made | {"fallbacks": dict(self.fallbacks), "notes": dict(self.notes)}

    def forget(self) -> None:
        """Let go what is compiled; what the device refused it may be asked again."""
        with self.lock:
            kept, self._kept = list(self._kept.values()), {}
            self.refused.clear()
        for loaded in kept:
            loaded.retire()


def _checked(made: Any) -> Compiled:
    if not isinstance(made, Compiled):
        raise DeviceError(f"got a {type(made).__name__}, wanted a Compiled")
    return made
