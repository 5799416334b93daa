"""Weights as kernels want them, packed once for all plans of a session, and the weights given up for them."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bolt_numba.digest import sha256
from bolt_numba.errors import InvalidModelError
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.mapped import LARGE, drop_pages, map_of
from bolt_numba.ops.control import ControlFlow
from bolt_numba.types import STRING, Array

if TYPE_CHECKING:
    from bolt_numba.ir.packed import PackedWeights
    from bolt_numba.runtime.slots import Job
    from bolt_numba.runtime.tune import Tuner

_SAMPLES = 64


class SpentError(Exception):
    """A new plan wants a weight in another form than the plans before it, and the weight was given up."""


class Packs:
    """Prepacked weights, computed once and shared by every plan of a session (`kernels.registry.Context.packed`).

    Constants of a graph that was made `known` are told by their place in it, so that those of the graph that the
    passes make anew are found again; of others, the source is kept beside the result.
    """

    def __init__(self, precision: str = "f32", numerics: str = "default") -> None:
        self.precision, self.numerics = precision, numerics
        self._made: dict[tuple[Hashable, Hashable], Array] = {}
        self._places: dict[int, tuple[weakref.ref[Array], int]] = {}
        self._names: dict[int, Hashable] = {}
        self._sources: dict[int, Array] = {}
        self._stand_ins: dict[int, tuple[Array, Hashable]] = {}
        self._stored: PackedWeights | None = None
        self.unseen: set[int] = set()
        """Constants of a packed file that nobody has looked at yet: something is packed of them."""

    def stored(self, packed: PackedWeights, graph: Graph) -> None:
        """Take what the model's file holds packed for this machine of the constants of a graph.

        Raises InvalidModelError when a constant of which nothing is packed was changed since.
        """
        self.unseen = {place for place, _ in packed.rows}
        check_sources(packed, graph, [i for i in range(len(packed.sources)) if i not in self.unseen])
        self._stored = packed

    def vouch(self, array: Array) -> None:
        """A constant is read as it is: raises InvalidModelError when it was changed since others were packed of it."""
        if self._stored is None:
            return
        reference, place = self._places.get(id(array), (None, 0))
        if reference is not None and reference() is array and place in self.unseen:
            _sealed(self._stored, place, array)
            self.unseen.discard(place)

    def export(self) -> dict[tuple[int, str], Array]:
        """What was packed from constants of the known graph, by place and key, as far as keys can be written."""
        rows = {}
        for (name, key), array in self._made.items():
            if isinstance(name, tuple) and _is_plain(key):
                rows[name[0], repr(key)] = array
        return rows

    def known(self, graph: Graph) -> None:
        """Tell the constants of the session's optimised graph by their order from now on."""
        arrays = [v.const for v in graph.constants() if v.const is not None]
        self._places = {id(array): (weakref.ref(array), place) for place, array in enumerate(arrays)}
        self._names.clear()

    def get(self, array: Array, key: Hashable, pack: Callable[[Array], Array]) -> Array:
        """``pack(array)``, from memory or the model's file if it was made before."""
        name = self._name(array), key
        made = self._made.get(name)
        if made is None:
            made = self._from_file(*name)
        if made is None:
            if id(array) in self._stand_ins:
                raise SpentError
            source = array
            if self._stored is not None and isinstance(name[0], tuple):
                source = _sealed(self._stored, name[0][0], array)
            made = self._made[name] = pack(source)
            drop_pages(array)
        return made

    def _from_file(self, name: Hashable, key: Hashable) -> Array | None:
        if self._stored is None or not isinstance(name, tuple):
            return None
        found = self._stored.rows.get((name[0], repr(key)))
        wanted = self._stored.marks.get((name[0], repr(key)))
        if found is None or wanted is None:
            return None
        from bolt_numba.kernels.cpu.fingerprint import fingerprinted_copy

        made, mark = fingerprinted_copy(found, _secret())
        drop_pages(found)
        if mark != wanted:
            raise InvalidModelError(f"{_file(found)}packed weight of constant {name[0]}: its seal is wrong: {_CHANGED}")
        self._made[name, key] = made
        return made

    def stand_in(self, array: Array) -> Array:
        """What takes no memory and goes for ``array`` wherever only its type and its packed forms are wanted."""
        made = np.broadcast_to(np.zeros((), array.dtype), array.shape)
        self._stand_ins[id(made)] = made, self._name(array)
        return made

    def _name(self, array: Array) -> Hashable:
        if id(array) in self._stand_ins:
            return self._stand_ins[id(array)][1]
        reference, place = self._places.get(id(array), (None, 0))
        if reference is not None and reference() is array:
            if self._stored is not None:  # its constants may never be read, and no passes make them anew
                return place, array.dtype, array.shape
            if id(array) not in self._names:
                # A few elements, lest the passes should ever give constants of equal shapes in another order.
                sample = array.reshape(-1)[:: max(1, array.size // _SAMPLES)].tobytes()
                drop_pages(array)
                self._names[id(array)] = place, array.dtype, array.shape, sample
            return self._names[id(array)]
        self._sources[id(array)] = array
        return id(array)

    @property
    def nbytes(self) -> int:
        return sum(packed.nbytes for packed in self._made.values())


def _secret() -> bytes:
    from bolt_numba.ir.packed import secret  # imports `hashlib`, which few sessions need

    return secret()


def marks_of(rows: Mapping[tuple[int, str], Array]) -> dict[tuple[int, str], str]:
    """Fingerprints of packed weights; none where no secret can be kept."""
    key = _secret()
    return {where: _mark(array, key) for where, array in rows.items()} if key else {}


def source_marks(graph: Graph) -> list[str]:
    """Fingerprints of a graph's constants; none where no secret can be kept."""
    key = _secret()
    return [_mark(v.const, key) for v in graph.constants()] if key else []


def _mark(array: Array | None, key: bytes) -> str:
    """Fingerprint of an array; "" of texts, which are part of the graph that is sealed."""
    from bolt_numba.kernels.cpu.fingerprint import fingerprint

    return "" if array is None or array.dtype == STRING else fingerprint(array, key)


def check_sources(packed: PackedWeights, graph: Graph, places: Iterable[int] | None = None) -> None:
    """Raise InvalidModelError when a constant is not as it was when others were packed; places: which, None: all."""
    arrays, key = [v.const for v in graph.constants()], _secret()
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


def _sealed(packed: PackedWeights, place: int, array: Array) -> Array:
    """A constant as it was when others were packed: a copy, as the file is read once, whoever may write meanwhile.

    Raises InvalidModelError when it was changed.
    """
    if not packed.sources or array.dtype == STRING:
        return array
    from bolt_numba.kernels.cpu.fingerprint import fingerprinted_copy

    key = _secret()
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

    state = sha256()
    for file in sorted(Path(isa.__file__).parent.glob("*.py")):
        state.update(file.name.encode() + file.read_bytes())
    return f"{isa.target().name}-{state.hexdigest()[:16]}"


class MakerContext:
    """What kernel makers see of the session (`kernels.registry.Context`)."""

    def __init__(self, threads: int, packs: Packs, tuner: Tuner | None = None) -> None:
        self.threads = threads
        self.precision, self.numerics = packs.precision, packs.numerics
        self.packs = packs
        self.tuner = tuner

    def packed(self, array: Array, key: Hashable, pack: Callable[[Array], Array]) -> Array:
        return self.packs.get(array, key, pack)


def read_as_they_are(job: Job) -> set[int]:
    """Operands of a job of which it reads more than what is packed."""
    if job.steps is None:
        return set(range(len(job.ins)))
    from bolt_numba.kernels.registry import In

    return {a.index for step in job.steps for a in step.args.values() if isinstance(a, In)}


class Spending:
    """Gives up each large constant of a graph as soon as all its readers have steps that do without it.

    A stand-in takes its place, so that other shapes can be planned as long as they want it packed in the same way.
    Where control flow reads constants in ways that its nodes do not show, everything is kept.

    is_final: whether a maker looked at content, so that the graph is of no use afterwards.
    """

    def __init__(self, nodes: Sequence[Node], outputs: Sequence[Value], packs: Packs) -> None:
        self.packs = packs
        self.is_final = False
        self.is_possible = not any(isinstance(node.op, ControlFlow) for node in nodes)
        reads = [v for node in nodes for v in node.inputs if v is not None and _is_large(v)]
        self._left = Counter(map(id, reads if self.is_possible else []))
        for value in outputs:
            self._left.pop(id(value), None)

    def planned(self, node: Node, job: Job, by_types: bool) -> None:
        """Called when the node has its steps, of a maker that is ``by_types`` or not."""
        direct = read_as_they_are(job)
        for index, (value, slot) in enumerate(zip(node.inputs, job.ins, strict=True)):
            if value is None or slot is None or id(value) not in self._left:
                continue
            if index in direct:
                del self._left[id(value)]
                continue
            self._left[id(value)] -= 1
            self.is_final |= not by_types
            if not self._left[id(value)]:
                assert value.const is not None
                value.const = slot.const = self.packs.stand_in(value.const)
                slot.type = slot.type.with_value(value.const)


def _is_plain(key: Hashable) -> bool:
    """Whether a key is made of what its text tells apart."""
    if isinstance(key, tuple):
        return all(map(_is_plain, key))
    return key is None or type(key) in (str, int, float, bool, bytes)


def _is_large(value: Value) -> bool:
    """Whether it is given up once it is packed."""
    return value.const is not None and value.const.nbytes >= LARGE
