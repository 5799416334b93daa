"""Weights that a ``.bolt`` file holds as the kernels of one machine want them, beside the graph they were packed from.

A kernel reads a packed weight without looking at its size, so a file that lies about one could make it read elsewhere.
Packed weights therefore carry a seal made with a secret of this user's cache, where the compiled kernels are kept, too:
files packed elsewhere load all the same, and are packed anew in memory.
"""

from __future__ import annotations

import hmac
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from bolt_numba.config import cache_root
from bolt_numba.errors import InvalidModelError
from bolt_numba.mapped import drop_pages
from bolt_numba.records import record
from bolt_numba.trusted import read_trusted, write_private
from bolt_numba.types import Array

SEAL_KEY = "seal.key"
_SECRET = 32
_BLOCK = 1 << 18
"""Words that are summed at a time; they stay in the second-level cache."""


@record()
class PackedWeights:
    """machine: what packed them, instruction set and version of the kernels.

    rows: (place among the graph's constants, key of the packing) -> packed weight.  unread: crc32 of the constants
    that need not be read where rows serve, by place.
    """

    machine: str
    rows: dict[tuple[int, str], Array] = field(default_factory=dict)
    unread: dict[int, int] = field(default_factory=dict)

    def check(self, place: int, array: Array) -> None:
        """Raise InvalidModelError when a constant that was not checked when it was loaded is damaged."""
        crc = self.unread.pop(place, None)
        if crc is not None and zlib.crc32(array.reshape(-1).view(np.uint8).data) != crc:
            raise InvalidModelError(f"constant {place}: checksum is wrong: the file is damaged")


def checksum(array: Array) -> int:
    """Sums of rows and of columns of blocks, at memory speed: crc32 would take longer than everything else."""
    data = array.reshape(-1).view(np.uint8)
    words = data[: len(data) // 8 * 8].view(np.uint64)
    state = zlib.crc32(data[8 * len(words) :].tobytes())
    for start in range(0, len(words), _BLOCK):
        block = words[start : start + _BLOCK]
        square = block[: len(block) // 512 * 512].reshape(-1, 512)
        state = zlib.crc32(np.add.reduce(square, axis=0).data, state)
        state = zlib.crc32(np.add.reduce(square, axis=1).data, state)
        state = zlib.crc32(block[square.size :].tobytes(), state)
    return state


def packed_json(packed: PackedWeights, document: Any, table: Any) -> dict[str, Any]:
    """What a document says of packed weights, which become tensors of its table."""
    rows = [[place, key, table.index(array), checksum(array)] for (place, key), array in packed.rows.items()]
    made = {"machine": packed.machine, "rows": rows}
    return {**made, "seal": _seal(_sizes(made, document))}


@record(frozen=True)
class Places:
    """Where a document that nobody vouches for has packed weights.

    machine: "" unless the seal is right.  rows: place, key, tensor and checksum.  later: tensors that are not to be
    checked when they are read: packed ones, which have their own checksum, and what they were packed from.
    """

    machine: str
    rows: list[tuple[int, str, int, int]]
    later: frozenset[int]

    @classmethod
    def of(cls, document: Any) -> Places:
        found = document.get("packed")
        if found is None:
            return cls("", [], frozenset())
        try:
            rows = [(int(place), str(key), int(index), int(total)) for place, key, index, total in found["rows"]]
            sizes = _sizes(found, document)
            constants = [row["tensor"] for row in document["graph"]["constants"]]
            good = bool(found["seal"]) and hmac.compare_digest(str(found["seal"]), _seal(sizes))
            later = {index for _, _, index, _ in rows}
            if good:
                later |= {constants[place] for place, _, _, _ in rows}
            return cls(str(found["machine"]) if good else "", rows if good else [], frozenset(later))
        except (TypeError, KeyError, IndexError, ValueError, AttributeError) as error:
            raise InvalidModelError(f"graph: packed: got {type(error).__name__} {error}, wanted rows") from error


def read_packed(document: Any, places: Places, tensors: Sequence[Array], check: bool) -> PackedWeights | None:
    """Packed weights of a document whose tensors have been read; none where the seal is not ours."""
    if document.get("packed") is None:
        return None
    made = PackedWeights(places.machine)
    constants = document["graph"]["constants"]
    for place, key, index, total in places.rows:
        if check:
            if checksum(tensors[index]) != total:
                raise InvalidModelError(f"tensor {index}: checksum is wrong: the file is damaged")
            drop_pages(tensors[index])
            made.unread[place] = document["tensors"][constants[place]["tensor"]].get("crc32")
        made.rows[place, key] = tensors[index]
    return made


def _sizes(found: Any, document: Any) -> Any:
    """What must be as it was made, lest a kernel should read beyond a weight: types before and after packing."""
    tensors, constants = document["tensors"], document["graph"]["constants"]
    kinds = [(row.get("dtype"), row.get("shape")) for row in tensors]
    rows = [(kinds[constants[place]["tensor"]], key, kinds[index]) for place, key, index, _ in found["rows"]]
    return [found["machine"], rows]


def _seal(content: Any) -> str:
    """What only this user's installation can make of a JSON value; "" where no secret can be kept."""
    secret = _secret()
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(secret, text, "blake2b").hexdigest()[:64] if secret else ""


def _secret() -> bytes:
    """What nobody but this user knows; b"" where it cannot be kept.  One that others may know is made anew."""
    path = cache_root() / SEAL_KEY
    for may_replace in (False, True):
        found = read_trusted(path, secret=True)
        if found is not None and len(found) == _SECRET:
            return found
        write_private(path, os.urandom(_SECRET), is_first=not may_replace)
    found = read_trusted(path, secret=True)
    return found if found is not None and len(found) == _SECRET else b""
