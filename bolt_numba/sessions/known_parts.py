"""Sessions of files that an earlier process gave to a device as one part: they begin with the blob in the cache."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.options import Options
from bolt_numba.base.swallowed import swallowing
from bolt_numba.base.types import Array
from bolt_numba.devices import others
from bolt_numba.devices.parts.failures import Failures
from bolt_numba.devices.parts.opened import Loaded, Opened
from bolt_numba.plugins import blobs, registry, starts
from bolt_numba.plugins.interface import CompileContext, DeviceFullError, DeviceLostError
from bolt_numba.plugins.starts import Hookup, Opening, Shapes, Start
from bolt_numba.sessions.known import Known, KnownSession
from bolt_numba.sessions.session import Session


class _Ready:
    """A compiled graph for one set of shapes, and what its runs counted."""

    def __init__(self, hookup: Hookup, loaded: Loaded) -> None:
        self.hookup, self.loaded = hookup, loaded
        self.runs, self.counts = 0, Counter[str]()
        self.lock = threading.RLock()
        renew_after_fork(self, "lock", threading.RLock)

    def ran(self, counts: Mapping[str, int]) -> None:
        with self.lock:
            self.runs += 1
            self.counts.update(counts)


class _KnownPart(Known):
    """The device of a session, and what is compiled for it.  ready: by shapes of the inputs."""

    def __init__(self, asked: Opening, start: Start, opened: Opened, precision: str) -> None:
        super().__init__(asked.path, asked.options["signature"], start.files, start.threads)
        self.name, self.signatures = start.name, start.signatures
        self.inputs, self.outputs = start.inputs, start.outputs
        self.asked, self.start, self.opened, self.precision = asked, start, opened, precision
        self.ready: dict[Shapes, _Ready] = {}
        self.last: _Ready | None = None
        self.lock = threading.RLock()
        renew_after_fork(self, "lock", threading.RLock)

    def run(
        self, arrays: list[Array], targets: Sequence[Array | None] | None, bound: object = None
    ) -> list[Array] | None:  # fmt: skip
        """Results of the device; None where it fails, which is counted.  Raises DeviceError where nobody else may.

        targets: for each result where it is written, if the caller says.
        """
        shapes = tuple([a.shape for a in arrays])
        ready = self.ready.get(shapes) or self._restored(shapes)
        if ready is None or self.opened.lost or not ready.loaded.begin():
            return None
        hookup, loaded, request, failure = ready.hookup, ready.loaded, None, None
        outputs, given = zip(hookup.shapes, self.start.outputs, strict=True), targets or [None] * len(hookup.shapes)
        made = [np.empty(s, o.dtype) if t is None else t for (s, o), t in zip(outputs, given, strict=True)]
        try:
            request = loaded.request()
            operands = [*arrays, *hookup.constants] if hookup.constants else arrays
            request.run([operands[i] for i in hookup.ins], [made[i] for i in hookup.outs])
            ready.ran(loaded.counted(request))
            self.last = ready
            loaded.idle.append(request)
            return made
        except Exception as error:
            failure = error
        except BaseException:  # an interrupt: who knows what the request does
            if request is not None:
                loaded.drop(request)
            raise
        finally:
            loaded.end()
        if request is not None:
            loaded.drop(request)
        if isinstance(failure, DeviceLostError):
            self.opened.lost = f"run: {failure}"
        if not isinstance(failure, DeviceFullError):  # what is not in use is let go, and it is asked once more
            self.opened.failures.add(self.opened.name, "run", failure, hookup.part, hookup.nodes)
        return None

    def _restored(self, shapes: Shapes) -> _Ready | None:
        """The compiled graph for these shapes; None where it is not kept, or no good, which complete sessions tell."""
        hookup = self.start.hookups.get(shapes)
        with self.lock, suppress(Exception):
            if hookup is None or shapes in self.ready or self.opened.lost:
                return self.ready.get(shapes)
            with self.opened.in_use():
                accelerator = self.opened.accelerator()
                blob = blobs.mapped(hookup.blob, hookup.stamp)
                if blob is not None and accelerator.version == self.start.version:
                    context = CompileContext(self.start.threads, self.precision)
                    loaded = self.opened.load(accelerator.start(blob, context))
                    loaded.source, loaded.blob, loaded.is_proven = "cached", hookup.blob, True
                    made = self.ready[shapes] = _Ready(hookup, loaded)
                    for old in list(self.ready)[: -max(1, int(self.opened.settings["max_compiled"]))]:
                        self.ready.pop(old).loaded.retire()
                    return made
        return None

    def results(self, shapes: Shapes) -> Shapes | None:
        hookup = self.start.hookups.get(shapes)
        return None if hookup is None else hookup.shapes

    def is_ready(self, shapes: Shapes) -> bool:
        return shapes in self.ready or self._restored(shapes) is not None

    def close(self) -> None:
        with self.lock:
            ready, self.ready = list(self.ready.values()), {}
        for each in ready:
            each.loaded.retire()
        self.opened.close()

    @property
    def already(self) -> Mapping[str, Opened]:
        return {self.opened.name: self.opened}

    def completed(self, session: Session, named: Sequence[Sequence[Any]]) -> None:
        from bolt_numba.sessions.noted import remember

        last = self.last  # reports tell of the plan that was used last
        for shapes, ready in sorted(self.ready.items(), key=lambda row: row[1] is last):
            self._hand_over(session, shapes, ready)
        remember(session, self.asked, named)

    def _hand_over(self, session: Session, shapes: Shapes, ready: _Ready) -> None:
        """Have the session's part of these shapes go on with what is compiled."""
        from bolt_numba.base.types import TensorType
        from bolt_numba.sessions.noted import only_part

        assert session._plugins is not None, "a device was named"
        device = session._plugins.by_name.get(self.asked.device)
        node = only_part(session)
        if device is None or node is None:
            return  # the device answers otherwise today
        part, specs = device.part(node.op, node.name), session.inputs
        operands = [TensorType(s.dtype, dims) for s, dims in zip(specs, shapes, strict=True)]
        operands += [TensorType(c.dtype, c.shape, c) for c in ready.hookup.constants]
        types = [operands[i] for i in ready.hookup.ins]
        part.go_on(part.asked(types), ready.loaded, ready.runs, ready.counts)
        self.planned(session, shapes)


