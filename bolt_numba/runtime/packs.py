"""Weights as kernels want them: packs of a session's constants, made once and shared by all of its plans.

A pack is what a node would compute, `Pack(constant, form)`: equal ones are one array.  A constant that the passes
computed is in memory until all nodes that read it run on packs.  Where a later plan wants it in another form, or as
it is, the passes compute it again.  Constants that a model file holds stay in the file.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bolt_numba.base.errors import InternalError, ShapeError
from bolt_numba.base.files.mapped import LEAST_MAPPED, copy_of, drop_pages, map_of
from bolt_numba.base.follow import UnpackedError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.types import PRECISIONS, VALUES_WERE, Array, TensorType
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.kernels.compiles import LackingError
from bolt_numba.kernels.registry import Given, In, Operands, Record
from bolt_numba.kernels.unseen import KEYED_ELEMENTS, Making, Packed, Unseen, content, is_unseen

if TYPE_CHECKING:
    from bolt_numba.devices.seals import Sealed
    from bolt_numba.kernels.registry import Entry, Step
    from bolt_numba.runtime.choices import Selection
    from bolt_numba.runtime.device import Device
    from bolt_numba.runtime.reports.tune import Tuner
    from bolt_numba.runtime.slots import Job, Slot


def packed_by(steps: Iterable[Step]) -> list[Packed]:
    """What steps read in the place of constants."""
    calls: list[Any] = list(steps)
    found = []
    for call in calls:
        for arg in call.args.values():
            if type(arg) is Packed:
                found.append(arg)
            elif type(arg) is Record:
                calls.append(arg)
    return found


class Pack(NamedTuple):
    """What a kernel reads in the place of constants, or of packs.  form: what the maker calls it."""

    constants: tuple[Value | Pack, ...]
    form: Hashable

    def __str__(self) -> str:
        sources = [f"%{c.name}" if isinstance(c, Value) else str(c) for c in self.constants]
        return f"Pack[{self.form!r}]({', '.join(sources)})"


class Packs:
    """The packs of a session, and the constants that they are made of.

    Plans are linked by several threads at once.  One of them makes a pack, and those that want the same one wait for it
    alone.  Who makes one waits for nobody meanwhile, nor does who plans: a signal handler may come between, and plan.

    unread: constants of a packed file that nobody has compared with its seal yet: something is packed of them.
    gone: constants that are no longer in memory; an array of their type stands in for them, which nobody may read.
    lacking: kernels without which packs could not be made where nobody might wait for them.
    """

    def __init__(self, precision: str = "f32", numerics: str = "default") -> None:
        self.precision, self.numerics = precision, numerics
        self.unread: set[Value] = set()
        self.gone: set[Value] = set()
        self.lacking: dict[Pack, Any] = {}
        self._made: dict[Pack, Array] = {}
        self._locks: dict[Hashable, Any] = {}
        renew_after_fork(self, "_locks", dict)
        self._places: dict[Value, int] = {}
        self._readers: dict[Value, set[Node]] = {}
        self._sealed: Sealed | None = None
        self._kept: Mapping[tuple[int, str], Array] = {}
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
            if array is not None and array.nbytes >= LEAST_MAPPED and id(array) not in others and map_of(array) is None:
                self._readers[value] = set(value.uses)

    def take_packed(self, sealed: Sealed, graph: Graph) -> None:
        """Have what the model's file holds packed for this machine of the constants that were taken.

        graph: as it was read from the file.  Nothing is had where the precision of the session made others of its
        constants.  Raises InvalidModelError when a constant of which nothing is packed was changed since.
        """
        arrays = [v.const for v in graph.constants()]
        if any(place >= len(arrays) or value.const is not arrays[place] for value, place in self._places.items()):
            sealed.check(graph)
            return
        rows = {place for place, _ in sealed.packed.rows}
        if sealed.packed.sources:
            sealed.check(graph, [place for place in self._places.values() if place not in rows])
        self._sealed = sealed
        self.unread = {value for value, place in self._places.items() if place in rows}
        self._readers.clear()

    def take_kept(self, rows: Mapping[tuple[int, str], Array]) -> None:
        """Have what another process made of the same model, as `export` named it there; nothing may be planned yet."""
        self._kept = rows
        for value, place in self._places.items():
            made = rows.get((place, ""))
            if made is not None and value.const is not None:
                value.const, value.type = made, value.type.with_value(made)
                self.unread.discard(value)

    @property
    def is_settled(self) -> bool:
        """Whether all constants are in memory to stay."""
        return not (self._readers or self.gone or self.unread)

    def read(self, slot: Slot | None) -> None:
        """The constant of a slot, if it is one, is about to be read as it is: it stays in memory from now on.

        Raises InvalidModelError when it was changed since others were packed of it.
        """
        if slot is not None and slot.source is not None:
            with self.once(None):
                self._readers.pop(slot.source, None)
                if slot.source in self.gone or slot.source in self.unread:
                    _put(slot.source, slot, self.content(slot.source))
                    self.gone.discard(slot.source)
                    self.unread.discard(slot.source)

    def planned(self, node: Node, ins: Sequence[Slot | None], how: Selection) -> list[Slot]:
        """A node has its steps; constants that need not be in memory once all is packed, as nobody else reads them."""
        leaving: list[Slot] = []
        direct = {a.index for s in how.steps or () for a in s.args.values() if isinstance(a, In)}
        for index, slot in enumerate(ins):
            if slot is None or slot.source is None:
                continue
            readers = self._readers.get(slot.source)
            if how.steps is None or index in direct:
                self.read(slot)
            elif readers is not None:
                readers.discard(node)
                if index in how.looked:  # and so does the next plan
                    self._readers.pop(slot.source, None)
                elif not readers:
                    leaving.append(slot)
        return leaving

    def pack(self, jobs: Iterable[Job], waits: bool = True) -> None:
        """Make what the steps of a plan's jobs read in the place of constants, which may leave memory then.

        waits: for packs that another thread makes.  Raises LackingError when all is tried, so that `lacking` is whole.
        """
        lacking: LackingError | None = None
        for job in jobs:
            try:
                self._pack(job, waits)
            except LackingError as error:
                lacking = error
        if lacking is not None:
            raise lacking

    def _pack(self, job: Job, waits: bool) -> None:
        for packed in packed_by(job.steps or ()):
            if _is_short(job, packed):
                made = self.array(packed, job.ins, job.device.pack_form, waits)
                if _is_short(job, packed):  # else another thread has made one that programs may read by now
                    job.arrays[packed] = made
        for slot in job.leaving:
            with self.once(None):
                self._leave(slot)

    def _leave(self, slot: Slot) -> None:
        value = slot.source
        assert value is not None
        if value in self._readers:  # another thread may pack, too
            self.gone.add(value)
            self._readers.pop(value, None)
            assert value.const is not None
            _put(value, slot, Unseen(value.const.dtype, value.const.shape, -1))

    def once(self, what: Hashable) -> Any:
        """A lock of what one thread makes or changes at a time; None: of the constants."""
        return self._locks.get(what) or self._locks.setdefault(what, threading.RLock())

    def over(self, what: Hashable) -> None:
        """That is made."""
        self._locks.pop(what, None)

    def content(self, value: Value) -> Array:
        """A constant: from memory; from a packed file, looked at; or computed again, until `done`."""
        array = value.const  # it may leave memory at any moment
        if is_unseen(array):
            assert self._compute is not None
            self._computed = computed = self._computed or self._compute().constants()
            place = self._places[value]
            found = computed[place] if place < len(computed) else None
            if found is None or (found.name, found.type) != (value.name, value.type):
                raise InternalError(f"constant {value.name!r}: got {found} from the passes, wanted {value} once more")
            value, array = found, found.const
        assert array is not None
        if self._sealed is not None and value in self._places and (value in self.unread or map_of(array) is not None):
            return self._sealed.constant(self._places[value], array)
        return array

    def done(self) -> None:
        """What was computed again is wanted no longer."""
        self._computed = []

    # --- packs -------------------------------------------------------------------------------------------------------

    def array(self, packed: Packed, slots: Sequence[Slot | None], device: str, waits: bool = False) -> Array:
        """What stands for a reference to what is packed of these operands: from memory or the model's file.

        device: the `pack_form` of the device that packs.  waits: for another thread that makes it.  Raises ShapeError
        for less than the steps reach.
        """
        pack = pack_of(packed, slots, device)
        made = None if pack is None else self._made.get(pack)
        if made is None:
            if waits:
                for inner in packed.operands:  # first: who makes a pack waits for no other
                    if isinstance(inner, Packed):
                        self.array(inner, slots, device, waits)
            with self.once(pack) if waits and pack is not None else nullcontext():
                made = self._packed(packed, pack, slots, device)
            if pack is not None:
                self.over(pack)
        if made.nbytes < packed.least:
            raise ShapeError(f"{packed}: got {made.nbytes} bytes, wanted {packed.least}, as its steps reach")
        return made

    def _packed(self, packed: Packed, pack: Pack | None, slots: Sequence[Slot | None], device: str) -> Array:
        """The same, by this thread if no other has made it meanwhile.  pack: None for what is of one plan alone."""
        made = None if pack is None else self._made.get(pack)
        if made is None and pack is not None:
            made = self._from_file(pack)
        if made is None:
            try:
                with np.errstate(all="ignore"):
                    made = packed.make(*[self.operand(o, slots, device) for o in packed.operands])
            except LackingError as error:
                if pack is not None:
                    self.lacking[pack] = error.kernel
                raise
            for leaf in packed.leaves:
                drop_pages(slots[leaf].const)  # type: ignore[union-attr, arg-type]
        return made if pack is None else self._made.setdefault(pack, made)

    def operand(self, of: int | Packed, slots: Sequence[Slot | None], device: str = "") -> Array:
        """The content of a constant operand, or what is packed."""
        if isinstance(of, Packed):
            return self.array(of, slots, device)
        slot = slots[of]
        assert slot is not None
        if slot.source is not None:
            return self.content(slot.source)
        assert slot.type.known is not None, "a constant"
        return slot.type.known

    def has(self, pack: Pack) -> bool:
        """Whether a pack is in memory."""
        return pack in self._made

    def lacks(self, packed: Packed, slots: Sequence[Slot | None], device: str) -> Any:
        """The kernel that something could not be packed without, if it is not there yet; else None."""
        if not self.lacking:
            return None
        kernel = self.lacking.get(pack_of(packed, slots, device))  # type: ignore[arg-type]
        if kernel is not None and not kernel.is_ready:
            return kernel
        inner = (self.lacks(of, slots, device) for of in packed.operands if isinstance(of, Packed))
        return next(filter(None, inner), None)

    def _where(self, pack: Pack) -> tuple[int, str] | None:
        """Place of the first of its constants, and a text that tells apart what is packed of it, if there is one."""
        first, *rest = pack.constants
        if not rest and isinstance(first, Value):
            place = self._places.get(first)
            return (place, repr(pack.form)) if place is not None and _is_plain(pack.form) else None
        inner = [(self._places.get(c), "") if isinstance(c, Value) else self._where(c) for c in pack.constants]
        if not _is_plain(pack.form) or any(w is None or w[0] is None for w in inner):
            return None
        return inner[0][0], repr((pack.form, *inner))  # type: ignore[index, return-value]

    def _from_file(self, pack: Pack) -> Array | None:
        where = self._where(pack) if self._sealed is not None or self._kept else None
        if where is None or where in self._kept:
            return self._kept.get(where)  # type: ignore[arg-type]
        return None if self._sealed is None else self._sealed.weight(where)

    def export(self) -> dict[tuple[int, str], Array]:
        """What was packed of the graph's constants, by place and form, as far as forms can be written."""
        rows = [(self._where(pack), array) for pack, array in list(self._made.items())]
        return {where: array for where, array in rows if where is not None}

    def export_all(self) -> dict[tuple[int, str], Array]:
        """The same and, with no form, the constants that runs read as they are."""
        plain = {(place, ""): value.const for value, place in self._places.items()}
        arrays = {where: copy_of(a) if map_of(a) is not None else a for where, a in plain.items() if not is_unseen(a)}
        return self.export() | {where: array for where, array in arrays.items() if array is not None}

    @property
    def nbytes(self) -> int:
        return sum(packed.nbytes for packed in list(self._made.values()))


