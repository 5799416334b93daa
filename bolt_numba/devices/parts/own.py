"""Our own program for a part of the graph: made when its device first fails, and to hold its results against."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.options import Options
from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.ir.graph import Graph
from bolt_numba.plugins.rest import finished
from bolt_numba.runtime.device import Device
from bolt_numba.runtime.packs import Packs
from bolt_numba.runtime.region import region_of
from bolt_numba.runtime.runner import Runner
from bolt_numba.runtime.stand_ins import Serving


@record(frozen=True)
class Settings:
    """Of the session, for parts of its graph.  devices: the session's without plug-ins."""

    options: Options
    devices: tuple[Device, ...]


class OwnProgram:
    """Runs the graph of a part; planned for each set of shapes, as a session would."""

    def __init__(self, graph: Graph, settings: Settings) -> None:
        self._graph, self._settings = graph, settings
        self._runner: Runner | None = None
        self._lock = threading.RLock()
        renew_after_fork(self, "_lock", threading.RLock)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Fill the outputs."""
        runner = self._runner or self._made()
        for target, result in zip(outputs, runner.run(inputs, outputs), strict=True):
            if result is not target:
                np.copyto(target, result)

    def _made(self) -> Runner:
        with self._lock:
            if self._runner is None:
                own = self._settings.options
                graph = finished(self._graph, own.precision, own.numerics)
                packs = Packs(own.precision, own.numerics)
                region = region_of(graph)
                serving, devices = Serving(graph.called, own.does_stand_in), self._settings.devices
                self._runner = Runner(region, own.thread_count, packs, devices, None, own.max_plans, serving)
            return self._runner