def session_of(model: Any, signature: str | None, options: Options) -> Session | None:
    """The session of a file that may start, or begin to, without its model; None where nothing of it is remembered."""
    asked = _asked(model, signature, options)
    if asked is None:
        return None
    made = _known(asked, options)
    if made is None:
        from bolt_numba.sessions.noted import begun  # those that start without their model do without

        made = begun(asked, options)
    return made


def _asked(model: Any, signature: str | None, options: Options) -> Opening | None:
    """What decides how a session begins; None where that is not remembered."""
    names = others(options.device)
    special = (options.stages, options.placement, options.memory_limit, options.time_limit)
    if not isinstance(model, (str, os.PathLike)) or len(names) != 1 or any(x is not None for x in special):
        return None
    given = options.properties or {}
    if options.tune or given.keys() - {*names}:
        return None
    text = os.fspath(model)
    if not isinstance(text, str) or os.path.splitext(text)[1].lower() not in starts.FORMATS:
        return None
    # what is wrong with a property is told by the session that begins from its model
    with swallowing("start", *starts.DAMAGED):
        decide = {
            "devices": options.device, "signature": signature, "threads": options.threads,
            "precision": options.precision, "numerics": options.numerics,
            "properties": sorted(given.get(names[0], {}).items()),
        }  # fmt: skip
        return starts.asked_for(text, names[0], decide)
    return None


def _known(asked: Opening, options: Options) -> Session | None:
    """The session of what an earlier process was asked for, too; None where it has to begin from its model."""
    start = starts.find(asked)
    if start is None:
        return None
    with suppress(Exception):  # a device that cannot be opened is told by the session that begins from its model
        if start.driver.missing():
            return None
        settings = registry.settings_of(start.driver, (options.properties or {}).get(asked.device, {}))
        opened = Opened(start.driver, settings, Failures(options.fallback), asked.device)
        try:
            accelerator = opened.accelerator()
            if accelerator.version == start.version and starts.can_start(accelerator):
                return KnownSession(_KnownPart(asked, start, opened, options.precision), options)
        except Exception:
            opened.close()
            raise
        opened.close()
    return None