def _is_short(job: Job, packed: Packed) -> bool:
    made = job.arrays.get(packed)
    return made is None or made.nbytes < packed.least


def pack_of(packed: Packed, slots: Sequence[Slot | None], device: str) -> Pack | None:
    """What all plans share of a reference; None for what is of this plan alone."""
    constants: list[Value | Pack] = []
    for of in packed.operands:
        found = pack_of(of, slots, device) if isinstance(of, Packed) else slots[of].source  # type: ignore[union-attr]
        if found is None:
            return None
        constants.append(found)
    return Pack(tuple(constants), (device, packed.form) if device else packed.form)


class MakerContext:
    """What the planner needs to know of the session.

    devices: in order of preference; the last one takes all.
    chooses: whether sizes that are followed choose among makers, of which plans of before have packed all that they
    need: nothing is packed anew, and UnpackedError says what would have to be.
    """

    def __init__(
        self, threads: int, packs: Packs, devices: Sequence[Device], tuner: Tuner | None = None, chooses: bool = False
    ) -> None:
        self.threads, self.packs, self.tuner, self.chooses = threads, packs, tuner, chooses
        self.devices = devices


class NodeContext:
    """What kernel makers see of the session for one node (`kernels.registry.Context`), and what they asked.

    device: the `pack_form` of the device that packs.  looked: large constants whose content decided something.  exact:
    whether makers are exact enough for the node's weights, which others' may be asked, too.
    """

    def __init__(self, session: MakerContext, slots: Sequence[Slot | None]) -> None:
        self.session, self.slots, self.threads, self.device = session, slots, session.threads, ""
        self.precision, self.numerics = session.packs.precision, session.packs.numerics
        self.looked: set[int] = set()
        self.exact: dict[Entry, bool] = {}
        self._is_weighing = False

    def alone(self) -> NodeContext:
        """For a node that one thread runs."""
        made = copy.copy(self)
        made.threads = 1
        return made

    def packed(self, known: Any, key: Hashable, pack: Making) -> Any:
        given = known if type(known) is tuple else (known,)
        operands = [self._operand(one) for one in given]
        if None in operands:  # content that is the same for nodes alike
            return pack(*[self.content(one) if type(one) is Packed else content(one) for one in given])
        made = Packed(tuple(operands), key, pack)  # type: ignore[arg-type]
        if self.session.chooses:
            self._want(made)
        return made

    def shown(self, ins: Sequence[TensorType | None]) -> list[TensorType | None]:
        """Types with all content."""
        packs = self.session.packs
        made = list(ins)
        for i, t in enumerate(ins):
            if t is not None and is_unseen(t.value):
                made[i] = t.with_value(packs.operand(i, self.slots))
        return made

    def weighed(self, entry: Entry, ask: Callable[[], bool]) -> bool:
        if entry not in self.exact:
            self._is_weighing = True
            try:
                self.exact[entry] = ask()
            finally:
                self._is_weighing = False
        return self.exact[entry]

    def content(self, of: int | Packed) -> Array:
        """What a `Unseen` has within."""
        if type(of) is Packed and self.session.chooses:
            self._want(of)
        if not self._is_weighing:
            leaves = of.leaves if type(of) is Packed else [of]
            self.looked.update(leaves)  # type: ignore[arg-type]
        if type(of) is int and not self._is_weighing:
            self.session.packs.read(self.slots[of])
        return self.session.packs.operand(of, self.slots, self.device)

    def _want(self, packed: Packed) -> None:
        pack = pack_of(packed, self.slots, self.device)
        if pack is not None and not self.session.packs.has(pack):
            raise UnpackedError(str(pack))

    def _operand(self, known: Any) -> int | Packed | None:
        """What a constant is: the number of an operand, or what was packed."""
        if type(known) is Unseen:
            return known.of
        if type(known) is Packed:
            return known
        return next((i for i, s in enumerate(self.slots) if s is not None and s.type.value is known), None)


def _put(value: Value, slot: Slot, array: Any) -> None:
    value.const = slot.const = array
    value.type = slot.type = value.type.with_value(array)


def _is_plain(form: Hashable) -> bool:
    """Whether a form is made of what its text tells apart."""
    if isinstance(form, tuple):
        return all(map(_is_plain, form))
    return form is None or type(form) in (str, int, float, bool, bytes)


def unseen(types: Given, node: Any, outs: Sequence[TensorType] = ()) -> Operands:
    """Types for makers: with large constants unseen.  node: shows them.  outs: types of the results, where known."""
    made = Operands(types, outs[0] if len(outs) == 1 else None)
    for i, t in enumerate(types):
        if t is not None and t.value is not None and t.value.size > KEYED_ELEMENTS and t.value.dtype == t.dtype:
            made[i] = TensorType(t.dtype, t.shape, Unseen(t.dtype, t.value.shape, i, node))  # type: ignore[arg-type]
    return made
