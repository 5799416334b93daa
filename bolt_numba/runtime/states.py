"""What a model keeps from run to run: a session feeds it back, one run after another.

Where one device makes it and reads it, it stays in the memory of that device.  Such a state has two places there,
which runs write in turn: a run that fails leaves the one it began with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.errors import BoltError, BudgetError, DTypeError, ShapeError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.types import Array, Sym, dtype_name
from bolt_numba.ir.graph import Graph
from bolt_numba.runtime.copies import Home, is_elsewhere

Targets: TypeAlias = "list[Any] | None"
Choose: TypeAlias = "Callable[[list[Array]], Targets]"


class States:
    """The states of a session, in the order of the graph.  values: as the last run that succeeded left them."""

    def __init__(self, graph: Graph) -> None:
        self._inputs = graph.inputs[len(graph.inputs) - len(graph.states) :]
        self._initial = [np.array(array) for array in graph.states]
        self.values: list[Any] = list(self._initial)
        self._spare: list[Any] = [None] * len(self._initial)
        self.lock = threading.RLock()  # a signal handler may come during a run: it is told instead of waiting
        self.is_busy = False
        renew_after_fork(self, "lock", threading.RLock)
        renew_after_fork(self, "is_busy", bool)

    def run(
        self, go: Callable[[list[Array], Targets], list[Array]], arrays: list[Array], choose: Choose | None,
        homes: Callable[[list[Array]], list[Home | None]] | None = None,
    ) -> list[Array]:  # fmt: skip
        """The caller's results of a run: ``arrays`` ends with the states, whatever they were when it was made.

        choose: where results of a run of these inputs go.  homes: where its states may stay; None: on the host.
        """
        count = len(self._initial)
        with self.lock:
            self._check_idle()
            try:
                self.is_busy = True
                given = [*arrays[:-count], *self.values]
                chosen = None if choose is None else choose(given)
                targets = self._with_places(chosen, None if homes is None else homes(given))
                results = go(given, targets)
                self._spare = [old if is_elsewhere(old) else None for old in self.values]
                self.values = results[-count:]
            finally:
                self.is_busy = False
        return results[:-count]

    def _with_places(self, targets: Targets, homes: list[Home | None] | None) -> Targets:
        """Where a run writes all results: a state that stays on a device to the array before last, or a new one."""
        count = len(self._initial)
        places: list[Any] = [None] * count
        if homes is not None:
            places = [h if h is None else _place(h, old) for h, old in zip(homes[-count:], self._spare, strict=True)]
            if targets is None and any(place is not None for place in places):
                targets = [None] * (len(homes) - count)
        if targets is not None:
            targets += places
        return targets

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
        with self.lock:  # the run after next writes over arrays on a device
            return {value.name: array.copy() for value, array in zip(self._inputs, self.values, strict=True)}

    def on_host(self) -> list[Array]:
        """The states as the host has them, of one moment."""
        with self.lock:
            return [np.asarray(array) for array in self.values]

    @property
    def nbytes(self) -> int:
        """Of the states, and of the places that the next run writes them to."""
        return sum(array.nbytes for array in [*self.values, *self._spare] if array is not None)

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


def _place(home: Home, old: Any) -> Any:
    """An array at home, which may be ``old``; None where there is none, or no memory."""
    dims, dtype = home.type.dims, home.type.dtype
    if old is not None and (old.memory, old.shape, old.dtype) == (home.device.memory, dims, dtype):
        return old
    try:
        return home.device.array(dims, dtype)
    except BudgetError:
        return None
