"""A part of a graph that its device does not compute, through the passes that others had behind the partition."""

from __future__ import annotations

from bolt_numba.ir.graph import Graph
from bolt_numba.passes.pipeline import STAGES, run_pipeline

AFTER = [stage.name for stage in STAGES].index("partition") + 1
"""Where the stages begin that a part has not been through."""


def finished(graph: Graph, precision: str, numerics: str) -> Graph:
    """An optimised copy of a part as it was at the stage "partition"."""
    return run_pipeline(graph, stages=STAGES[AFTER:], numerics=numerics, precision=precision)
