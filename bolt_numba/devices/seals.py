"""What vouches for weights that a file holds packed: the machine they are for, and fingerprints taken by a kernel.

See `bolt_numba.ir.packed` for the seal of the file itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bolt_numba.base.digest import sha256
from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.files.folder_index import remember, remembered
from bolt_numba.base.files.mapped import drop_pages, map_of
from bolt_numba.base.types import STRING, Array
from bolt_numba.ir.graph import Graph

if TYPE_CHECKING:
    from bolt_numba.ir.packed import PackedWeights


def key_of_seals() -> bytes:
    """The secret of this user's cache, b"" where it cannot be kept; it is read each time."""
    from bolt_numba.ir.packed import secret  # imports `hashlib`, which few sessions need

    return secret()


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
    from bolt_numba.kernels.cpu.elementwise.fingerprint import fingerprint

    return "" if array is None or array.dtype == STRING else fingerprint(array, key)


def check_sources(packed: PackedWeights, graph: Graph) -> None:
    """Raise InvalidModelError when a constant is not as it was when others were packed."""
    Sealed(packed).check(graph)


_CHANGED = "the file was changed since it was packed"


class Sealed:
    """What a file holds packed of a graph's constants, and the secret of this user's cache that vouches for it.

    What is wanted of it comes as a copy whose fingerprint is the one sealed: a file is read once, whoever may write
    meanwhile.  InvalidModelError says that it is another.
    """

    def __init__(self, packed: PackedWeights) -> None:
        self.packed, self.key = packed, key_of_seals()

    def check(self, graph: Graph, places: Iterable[int] | None = None) -> None:
        """Look at constants where they lie.  places: which; None: all."""
        arrays, count = [v.const for v in graph.constants()], len(self.packed.sources)
        if count and count != len(arrays):
            raise InvalidModelError(f"packed weights: got {len(arrays)} constants, wanted the {count} sealed")
        for place in range(count) if places is None else places:
            array = arrays[place]
            self._want_mark(place, array, _mark(array, self.key) if self.key else None)
            if array is not None:
                drop_pages(array)

    def constant(self, place: int, array: Array) -> Array:
        """A constant as it was when others were packed."""
        if not self.packed.sources or array.dtype == STRING:
            return array
        from bolt_numba.kernels.cpu.elementwise.fingerprint import fingerprinted_copy

        made, mark = fingerprinted_copy(array, self.key) if self.key else (array, None)
        self._want_mark(place, array, mark)
        return made

    def weight(self, where: tuple[int, str]) -> Array | None:
        """A packed weight in memory of its own; None where the file has none, or none that is vouched for."""
        found, wanted = self.packed.rows.get(where), self.packed.marks.get(where)
        if found is None or wanted is None:
            return None
        from bolt_numba.kernels.cpu.elementwise.fingerprint import fingerprinted_copy

        made, mark = fingerprinted_copy(found, self.key)
        drop_pages(found)
        if mark != wanted:
            what = f"{_file(found)}packed weight of constant {where[0]}"
            raise InvalidModelError(f"{what}: its seal is wrong: {_CHANGED}")
        return made

    def _want_mark(self, place: int, array: Array | None, mark: str | None) -> None:
        """The fingerprint of a constant is the one sealed; None: there is no secret."""
        if mark != self.packed.sources[place]:
            raise InvalidModelError(f"{_file(array)}constant {place}: its seal is wrong: {_CHANGED}")


def _file(array: Array | None) -> str:
    found = map_of(array)
    return "" if found is None else f"{found.path}: "


@functools.cache
def machine() -> str:
    """Names all that the layout of packed weights depends on: instruction set, and the sources of the kernels."""
    from bolt_numba.kernels import cpu
    from bolt_numba.kernels.instructions import isa

    folder = Path(cpu.__file__).parent
    found = remembered("sources", folder)
    if not isinstance(found, str):
        state = sha256()
        for file in sorted(folder.rglob("*.py")):
            state.update(file.name.encode() + file.read_bytes())
        found = state.hexdigest()[:16]
        remember("sources", folder, found)
    return f"{isa.target().level}-{found}"
