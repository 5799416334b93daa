"""What vouches for weights that a file holds packed: the machine they are for, and fingerprints taken by a kernel.

See `bolt_numba.ir.packed` for the seal of the file itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bolt_numba.base.digest import sha256
from bolt_numba.base.folder_index import remember, remembered
from bolt_numba.base.mapped import drop_pages, map_of
from bolt_numba.errors import InvalidModelError
from bolt_numba.ir.graph import Graph
from bolt_numba.types import STRING, Array

if TYPE_CHECKING:
    from bolt_numba.ir.packed import PackedWeights


def key_of_seals() -> bytes:
    """The secret of this user's cache, b"" where it cannot be kept; it is read each time."""
    from bolt_numba.ir.packed import secret  # imports `hashlib`, which few sessions need

    return secret()


def sealed_copy(found: Array, key: bytes, wanted: str, what: str) -> Array:
    """A packed weight of a file in memory of its own; raises InvalidModelError where its fingerprint is another."""
    from bolt_numba.kernels.cpu.fingerprint import fingerprinted_copy

    made, mark = fingerprinted_copy(found, key)
    drop_pages(found)
    if mark != wanted:
        raise InvalidModelError(f"{_file(found)}{what}: its seal is wrong: {_CHANGED}")
    return made


def marks_of(rows: Mapping[tuple[int, str], Array]) -> dict[tuple[int, str], str]:
    """Fingerprints of packed weights; none where no secret can be kept."""
    key = key_of_seals()
    return {where: _mark(array, key) for where, array in rows.items()} if key else {}


def source_marks(graph: Graph) -> list[str]:
    """Fingerprints of a graph's constants; none where no secret can be kept."""
    key = key_of_seals()
    return [_mark(v.const, key) for v in graph.constants()] if key else []


def _mark(array: Array | None, key: bytes) -> str:
    """Fingerprint of an array; "" of texts, which are part of the graph that is sealed."""
    from bolt_numba.kernels.cpu.fingerprint import fingerprint

    return "" if array is None or array.dtype == STRING else fingerprint(array, key)


def check_sources(packed: PackedWeights, graph: Graph, places: Iterable[int] | None = None) -> None:
    """Raise InvalidModelError when a constant is not as it was when others were packed; places: which, None: all."""
    arrays, key = [v.const for v in graph.constants()], key_of_seals()
    if packed.sources and len(packed.sources) != len(arrays):
        raise InvalidModelError(f"packed weights: got {len(arrays)} constants, wanted the {len(packed.sources)} sealed")
    for place in range(len(packed.sources)) if places is None else places:
        array = arrays[place]
        _want_mark(packed, place, array, _mark(array, key) if key else None)
        if array is not None:
            drop_pages(array)


_CHANGED = "the file was changed since it was packed"


def _file(array: Array | None) -> str:
    found = map_of(array)
    return "" if found is None else f"{found.path}: "


def sealed(packed: PackedWeights, key: bytes, place: int, array: Array) -> Array:
    """A constant as it was when others were packed: a copy, as the file is read once, whoever may write meanwhile.

    Raises InvalidModelError when it was changed.
    """
    if not packed.sources or array.dtype == STRING:
        return array
    from bolt_numba.kernels.cpu.fingerprint import fingerprinted_copy

    made, mark = fingerprinted_copy(array, key) if key else (array, None)
    _want_mark(packed, place, array, mark)
    return made


def _want_mark(packed: PackedWeights, place: int, array: Array | None, mark: str | None) -> None:
    """Raise InvalidModelError unless the fingerprint of a constant is the one sealed; None: there is no secret."""
    if mark != packed.sources[place]:
        raise InvalidModelError(f"{_file(array)}constant {place}: its seal is wrong: {_CHANGED}")


@functools.cache
def machine() -> str:
    """Names all that the layout of packed weights depends on: instruction set, and the sources of the kernels."""
    from bolt_numba.kernels.cpu import isa

    folder = Path(isa.__file__).parent
    found = remembered("sources", folder)
    if not isinstance(found, str):
        state = sha256()
        for file in sorted(folder.rglob("*.py")):
            state.update(file.name.encode() + file.read_bytes())
        found = state.hexdigest()[:16]
        remember("sources", folder, found)
    return f"{isa.target().level}-{found}"
