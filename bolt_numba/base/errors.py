"""Every exception that bolt-numba raises on purpose; a message names what was found and what was wanted.

Each has a section in docs/troubleshooting.md, which its docstring names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

MOST_ALIKE = 4
"""Unsupported nodes that differ by their names alone, each of which has a line of a message."""


class BoltError(Exception):
    """Base of all errors that a user of bolt-numba may want to catch.

    What to do: docs/troubleshooting.md#bolterror
    """


class InvalidModelError(BoltError, ValueError):
    """The file or graph breaks its own format: truncated, corrupt, inconsistent or hostile.

    What to do: docs/troubleshooting.md#invalidmodelerror
    """


class ShapeError(BoltError, ValueError):
    """Shapes do not fit an operator, or an input does not have the declared shape.

    What to do: docs/troubleshooting.md#shapeerror
    """


class DataError(BoltError, ValueError):
    """The content of an operand asks for what is not there: an index out of range, a length beyond its axis.

    What to do: docs/troubleshooting.md#dataerror
    """


class DTypeError(BoltError, TypeError):
    """A dtype is not one that an operator, an input or a kernel accepts.

    What to do: docs/troubleshooting.md#dtypeerror
    """


class DeviceError(BoltError, RuntimeError):
    """The device asked for does not exist here or failed.

    What to do: docs/troubleshooting.md#deviceerror
    """


class OptionError(DTypeError, DeviceError):
    """An option has a value that it cannot have, does not fit the others, or does not exist.

    What to do: docs/troubleshooting.md#optionerror
    """


class BudgetError(BoltError, MemoryError):
    """A computation would take more memory or work than it may; nothing was allocated for it.

    What to do: docs/troubleshooting.md#budgeterror
    """


class TimeLimitError(BoltError, TimeoutError):
    """A run took longer than the session's ``time_limit``; the session goes on.

    What to do: docs/troubleshooting.md#timelimiterror
    """


class CancelledError(BoltError, RuntimeError):
    """A run was ended by `CancelToken.cancel`; the session goes on.

    What to do: docs/troubleshooting.md#cancellederror
    """


class KernelError(BoltError, RuntimeError):
    """The code of a kernel cannot be compiled; the message begins with the file and line to edit.

    What to do: docs/troubleshooting.md#kernelerror
    """


class SimulationError(BoltError, RuntimeError):
    """A kernel did on the simulated GPU what it must not: the message names instruction, line, block and thread.

    What to do: docs/troubleshooting.md#simulationerror
    """


class InternalError(BoltError, RuntimeError):
    """A fault of bolt-numba or of an operator's package, not of the model or the call; ``__cause__``: what it met.

    What to do: docs/troubleshooting.md#internalerror
    """


class UnsupportedOpError(BoltError, NotImplementedError):
    """Operators that have no meaning here; lists all of them at once.

    What to do: docs/troubleshooting.md#unsupportedoperror

    Attributes
    ----------
    items: one line per unsupported node, for example ``"MyOp (domain acme, opset 1) at node 'n3'"``.  The message has
    one line for many that differ by their node alone.
    """

    def __init__(self, source: str, items: Sequence[str]) -> None:
        self.source = source
        self.items = tuple(items)
        lines = "".join(f"\n  {line}" for line in _lines(self.items))
        if any(" (domain " in item or item.startswith("custom operator ") for item in self.items):
            lines += "\ndocs/own-operators.md says how a package adds operators of its own"
        super().__init__(f"{source}: {len(self.items)} unsupported:{lines}")

    def __reduce__(self) -> tuple[type, tuple[str, tuple[str, ...]]]:
        return type(self), (self.source, self.items)


def _lines(items: Sequence[str]) -> list[str]:
    """Items, of which the first stands for all where many are alike."""
    counts, lines = Counter(map(_kind, items)), dict[object, str]()
    for i, item in enumerate(items):
        if (count := counts[kind := _kind(item)]) <= MOST_ALIKE:
            lines[i] = item
        else:
            lines.setdefault(kind, f"{item}, and {count - 1} more like it")
    return [*lines.values()]


def _kind(item: str) -> tuple[str, str]:
    """An item without the name of its node."""
    what, _, rest = item.partition(" at node ")
    return what, rest.rpartition("'")[2]


for _error in [v for v in globals().values() if isinstance(v, type)]:
    _error.__module__ = "bolt_numba.errors"  # where programs name them, and what tracebacks and pickles say
