"""Weights as kernels want them: packs of a session's constants, made once and shared by all of its plans.

A pack is what a node would compute, `Pack(constant, layout)`: equal ones are one array.  A constant that the passes
computed is in memory until all nodes that read it run on packs.  Where a later plan wants it in another layout, or as
it is, the passes compute it again.  Constants that a model file holds stay in the file.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bolt_numba.base.follow import UnpackedError
from bolt_numba.base.mapped import LARGE, drop_pages, map_of
from bolt_numba.devices import in_order
from bolt_numba.devices.seals import check_sources, key_of_seals, sealed, sealed_copy
from bolt_numba.errors import InternalError
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.types import PRECISIONS, VALUES_WERE, Array

if TYPE_CHECKING:
    from bolt_numba.ir.packed import PackedWeights
    from bolt_numba.kernels.registry import Types
    from bolt_numba.runtime.device import Device
    from bolt_numba.runtime.slots import Slot
    from bolt_numba.runtime.tune import Tuner

Making = Callable[[Array], Array]


class Pack(NamedTuple):
    """What a kernel reads in the place of a constant, which may be a pack itself.  layout: what the maker calls it."""

    constant: Value | Pack
    layout: Hashable

    def __str__(self) -> str:
        source = f"%{self.constant.name}" if isinstance(self.constant, Value) else self.constant
        return f"Pack[{self.layout!r}]({source})"


class Packs:
    """The packs of a session, and the constants that they are made of.

    unread: constants of a packed file that nobody has compared with its seal yet: something is packed of them.
    gone: constants that are no longer in memory; an array of their type stands in for them, which nobody may read.
    """

    def __init__(self, precision: str = "f32", numerics: str = "default") -> None:
        self.precision, self.numerics = precision, numerics
        self.unread: set[Value] = set()
        self.gone: set[Value] = set()
        self._made: dict[Pack, Array] = {}
        self._places: dict[Value, int] = {}
        self._readers: dict[Value, set[Node]] = {}
        self._stored: PackedWeights | None = None
        self._key = b""
        self._compute: Callable[[], Graph] | None = None
        self._computed: list[Value] = []

    # --- constants ---------------------------------------------------------------------------------------------------

    def take(self, graph: Graph, kept: Iterable[Array], compute: Callable[[], Graph]) -> None:
        """Look after the constants of a graph, of which equal ones become one.

        kept: arrays that others keep.  compute: gives the graph once more.
        """
        first: dict[int, Value] = {}
        self._compute = compute
        if self.precision == "f32" and graph.metadata.get(VALUES_WERE) in PRECISIONS:
            self.precision = graph.metadata[VALUES_WERE]  # weights keep the dtype that they had in the model
        for place, value in enumerate(graph.constants()):
            one = first.setdefault(id(value.const), value)
            if one is value:
                self._places[value] = place
            else:
                graph.replace_uses(value, one)
        others = {*map(id, kept), *(id(v.const) for v in graph.outputs)}
        for value in self._places:
            array = value.const
            if array is not None and array.nbytes >= LARGE and id(array) not in others and map_of(array) is None:
                self._readers[value] = set(value.uses)

    def take_packed(self, packed: PackedWeights, graph: Graph) -> None:
        """Have what the model's file holds packed for this machine of the constants that were taken.

        graph: as it was read from the file.  Nothing is had where the precision of the session made others of its
        constants.  Raises InvalidModelError when a constant of which nothing is packed was changed since.
        """
        arrays = [v.const for v in graph.constants()]
        if any(place >= len(arrays) or value.const is not arrays[place] for value, place in self._places.items()):
            check_sources(packed, graph)
            return
        rows = {place for place, _ in packed.rows}
        if packed.sources:
            check_sources(packed, graph, [place for place in self._places.values() if place not in rows])
        self._stored, self._key = packed, key_of_seals()
        self.unread = {value for value, place in self._places.items() if place in rows}
        self._readers.clear()

    @property
    def is_settled(self) -> bool:
        """Whether all constants are in memory to stay."""
        return not (self._readers or self.gone or self.unread)

    def read(self, slot: Slot | None) -> None:
        """The constant of a slot, if it is one, is about to be read as it is: it stays in memory from now on.

        Raises InvalidModelError when it was changed since others were packed of it.
        """
        if slot is not None and slot.source is not None:
            self._readers.pop(slot.source, None)
            if slot.source in self.gone or slot.source in self.unread:
                _put(slot.source, slot, self.content(slot.source))
                self.gone.discard(slot.source)
                self.unread.discard(slot.source)

    def planned(self, node: Node, ins: Sequence[Slot | None], direct: Set[int], by_types: bool) -> None:
        """A node has its steps.  direct: operands that they read as they are.  by_types: as of the maker's `Entry`."""
        for index, slot in enumerate(ins):
            if slot is None or slot.source is None:
                continue
            readers = self._readers.get(slot.source)
            if index in direct:
                self.read(slot)
            elif readers is not None:
                readers.discard(node)
                if not by_types:  # the maker may look at content again
                    self._readers.pop(slot.source, None)
                elif not readers and self._readers.pop(slot.source, None) is not None:  # another thread may plan, too
                    self.gone.add(slot.source)
                    _put(slot.source, slot, _placeholder(slot.source))

    def content(self, value: Value) -> Array:
        """A constant: from memory; from a packed file, looked at; or computed again, until `done`."""
        if value in self.gone:
            assert self._compute is not None
            self._computed = computed = self._computed or self._compute().constants()
            place = self._places[value]
            found = computed[place] if place < len(computed) else None
            if found is None or (found.name, found.type) != (value.name, value.type):
                raise InternalError(f"constant {value.name!r}: got {found} from the passes, wanted {value} once more")
            value = found
        array = value.const
        assert array is not None
        if self._stored is not None and value in self._places and (value in self.unread or map_of(array) is not None):
            return sealed(self._stored, self._key, self._places[value], array)
        return array

    def done(self) -> None:
        """A plan is made."""
        self._computed = []

    # --- packs -------------------------------------------------------------------------------------------------------

    def get(self, pack: Pack, array: Array, make: Making) -> Array:
        """A pack, from memory or the model's file if it was made before.  array: what stands for its constant."""
        made = self._made.get(pack)
        if made is None:
            made = self._from_file(pack)
            if made is None:
                made = make(self.content(pack.constant) if isinstance(pack.constant, Value) else array)
                drop_pages(array)
            self._made[pack] = made
        return made

    def has(self, pack: Pack) -> bool:
        """Whether a pack is in memory."""
        return pack in self._made

    def _from_file(self, pack: Pack) -> Array | None:
        place = self._places.get(pack.constant) if isinstance(pack.constant, Value) else None
        if self._stored is None or place is None:
            return None
        where = place, repr(pack.layout)
        found, mark = self._stored.rows.get(where), self._stored.marks.get(where)
        if found is None or mark is None:
            return None
        return sealed_copy(found, self._key, mark, f"packed weight of constant {place}")

    def export(self) -> dict[tuple[int, str], Array]:
        """What was packed of the graph's constants, by place and layout, as far as layouts can be written."""
        rows = {}
        for (constant, layout), array in self._made.items():
            if isinstance(constant, Value) and constant in self._places and _is_plain(layout):
                rows[self._places[constant], repr(layout)] = array
        return rows

    @property
    def nbytes(self) -> int:
        return sum(packed.nbytes for packed in self._made.values())


