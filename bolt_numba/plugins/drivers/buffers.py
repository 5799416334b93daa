"""Which memory the requests of an SDK are bound to, so that only what moved is bound anew."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import numpy as np

from bolt_numba.base.types import Array


class Bindings:
    """Arrays that an SDK reads or writes where they lie.

    bind: tells the SDK that the operand of an index is at the address of an array.  It is called again where the array
    of a later run lies elsewhere or has another shape.  No array is kept alive.
    """

    def __init__(self, bind: Callable[[int, Array, int], None], count: int) -> None:
        self._bind = bind
        self._arrays: list[Callable[[], Any]] = [lambda: None] * count
        self._places: list[Any] = [None] * count

    def to(self, arrays: Sequence[Array]) -> None:
        """Bind what is not where it was in the last run."""
        for i, array in enumerate(arrays):
            if self._arrays[i]() is array:
                continue
            address = array.ctypes.data
            place = address, array.shape
            if place != self._places[i]:
                self._places[i] = None  # if the SDK refuses it, nothing is bound
                self._bind(i, array, address)
                self._places[i] = place
            self._arrays[i] = ref(array)


def borrowed(array: Array, address: int) -> Array:
    """The same memory as an array that may be written, and that keeps nothing alive."""
    if not array.size:
        return np.empty(array.shape, array.dtype)
    memory: Any = (ctypes.c_char * array.nbytes).from_address(address)
    made: Array = np.frombuffer(memory, array.dtype).reshape(array.shape)
    return made
