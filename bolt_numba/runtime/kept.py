"""What a model keeps from run to run: a session feeds it back, one run after another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from bolt_numba.base.forks import renew_after_fork
from bolt_numba.errors import BoltError, DTypeError, ShapeError
from bolt_numba.ir.graph import Graph
from bolt_numba.types import Array, Sym, dtype_name

Targets: TypeAlias = "Sequence[Array | None] | None"


class Kept:
    """The states of a session, in the order of the graph.  values: as the last run that succeeded left them."""

    def __init__(self, graph: Graph) -> None:
        self._inputs = graph.inputs[len(graph.inputs) - len(graph.states) :]
        self._initial = [np.array(array) for array in graph.states]
        self.values = list(self._initial)
        self.lock = threading.RLock()  # a signal handler may come during a run: it is told instead of waiting
        self.is_busy = False
        renew_after_fork(self, "lock", threading.RLock)
        renew_after_fork(self, "is_busy", bool)

    def run(
        self, go: Callable[[list[Array], Targets], list[Array]], arrays: list[Array], targets: Targets
    ) -> list[Array]:
        """The caller's results of a run: ``arrays`` ends with the states, whatever they were when it was made."""
        count = len(self._initial)
        with self.lock:
            self._check_idle()
            try:
                self.is_busy = True
                results = go([*arrays[:-count], *self.values], None if targets is None else [*targets, *[None] * count])
                self.values = results[-count:]
            finally:
                self.is_busy = False
        return results[:-count]

    def reset(self, given: Mapping[str, Array]) -> None:
        """As before the first run, but for the states that are given by name."""
        if not isinstance(given, Mapping):
            raise DTypeError(f"state: got a {type(given).__name__}, wanted arrays by name")
        known = {value.name: i for i, value in enumerate(self._inputs)}
        made = list(self._initial)
        for name, array in given.items():
            if name not in known:
                raise BoltError(f"state: got {name!r}, wanted one of {list(known)}")
            made[known[name]] = self._checked(known[name], array)
        with self.lock:
            self._check_idle()
            self.values = made

    def _check_idle(self) -> None:
        """For who holds the lock: a run that goes on is then one of this thread, below a signal handler."""
        if self.is_busy:
            raise BoltError("state: got a call within a run of the same thread, wanted one run after another")

    def copies(self) -> dict[str, Array]:
        """The states by name."""
        return {value.name: array.copy() for value, array in zip(self._inputs, self.values, strict=True)}

    def _checked(self, index: int, given: Array) -> Array:
        wanted = self._inputs[index]
        try:
            made = np.array(given, order="C")
        except (TypeError, ValueError) as error:
            raise DTypeError(f"state {wanted.name!r}: got what is no array ({error}), wanted {wanted.type}") from error
        if made.dtype != wanted.type.dtype:
            raise DTypeError(f"state {wanted.name!r}: got {dtype_name(made.dtype)}, wanted {wanted.type}")
        shape = wanted.type.shape
        fits = shape is None or len(shape) == made.ndim
        if not fits or any(not isinstance(d, Sym) and d != n for d, n in zip(shape or (), made.shape, strict=False)):
            raise ShapeError(f"state {wanted.name!r}: got shape {made.shape}, wanted {wanted.type}")
        return made
