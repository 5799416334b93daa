"""The table of Paddle's readers: one function serves an operator of old programs and of PIR where both mean the same.

    @PADDLE.reader("top_k_v2", "topk", results=("Out", "Indices"))
    def top_k(b, x: Value, k: Value, *, axis: int = -1, largest: bool = True, sorted: bool = True): ...

Parameters stand in PIR's order, because PIR's operands have no names.  They are called as the slots and attributes of
old programs, in snake case; `binding` says what else becomes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from bolt_numba.base.records import record
from bolt_numba.converters.paddle.reading.program import LEGACY, PIR
from bolt_numba.converters.readers import F, Function, Reader, Readers

_PACKAGE = __name__.rpartition(".")[0]


@record(frozen=True)
class Spelling:
    """What old programs call a reader's results and parameters.

    results: slots in the order of the function's results; () for one result, of the slot that is its operator's only
    one.  slots: parameter by slot or attribute, where it is not the snake case of that; a "*" behind the parameter
    says that the slot holds its elements one by one.
    """

    results: Sequence[str] = ()
    slots: Mapping[str, str] = field(default_factory=dict)


class PaddleReaders:
    """Readers by dialect and operator, with their spellings."""

    def __init__(self) -> None:
        packages = [f"{_PACKAGE}.{part}" for part in ("tables", "vision")]
        self.readers = Readers("paddle", packages, Path(__file__).parents[1])
        self.spellings: dict[Function, Spelling] = {}

    def reader(
        self,
        *names: str,
        legacy: Sequence[str] = (),
        pir: Sequence[str] = (),
        since: int = 0,
        results: Sequence[str] = (),
        slots: Mapping[str, str] | None = None,
    ) -> Callable[[F], F]:
        """Register a function for the operators ``names`` of both dialects; ``legacy`` and ``pir`` mean one.

        since: version of the operator from which on it holds.  results, slots: see `Spelling`.
        """

        def register(function: F) -> F:
            self.spellings[function] = Spelling(results, slots or {})
            for dialect, more in ((LEGACY, legacy), (PIR, pir)):
                for name in (*names, *more):
                    self.readers.add(name, function, since, dialect)
            return function

        return register

    def find(self, dialect: str, name: str, version: int) -> Reader | None:
        """The newest reader for an operator of this version.  PIR writes "_" behind what works in place."""
        found = self.readers.find(dialect, name, version)
        if found is None and name.endswith("_"):
            return self.readers.find(dialect, name[:-1], version)
        return found


PADDLE = PaddleReaders()
