"""Planning before the first run: for inputs of shapes that a caller tells, and for what only a run would come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.types import STRING, Array
from bolt_numba.sessions.inputs import zeros_of

if TYPE_CHECKING:
    from bolt_numba.runtime.runner import Runner
    from bolt_numba.sessions.session import Session


def runner_at(session: Session, shapes: Mapping[str, Sequence[int]]) -> tuple[Runner, list[Any]]:
    """What runs inputs of these shapes, and what it is given then: zeros, and texts that the model knows.

    Raises ShapeError for a name or size.
    """
    session._check_known(shapes)
    arrays = [zeros_of(spec, shapes.get(spec.name, spec.shape)) for spec in session.inputs]
    fitting = session._fitting(arrays)
    if any(spec.dtype == STRING for spec in session.inputs):
        arrays = _with_texts(session, arrays)
    if fitting._texts is not None:
        return fitting._runner, fitting._texts.prepared(arrays)
    return fitting._runner, arrays + ([] if session._states is None else session._states.values)


def _with_texts(session: Session, arrays: list[Array]) -> list[Array]:
    from bolt_numba.sessions.guesses import known_texts  # what reads numbers alone does without

    known = known_texts(session.graph)
    made = list(arrays)
    for i, spec in enumerate(session.inputs):
        if spec.name in known:
            made[i] = np.resize(known[spec.name], arrays[i].shape)
    return made
