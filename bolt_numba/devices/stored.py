"""Programs of the CPU in files: tables, weights and machine code as one piece, which a process copies and links.

All that has no address is kept as `devices.program` has it.  Numbers of the head say where in the piece each table is;
the places of kernels and weights in the image are filled in when it is restored, as `devices.program.linked` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from bolt_numba.base.files.mapped import LEAST_MAPPED, LINE
from bolt_numba.base.types import Array, dtype_from_name, dtype_name
from bolt_numba.devices.program import Links, NativeRun, Program, pointer
from bolt_numba.kernels import jit
from bolt_numba.kernels.machine_code import joined, load_blob
from bolt_numba.runtime.device import HOST, Arenas

if TYPE_CHECKING:
    from bolt_numba.runtime.slots import Job

TABLES = ("record_offsets", "flags", "arena_places", "arena_offsets", "own_places", "own_offsets")
"""Fields of a `Program` that are kept as they are."""
_LINKS = ("steps", "in_kernels", "in_arrays")


class StoredFaultError(Exception):
    """A step of a stored program has reported a fault; who has the model runs again, and tells it."""


class Pieces:
    """Arrays one behind another, each at a cache line; one that is given twice is there once."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.arrays: list[Array] = []
        self._places: dict[tuple[int, int], int] = {}

    def add(self, array: Array) -> int:
        """Where an array begins."""
        dense = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = pointer(dense), dense.nbytes
        if key not in self._places:
            self._places[key] = self.nbytes
            self.arrays += [dense, np.zeros(-dense.nbytes % LINE, np.uint8)]
            self.nbytes += dense.nbytes + len(self.arrays[-1])
        return self._places[key]

    def named(self, arrays: Mapping[tuple[int, str], Array]) -> list[list[Any]]:
        """Rows of those large ones that are there: name, where it begins, dtype and shape."""
        large = {where: a for where, a in arrays.items() if a.nbytes >= LEAST_MAPPED and a.flags.c_contiguous}
        rows = [(where, self._places.get((pointer(a), a.nbytes)), a) for where, a in large.items()]
        return [[*where, at, dtype_name(a.dtype), a.shape] for where, at, a in rows if at is not None]


def stored(program: Program) -> tuple[dict[str, Any], Pieces] | None:
    """Head and pieces of a linked program; None where a kernel's code is not kept, or needs a linker."""
    links, pieces = program.links, Pieces()
    codes = [jit._found(kernel) for kernel in links.kernels]
    code = joined([blob for blob in codes if blob is not None]) if None not in codes else None
    if code is None:
        return None
    image = program.image.copy()
    words = image.view(np.int64)
    words[links.in_kernels[:, 0]] = words[links.in_arrays[:, 0]] = 0
    tables = {name: getattr(program, name) for name in TABLES} | {name: getattr(links, name) for name in _LINKS}
    tables |= {"image": words, "code": np.frombuffer(code[0], np.uint8), "entries": np.array(code[1], np.int64)}
    tables["arrays"] = np.array([pieces.add(array) for array in links.arrays], np.int64)
    head = {name: [pieces.add(table), table.size] for name, table in tables.items()}
    return {
        "tables": head, "threads": program.threads, "faults": [len(program.faults), program.faults_at],
        "inputs": list(program.inputs.items()), "outputs": list(program.outputs.items()),
    }, pieces  # fmt: skip


def arrays_of(rows: Sequence[Sequence[Any]], block: Array) -> dict[tuple[int, str], Array]:
    """What `Pieces.named` named, in a copy of the pieces."""
    made = {}
    for place, form, at, name, shape in rows:
        dtype = dtype_from_name(name)
        made[place, form] = block[at : at + dtype.itemsize * math.prod(shape)].view(dtype).reshape(shape)
    return made


def restored(head: Mapping[str, Any], block: Array) -> Program:
    """A program that is ready to run, of its head and a copy of its pieces; raises OSError where code is refused."""

    def table(name: str) -> Array:
        at, size = head["tables"][name]
        return block[at : at + 8 * size].view(np.int64)

    at, size = head["tables"]["code"]
    kernels = load_blob(block[at : at + size].tobytes()) + table("entries")
    arrays = table("arrays") + pointer(block)
    image = table("image").copy()
    for addresses, rows in ((kernels, table("in_kernels")), (arrays, table("in_arrays"))):
        places, which, offsets = rows.reshape(-1, 3).T
        image[places] = addresses[which] + offsets
    faults, faults_at = head["faults"]
    nothing, unknown = np.empty((0, 3), np.int64), [cast("tuple[Job, int]", None)]
    return _Restored(
        image=image.view(np.uint8), links=Links([], [block], table("steps"), nothing, nothing, frozenset()),
        kernels=kernels[table("steps")], threads=head["threads"], inputs=_ends(head["inputs"]),
        outputs=_ends(head["outputs"]), jobs=0, step_jobs=[], faults=unknown * faults, faults_at=faults_at,
        **{name: table(name) for name in TABLES},
    )  # fmt: skip


def _ends(rows: Sequence[Any]) -> dict[int, list[tuple[int, int]]]:
    return {number: [(at, offset) for at, offset in places] for number, places in rows}


class _Restored(Program):
    """A program that knows its steps, but no nodes."""

    def bind(self, arenas: Arenas) -> NativeRun:
        return _RestoredRun(self, arenas.get(HOST))


class _RestoredRun(NativeRun):
    __slots__ = ()

    def fault(self) -> Any:
        return StoredFaultError()
