"""Sessions that begin from their model, and are noted for later processes where a device runs all of it as one part."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from bolt_numba.base.options import Options
from bolt_numba.base.types import STRING, spec_json
from bolt_numba.devices.parts.device import ForeignProgram
from bolt_numba.devices.parts.opened import Loaded
from bolt_numba.ir.graph import Node
from bolt_numba.ops.foreign import Foreign
from bolt_numba.plugins import blobs, starts
from bolt_numba.plugins.starts import Hookup, Opening
from bolt_numba.runtime.slots import INPUT
from bolt_numba.sessions.loading import read_noting
from bolt_numba.sessions.session import Session

MOST_BYTES = 4096
"""Bytes of constant operands that are remembered of a part."""


def begun(asked: Opening, options: Options) -> Session:
    """A session that reads its model."""
    found, named = read_noting(asked.path)
    graph = found.graph(asked.options["signature"])
    made = Session(graph, options, signatures=found.signatures)
    remember(made, asked, named)
    return made


def remember(session: Session, asked: Opening, named: Sequence[Sequence[Any]]) -> None:
    """Have what runs well be remembered, where the whole graph is one part of the device."""
    plugins = session._plugins
    if plugins is None or plugins.missing or session._states is not None or only_part(session) is None:
        return
    opened = plugins.by_name[asked.device].opened
    settings, there = opened.settings, weakref.ref(session)
    whole = all(s.nested is None and s.dtype != STRING for s in (*session.inputs, *session.outputs))
    if not whole or not settings["cache"] or settings["self_check"] or settings["buckets"]:
        return
    if starts.can_start(opened.accelerator()):

        def proven(loaded: Loaded) -> None:
            session = there()
            if session is not None:
                _write(session, asked, named, loaded)

        opened.proven = proven


def only_part(session: Session) -> Node | None:
    """The part of a session that has one; other nodes may follow from shapes alone, which `_hookup` finds out."""
    parts = [node for node in session._runner.region.nodes if isinstance(node.op, Foreign)]
    return parts[0] if len(parts) == 1 else None


def _write(session: Session, asked: Opening, named: Sequence[Sequence[Any]], loaded: Loaded) -> None:
    runner = session._runner
    if not loaded.blob or runner.nested or runner.region.bounds or runner.by_value:
        return
    plans: Any = list(runner.prepared.items())
    for shapes, prepared in plans:
        hookup = _hookup(prepared, loaded, len(session.inputs))
        if hookup is not None:
            start = {
                "version": loaded.opened.version, "name": session.graph.called,
                "signatures": list(session.signatures), "threads": session.threads,
                "inputs": list(map(spec_json, session.inputs)),
                "outputs": list(map(spec_json, session.outputs)),
            }  # fmt: skip
            starts.write(asked, named, start, shapes, hookup)


def _hookup(prepared: Any, loaded: Loaded, count: int) -> Hookup | None:
    """How operands of a plan are those of the part that it is; None where it is more, or less.  count: of inputs."""
    plan = prepared.plan
    if plan.cut is not None or not prepared.plain or len(plan.segments) != 1:
        return None
    executable = plan.segments[0].executable
    if not isinstance(executable, ForeignProgram) or len(executable.jobs) != 1:
        return None
    job, part, wanted = executable.jobs[0]
    given = [s for s in job.ins if s is not None]
    constants = [s.const for s in given if s.const is not None]
    if any(s.const is None and (s.kind != INPUT or s.base is not None) for s in given):
        return None
    numbers = iter(range(count, count + len(constants)))
    ins, outs = [s.index if s.const is None else next(numbers) for s in given], [s.result for s in job.outs]
    plain = all(s.base is None for s in job.outs) and wanted.rows is None
    plain = plain and sum(c.nbytes for c in constants) <= MOST_BYTES
    if not plain or sorted(outs) != list(range(len(prepared.empties))):
        return None
    shapes = tuple(dims for dims, _ in prepared.empties)
    stamp = blobs.stamp(loaded.blob)
    if stamp is None or not part.serves(wanted, loaded):
        return None
    return Hookup(loaded.blob, stamp, part.name, tuple(part.nodes), tuple(ins), tuple(outs), shapes, tuple(constants))
