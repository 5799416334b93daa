"""What runs each node of the plans of a session."""

from __future__ import annotations

from typing import Any

from bolt_numba.base.notebook import html_table
from bolt_numba.runtime.runner import Runner


class Report(list[dict[str, Any]]):
    """A row for each node: node, operator (op), output, runner, device, packs; a notebook shows it as a table."""

    def _repr_html_(self) -> str:
        columns = ("node", "op", "output", "runner", "device", "packs")
        rows = [[", ".join(row[c]) if c == "packs" else row[c] for c in columns] for row in self]
        return html_table(f"{len(self)} nodes", columns, rows)


def report_of(runner: Runner) -> Report:
    """The rows of the plan used last, and of those that follow its cuts."""
    rows, rest = Report(), [runner]
    while rest:
        here = rest.pop()
        for prepared in list(here.prepared.values())[-1:]:
            for job in prepared.plan.jobs:
                outs = ", ".join(str(s.type) for s in job.outs)
                row = {"node": job.name, "op": job.op.name, "output": outs, "runner": job.runner}
                rows.append(row | {"device": job.device.name, "packs": [str(pack) for pack in job.packs]})
            if prepared.plan.cut is not None:
                node, label = prepared.plan.cut.node, here.cut_label(prepared.plan.cut)
                row = {"node": node.name, "op": node.op.name, "output": "by data", "runner": label}
                rows.append(row | {"device": "host", "packs": []})
            if prepared.rest is not None:
                rest.append(prepared.rest)
    return rows
