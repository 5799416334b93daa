"""Graph and concrete input types to a `Plan`: fold what is known, select kernels, place buffers.

A plan covers the nodes whose shapes follow from the inputs' shapes (and from the content of the few small inputs that
decide shapes or branches).  Where a shape depends on data, the plan ends in a `Cut`: the node runs by its reference,
and the nodes after it are a new region, planned when the shapes are there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

from bolt_numba.base.border import at_node
from bolt_numba.base.budget import ask, unasked
from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.follow import Trail, is_followed
from bolt_numba.base.records import record
from bolt_numba.base.types import STRING, NestedType, TensorType, only_in_python, type_of
from bolt_numba.ir.build import infer_types
from bolt_numba.ir.graph import Node, Value
from bolt_numba.kernels.compiles import LackingError, may_wait, no_compiling
from bolt_numba.kernels.extents import check_steps
from bolt_numba.kernels.registry import In, Out, Scratch
from bolt_numba.ops.control import ControlFlow
from bolt_numba.ops.evaluate import amounts_of
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.choices import Choices, Chooser, Selection
from bolt_numba.runtime.copies import Copy, islands, with_copies
from bolt_numba.runtime.device import HOST, Memory, Segment, segments_of
from bolt_numba.runtime.memory import MemoryPlan, in_bands, plan_memory, stacked
from bolt_numba.runtime.opaque import types_of
from bolt_numba.runtime.packs import MakerContext, Packs
from bolt_numba.runtime.region import VALUE_ELEMENTS, Cut, Region, fitting, resolved
from bolt_numba.runtime.slots import CONST, INPUT, TEMP, Job, Slot, own
from bolt_numba.runtime.stops import REPLANNED, Stop, Stops, behind


@record(eq=False)
class Plan:
    """Everything that one set of input shapes needs.

    results: a slot for each wanted value; those of kind TEMP are written into fresh arrays, the others are taken from
    the inputs or constants.  With a cut, the wanted values are what the cut and the rest need.  lacking: kernels for
    which others stand in.  built: its programs, once it is linked.
    """

    jobs: list[Job]
    memory: MemoryPlan
    results: list[Slot]
    cut: Cut | None = None
    stops: Sequence[Stop] = ()
    lacking: Sequence[Any] = ()
    built: list[Segment] | None = None
    context: MakerContext | None = None
    elsewhere: dict[tuple[int, Memory], bool] = field(default_factory=dict)
    """By input and memory: whether only copies there read it.  By ~output and memory: whether one from it makes it."""

    users: dict[int | Slot, list[int]] = field(default_factory=dict)
    """Jobs that read an input, by its number, and that write a slot, once somebody asks."""

    def using(self, *those: int | Slot) -> list[int]:
        """Which jobs read any of some inputs, by number, or write any of some slots, in order."""
        if not self.users:
            made: dict[int | Slot, list[int]] = {}
            for number, job in enumerate(self.jobs):
                roots = [slot.root()[0] for slot in job.ins if slot is not None]
                keys: set[int | Slot] = {root.index for root in roots if root.kind == INPUT}
                for key in keys | {slot.root()[0] for slot in job.outs}:
                    made.setdefault(key, []).append(number)
            self.users.update(made)
        return sorted({number for one in those for number in self.users.get(one, ())})

    @property
    def nbytes(self) -> int:
        """The host's memory of one run at a time."""
        return self.memory.arenas.get(HOST, 0) + sum(segment.executable.nbytes for segment in self.built or ())

    @property
    def segments(self) -> list[Segment]:
        """Runs of jobs of one device; who asks first links the plan."""
        if self.built is None:
            self.link()
        assert self.built is not None
        return self.built

    def link(self) -> None:
        """Pack what steps read packed, compile, and build programs; others may plan meanwhile."""
        if self.built is None and self.context is not None:
            packs = self.context.packs
            try:
                self._pack(packs)
                with packs.once(self):
                    if self.built is None:
                        for device in dict.fromkeys(job.device for job in self.jobs):
                            device.prepare([job for job in self.jobs if job.device is device])
                        self.built = segments_of(self.jobs, self.context.threads)
            finally:
                packs.over(self)
                packs.done()

    def _pack(self, packs: Packs) -> None:
        """Pack what steps read packed.  Kernels that this takes are compiled together with those of the steps."""
        try:
            with no_compiling():
                packs.pack(self.jobs)
        except LackingError:
            if not may_wait():
                raise
            from bolt_numba.kernels.precompile import prepare  # warm processes do without

            steps = [kernel for job in self.jobs for kernel in job.device.lacking(job.steps or ())]
            devices = dict.fromkeys(job.device for job in self.jobs)
            prepare([*packs.lacking.values(), *steps], [kernel for device in devices for kernel in device.besides()])
            packs.pack(self.jobs)


