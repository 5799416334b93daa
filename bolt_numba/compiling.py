"""`compile`: from a model in any form to a session, through quantisation where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from bolt_numba.base.border import border
from bolt_numba.base.budget import Budget, within
from bolt_numba.base.config import MAX_PLANS
from bolt_numba.devices import others
from bolt_numba.errors import BoltError
from bolt_numba.ir.graph import Graph
from bolt_numba.loading import File, Source, read_model
from bolt_numba.session import Session
from bolt_numba.types import precision_of

if TYPE_CHECKING:
    from bolt_numba.passes.pipeline import Stage
    from bolt_numba.quantize.data import Data

INT8 = "int8"
"""The precision that needs calibration: a graph of integers, which a session runs as it is."""


@border("compile", OSError)
def compile(
    model: Source,
    *,
    weights: File | None = None,
    signature: str | None = None,
    device: str | Sequence[str] = "cpu",
    precision: str = "f32",
    calibration: Data | None = None,
    numerics: str = "default",
    threads: int | None = None,
    tune: bool = False,
    memory_limit: int | None = None,
    max_plans: int = MAX_PLANS,
    stages: Sequence[Stage] | None = None,
    stand_ins: bool | None = None,
    properties: Mapping[str, Mapping[str, Any]] | None = None,
    fallback: str = "allow",
    placement: Any = None,
) -> Session:
    """Make a `Session` from a graph, a model or straight from a file.

    weights: as `load_model`.  signature: which graph of a model; None: the first.  calibration: inputs for
    ``precision="int8"``, which quantises as `bolt_numba.quantize.quantize` does by default.

    All others are those of `Session`.
    """
    options: dict[str, Any] = {
        "device": device, "precision": precision_of(precision), "numerics": numerics, "tune": tune,
        "memory_limit": memory_limit, "max_plans": max_plans, "stages": stages, "stand_ins": stand_ins,
        "properties": properties, "fallback": fallback, "placement": placement,
    }  # fmt: skip
    if others(device) and weights is None and calibration is None and precision != INT8:
        from bolt_numba.plugged.known import session_of  # sessions without plug-ins do without

        made = session_of(model, signature, threads, options)
        if made is not None:
            return made
    with nullcontext() if memory_limit is None else within(Budget(memory=memory_limit)):
        found = read_model(model, None, weights)
    graph = found.graph(signature)
    if precision == INT8 or calibration is not None:
        graph, options["precision"] = _quantised(graph, precision, calibration, threads), "f32"
    return Session(graph, threads=threads, signatures=found.signatures, **options)


def _quantised(graph: Graph, precision: str, calibration: Data | None, threads: int | None) -> Graph:
    """The graph in 8 bits; a precision and data belong together."""
    if precision != INT8:
        raise BoltError(f"calibration: got data for precision {precision!r}, wanted {INT8!r}")
    if calibration is None:
        raise BoltError(f"precision {INT8!r}: got no calibration, wanted inputs to find ranges with")
    from bolt_numba.quantize.tool import quantize  # others do without

    return quantize(graph, calibration, threads=threads, timed=False).graph
