"""Weights that a ``.bolt`` file holds as the kernels of one machine want them, beside the graph they were packed from.

A kernel reads a packed weight without looking at its size, or at where the numbers in it lead.  A file with packed
weights therefore ends with a seal, made with a secret of this user's cache, where the compiled kernels are kept, too.
It covers the whole graph and a keyed fingerprint of every packed weight and of every constant that the graph reads, so
that what runs is what the file shows.  Where the seal is not ours, because the file was packed elsewhere or changed,
the weights are packed anew in memory.  Fingerprints are compared when weights are taken (`runtime.packs`), those of
inner tensors (constants of bodies of control flow, arrays that are attributes) when the file is read.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field
from hashlib import blake2b
from typing import Any

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.files.kept import cache_root, make_root
from bolt_numba.base.files.trusted import read_trusted, write_private
from bolt_numba.base.records import record
from bolt_numba.base.types import Array

SEAL_KEY = "seal.key"
_SECRET = 32
_UNSEALED = "0" * 64
"""What stands in the place of the seal when it is made."""
_END = b'"}}'
"""What follows the seal, which is the last value of the document."""


@record()
class PackedWeights:
    """machine: what packed them, instruction set and version of the kernels; "" where nobody vouches for them.

    rows: (place among the graph's constants, key of the packing) -> packed weight.  marks: fingerprint of each row.
    sources: fingerprint of each constant by place, "" for texts, which are part of the graph.
    """

    machine: str
    rows: dict[tuple[int, str], Array] = field(default_factory=dict)
    marks: dict[tuple[int, str], str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)


def packed_json(packed: Sequence[PackedWeights | None], graphs: Any, table: Any) -> dict[str, Any]:
    """What a document says of its graphs' packed weights, which become tensors of its table; `sealed` completes it."""
    key, constants = secret(), _constants(graphs)
    stored = [i for i, row in enumerate(table.rows) if "strings" not in row]
    inner = [[i, inner_mark(a, key)] for i, (_, a) in zip(stored, table.arrays, strict=True) if i not in constants]
    rows = [None if p is None else _graph_json(p, table) for p in packed]
    return {"graphs": rows, "inner": inner, "seal": _UNSEALED}


def _constants(graphs: Any) -> set[int]:
    """Tensors that are constants of the graphs themselves."""
    return {int(row["tensor"]) for graph in graphs for row in graph["constants"]}


def inner_mark(data: Any, key: bytes) -> str:
    """Fingerprint of an inner tensor's bytes; "" where no secret can be kept."""
    return blake2b(data, digest_size=16, key=key, person=b"inner").hexdigest() if key else ""


def _graph_json(packed: PackedWeights, table: Any) -> dict[str, Any]:
    marks = packed.marks
    rows = [[*where, table.index(array), marks.get(where, "")] for where, array in packed.rows.items()]
    return {"machine": packed.machine, "rows": rows, "sources": packed.sources}


def sealed(text: bytes) -> bytes:
    """The text of a document that ends with what `packed_json` gave, with the seal in its place."""
    key = secret()
    if not key:
        return text
    start = len(text) - len(_END) - len(_UNSEALED)
    return text[:start] + _seal(text, key) + text[start + len(_UNSEALED) :]


def is_sealed(text: bytes) -> bool:
    """Whether a text is one that `sealed` gave to this user."""
    end = len(text) - len(_END)
    start = end - len(_UNSEALED)
    key = secret()
    bare = text[:start] + _UNSEALED.encode() + text[end:]
    return bool(key) and start >= 0 and hmac.compare_digest(_seal(bare, key), text[start:end])


def _seal(text: bytes, key: bytes) -> bytes:
    return blake2b(text, digest_size=len(_UNSEALED) // 2, key=key, person=b"document").hexdigest().encode()


@record(frozen=True)
class Places:
    """Where a document that nobody vouches for has the packed weights of one graph.

    found: what vouches for them, without rows; None where the graph has none.  rows: place, key and tensor.
    later: tensors that are not to be checked when they are read: packed ones, and what they were packed from.
    now: tensors of the graph that are.
    """

    found: PackedWeights | None
    rows: list[tuple[int, str, int]]
    later: frozenset[int]
    now: frozenset[int]

    @classmethod
    def of(cls, packed: Any, graph: Any, tensors: int, is_ours: bool) -> Places:
        constants = [int(row["tensor"]) for row in graph["constants"]]
        if packed is None:
            return cls(None, [], frozenset(), frozenset(constants))
        rows = [(int(place), str(key), int(index), str(mark)) for place, key, index, mark in packed["rows"]]
        sources = [str(mark) for mark in packed.get("sources", ())]  # files of old have none
        machine = str(packed["machine"])
        made_from = frozenset(constants[place] for place, _, _, _ in rows if place >= 0)
        if not all(0 <= index < tensors for _, _, index, _ in rows):
            raise IndexError("tensor")
        later = frozenset(index for _, _, index, _ in rows)
        if not is_ours or len(sources) != len(constants):
            return cls(PackedWeights(""), [], later, frozenset(constants))
        marks = {(place, key): mark for place, key, _, mark in rows}
        whole = PackedWeights(machine, marks=marks, sources=sources)
        return cls(whole, [row[:3] for row in rows], later | made_from, frozenset(constants) - made_from)


def places_of(document: Any, text: bytes) -> tuple[list[Places], frozenset[int], dict[int, str]]:
    """`Places` of each graph, the tensors that are not to be checked for any, and fingerprints of inner ones."""
    packed = document.get("packed")
    if packed is None:
        return [Places(None, [], frozenset(), frozenset())] * len(document["graphs"]), frozenset(), {}
    try:
        count, inner = len(document["tensors"]), _inner(document, packed)
        is_ours = inner is not None and is_sealed(text)
        both = zip(packed["graphs"], document["graphs"], strict=True)
        found = [Places.of(part, graph, count, is_ours) for part, graph in both]
    except (TypeError, KeyError, IndexError, ValueError, OverflowError, AttributeError) as error:
        raise InvalidModelError(f"graph: packed: got {type(error).__name__} {error}, wanted rows") from error
    later = frozenset[int]().union(*(p.later for p in found)) - frozenset[int]().union(*(p.now for p in found))
    return found, later, inner if is_ours and inner is not None else {}


def _inner(document: Any, packed: Any) -> dict[int, str] | None:
    """Fingerprints of inner tensors; None where one has none, as in files of old."""
    marks = {int(index): str(mark) for index, mark in packed.get("inner", ())}
    known = _constants(document["graphs"]).union(marks)
    known.update(int(row[2]) for part in packed["graphs"] if part is not None for row in part["rows"])
    texts = {i for i, row in enumerate(document["tensors"]) if "strings" in row}
    return marks if known | texts == set(range(len(document["tensors"]))) else None


def read_packed(places: Places, tensors: Sequence[Array]) -> PackedWeights | None:
    """Packed weights of a document whose tensors have been read; without rows where the seal is not ours."""
    if places.found is not None:
        places.found.rows.update({(place, key): tensors[index] for place, key, index in places.rows})
    return places.found


def secret() -> bytes:
    """What nobody but this user knows; b"" where it cannot be kept.  One that others may know is made anew."""
    path = cache_root() / SEAL_KEY
    for may_replace in (False, True):
        found = read_trusted(path, secret=True)
        if found is not None and len(found) == _SECRET:
            return found
        with suppress(OSError):
            make_root()
            write_private(path, os.urandom(_SECRET), is_first=not may_replace)
    found = read_trusted(path, secret=True)
    return found if found is not None and len(found) == _SECRET else b""
