"""Models made ready for one machine: optimised, with weights as its kernels want them, so that loading is a map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bolt_numba.base.border import border
from bolt_numba.base.config import default_threads
from bolt_numba.base.mapped import check_intact
from bolt_numba.devices.seals import machine, marks_of, source_marks
from bolt_numba.guesses import complete_shapes
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.packed import PackedWeights
from bolt_numba.ir.sizes import sized
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.session import Session


@border("pack")
def packed(
    graph: Graph,
    *,
    threads: Iterable[int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    precision: str = "f32",
    numerics: str = "default",
) -> Graph:
    """The optimised graph with packed weights; `bolt_numba.save` writes both into one file.

    threads: thread counts to prepare for; None: one and the default.  shapes: of inputs, where they are symbolic; what
    they leave free is guessed (`guesses.complete_shapes`).  precision, numerics: of the sessions to
    prepare for.  Others, and other threads and shapes, work, too: what they need is packed when it is needed.
    Raises ShapeError for shapes, DeviceError for threads.
    """
    check_intact(graph.weights())
    graph = sized(graph, shapes or {})
    sizes = complete_shapes(graph, shapes)
    made = run_pipeline(graph, numerics="strict")  # what serves every level
    found = made.packed = PackedWeights(machine(), sources=source_marks(made))
    for count in sorted(set(threads if threads is not None else (1, default_threads()))):
        session = Session(made, threads=count, precision=precision, numerics=numerics)
        with session._granted():
            runner, arrays = session._at(sizes)
            runner.packs.pack(runner.planned_for(runner._types(arrays)).jobs)
        found.rows.update(session._packs.export())
        found.marks = marks_of(found.rows)
    return made
