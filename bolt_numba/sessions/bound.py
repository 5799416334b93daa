"""Runs over the same arrays again and again, as decoders step: what they are is looked at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bolt_numba.base.types import Array
from bolt_numba.devices.program import NativeRun
from bolt_numba.runtime.prepared import Prepared, RunMemory, Targets
from bolt_numba.sessions.known import KnownSession
from bolt_numba.sessions.session import Session


class BoundRun:
    """Calls of `Session.run_into` with these feeds and buffers, whose contents may change from call to call.

    A call costs what a run of the plan does, if all inputs can be read, and all outputs be written, where they lie.
    Else, and whenever the plan is not there any more, it is a call of `run_into`.
    """

    def __init__(self, session: Session, feeds: Mapping[str, Any], buffers: Mapping[str, Array]) -> None:
        self.session, self.feeds, self.buffers, self._is_first = session, feeds, buffers, True
        self._key: Any = None
        self._plan: Prepared | None = None
        self._arrays: list[Array] = []
        self._targets: list[Array | None] = []
        self._serves: bool | None = None

    def __call__(self) -> None:
        """Run once.  Raises what `run_into` does."""
        if type(self.session) is KnownSession and self._run_known(self.session):
            return
        plan, runner = self._plan, self.session._runner
        if plan is not None and runner.prepared.get(self._key) is plan:
            self._run(plan)
            return
        self.session.run_into(self.feeds, self.buffers)
        if not self._is_first:  # to look pays from a third call on
            self._plan = self._chosen()
        self._is_first = False

    def _run_known(self, session: KnownSession) -> bool:
        """Run what an earlier process kept; whether that serves these arrays as they are."""
        if self._serves is None:
            self._arrays = session._arrays(self.feeds)
            self._targets = session._targets(self._arrays, self.buffers)
            self._serves = self._reads(self._arrays) and all(t is not None for t in self._targets)
        return self._serves and session._known.run(self._arrays, self._targets, self) is not None

    def _reads(self, arrays: list[Array]) -> bool:
        """Whether a run reads what it is given where it lies; some inputs are converted in each run."""
        return all(a is self.feeds[s.name] for a, s in zip(arrays, self.session.inputs, strict=True))

    def _run(self, plan: Prepared) -> None:
        try:
            context = plan.idle.pop()
        except IndexError:
            context = RunMemory(plan.plan)
        try:
            own = context.own[0]
            assert type(own) is NativeRun, "as in the run before"
            own.run_again(self, self._arrays, self._targets)
        finally:
            plan.idle.append(context)

    def _chosen(self) -> Prepared | None:
        """The plan that serves these arrays as they are, for as long as it is there; None where none does."""
        session = self.session
        runner = session._runner
        special = (session._texts, session._states, session._budget)
        if runner.by_value or runner.region.bounds or runner.far or any(x is not None for x in special):
            return None
        arrays = session._arrays(self.feeds)
        if not self._reads(arrays) or session._fitting(arrays) is not session:
            return None
        found = session._targets(arrays, self.buffers)
        assert type(found) is Targets
        plan = found.prepared
        is_whole = type(plan) is Prepared and plan.plain and plan.cut is None and all(t is not None for t in found)
        if plan.stands_in or not is_whole or not _is_native(plan):
            return None
        self._key, self._arrays, self._targets = runner.key(arrays), arrays, list(found)
        return plan


def _is_native(plan: Prepared) -> bool:
    """Whether a run of a plan is one native program."""
    return bool(plan.idle) and [*map(type, plan.idle[-1].own)] == [NativeRun]
