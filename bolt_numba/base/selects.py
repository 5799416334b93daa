"""What makers say of followed numbers (`bolt_numba.base.follow`): choices where an ``if`` would decide, and tables.

A table has a few numbers that are followed, or as many as a kernel fills in when the sizes are there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.follow import FORMS, TABLES, LostError, Trail, fixed, followed, lost, trail_of, value_of

MOST_ROWS = 128
"""Rows up to which a table is followed number by number."""


def greatest(a: Any, b: Any) -> Any:
    """The greater one, where `max` would decide which it is."""
    return followed(max, a, b)


def least(a: Any, b: Any) -> Any:
    """The lesser one, see `greatest`."""
    return followed(min, a, b)


def either(condition: Any, one: Any, other: Any) -> Any:
    """One of two integers."""
    return one if condition is True else other if condition is False else other + condition * (one - other)


def divisor(n: Any, most: Any) -> Any:
    """The greatest divisor of ``n``, of which ``most`` is the greatest that counts; 0 where that is less than 1."""
    return followed(_divisor, n, most)


def _divisor(n: int, most: int) -> int:
    return next((d for d in range(min(most, n) if n > 0 else most, 0, -1) if n % d == 0), 0)


FORMS[_divisor] = "divisor"


# -------------------------------------------------------------------------------------------------------------- tables


class FollowedTable:
    """An array of i64 of which some numbers are followed; it passes for an array in the words that makers use."""

    __slots__ = ("cells", "trail")
    __array_ufunc__ = None
    dtype = np.dtype(np.int64)
    __array__ = lost("an array")
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = lost("a comparison of a table")
    __hash__ = __bool__ = __int__ = __index__ = __float__ = lost("a plain number")

    def __init__(self, trail: Trail, cells: Any) -> None:
        self.trail, self.cells = trail, cells

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return np.ndarray

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in ("shape", "size", "ndim", "flags"):
            raise LostError(f"{name} of a table")
        return getattr(self.cells, name)

    def __len__(self) -> int:
        return len(self.cells)

    def __iter__(self) -> Iterator[Any]:
        if self.cells.ndim != 1:
            raise LostError("a loop over a table")
        return iter(self.cells.tolist())

    def __getitem__(self, key: Any) -> Any:
        found = self.cells[_plain_key(key)]
        return FollowedTable(self.trail, found if isinstance(found, np.ndarray) else _cell(found))

    @property
    def nbytes(self) -> int:
        return 8 * int(self.cells.size)

    @property
    def value(self) -> Any:
        """The array with its numbers as they are."""
        return np.array([value_of(n) for n in self.cells.flat], np.int64).reshape(self.cells.shape)

    def text(self) -> str:
        """Of a call that makes the array."""
        return f"{self.trail.constant(_filled)}({self.trail.text(list(self.cells.flat))}, {self.cells.shape})"

    def reshape(self, *shape: int) -> FollowedTable:
        return FollowedTable(self.trail, self.cells.reshape(*shape))

    def tolist(self) -> Any:
        return self.cells.tolist()

    def item(self) -> Any:
        return self.cells.item()

    def max(self, axis: int | None = None, initial: int | None = None) -> FollowedTable:
        return self._folded(max, axis, initial)

    def min(self, axis: int | None = None, initial: int | None = None) -> FollowedTable:
        return self._folded(min, axis, initial)

    def _folded(self, function: Any, axis: int | None, initial: int | None) -> FollowedTable:
        cells = self.cells if axis is not None else self.cells.reshape(-1)
        rows = [] if initial is None else [np.full(cells.shape[1:], initial, object)]
        rows += [np.asarray(row) for row in np.moveaxis(cells, axis or 0, 0)] if cells.ndim > 1 else []
        if cells.ndim == 1:
            numbers = ([] if initial is None else [initial]) + list(cells)
            return FollowedTable(self.trail, _cell(functools.reduce(functools.partial(followed, function), numbers)))
        made = rows[0].copy()
        for row in rows[1:]:
            for at in np.ndindex(made.shape):
                made[at] = followed(function, made[at], row[at])
        return FollowedTable(self.trail, made)


def _plain_key(key: Any) -> Any:
    """An index whose numbers are `fixed`."""
    if type(key) is tuple:
        return tuple(map(_plain_key, key))
    return slice(fixed(key.start), fixed(key.stop), fixed(key.step)) if type(key) is slice else fixed(key)


def _cell(number: Any) -> Any:
    made = np.empty((), object)
    made[()] = number
    return made


def _filled(numbers: list[int], shape: tuple[int, ...]) -> Any:
    return np.array(numbers, np.int64).reshape(shape)


def table(rows: Sequence[Any]) -> Any:
    """An array of i64 of numbers, or of rows of them, some of which may be followed."""
    trail = trail_of(rows)
    if trail is None:
        return np.array(rows, np.int64)
    is_nested = type(rows[0]) in (tuple, list)
    flat = [n for row in rows for n in row] if is_nested else list(rows)
    cells = np.empty(len(flat), object)
    for i, number in enumerate(flat):
        cells[i] = number
    return FollowedTable(trail, cells.reshape(len(rows), -1) if is_nested else cells)


def is_table(array: Any) -> bool:
    return type(array) is FollowedTable


def followed_array(numbers: Any) -> Any:
    """A table of an array of objects, some of which are followed."""
    trail = trail_of(list(numbers.flat))
    assert trail is not None
    return FollowedTable(trail, numbers)


class FilledTable:
    """An array that a kernel fills; it passes for an array in the words that makers use.

    filler: name of the kernel (`kernels.cpu.fillers`); args: its fields besides ``to``, integers.  least, greatest: of
    its places (what it has besides does not count), or below and above all of them.  call: a function and arguments
    that give the array in Python, for all that asks more of it.
    """

    __slots__ = ("args", "call", "dtype", "filler", "greatest", "least", "shape", "trail")
    __array_ufunc__ = None
    __array__ = lost("an array")
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = lost("a comparison of a table")
    __hash__ = __bool__ = __int__ = __index__ = __float__ = lost("a plain number")
    flags = np.empty(0).flags

    def __init__(
        self, trail: Trail, filler: str, args: dict[str, Any], shape: Sequence[Any], dtype: Any,
        bounds: tuple[Any, Any], call: tuple[Callable[..., Any], tuple[Any, ...]],
    ) -> None:  # fmt: skip
        self.trail, self.filler, self.args, self.shape, self.dtype = trail, filler, args, tuple(shape), np.dtype(dtype)
        (self.least, self.greatest), self.call = bounds, call

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return np.ndarray

    @property
    def nbytes(self) -> Any:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def value(self) -> Any:
        return value_of(self.made())

    def made(self) -> Any:
        """The array of Python's function, followed."""
        return followed(self.call[0], *self.call[1])

    def text(self) -> str:
        return str(self.made()._text)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.made(), name)

    def __getitem__(self, key: Any) -> Any:
        return self.made()[key]

    def __len__(self) -> int:
        return len(self.made())


TABLES.update((FollowedTable, FilledTable))


def filled(
    filler: str, args: dict[str, Any], shape: Sequence[Any], dtype: Any, bounds: tuple[Any, Any],
    call: tuple[Callable[..., Any], tuple[Any, ...]],
) -> Any:  # fmt: skip
    """See `FilledTable`; the array itself where no number is followed."""
    trail = trail_of(list(args.values()))
    if trail is None:
        return call[0](*call[1])
    key = (filler, *(trail.text(n) for n in args.values()), str(call[0]))
    made = trail.filled.get(key)
    if made is None:
        made = trail.filled[key] = FilledTable(trail, filler, args, shape, dtype, bounds, call)
    return made


def is_filled(array: Any) -> bool:
    return type(array) is FilledTable