class Planner:
    """Plans one region for one set of input types.

    waits: for kernels; else others stand in for those that are not there.  trail: of the sizes of the types that are
    planned for, where these are followed (`runtime.tape`).  data: by id of a node what data last decided of it: shapes
    of its results, or content of the operands that decide; the trail then has stops there.
    """

    def __init__(
        self, region: Region, context: MakerContext, waits: bool = True, trail: Trail | None = None,
        data: Mapping[int, Sequence[Sequence[int]]] | None = None,
    ) -> None:  # fmt: skip
        self.region, self.context, self.devices, self.trail = region, context, context.devices, trail
        memo = region.choices if trail is None else Choices()
        self.choices = Chooser(context, memo, region.operators, waits, trail)
        self.is_mixed = any(device.memory is not HOST for device in self.devices)
        self.slots: dict[int, Slot] = {}
        self.alias = dict(region.alias)
        self.jobs: list[Job] = []
        self.nodes: list[Node] = []
        self.stops = Stops(region, trail, data or {}, self.alias, self.slots, self.jobs, self._slot, self.devices)
        self.cut: Cut | None = None
        self.unasked = unasked()

    def plan(self, types: Sequence[TensorType]) -> Plan:
        """``types``: static types of the region's inputs, with ``value`` where the content decides shapes."""
        for index, (value, t) in enumerate(zip(self.region.inputs, types, strict=True)):
            self.slots[id(value)] = Slot(value.name, t, INPUT, index)
        for key, t in self.region.known.items():
            self.slots[key] = Slot("known", t, CONST, const=t.known)
        self._each(deque(self.region.nodes), self._add)
        wanted = self._wanted()
        results = self._results(self._brought(wanted) if self.is_mixed else wanted)
        lacking = [kernel for job in self.jobs for kernel in job.lacking]
        joined = in_bands(self.jobs, results, self.context.threads, self.context.chooses)
        missing = [] if self.choices.waits else [k for job in joined for k in job.device.lacking(job.steps or ())]
        if not missing:
            self.jobs = joined
        return self._placed(results, [*lacking, *missing])

    def _placed(self, results: list[Slot], lacking: Sequence[Any]) -> Plan:
        """The plan of the jobs, with places for all that they make."""
        made = [s for s in results if s.kind == TEMP]
        if self.trail is not None:
            self.context.packs.pack(self.jobs, waits=False)
            return self._stacked(made, results)
        own([*results, *(s for job in self.jobs if job.steps is None for s in job.ins)])
        memory = plan_memory(self.jobs, made)
        given = [s.type.nbytes for s in made if s.result >= 0]
        ask(memory.arenas.get(HOST, 0) + sum(given), f"plan of {len(self.jobs)} steps: intermediate values and results")
        self.region.plans += 1
        return Plan(self.jobs, memory, results, self.cut, lacking=lacking, context=self.context)

    def _stacked(self, made: list[Slot], results: list[Slot]) -> Plan:
        """The same where sizes are followed."""
        stops, ends = self.stops.found, list[Any]()
        self.stops.number(self.jobs)
        memory = plan_memory(self.jobs, made, partial(stacked, ends=ends))
        ends += (ends[-1:] or [0]) * (1 + len(stops) - len(ends))
        for stop, end in zip(stops, ends[1:], strict=True):
            stop.arena = end
        if stops:
            memory.arenas[HOST] = ends[0]
        return Plan(self.jobs, memory, results, self.cut, stops=stops, built=[])

    # --- operands ----------------------------------------------------------------------------------------------------

    def _slot(self, value: Value | None) -> Slot | None:
        if value is None:
            return None
        value = resolved(value, self.alias)
        slot = self.slots.get(id(value))
        if slot is None:
            if value.const is None:
                raise InvalidModelError(f"value {value.name!r} is read before it is computed")
            t = value.type if value.type.value is value.const else type_of(value.const)
            slot = Slot(value.name, t, CONST, const=value.const, source=value)
            self.slots[id(value)] = slot
        return slot

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _each(self, queue: deque[Node], plan: Callable[[Node, deque[Node]], None]) -> None:
        """Plan node after node; errors name it."""
        while queue:
            node = queue.popleft()
            try:
                plan(node, queue)
            except LackingError:
                raise
            except Exception as error:
                raise at_node(error, node.op, node.name) from error

    def _inline(self, node: Node, queue: deque[Node]) -> bool:
        """Replace a node by those of the branch that is known to be chosen."""
        assert isinstance(node.op, ControlFlow)
        condition = self._slot(node.inputs[0])
        assert condition is not None
        known = condition.type.known
        if known is None:
            return False
        slots = [self._slot(v) for v in node.inputs]
        infer_types(node.op, [None if s is None else s.type for s in slots])  # holds the operands against each other
        branch = node.op.chosen(known)
        for inner, outer in zip(branch.inputs, node.inputs[1:], strict=True):
            if outer is not None:
                self.alias[id(inner)] = outer
        for mine, theirs in zip(node.outputs, branch.outputs, strict=True):
            self.alias[id(mine)] = theirs
        queue.extendleft(reversed(branch.nodes))
        return True

    def _add(self, node: Node, queue: deque[Node], told: list[Slot | None] | None = None) -> None:
        """Plan a node, unless its results are known, or the plan ends here.  told: operands, with what it may know."""
        op = node.op
        is_control = isinstance(op, ControlFlow)
        if is_control and op.branches and self._inline(node, queue):  # type: ignore[attr-defined]
            return
        ins = told or [None if v is None else self.slots.get(id(v)) or self._slot(v) for v in node.operands]
        types = [None if s is None else s.type for s in ins]
        alike = self.choices.alike(op, types)
        how = self.choices.known(alike, op, ins)
        made = self._inferred(op, ins, types) if how is None else how.types
        if how is None and self._is_known(node, made):
            self._read(ins)
            return
        if how is None and (is_control or not _is_numeric(made, types)):
            goes_on = self.stops.goes_on(node, ins, types, queue)
            if not goes_on:
                self._make_cut(node, ins, queue)
            self._read(ins)
            if goes_on == REPLANNED:
                self._add(node, queue, ins)
            return
        outs = [Slot(v.name, t, TEMP) for v, t in zip(node.outputs, made, strict=True)]
        for value, slot in zip(node.outputs, outs, strict=True):
            self.slots[id(value)] = slot
        if how is None and op.is_view and ins and ins[0] is not None:
            self._view(ins[0], outs[0])
        elif how is not None or any(0 not in t.dims for t in made):
            self.nodes.append(node)
            self.jobs.append(self._job(node, ins, outs, how or self._chosen(alike, op, ins, outs)))

    def _job(self, node: Node, ins: list[Slot | None], outs: list[Slot], how: Selection) -> Job:
        job = Job(
            node.name, node.op, how.device, ins, outs, how.steps, how.runner, how.inplace, how.states,
            lacking=how.lacking,
        )  # fmt: skip
        if not self.context.packs.is_settled:
            job.leaving = self.context.packs.planned(node, ins, how)
        return job

    def _inferred(self, op: Op, ins: list[Slot | None], types: list[TensorType | None]) -> tuple[TensorType, ...]:
        """Types of a node's results, for which there is memory."""
        infer = infer_types if self.trail is None else types_of
        made = infer(op, fitting(op, types, ins, self.region.bounds) if op.bounds else types)
        if self.trail is None:
            nbytes = sum([t.nbytes for t in made if t.is_static])
            if nbytes > self.unasked:  # refused before its kernel is planned, so that the error can name the node
                ask(nbytes, f"{op.name}: result {', '.join(map(str, made))}")
                self.unasked = nbytes  # as much is granted to others, too: all together ask again
        return made

    def _chosen(
        self, alike: Hashable | None, op: Op, ins: list[Slot | None], outs: list[Slot], is_near: bool = False
    ) -> Selection:
        """How a node runs, with memory for its workspace."""
        types = [None if s is None else s.type for s in ins]
        how = self.choices.choose(alike, op, ins, types, tuple([s.type for s in outs]), is_near)
        if self.trail is None:
            nbytes = sum([a.nbytes for step in how.steps or () for a in step.args.values() if type(a) is Scratch])
            if nbytes > self.unasked:
                ask(nbytes, f"{op.name}: workspace of {how.runner}")
                self.unasked = nbytes
        return how

    def _read(self, slots: Iterable[Slot | None]) -> None:
        """Constants are about to be read as they are."""
        for slot in slots:
            self.context.packs.read(slot)

    def _is_known(self, node: Node, types: Sequence[TensorType]) -> bool:
        """Whether the results are constants here; they are then made so."""
        for t in types:
            if t.value is None:
                return False
        knowns = [t.known for t in types]
        if node.op.has_side_state or any(k is None for k in knowns):
            return False
        for value, t, known in zip(node.outputs, types, knowns, strict=True):
            self.slots[id(value)] = Slot(value.name, t, CONST, const=known)
        return True

    def _brought(self, wanted: Sequence[Slot]) -> list[Slot]:
        """Have operands copied to where they are read.  What is not worth that is planned for the host."""
        given = [job.ins for job in self.jobs]
        moved, results = with_copies(self.jobs, wanted)
        stays = islands(moved, self.devices, self.context.threads)
        if stays:
            for job, ins in zip(self.jobs, given, strict=True):
                job.ins = ins
            nodes = [node for node, job in zip(self.nodes, self.jobs, strict=True) if stays & {*map(id, job.outs)}]
            self._each(deque(nodes), self._stay)
            moved, results = with_copies(self.jobs, wanted)
        self.jobs = moved
        return results

    def _stay(self, node: Node, queue: deque[Node]) -> None:
        """Plan the job of a node anew, for the host."""
        number = self.nodes.index(node)
        job = self.jobs[number]
        how = self._chosen(None, node.op, job.ins, job.outs, is_near=True)
        self.jobs[number] = self._job(node, job.ins, job.outs, how)

    def _view(self, source: Slot, out: Slot) -> None:
        if source.const is not None:
            self._read([source])
            out.kind, out.const = CONST, np.ascontiguousarray(source.const).reshape(out.type.dims)
            out.type = out.type.with_value(out.const)
        else:
            out.base = source

    def _make_cut(self, node: Node, ins: list[Slot | None], queue: deque[Node]) -> None:
        region, needed = behind(queue, node.outputs, self.region, self.alias, self._slot)
        types = [None if s is None else s.type for s in ins]
        compute = next(filter(None, (device.data_sized(node.op, types) for device in self.devices)), None)
        by_types = not node.op.value_inputs and not any(t is not None and only_in_python(t) for t in types)
        amounts = amounts_of(node.op, types) if by_types and not isinstance(node.op, ControlFlow) else None
        is_nested = not isinstance(node.op, ControlFlow) and all(isinstance(v.type, NestedType) for v in node.outputs)
        self.cut = Cut(node, ins, region, compute, self._alone(node, ins), amounts, is_nested)
        self._boundary = needed
        queue.clear()

    def _alone(self, node: Node, ins: list[Slot | None]) -> Region | None:
        """The node by itself, if the content of few numbers decides what keeps it out of this plan."""
        deciding = [ins[i] for i in node.op.value_inputs if i < len(ins)]
        if not deciding or node.op.moves_memory or isinstance(node.op, ControlFlow) or len(self.region.nodes) == 1:
            return None
        if any(s is not None and only_in_python(s.type) for s in ins):
            return None
        if any(s is not None and s.type.size > VALUE_ELEMENTS for s in deciding):
            return None
        inputs = [resolved(v, self.alias) for v in node.inputs if v is not None]
        return Region(inputs, [node], list(node.outputs), dict(self.alias))

    # --- results -----------------------------------------------------------------------------------------------------

    def _wanted(self) -> list[Slot]:
        """Slots of the values that are wanted."""
        if self.cut is None:
            wanted = [self._slot(v) for v in self.region.outputs]
        else:
            wanted = [*self.cut.reads, *(self._slot(v) for v in self._boundary)]
        return [slot for slot in wanted if slot is not None]

    def _results(self, wanted: Sequence[Slot]) -> list[Slot]:
        """The same; each computed one owns its buffer, so that it can be written to a fresh array."""
        results: list[Slot] = []
        for slot in wanted:
            root, offset = slot.root()
            if slot.kind == CONST and is_followed(slot.const):
                results.append(self.stops.written(slot, len(results)))
            elif slot.kind != TEMP:
                self._read([slot])
                results.append(slot)
            elif (
                root.kind == TEMP and root.result < 0 and not root.is_room and offset == 0
                and root.type.nbytes == slot.type.nbytes
            ):  # fmt: skip
                root.result = len(results)
                results.append(slot)
            else:
                copy = Slot(slot.name, slot.type, TEMP, result=len(results))
                self.jobs.append(self._copied_job(slot, copy))
                results.append(copy)
        return results

    def _copied_job(self, source: Slot, target: Slot) -> Job:
        """The job of a copy within the host's memory."""
        device = next(d for d in self.devices if d.aliases and d.memory is HOST)
        nbytes, op = source.type.nbytes, Copy()
        steps = [device.copy_step(In(0), Out(0), 1, nbytes, 1)] if is_followed(nbytes) or nbytes else []
        check_steps(op, steps, [source.type], [target.type])
        return Job(f"{source.name} (copy)", op, device, [source], [target], steps, f"copy in {HOST.name}")


def _is_numeric(types: Sequence[TensorType], in_types: Sequence[TensorType | None]) -> bool:
    """Whether a node's results have sizes, and neither they nor its operands are Python's own objects."""
    for t in types:
        if not t.is_static or t.dtype == STRING:
            return False
    return STRING not in [t.dtype for t in in_types if t is not None]
