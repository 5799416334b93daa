"""Weights as kernels want them, packed once for all plans of a session, and the weights given up for them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bolt_numba.base.mapped import LARGE, drop_pages
from bolt_numba.devices import in_order
from bolt_numba.devices.seals import check_sources, sealed, sealed_copy
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.kernels.registry import In
from bolt_numba.ops.control import ControlFlow
from bolt_numba.types import Array

if TYPE_CHECKING:
    from bolt_numba.ir.packed import PackedWeights
    from bolt_numba.runtime.device import Device
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
            sealed(self._stored, place, array)
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
                source = sealed(self._stored, name[0][0], array)
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
        made = self._made[name, key] = sealed_copy(found, wanted, f"packed weight of constant {name[0]}")
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


class MakerContext:
    """What kernel makers see of the session (`kernels.registry.Context`), and what the planner needs besides.

    devices: in order of preference; the last one takes all.
    """

    def __init__(
        self, threads: int, packs: Packs, tuner: Tuner | None = None, devices: Sequence[Device] | None = None
    ) -> None:
        self.threads = threads
        self.devices = in_order() if devices is None else devices
        self.precision, self.numerics = packs.precision, packs.numerics
        self.packs = packs
        self.tuner = tuner

    def packed(self, array: Array, key: Hashable, pack: Callable[[Array], Array]) -> Array:
        return self.packs.get(array, key, pack)


def read_as_they_are(job: Job) -> set[int]:
    """Operands of a job of which it reads more than what is packed."""
    if job.steps is None:
        return set(range(len(job.ins)))
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
