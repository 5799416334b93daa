"""A run that is looked at closely: on buffers of its own, between guards, so that what it does wrong spoils nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.plugins.interface import Request

GUARD = 4096
"""Bytes in front of a buffer, and behind it."""
FILL = 0xA5


class WrongError(Exception):
    """What a device computed is not what we compute."""


class Guarded(Request):
    """A request whose operands are copies.  Raises WrongError where it writes to anything but its outputs."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        (around_ins, ins), (around_outs, outs) = _copies(inputs), _copies(outputs)
        for array in outs:
            _poison(array)
        self.request.run(ins, outs)
        if any(map(_is_broken, around_ins + around_outs)):
            raise WrongError("it wrote beyond its operands, wanted to the outputs alone")
        spoiled = [i for i, (mine, a) in enumerate(zip(ins, inputs, strict=True)) if mine.tobytes() != a.tobytes()]
        if spoiled:
            raise WrongError(f"it wrote to inputs {spoiled}, wanted to the outputs alone")
        for mine, wanted in zip(outs, outputs, strict=True):
            wanted[...] = mine


def _copies(arrays: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Blocks with a guard at both ends, and in each a copy of an array."""
    blocks, made = [], []
    for array in arrays:
        block = np.full(2 * GUARD + 64 + array.nbytes, FILL, np.uint8)
        start = GUARD + -(block.ctypes.data + GUARD) % 64
        block = block[start - GUARD : start + array.nbytes + GUARD]
        made.append(block[GUARD:-GUARD].view(array.dtype).reshape(array.shape))
        made[-1][...] = array
        blocks.append(block)
    return blocks, made


def _is_broken(block: Array) -> bool:
    return bool((block[:GUARD] != FILL).any() or (block[-GUARD:] != FILL).any())


def _poison(array: Array) -> None:
    """Fill with what is no result, so that what is not written cannot be right by chance."""
    if array.dtype.kind in "iu":
        array[...] = np.iinfo(array.dtype).max
        return
    try:
        array[...] = np.nan
    except (ValueError, OverflowError):  # numbers of 4 bits have none
        array[...] = 1
