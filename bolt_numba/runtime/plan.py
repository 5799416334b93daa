"""Graph and concrete input types to a `Plan`: fold what is known, select kernels, place buffers.

A plan covers the nodes whose shapes follow from the inputs' shapes (and from the content of the few small inputs that
decide shapes or branches).  Where a shape depends on data, the plan ends in a `Cut`: the node runs by its reference,
and the nodes after it are a new region, planned when the shapes are there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.border import at_node
from bolt_numba.base.budget import ask, unasked
from bolt_numba.base.follow import LostError, Trail, UnpackedError, is_followed
from bolt_numba.base.records import record
from bolt_numba.errors import InvalidModelError
from bolt_numba.ir.build import infer_types
from bolt_numba.ir.graph import Node, Value
from bolt_numba.kernels.compiles import LackingError
from bolt_numba.kernels.extents import check_steps, made_steps
from bolt_numba.kernels.geometry.unseen import is_unseen
from bolt_numba.kernels.registry import Entry, In, Operands, Out, Scratch, Step, unseen
from bolt_numba.ops.control import ControlFlow
from bolt_numba.ops.evaluate import amounts_of
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.bounds import fitting
from bolt_numba.runtime.choices import Choices, Selection, node_key
from bolt_numba.runtime.copies import NOT_WORTH_IT, Copy, copied, islands
from bolt_numba.runtime.device import HOST, Device, Memory, Segment, segments_of
from bolt_numba.runtime.memory import MemoryPlan, in_bands, plan_memory, stacked
from bolt_numba.runtime.opaque import all_of, is_numeric, runs_nothing, steps_of, types_of, ways_of
from bolt_numba.runtime.packs import MakerContext, NodeContext, packed_by
from bolt_numba.runtime.recipes import Form, learn, made_before
from bolt_numba.runtime.region import VALUE_ELEMENTS, Cut, Region, resolved
from bolt_numba.runtime.slots import CONST, INPUT, TEMP, Job, Slot, own
from bolt_numba.runtime.stand_ins import STANDS_IN, Lacking
from bolt_numba.runtime.stops import REPLANNED, Stop, Stops, behind
from bolt_numba.types import NestedType, TensorType, only_in_python, type_of

FEW_PLANS = 8
"""Plans of a region from which on recipes pay, as no tape has come meanwhile: one costs as much as ten nodes."""
Planned: TypeAlias = "tuple[tuple[TensorType, ...], Selection | None, list[Step] | None]"
"""Types of a node's results, how it is planned (None: nothing runs), and its steps."""


@record(eq=False)
class Plan:
    """Everything that one set of input shapes needs.

    results: a slot for each wanted value; those of kind TEMP are written into fresh arrays, the others are taken from
    the inputs or constants.  With a cut, the wanted values are what the cut and the rest need.
    """

    jobs: list[Job]
    segments: list[Segment]
    memory: MemoryPlan
    results: list[Slot]
    cut: Cut | None = None
    stops: Sequence[Stop] = ()
    elsewhere: dict[tuple[int, Memory], bool] = field(default_factory=dict)
    """By input and memory: whether only copies there read it.  By ~output and memory: whether one from it makes it."""

    @property
    def nbytes(self) -> int:
        """The host's memory of one run at a time."""
        return self.memory.arenas.get(HOST, 0) + sum(segment.executable.nbytes for segment in self.segments)