class MakerContext:
    """What kernel makers see of the session (`kernels.registry.Context`), and what the planner needs besides.

    devices: in order of preference; the last one takes all.
    asked: what was packed of the operands of the node at hand: pack, its array, operand, layout and how it is made.
    is_complete: whether nothing else was packed for the node.
    chooses: whether sizes that are followed choose among makers, of which plans of before have packed all that they
    need: nothing is packed anew, and UnpackedError says what would have to be.
    """

    def __init__(
        self, threads: int, packs: Packs, tuner: Tuner | None = None, devices: Sequence[Device] | None = None,
        chooses: bool = False,
    ) -> None:  # fmt: skip
        self.threads = threads
        self.devices = in_order() if devices is None else devices
        self.precision, self.numerics = packs.precision, packs.numerics
        self.packs = packs
        self.tuner, self.chooses = tuner, chooses
        self.turn_to(())

    def turn_to(self, operands: Sequence[Slot | None], device: str = "") -> None:
        """What is packed from now on is of these operands; device: the layout of the device that packs it."""
        self.operands, self.device = operands, device
        self.asked: list[tuple[Pack, Array, int, Hashable, Making]] = []
        self.is_complete = True

    def alone(self) -> MakerContext:
        """For a node that one thread runs."""
        made = copy.copy(self)
        made.threads = 1
        return made

    def apart(self) -> MakerContext:
        """For the operands at hand, whatever this one turns to."""
        return copy.copy(self)

    def contents(self, ins: Types) -> Types:
        """Types of the operands with all constants, those that are not in memory, too."""
        made = list(ins)
        for index, slot in enumerate(self.operands):
            if slot is not None and slot.source is not None and slot.source in self.packs.gone:
                made[index] = slot.type.with_value(self.packs.content(slot.source))
        return made

    def packed(self, array: Array, key: Hashable, pack: Making) -> Array:
        found = self._operand(array)
        if found is None:  # of this plan alone
            self.is_complete = False
            return pack(array)
        constant, index = found
        wanted = Pack(constant, (self.device, key) if self.device else key)
        if self.chooses and not self.packs.has(wanted):
            raise UnpackedError(str(wanted))
        made = self.packs.get(wanted, array, pack)
        self.asked.append((wanted, made, index, key, pack))
        return made

    def _operand(self, array: Array) -> tuple[Value | Pack, int] | None:
        """What an array is: the constant of an operand and its number, or a pack that was asked for."""
        for index, slot in enumerate(self.operands):
            if slot is not None and slot.type.value is array:
                return None if slot.source is None else (slot.source, index)
        for pack, made, index, *_ in self.asked:
            if made is array:
                self.is_complete = False  # it would have to be packed for other nodes first
                return pack, index
        return None


def _put(value: Value, slot: Slot, array: Array) -> None:
    value.const = slot.const = array
    value.type = slot.type = value.type.with_value(array)


def _placeholder(value: Value) -> Array:
    """An array of a constant's type that takes no memory."""
    assert value.const is not None
    return np.broadcast_to(np.zeros((), value.const.dtype), value.const.shape)


def _is_plain(layout: Hashable) -> bool:
    """Whether a layout is made of what its text tells apart."""
    if isinstance(layout, tuple):
        return all(map(_is_plain, layout))
    return layout is None or type(layout) in (str, int, float, bool, bytes)
