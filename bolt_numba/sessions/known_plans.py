"""Sessions of files whose plan an earlier process has left: they begin with its program, and import no reader or pass.

See `sessions.known` for what completes them.  The first process keeps the plan of the first shapes behind the back of
its runs, where one program of the CPU computes all.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.config import plans_limit
from bolt_numba.base.files.stamps import stamp_at
from bolt_numba.base.options import Options
from bolt_numba.base.records import record
from bolt_numba.base.swallowed import swallowing
from bolt_numba.base.types import STRING, Array, TensorSpec, spec_from_json, spec_json
from bolt_numba.devices import kept_plans
from bolt_numba.devices.program import NativeRun, Program
from bolt_numba.devices.stored import StoredFaultError, arrays_of, restored, stored
from bolt_numba.runtime.device import HOST
from bolt_numba.sessions.known import Known, KnownSession, Shapes
from bolt_numba.sessions.session import Session

Named: TypeAlias = "Mapping[tuple[int, str], Array]"
_KEEPING = "bolt_numba plans"
"""Name of the threads that write."""
MAX_IDLE = 4
"""Memories of runs that are kept for the next ones."""
HELD = 1 << 20
"""Bytes of a model that is held, as a session that has read it does: who writes to its file then changes nothing."""


@record(frozen=True)
class _AskedPlan:
    """path: of the model.  options: by name, that decide what a plan is.  stamp: of the file before it was read."""

    path: str
    options: Mapping[str, Any]
    stamp: list[Any]

    @property
    def name(self) -> str:
        return kept_plans.name_of(self.path, self.options)


def session_of(model: Any, signature: str | None, options: Options) -> Session | None:
    """The session of a file whose plan is kept, or will be; None for what has none."""
    asked = _asked(model, signature, options)
    if asked is None:
        return None
    head = kept_plans.head_of(asked.name, asked.stamp)
    if head is not None:
        with swallowing("kept plan", *kept_plans.DAMAGED):
            return KnownSession(_KnownPlan(asked, head), options)
    from bolt_numba.sessions.loading import read_noting

    found_model, named = read_noting(model)
    made = Session(found_model.graph(signature), options, signatures=found_model.signatures)
    _keep_first(made, asked, named)
    return made


def _asked(model: Any, signature: str | None, options: Options) -> _AskedPlan | None:
    special = (options.stages, options.placement, options.memory_limit, options.time_limit, options.properties or None)
    if options.device not in ("cpu", ("cpu",)) or options.tune or any(x is not None for x in special):
        return None
    text = os.fspath(model)
    is_known = isinstance(text, str) and os.path.splitext(text)[1].lower()[1:] in kept_plans.FORMATS
    if not is_known or not plans_limit() or kept_plans.is_extended():
        return None
    with suppress(OSError, ValueError):
        decide = {"signature": signature, "threads": options.thread_count}
        decide |= {"precision": options.precision, "numerics": options.numerics, "cache": options.cache}
        return _AskedPlan(os.path.abspath(text), decide, stamp_at(text))
    return None


class _KeptPlan:
    """A plan as a file has it.

    program: once it is loaded.  idle: memory of runs of which none has use now.  bound: whose arrays it served last.
    """

    def __init__(self, name: str, head: Mapping[str, Any], outputs: Sequence[TensorSpec]) -> None:
        self.name, self.head = name, head
        self.shapes, self.results = _tuples(head["shapes"]), _tuples(head["results"])
        self.overwrites = {tuple(pair) for pair in head["overwrites"]}
        self.empties = [(dims, spec.dtype) for dims, spec in zip(self.results, outputs, strict=True)]
        self.program: Program | None = None
        self.idle: list[NativeRun] = []
        self.bound: object = None

    def load(self) -> Program | None:
        """The program; None where the plan is not there any more."""
        with swallowing("kept plan", *kept_plans.DAMAGED):
            if self.program is None and (room := kept_plans.pieces_of(self.name, self.head)) is not None:
                self.program = restored(self.head["program"], room)
        return self.program

    def close(self) -> None:
        self.program = None
        self.idle.clear()


class _KnownPlan(Known):
    """first: the plan for the shapes that came first once.  plan: of the runs now."""

    holds, views = HELD, False

    def __init__(self, asked: _AskedPlan, head: Mapping[str, Any]) -> None:
        super().__init__(asked.path, asked.options["signature"], head["files"], head["threads"])
        self.name, self.signatures = head["name"], head["signatures"]
        self.inputs, self.outputs = (tuple(map(spec_from_json, head[key])) for key in ("inputs", "outputs"))
        self.asked, self.metadata = asked, head["metadata"]
        self.plan = self.first = _KeptPlan(asked.name, head, self.outputs)
        self.has_run = self.is_over = False

    def _plan_for(self, shapes: Shapes) -> _KeptPlan | None:
        """The plan for these shapes, where it is the only one that is loaded: each has its own weights."""
        plan = self.plan
        if plan.shapes == shapes:
            return plan
        if plan.program is not None or self.is_over:
            return None
        found = self.first if self.first.shapes == shapes else self._other(shapes)
        if found is not None:
            self.plan = found
        return found

    def _other(self, shapes: Shapes) -> _KeptPlan | None:
        with swallowing("kept plan", *kept_plans.DAMAGED):
            name = kept_plans.name_for(self.asked.name, shapes)
            head = kept_plans.head_of(name, self.asked.stamp)
            return None if head is None else _KeptPlan(name, head, self.outputs)
        return None

    def run(
        self, arrays: list[Array], targets: Sequence[Array | None] | None, bound: object = None
    ) -> list[Array] | None:  # fmt: skip
        plan: Any = self.plan
        if bound is None or plan.bound is not bound:
            shapes = tuple([a.shape for a in arrays])
            if plan.shapes != shapes and (plan := self._plan_for(shapes)) is None:
                return None
        try:
            context = plan.idle.pop()
        except IndexError:
            found = self._context(plan)
            if found is None:
                return None
            context = found
        made: Any = targets
        if targets is None:
            made = [np.empty(*e) for e in plan.empties]
        elif bound is None:
            made = [np.empty(*e) if t is None else t for e, t in zip(plan.empties, targets, strict=True)]
        try:
            if bound is None:
                context.run(arrays, made)
            else:
                context.run_again(bound, arrays, made)
                plan.bound = bound
        except StoredFaultError:
            return None
        finally:
            if len(plan.idle) < MAX_IDLE and context.program is plan.program:  # it may be closed meanwhile
                plan.idle.append(context)
        return made  # type: ignore[no-any-return]

    def _context(self, plan: _KeptPlan) -> NativeRun | None:
        """Memory for a run; None where the plan is not there any more, or more memory than may be."""
        with swallowing("kept plan", *kept_plans.DAMAGED):  # the complete session tells
            program = None if self.is_over else plan.load()
            if program is None:
                return None
            nbytes = plan.head["arena"]
            ask(nbytes + sum(np.dtype(dtype).itemsize * int(np.prod(dims)) for dims, dtype in plan.empties), self.name)
            made = program.bind({HOST: HOST.allocate(nbytes)})
            if not self.has_run:
                self.has_run = True
                for name in {self.asked.name, plan.name}:
                    kept_plans.used(name)
            return made
        return None

    def results(self, shapes: Shapes) -> Shapes | None:
        plan = self._plan_for(shapes)
        return None if plan is None else plan.results

    def can_overwrite(self, shapes: Shapes, output: int, source: int) -> bool:
        plan = self._plan_for(shapes)
        return plan is not None and (output, source) in plan.overwrites

    def is_ready(self, shapes: Shapes) -> bool:
        plan = self._plan_for(shapes)
        return plan is not None and plan.load() is not None

    def close(self) -> None:
        self.plan.close()

    def completed(self, session: Session, named: Sequence[Sequence[Any]]) -> None:
        plan, self.is_over = self.plan, True
        program = plan.load()
        if program is not None:
            session._packs.take_kept(arrays_of(plan.head["packs"], program.links.arrays[0]))
        self.close()
        _keep_first(session, self.asked, named)
        if self.has_run:
            self.planned(session, plan.shapes)


# --- keeping ---------------------------------------------------------------------------------------------------------


def _keep_first(session: Session, asked: _AskedPlan, named: Sequence[Sequence[Any]]) -> None:
    """Have the session's first plan kept, where one program computes all."""
    whole = all(s.nested is None and s.dtype != STRING for s in (*session.inputs, *session.outputs))
    if not whole or session._states is not None or session._texts is not None or kept_plans.is_extended():
        return
    there, facts = weakref.ref(session), kept_plans.facts()

    def keep(runner: Any, shapes: Any, prepared: Any) -> None:
        session = there()
        if session is None or runner is not session._runner:
            return
        runner.serving.keep = None
        made = _head_of(session, shapes, prepared)
        if made is not None:
            made[0].update(files=[asked.stamp, *map(list, named)], facts=facts)
            with suppress(RuntimeError):  # the system gives no more threads, or the process ends
                threading.Thread(target=_write, args=(asked.name, *made), name=_KEEPING).start()

    session._runner.serving.keep = keep