class Planner:
    """Plans one region for one set of input types.

    lacking: takes note of the kernels that are not there, for which others stand in; None: kernels are waited for.
    near: ids of values that are computed in the host's memory, whatever is preferred (`islands`).  trail: of the sizes
    of the types that are planned for, where these are followed (`runtime.tape`).  data: by id of a node what data last
    decided of it: shapes of its results, or content of the operands that decide; the trail then has stops there.
    """

    def __init__(
        self, region: Region, context: MakerContext, lacking: Lacking | None = None, near: frozenset[int] = frozenset(),
        trail: Trail | None = None, data: Mapping[int, Sequence[Sequence[int]]] | None = None,
    ) -> None:  # fmt: skip
        self.region, self.lacking, self.near, self.trail = region, lacking, near, trail
        self.choices = region.choices if trail is None else Choices()
        self.context, self.devices = context, context.devices
        self.is_mixed = any(device.memory is not HOST for device in self.devices)
        self.elsewhere: dict[tuple[int, Memory], Slot] = {}
        self.slots: dict[int, Slot] = {}
        self.alias = dict(region.alias)
        self.jobs: list[Job] = []
        self.stops = Stops(region, trail, data or {}, self.alias, self.slots, self.jobs, self._slot, self.devices)
        self.cut: Cut | None = None
        self.unasked = unasked()
        is_new = context.tuner is not None or region.plans < FEW_PLANS or trail is not None
        self.forms: dict[int, Form] = {} if is_new else region.forms()
        self.is_near = False

    def plan(self, types: Sequence[TensorType]) -> Plan:
        """``types``: static types of the region's inputs, with ``value`` where the content decides shapes."""
        for index, (value, t) in enumerate(zip(self.region.inputs, types, strict=True)):
            self.slots[id(value)] = Slot(value.name, t, INPUT, index)
        for key, t in self.region.known.items():
            self.slots[key] = Slot("known", t, CONST, const=t.known)
        queue = deque(self.region.nodes)
        while queue and self.cut is None:
            node = queue.popleft()
            try:
                if not self._inline(node, queue):
                    self._add(node, queue)
            except LackingError:
                raise
            except Exception as error:
                raise at_node(error, node.op.name, node.name) from error
        results = self._results()
        is_first = self.is_mixed and not self.near
        if is_first and (near := islands(self.jobs, self.slots, self.devices, self.context.threads)):
            if self.lacking is not None:
                self.lacking.kernels.clear()  # nodes that stay on the host do without them
            return Planner(self.region, self.context, self.lacking, near).plan(types)
        joined = in_bands(self.jobs, results, self.context.threads, self.context.chooses)
        if self.lacking is None or not any(self.lacking.of(job.device, job.steps) for job in joined):
            self.jobs = joined
        return self._placed(results)

    def _placed(self, results: list[Slot]) -> Plan:
        """The plan of the jobs, with places for all that they make."""
        made = [s for s in results if s.kind == TEMP]
        self.context.packs.pack(self.jobs)
        if self.trail is not None:
            return self._stacked(made, results)
        own([*results, *(s for job in self.jobs if job.steps is None for s in job.ins)])
        memory = plan_memory(self.jobs, made)
        given = [s.type.nbytes for s in made if s.result >= 0]
        ask(memory.arenas.get(HOST, 0) + sum(given), f"plan of {len(self.jobs)} steps: intermediate values and results")
        for device in dict.fromkeys(job.device for job in self.jobs):
            device.prepare([job for job in self.jobs if job.device is device])
        segments = segments_of(self.jobs, self.context.threads)
        self.region.plans += 1
        return Plan(self.jobs, segments, memory, results, self.cut)

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
        return Plan(self.jobs, [], memory, results, self.cut, stops=stops)

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

    def _inline(self, node: Node, queue: deque[Node]) -> bool:
        """Replace a node by those of the branch that is known to be chosen."""
        if not isinstance(node.op, ControlFlow) or not node.op.branches:
            return False
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

    def _add(self, node: Node, queue: deque[Node]) -> None:
        op = node.op
        ins = [None if v is None else self.slots.get(id(v)) or self._slot(v) for v in node.operands]
        if self.near:
            self.is_near = id(node.outputs[0]) in self.near
            self.devices = [d for d in self.context.devices if d.memory is HOST or not self.is_near]
        found = self._found(node, ins, queue) if self.lacking is None else self._found_now(node, ins, queue)
        if found is None:
            return
        types, how, steps = found
        outs = [Slot(v.name, t, TEMP) for v, t in zip(node.outputs, types, strict=True)]
        for value, slot in zip(node.outputs, outs, strict=True):
            self.slots[id(value)] = slot
        if how is None:
            if op.is_view and ins and ins[0] is not None:
                self._view(ins[0], outs[0])
            return
        job = Job(node.name, op, how.device, ins, outs, steps, how.runner, how.inplace, how.states)
        if not self.context.packs.is_settled:
            job.leaving = self.context.packs.planned(node, ins, how)
        if self.is_mixed:
            self._bring(job)
        self.jobs.append(job)

    def _found(self, node: Node, ins: list[Slot | None], queue: deque[Node]) -> Planned | None:
        """How a node is planned; None where its results are known, or the plan ends here."""
        form = None if self.is_near else self.forms.get(id(node))
        found = None if form is None else self._by_recipe(form, node, ins)
        return self._chosen(node, ins, queue) if found is None else found

    def _found_now(self, node: Node, ins: list[Slot | None], queue: deque[Node]) -> Planned | None:
        """The same with kernels that are there."""
        assert self.lacking is not None
        try:
            found = self._found(node, ins, queue)
            if found is None or found[1] is None or self._is_there(found[1].device, found[2], ins, self.lacking):
                return found
        except LackingError as error:  # of one that tells how exact a maker is
            self.lacking.kernels.append(error.kernel)
        return self._stand_in(node.op, ins)

    def _is_there(
        self, device: Device, steps: Sequence[Step] | None, ins: Sequence[Slot | None], lacking: Lacking
    ) -> bool:
        """Whether all kernels of steps are there, those that pack, too; what is lacking is noted."""
        try:
            for packed in packed_by(steps or ()):
                self.context.packs.array(packed, ins, device.layout)
        except LackingError as error:
            lacking.kernels.append(error.kernel)
            return False
        return not lacking.of(device, steps)

    def _stand_in(self, op: Op, slots: list[Slot | None]) -> Planned:
        """The best of the other makers whose kernels are there, else the reference."""
        ins = [None if s is None else s.type for s in slots]
        types = infer_types(op, fitting(op, ins, slots, self.region.bounds) if op.bounds else ins)
        for device in self.devices:
            context = NodeContext(self.context, slots)
            shown = unseen(ins, context, types)
            for entry in device.candidates(op, shown, context):
                try:
                    how = self._selection(op, shown, types, device, entry, context)
                except LackingError:
                    continue
                if self._is_there(device, how.steps, slots, Lacking()):
                    how.runner += STANDS_IN
                    return types, how, how.steps
        how = Selection(types, self.devices[-1], None, f"reference{STANDS_IN}")
        return types, how, None

    def _chosen(self, node: Node, ins: list[Slot | None], queue: deque[Node]) -> Planned | None:
        """A node planned for the types of its operands; None where its results are known, or the plan ends here."""
        op, in_types = node.op, [None if s is None else s.type for s in ins]
        number = self.region.operators.get(id(op))
        named = None if self.trail is None else self.trail.text
        alike = None if number is None or self.is_near else node_key(number, in_types, named)
        how = None if alike is None else self.choices.found(alike, op, ins, self.context)
        if how is not None:
            return how.types, how, how.steps
        infer = infer_types if self.trail is None else types_of
        types = infer(op, fitting(op, in_types, ins, self.region.bounds) if op.bounds else in_types)
        self._ask_for(op, types)
        if self._is_known(node, types):
            self._read(ins)
            return None
        if not is_numeric(types, in_types) or isinstance(op, ControlFlow):
            goes_on = self.stops.goes_on(node, ins, in_types, queue)
            if not goes_on:
                self._make_cut(node, ins, queue)
            self._read(ins)
            return self._chosen(node, ins, queue) if goes_on == REPLANNED else None
        if runs_nothing(op, ins, types):
            return types, None, None
        how = self._choose(op, ins, in_types, types)
        if self.is_near:
            how.runner += NOT_WORTH_IT
        workspace = [a.nbytes for step in how.steps or () for a in step.args.values() if type(a) is Scratch]
        self._ask_for_workspace(op, how, sum(workspace))
        if alike is not None and all(t.value is None for t in types):
            self.choices.remember(alike, ins, how)
        return types, how, how.steps

    def _by_recipe(self, form: Form, node: Node, ins: list[Slot | None]) -> Planned | None:
        """A node planned as others that differ in sizes alone; None where that leads nowhere."""
        found = made_before(form, ins)
        if found is None and learn(form, ins, partial(self._followed, node.op, ins)):
            found = made_before(form, ins)
        if found is None:
            return None
        recipe, (types, nbytes, workspace, steps) = found
        if nbytes > self.unasked:
            self._ask_for(node.op, types)
        if recipe.how is None:
            return types, None, None
        self._ask_for_workspace(node.op, recipe.how, workspace)
        return types, recipe.how, None if steps is None else steps()

    def _followed(
        self, op: Op, slots: list[Slot | None], ins: list[TensorType | None]
    ) -> tuple[tuple[TensorType, ...], Selection | None]:
        """How a node with followed sizes is planned."""
        types = infer_types(op, ins)
        if any(t.value is not None for t in types) or not is_numeric(types, ins):
            raise LostError("a result that is no plain array")
        return types, None if runs_nothing(op, slots, types) else self._choose(op, slots, ins, types)

    def _read(self, slots: Iterable[Slot | None]) -> None:
        """Constants are about to be read as they are."""
        for slot in slots:
            self.context.packs.read(slot)

    def _ask_for(self, op: Op, types: Sequence[TensorType]) -> None:
        """Refuse what does not fit before its kernel is planned, so that the error can name the node."""
        if self.trail is not None:
            return
        nbytes = 0
        for t in types:
            if t.is_static:
                nbytes += t.nbytes
        if nbytes > self.unasked:
            ask(nbytes, f"{op.name}: result {', '.join(map(str, types))}")
            self.unasked = nbytes  # as much is granted to others, too: all together ask again

    def _ask_for_workspace(self, op: Op, how: Selection, nbytes: int) -> None:
        if self.trail is None and nbytes > self.unasked:
            ask(nbytes, f"{op.name}: workspace of {how.runner}")
            self.unasked = nbytes

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

    def _bring(self, job: Job) -> None:
        """Have operands copied to where the job's device reads them; its results are there, too."""
        memory = job.device.memory
        job.ins = [s if s is None or s.kind == CONST else self._at(s, memory) for s in job.ins]
        for out in job.outs:
            out.memory = memory

    def _at(self, slot: Slot, memory: Memory) -> Slot:
        """The value of a slot in a memory, copied there once."""
        if slot.memory is memory:
            return slot
        found = self.elsewhere.get((id(slot), memory))
        if found is None:
            found = self.elsewhere[id(slot), memory] = copied(slot, memory, self.jobs)
        return found

    def _view(self, source: Slot, out: Slot) -> None:
        if source.const is not None:
            self._read([source])
            out.kind, out.const = CONST, np.ascontiguousarray(source.const).reshape(out.type.dims)
            out.type = out.type.with_value(out.const)
        else:
            out.base, out.memory = source, source.memory

    def _choose(
        self, op: Op, slots: list[Slot | None], types: list[TensorType | None], outs: tuple[TensorType, ...]
    ) -> Selection:
        """The best kernel's steps."""
        context = NodeContext(self.context, slots)
        ins = unseen(types, context, outs)
        for device in self.devices:
            ways = ways_of(device, op, ins, context, self.trail is not None)
            if ways or device.runs(op):
                break
        if not ways:
            made = Selection(outs, device, None, device.runs(op))
        elif self.context.tuner is None:
            made = all_of(ways, context, lambda entry: self._selection(op, ins, outs, device, entry, context))
        else:
            entry, tuned = self.context.tuner.choose(op, ins, outs, device, ways[0][1], context)
            made = self._selection(op, ins, outs, device, entry, tuned)
        deciding = {i for i, t in enumerate(ins) if i in op.value_inputs and t is not None and is_unseen(t.value)}
        made.looked, made.exact = frozenset(context.looked | deciding), context.exact
        return made

    def _selection(
        self, op: Op, ins: Operands, outs: tuple[TensorType, ...], device: Device, entry: Entry, context: NodeContext
    ) -> Selection:
        """The steps of a maker."""
        context.device = device.layout
        steps = self._steps(entry, op, ins, outs, context)
        steps = [s for s in map(partial(self._decided, device), steps) if s.when is not False]
        if context.threads == 1:  # as measured may be best in a session of several, too
            for step in steps:
                step.parallel = False
        states = frozenset() if entry.states is None else entry.states(op, ins)
        return Selection(outs, device, steps, entry.name, entry.inplace, states)

    def _decided(self, device: Device, step: Step) -> Step:
        """A step as it is where sizes may choose whether it runs, else with a guard that says so."""
        if type(step.when) is bool or (self.context.chooses and not device.lacking([step])):
            return step
        return replace(step, when=bool(step.when))

    def _steps(
        self, entry: Entry, op: Op, ins: Operands, outs: tuple[TensorType, ...], context: NodeContext
    ) -> list[Step]:
        try:
            return made_steps(entry, op, ins, outs, context)
        except LostError as error:
            if self.trail is None or isinstance(error, UnpackedError):
                raise
        return steps_of(lambda ins, outs: made_steps(entry, op, ins, outs, context), ins, outs)

    def _make_cut(self, node: Node, ins: list[Slot | None], queue: deque[Node]) -> None:
        region, needed = behind(queue, node.outputs, self.region, self.alias, self._slot)
        types = [None if s is None else s.type for s in ins]
        compute = next(filter(None, (device.data_sized(node.op, types) for device in self.devices)), None)
        by_types = not node.op.value_inputs and not any(t is not None and only_in_python(t) for t in types)
        amounts = amounts_of(node.op, types) if by_types and not isinstance(node.op, ControlFlow) else None
        is_nested = not isinstance(node.op, ControlFlow) and all(isinstance(v.type, NestedType) for v in node.outputs)
        self.cut = Cut(node, ins, region, compute, self._alone(node, ins), amounts, is_nested)
        self._boundary = needed

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

    def _results(self) -> list[Slot]:
        """Slots of the wanted values; each computed one owns its buffer, so that it can be written to a fresh array."""
        if self.cut is None:
            wanted = [self._slot(v) for v in self.region.outputs]
        else:
            wanted = [*self.cut.reads, *(self._slot(v) for v in self._boundary)]
        results: list[Slot] = []
        for slot in wanted:
            if slot is None:
                continue
            slot = self._at(slot, HOST)
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
