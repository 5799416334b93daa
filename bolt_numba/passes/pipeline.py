"""The order of passes, on one screen.

A stage is a name and a function that rewrites a graph in place.  To insert a subgraph plug-in or narrower types, give
`run_pipeline` other ``stages``: ``partition`` and ``precision`` are the places where they belong.  A session's
``precision="bf16"`` needs none: it chooses among kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, TypeAlias

from bolt_numba.config import CHECK
from bolt_numba.ir.graph import Graph, graph_attributes
from bolt_numba.ir.spec import verify
from bolt_numba.passes import absorb, canonical, control, einsum, fuse, layout, norms, products, recognise, views
from bolt_numba.passes.fold import fold_rules
from bolt_numba.passes.rewrite import Rule, Trace, nested, rewrite
from bolt_numba.passes.transposes import move_transposes
from bolt_numba.records import record


@record()
class Run:
    """What the stages of one pipeline run share: the folding budget, the trace, optional rules."""

    trace: Trace | None = None
    strict: bool = False
    extra: Sequence[Rule] = ()
    folding: tuple[Rule, ...] = field(default_factory=fold_rules)
    numerics: str = "default"
    settled: tuple[Rule, ...] = ()
    """Rules of which none applies to the graph as it is."""

    @property
    def clean(self) -> tuple[Rule, ...]:
        """Rules that every stage may rely on: nothing they remove comes back."""
        return (*self.folding, *control.RULES, *views.RULES, *canonical.RULES)

    @property
    def absorb(self) -> tuple[Rule, ...]:
        """Rules that move constants into weights, as the level allows."""
        return absorb.RULES if self.numerics == "strict" else (*absorb.RULES, *absorb.LAX_RULES)

    def rewrite(self, graph: Graph, rules: Sequence[Rule]) -> None:
        fired = rewrite(graph, rules, trace=self.trace, strict=self.strict, settled=self.settled)
        self.settled = tuple(rules) if fired else (*self.settled, *rules)


def _canonical(graph: Graph, run: Run) -> None:
    run.rewrite(graph, (*run.clean, *einsum.RULES))


def _recognise(graph: Graph, run: Run) -> None:
    run.rewrite(graph, (*run.clean, *norms.RULES, *recognise.RULES))
    run.rewrite(graph, (*run.clean, *norms.RULES, *recognise.RULES, *products.RULES, *run.absorb))


def _keep(graph: Graph, run: Run) -> None:
    """Everything runs on this device, in the precision of the model."""


def _layout(graph: Graph, run: Run) -> None:
    run.rewrite(graph, (*layout.SPATIAL_RULES, *run.clean, *run.absorb))
    for g in nested(graph):
        move_transposes(g)
    run.settled = ()
    run.rewrite(graph, (*layout.FINAL_RULES, *run.clean, *run.absorb))


def _fuse(graph: Graph, run: Run) -> None:
    run.rewrite(graph, (*run.clean, *products.LATE_RULES, *fuse.RULES, *run.extra))
    run.rewrite(graph, fuse.chain_rules())


Stage: TypeAlias = tuple[str, Callable[[Graph, Run], None]]
STAGES: tuple[Stage, ...] = (
    ("canonical", _canonical),  # fold, drop, one spelling per idea
    ("recognise", _recognise),  # gelu, norms, attention; constants into weights
    ("partition", _keep),  # subgraphs for plug-ins
    ("precision", _keep),  # narrower types
    ("layout", _layout),  # channels last, transposes where they are cheapest
    ("fuse", _fuse),  # epilogues, chains
)


_OWN = frozenset(stage for _, stage in STAGES)
"""Stages that change a graph by `Run.rewrite`, or say so."""


def all_rules() -> tuple[Rule, ...]:
    """Every rule of every stage, once."""
    run = Run()
    parts: tuple[Sequence[Rule], ...] = (
        run.clean,
        einsum.RULES,
        norms.RULES,
        recognise.RULES,
        products.RULES,
        run.absorb,
        layout.SPATIAL_RULES,
        layout.FINAL_RULES,
    )
    parts += (products.LATE_RULES, fuse.RULES, fuse.chain_rules(), fuse.wide_rules())
    return tuple({r.name: r for part in parts for r in part}.values())


def run_pipeline(
    graph: Graph,
    *,
    trace: Trace | None = None,
    until: str | int | None = None,
    check: bool | None = None,
    stages: Sequence[Stage] = STAGES,
    extra: Sequence[Rule] = (),
    numerics: str = "default",
) -> Graph:
    """An optimised copy of ``graph``.

    trace: receives every rewrite and the time of every stage.  until: the name of the last stage to run, or the number
    of rewrites after which to stop (to find a bad one by bisection).  check: verify the graph after every stage and
    treat a rule's failure as an error; None asks the environment variable BOLT_NUMBA_CHECK.  extra: optional rules
    for the stage ``fuse``.  numerics: of the sessions to come; ``"strict"`` does without `absorb.LAX_RULES`.
    Raises InvalidModelError when a check fails, BoltError when rules do not reach a fixed point.
    """
    checked = CHECK.value not in ("", "0") if check is None else check
    names = [name for name, _ in stages]
    if isinstance(until, str) and until not in names:
        raise ValueError(f"until: got {until!r}, wanted one of {names}")
    if isinstance(until, int):
        trace = trace or Trace()
        trace.until = until
    run = Run(trace, checked, extra, numerics=numerics)
    made = deep_clone(graph)
    for name, stage in stages:
        start = time.perf_counter()
        if trace is not None:
            trace.stage = name
        stage(made, run)
        if stage not in _OWN:
            run.settled = ()
        if trace is not None:
            trace.stages.append((name, sum(len(g.nodes) for g in nested(made)), time.perf_counter() - start))
        if checked:
            verify(made, "import" if trace is not None and trace.exhausted else name)
        if name == until or (trace is not None and trace.exhausted):
            break
    return made


def deep_clone(graph: Graph) -> Graph:
    """A copy whose subgraphs are copies too; constants' arrays are shared."""
    made = graph.clone()
    for g in nested(made):
        for node in g.nodes:
            subgraphs: dict[str, Any] = {k: v.clone() for k, v in graph_attributes(node.op).items()}
            if subgraphs:
                op: Any = node.op
                node.op = replace(op, **subgraphs)
    return made
