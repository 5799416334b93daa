"""The order of passes, on one screen, and how to add to it.

A `Stage` is a name and its parts, in order: sets of rules, each applied until none fires, and functions that rewrite a
graph in place.  `bolt_numba.compile` takes ``stages=`` made by `with_rules` and `with_stage`, so that a rule, a pass or
a plug-in of one's own takes part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np

from bolt_numba.base.config import CHECK
from bolt_numba.base.errors import BoltError, DTypeError
from bolt_numba.base.records import record
from bolt_numba.base.types import BF16, F16
from bolt_numba.ir.graph import Graph, graph_attributes
from bolt_numba.ir.spec import STAGES as SPEC_STAGES
from bolt_numba.ir.spec import verify
from bolt_numba.ops.registry import OPS
from bolt_numba.passes.canonical import arithmetic, control, einsum, views
from bolt_numba.passes.canonical.fold import fold_rules, let_integers_fold
from bolt_numba.passes.layout import channels_last
from bolt_numba.passes.layout.transposes import move_transposes
from bolt_numba.passes.pipeline import fuse
from bolt_numba.passes.quantised import (
    binary,
    dynamic,
    moves,
    rows,
    tables,
    tails,
    thresholds,
    transposed,
    weights,
    windows,
)
from bolt_numba.passes.quantised import products as integers
from bolt_numba.passes.recognise import absorb, activations, norms, products
from bolt_numba.passes.rewrite import Rule, nested, rewrite
from bolt_numba.passes.trace import Trace

Chosen: TypeAlias = "Callable[[PipelineRun], Sequence[Rule]]"
"""Rules that each run of the pipeline has made for it: they keep a state, or depend on the session's numerics."""
RuleSet: TypeAlias = "tuple[Rule | Chosen, ...]"


class Parts(Protocol):
    """Puts nodes into parts for these devices, as `partition.partition.Partition` does."""

    @property
    def devices(self) -> Sequence[str]: ...

    def __call__(self, graph: Graph) -> None: ...


@record()
class PipelineRun:
    """What the stages of a run share.  numerics, precision, halves (its device computes on them): of the session."""

    trace: Trace | None = None
    strict: bool = False
    numerics: str = "default"
    precision: str = "f32"
    halves: bool = False
    settled: tuple[Rule, ...] = ()
    """Rules of which none applies to the graph as it is."""
    chosen: dict[Chosen, tuple[Rule, ...]] = field(default_factory=dict)
    partition: Parts | None = None

    def rules(self, rules: RuleSet) -> list[Rule]:
        """All rules of a set, as this run has them."""
        made: list[Rule] = []
        for each in rules:
            if isinstance(each, Rule):
                made.append(each)
                continue
            if each not in self.chosen:
                self.chosen[each] = tuple(each(self))
            made += self.chosen[each]
        return made

    def rewrite(self, graph: Graph, rules: Sequence[Rule]) -> None:
        fired = rewrite(graph, rules, trace=self.trace, strict=self.strict, settled=self.settled)
        self.settled = tuple(rules) if fired else (*self.settled, *rules)


Pass: TypeAlias = "Callable[[Graph, PipelineRun], bool | None]"
"""Rewrites a graph in place; False says that rules which did not apply before do not apply now."""


@record(frozen=True)
class Stage:
    """A named part of the pipeline.  parts: sets of rules, and functions that rewrite a graph in a `PipelineRun`."""

    name: str
    parts: tuple[RuleSet | Pass, ...] = ()

    def __call__(self, graph: Graph, run: PipelineRun) -> None:
        for part in self.parts:
            if isinstance(part, tuple):
                run.rewrite(graph, run.rules(part))
            elif part(graph, run) is not False:
                run.settled = ()


def folding(run: PipelineRun) -> tuple[Rule, ...]:
    """Rules that fold, with a budget for the run."""
    return fold_rules()


def absorbing(run: PipelineRun) -> tuple[Rule, ...]:
    """Rules that move constants into weights, as the level allows."""
    return absorb.RULES if run.numerics == "strict" else (*absorb.RULES, *absorb.LAX_RULES)


def exact_floats(run: PipelineRun) -> tuple[Rule, ...]:
    """What leaves activations unrounded, where the level asks for that."""
    return dynamic.EXACT if run.numerics == "strict" else ()


CLEAN: RuleSet = (folding, *control.RULES, *views.RULES, *arithmetic.RULES)
"""Rules that every stage may rely on: nothing they remove comes back."""
_KNOWN: RuleSet = (*CLEAN, *norms.RULES, *activations.RULES, *control.RECOGNISED, *binary.RULES, *thresholds.RULES)
_ABSORBED: RuleSet = (*_KNOWN, *products.RULES, absorbing)


_INTEGERS: RuleSet = (*integers.RULES, *dynamic.RULES, *transposed.RULES, *tails.RULES, *tables.RULES, *moves.RULES,
                     *windows.RULES, *dynamic.RANGED)