def wait_for_kept() -> None:
    """Until plans that are being kept are kept."""
    for thread in threading.enumerate():
        if thread.name == _KEEPING:
            thread.join()


def _head_of(session: Session, shapes: Any, prepared: Any) -> tuple[dict[str, Any], Program, Named] | None:
    """What is kept of a session with its plan, the plan's program, and names of arrays; None where that is not all."""
    runner, plan = session._runner, prepared.plan
    if runner.nested or runner.region.bounds or runner.by_value or prepared.strays or prepared.late:
        return None
    if plan.cut is not None or not prepared.plain or len(plan.segments) != 1:
        return None
    program = plan.segments[0].executable
    if type(program) is not Program:
        return None
    return {
        "name": session.graph.name, "signatures": list(session.signatures), "threads": session.threads,
        "inputs": list(map(spec_json, session.inputs)), "outputs": list(map(spec_json, session.outputs)),
        "shapes": shapes, "results": [list(dims) for dims, _ in prepared.empties],
        "arena": plan.memory.arenas.get(HOST, 0), "metadata": session.graph.metadata,
        "overwrites": [pair for pair in _alike(session, shapes, prepared) if prepared.can_overwrite(*pair)],
    }, program, session._packs.export_all()  # fmt: skip


def _alike(session: Session, shapes: Any, prepared: Any) -> list[tuple[int, int]]:
    """Outputs and inputs that may be one buffer: the first ones of a type, the second ones and so on."""
    inputs = [(spec.dtype, tuple(dims)) for spec, dims in zip(session.inputs, shapes, strict=True)]
    pairs: list[tuple[int, int]] = []
    for output, (dims, dtype) in enumerate(prepared.empties):
        taken = {source for _, source in pairs}
        found = (i for i, own in enumerate(inputs) if own == (dtype, tuple(dims)) and i not in taken)
        pairs += [(output, i) for i in [next(found, None)] if i is not None]
    return pairs


def _write(name: str, head: dict[str, Any], program: Program, arrays: Named) -> None:
    with swallowing("kept plan", *kept_plans.DAMAGED):
        found = stored(program)
        if found is not None:
            head["program"], pieces = found
            head["packs"] = pieces.named(arrays)
            kept_plans.write(name, head, pieces.arrays)


def _tuples(rows: Sequence[Sequence[int]]) -> Shapes:
    return tuple(tuple(map(int, row)) for row in rows)
