"""What a run gives: arrays by name, by index, or unpacked in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.options import MOST_LISTED, not_among
from bolt_numba.base.types import AnyDType, Array, TensorSpec, dtype_name, sizes_name


class Outputs:
    """Results of one run: by name, by index, or unpacked in order (``a, b = sess(x)``).

    ``np.asarray(outputs)`` works when there is exactly one.
    """

    __slots__ = ("_arrays", "_names")

    def __init__(self, names: Sequence[str], arrays: Sequence[Array]) -> None:
        self._names, self._arrays = names, arrays

    def __getitem__(self, key: str | int) -> Array:
        try:
            return self._arrays[self._names.index(key) if isinstance(key, str) else key]
        except ValueError:
            raise KeyError(not_among("output", [key], self._names)) from None
        except IndexError:
            some = list(self._names[:MOST_LISTED])
            raise IndexError(f"output: got index {key}, wanted below {len(self)}: {some}") from None

    def __iter__(self) -> Iterator[Array]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def keys(self) -> list[str]:
        return list(self._names)

    def values(self) -> list[Array]:
        return list(self._arrays)

    def items(self) -> list[tuple[str, Array]]:
        return list(zip(self._names, self._arrays, strict=True))

    def __array__(self, dtype: AnyDType | None = None, copy: bool | None = None) -> Array:
        if len(self._arrays) != 1:
            raise ValueError(f"{len(self._arrays)} outputs are not one array")
        return np.asarray(self._arrays[0], dtype)

    def _repr_html_(self) -> str:
        from bolt_numba.base.notebook import html_table

        columns = ("output", "dtype", "shape", "min", "mean", "max")
        return html_table(f"{len(self)} outputs", columns, [_facts(n, a) for n, a in self.items()], columns[3:])

    def __repr__(self) -> str:
        rows = ", ".join(f"{n}: {dtype_name(a.dtype)}{list(a.shape)}" for n, a in self.items())
        return f"Outputs({rows})"


MOST_LOOKED_AT = 1 << 24
"""Elements of an array that is looked at to show it."""


def _facts(name: str, array: Any) -> list[object]:
    """Name, dtype, shape, and the least, mean and greatest number where there are numbers."""
    if not isinstance(array, np.ndarray):
        return [name, type(array).__name__, f"{len(array)} elements" if hasattr(array, "__len__") else "", "", "", ""]
    numbers = ["", "", ""]
    if 0 < array.size <= MOST_LOOKED_AT and array.dtype != object and array.dtype.kind != "c":
        wide = array.astype(np.float64)
        numbers = [f"{found:.6g}" for found in (wide.min(), wide.mean(), wide.max())]
    return [name, dtype_name(array.dtype), list(array.shape), *numbers]


def specs_table(title: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    """A table of HTML: what goes in and out of a session."""
    from bolt_numba.base.notebook import html_table

    both = [("input", s) for s in inputs] + [("output", s) for s in outputs]
    rows = [(kind, s.name, dtype_name(s.dtype), "?" if s.shape is None else sizes_name(s.shape)) for kind, s in both]
    return html_table(title, ("", "name", "dtype", "shape"), rows)