def _fold_integers(graph: Graph, run: PipelineRun) -> bool:
    """Integer constants that nothing wanted as integers become floats, and what they hid is recognised."""
    if let_integers_fold(run.rules((folding,))):
        run.settled = ()
        run.rewrite(graph, run.rules((*_ABSORBED, *_INTEGERS)))
    return False


def _use_unsigned_bytes(graph: Graph, run: PipelineRun) -> bool:
    """The first factors of products are unsigned."""
    if not any(n.op.name in ("QLinearConv", "QLinearMatMul") for each in nested(graph) for n in each.nodes):
        return False
    from bolt_numba.passes.quantised.signs import use_unsigned_bytes  # few models need it

    return use_unsigned_bytes(graph)


def _widen(graph: Graph, run: PipelineRun) -> bool:
    """Strict sessions round where the model does."""
    kinds = {getattr(v.type, "dtype", None) for g in nested(graph) for node in g.nodes for v in node.outputs}
    if run.numerics == "strict" or not kinds & {F16, BF16}:
        return False
    from bolt_numba.passes.quantised.halves import widen_halves  # few models need it

    return widen_halves(graph)


def _take_forms_apart(graph: Graph, run: PipelineRun) -> bool:
    """Devices that compute on halves multiply those of GGUF files as any others."""
    if run.halves and any(n.op.name in ("MatMulForm", "GatherForm") for each in nested(graph) for n in each.nodes):
        from bolt_numba.passes.quantised.forms import take_forms_apart  # few models need it

        take_forms_apart(graph)
    return False


def _dissolve(graph: Graph, run: PipelineRun) -> bool:
    """Parts of a stored graph for devices that the session lacks are what they were before."""
    if "Foreign" not in OPS:  # no process that has none pays for them
        return False
    from bolt_numba.ir.parts import dissolve

    kept = () if run.partition is None else run.partition.devices
    return sum(dissolve(each, kept) for each in nested(graph)) > 0


def _partition(graph: Graph, run: PipelineRun) -> bool:
    """Nodes become parts for devices of plug-ins."""
    if run.partition is not None:
        run.partition(graph)
    return run.partition is not None


def _narrow(graph: Graph, run: PipelineRun) -> bool:
    """Values get the dtypes that the precision asks for."""
    if run.precision == "f32" and not run.halves:
        return False
    from bolt_numba.passes.quantised.all_halves import narrow_for  # few sessions need it

    narrow_for(graph, run.precision, run.numerics, run.halves)
    return True


STAGES: tuple[Stage, ...] = (
    # fold, drop, one spelling per idea; arithmetic in f32
    Stage("canonical", (_dissolve, _take_forms_apart, (*CLEAN, *control.LOOPS, *einsum.RULES, exact_floats), _widen)),
    # gelu, norms, attention; constants into weights
    Stage("recognise", (_KNOWN, _ABSORBED)),
    # conversions between integers and floats; what stays of them is folded
    Stage("quantise", ((*CLEAN, *_INTEGERS), (*dynamic.EXACT, *weights.RULES), _fold_integers, _use_unsigned_bytes)),
    # subgraphs for plug-ins
    Stage("partition", (_partition,)),
    # channels last, transposes where they are cheapest
    Stage(
        "layout",
        (
            (*channels_last.SPATIAL_RULES, *CLEAN, absorbing),
            lambda graph, run: sum(map(move_transposes, nested(graph))) > 0,
            (*channels_last.FINAL_RULES, *CLEAN, absorbing),
        ),
    ),
    # epilogues, chains
    Stage("fuse", ((*CLEAN, *products.LATE_RULES, *rows.RULES, *fuse.RULES), (lambda run: fuse.chain_rules(),))),
    # narrower values: rules know those of f32
    Stage("precision", (_narrow,)),
)


def with_rules(stage: str, *rules: Rule, stages: Sequence[Stage] = STAGES) -> tuple[Stage, ...]:
    """``stages`` with rules that run beside those of one stage, in its last set.

    >>> bn.compile("model.onnx", stages=with_rules("recognise", my_rule))
    Raises BoltError for an unknown stage or what is no rule.
    """
    changed = stages[_position(stage, stages)]
    for each in rules:
        if not isinstance(each, Rule):
            raise BoltError(f"stage {stage!r}: rule: got a {type(each).__name__}, wanted what @rule makes")
    sets = [i for i, part in enumerate(changed.parts) if isinstance(part, tuple)]
    parts: list[RuleSet | Pass] = list(changed.parts)
    if sets:
        last: Any = parts[sets[-1]]
        parts[sets[-1]] = (*last, *rules)
    else:
        parts.append(tuple(rules))
    made = replace(changed, parts=tuple(parts))
    return tuple(made if each is changed else each for each in stages)


