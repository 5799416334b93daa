"""What runs each node of the plans of a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from bolt_numba.base.follow import is_followed
from bolt_numba.base.notebook import html_table
from bolt_numba.base.swallowed import FAULTS
from bolt_numba.base.turns import is_wanted
from bolt_numba.base.types import Sym, TensorType
from bolt_numba.ir.graph import Node, graph_attributes
from bolt_numba.runtime.packs import pack_of, packed_by
from bolt_numba.runtime.runner import Runner
from bolt_numba.runtime.slots import Job
from bolt_numba.runtime.stops import Read
from bolt_numba.runtime.tape import Taped

NOTHING = "nothing is planned yet: run the session, or call warmup"


class Report(list[dict[str, Any]]):
    """A row for each node: node, operator (op), output, runner, device, packs; a notebook shows it as a table.

    A part that a plug-in has says more: nodes inside, state ("compiled", "cached" or "fallback: ..."), runs of the
    device, fallbacks and notes with how often by reason, copies and bytes.  A node of a loop or branch that ran says
    within which node, and stands behind it.  A row of a session inside, or of a plan that reads views where they lie,
    says its inputs.  devices: a row for each plug-in.  placed: where each node of the model's graph went, and by device
    why not there.  swallowed: faults of bolt-numba in this process that only cost speed, and how often
    (`base.swallowed`).

    tapes: a row for each region, the model's first and then what follows a cut or is the body of a node: nodes, plans
    made of it, tapes that stand for others, shapes that these served, whether one is being made, and why there is none
    (``refused``: what stood in the way, with how often).
    """

    def __init__(self, rows: Iterable[dict[str, Any]] = ()) -> None:
        super().__init__(rows)
        self.devices: list[dict[str, Any]] = []
        self.placed: list[dict[str, Any]] = []
        self.tapes: list[dict[str, Any]] = []
        self.swallowed = dict(FAULTS)

    def __repr__(self) -> str:
        return super().__repr__() if self else f"[] ({NOTHING})"

    def _repr_html_(self) -> str:
        columns = ["node", "op", "output", "runner", "device", "packs"]
        columns += [c for c in ("state", "within", "inputs") if any(c in row for row in self)]
        rows = [[", ".join(row[c]) if c == "packs" else row.get(c, "") for c in columns] for row in self]
        told = [] if self else [NOTHING]
        told += [f"{row['device']}: {row['state']}" for row in self.devices]
        note = "; ".join(told + [f"passed over: {text}" for text in self.swallowed])
        return html_table(f"{len(self)} nodes", columns, rows, (), note)


def packs_of(job: Job) -> list[str]:
    """What its steps read in the place of constants."""
    packs = [pack_of(packed, job.ins, job.device.pack_form) for packed in packed_by(job.steps or ())]
    return [*dict.fromkeys(str(pack) for pack in packs if pack is not None)]


def report_of(runner: Runner) -> Report:
    """The rows of the plan used last, of the bodies that its cuts ran, and of the plans that follow them."""
    rows, rest = Report(), [*_beside(runner), (runner, dict[str, str]())]
    while rest:
        here, within = rest.pop()
        rows.tapes.append(within | _tapes(here))
        last: list[Any] = sorted(here.prepared.values(), key=lambda p: p.used)[-1:]
        made = [tapes for tapes in here.tapes.values() if tapes.tapes]
        for prepared in last or [tapes.last or tapes.tapes[0] for tapes in made][-1:]:
            plan = prepared.tape.plan if isinstance(prepared, Taped) and prepared.strays else prepared.plan
            for job in plan.jobs:
                if type(job.op) is Read:
                    continue
                outs = ", ".join(_text(s.type) for s in job.outs)
                row: dict[str, Any] = {"node": job.name, "op": job.op.name, "output": outs, "runner": job.runner}
                row |= {"device": job.device.name, "packs": packs_of(job)}
                rows.append({**row, **job.device.facts(job), **within})
            if prepared.rest is not None:
                rest.append((prepared.rest, within))
            if prepared.cut is not None:
                node, label = prepared.cut.node, here.cut_label(prepared.cut)
                row = {"node": node.name, "op": node.op.name, "output": "by data", "runner": label}
                rows.append(row | {"device": "host", "packs": []} | within)
                rest += _bodies(here, node, within.get("within", ""))
    return rows


def _tapes(runner: Runner) -> dict[str, Any]:
    found = list(runner.tapes.values())
    refused = Counter([why for tapes in found for why in tapes.refused] or filter(None, [runner.untaped]))
    return {
        "nodes": len(runner.region.nodes), "plans": runner.region.plans, "tapes": sum(len(t.tapes) for t in found),
        "served": sum(t.hits for t in found), "is_making": any(map(is_wanted, found)), "refused": dict(refused),
    }  # fmt: skip


def _text(t: TensorType) -> str:
    """A type, in which sizes that a tape works out are "?"."""
    return str(t if t.shape is None else t.with_shape([Sym("?") if is_followed(d) else d for d in t.shape]))


def _beside(runner: Runner) -> list[tuple[Runner, dict[str, str]]]:
    """What ran inputs that are views, and rows of unequal lengths, and what its rows say besides."""
    parts = [part for packing in runner.region.packing if packing is not None for part in packing.runners.items()]
    made = [(each, {"inputs": f"rows of unequal lengths: {part}"}) for part, each in parts]
    for orders, each in runner.orders.items():
        if each is not None:
            told = [f"{v.name} {list(o)}" for v, o in zip(runner.region.inputs, orders, strict=True) if o is not None]
            made.append((each, {"inputs": f"axes in memory: {', '.join(told)}"}))
    return made


def _bodies(runner: Runner, node: Node, outer: str) -> list[tuple[Runner, dict[str, str]]]:
    """What ran the bodies of a node, the first one last, and what their rows say besides."""
    names = {"within": f"{outer}/{node.name}" if outer else node.name}
    found = [runner.bodies.get(id(graph)) for graph in graph_attributes(node.op).values()]
    return [(body, names) for body in reversed(found) if body is not None]
