"""What rewriting did: every rewrite, the refusals, and the time of every stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field

from bolt_numba.base.records import record
from bolt_numba.ir.graph import Node


@record(frozen=True)
class Rewrite:
    """One rewrite: the rule, where it is defined, the node before, the nodes after, and how long it took."""

    stage: str
    rule: str
    where: str
    before: str
    after: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        lines = "".join(f"\n    + {line}" for line in self.after)
        return f"[{self.stage}] {self.rule} ({self.where}, {1e6 * self.seconds:.0f} us)\n    - {self.before}{lines}"


@record()
class Trace:
    """Everything the pipeline did.  ``until`` (when set) stops all rewriting after that many rewrites."""

    rewrites: list[Rewrite] = field(default_factory=list)
    refusals: dict[tuple[str, str], str] = field(default_factory=dict)
    stages: list[tuple[str, int, float]] = field(default_factory=list)
    stage: str = ""
    until: int | None = None

    def refused(self, rule_name: str, node: Node, reason: str) -> None:
        """Record the last reason why a rule left a node alone."""
        self.refusals[(rule_name, node.name)] = reason

    def rewritten(self, name: str, where: str, before: str, after: Sequence[Node], seconds: float) -> None:
        self.rewrites.append(Rewrite(self.stage, name, where, before, tuple(map(repr, after)), seconds))

    @property
    def exhausted(self) -> bool:
        return self.until is not None and len(self.rewrites) >= self.until

    def counts(self) -> Counter[str]:
        """How often each rule fired."""
        return Counter(one.rule for one in self.rewrites)

    def table(self) -> list[tuple[str, str, int | str, str]]:
        """Rows of stages, each with nodes behind it, and of the rules that fired in them, with times in ms."""
        rows: list[tuple[str, str, int | str, str]] = []
        for name, nodes, seconds in self.stages:
            rows.append((name, "", nodes, f"{1e3 * seconds:.1f}"))
            fired = [one for one in self.rewrites if one.stage == name]
            for rule, count in Counter(one.rule for one in fired).most_common():
                spent = sum(one.seconds for one in fired if one.rule == rule)
                rows.append(("", rule, f"{count} times", f"{1e3 * spent:.1f}"))
        return rows

    def __str__(self) -> str:
        stages = [f"{name}: {nodes} nodes, {1e3 * seconds:.1f} ms" for name, nodes, seconds in self.stages]
        return "\n".join([*map(str, self.rewrites), *stages])