def with_stage(
    stage: Stage, *, before: str = "", after: str = "", stages: Sequence[Stage] = STAGES
) -> tuple[Stage, ...]:
    """``stages`` with one more, before or after another; at the end when neither is given.

    >>> bn.compile("model.onnx", stages=with_stage(Stage("mine", (my_pass,)), after="partition"))
    Raises BoltError for a name that is taken, or a place that is none.
    """
    if before and after:
        raise BoltError(f"stage {stage.name!r}: got before={before!r} and after={after!r}, wanted one of them")
    if any(s.name == stage.name for s in stages):
        raise BoltError(f"stage {stage.name!r}: there is one of that name, wanted another name")
    at = _position(before, stages) if before else _position(after, stages) + 1 if after else len(stages)
    return (*stages[:at], stage, *stages[at:])


def watched(trace: Trace, see: Callable[[str, Graph], None], stages: Sequence[Stage] = STAGES) -> tuple[Stage, ...]:
    """``stages`` that fill a trace, and show the graph as loaded and behind each stage.

    >>> bn.compile("model.onnx", stages=watched(trace, lambda stage, graph: print(stage, len(graph.nodes))))
    """
    start = 0.0

    def look(name: str, following: str, graph: Graph, run: PipelineRun) -> bool:
        nonlocal start
        if name != "loaded":
            nodes = sum(len(each.nodes) for each in nested(graph))
            trace.stages.append((name, nodes, time.perf_counter() - start))
        run.trace, trace.stage = trace, following
        see(name, graph)
        start = time.perf_counter()
        return False

    names = ["loaded", *(stage.name for stage in stages), ""]
    first, *looks = (Stage(f"look at {name}", (partial(look, name, after),)) for name, after in pairwise(names))
    return (first, *(each for pair in zip(stages, looks, strict=True) for each in pair))


def _position(name: str, stages: Sequence[Stage]) -> int:
    names = [stage.name for stage in stages]
    if name not in names:
        raise BoltError(f"stage: got {name!r}, wanted one of {names}")
    return names.index(name)


def all_rules(stages: Sequence[Stage] = STAGES) -> tuple[Rule, ...]:
    """Every rule of every stage, once."""
    run = PipelineRun()
    sets: Iterator[Any] = (part for stage in stages for part in stage.parts if isinstance(part, tuple))
    return tuple({r.name: r for part in sets for r in run.rules(part)}.values())


def run_pipeline(
    graph: Graph,
    *,
    trace: Trace | None = None,
    until: str | int | None = None,
    check: bool | None = None,
    stages: Sequence[Stage] | None = None,
    numerics: str = "default",
    partition: Parts | None = None,
    precision: str = "f32",
    halves: bool = False,
) -> Graph:
    """An optimised copy of ``graph``.

    trace: receives every rewrite and the time of every stage.  until: the name of the last stage to run, or the number
    of rewrites after which to stop (to find a bad one by bisection).  check: verify the graph after every stage and
    treat a rule's failure as an error; None asks the environment variable BOLT_NUMBA_CHECK.  stages: None: `STAGES`.
    numerics: of the sessions to come; ``"strict"`` does without `absorb.LAX_RULES`.  partition: puts nodes into parts
    for devices of plug-ins.  precision, halves: as those of `PipelineRun`.
    Raises InvalidModelError when a check fails, BoltError when rules do not reach a fixed point.
    """
    checked = CHECK.value not in ("", "0") if check is None else check
    stages = STAGES if stages is None else stages
    if not all(isinstance(stage, Stage) for stage in stages):
        raise DTypeError(f"stages: got {stages!r:.80}, wanted stages of passes.pipeline")
    if isinstance(until, str):
        _position(until, stages)
    if isinstance(until, int):
        trace = trace or Trace()
        trace.until = until
    run, spec = PipelineRun(trace, checked, numerics, precision, halves, partition=partition), SPEC_STAGES[0]
    made = deep_clone(graph)
    for stage in stages:
        start = time.perf_counter()
        if trace is not None:
            trace.stage = stage.name
        with np.errstate(all="ignore"):
            stage(made, run)
        if trace is not None:
            trace.stages.append((stage.name, sum(len(g.nodes) for g in nested(made)), time.perf_counter() - start))
        if stage.name in SPEC_STAGES:  # one of a user's keeps what held before it
            spec = stage.name
        if checked:
            verify(made, "import" if trace is not None and trace.exhausted else spec)
        if stage.name == until or (trace is not None and trace.exhausted):
            break
    return made


def deep_clone(graph: Graph) -> Graph:
    """A copy whose subgraphs are copies too; constants' arrays are shared.  Raises DTypeError for what is no graph."""
    if not isinstance(graph, Graph):
        raise DTypeError(f"graph: got a {type(graph).__name__}, wanted a Graph, as bn.load gives it of a file")
    made = graph.clone()
    for node in made.nodes:
        subgraphs: dict[str, Any] = {k: deep_clone(v) for k, v in graph_attributes(node.op).items()}
        if subgraphs:
            op: Any = node.op
            node.op = replace(op, **subgraphs)
    return made
