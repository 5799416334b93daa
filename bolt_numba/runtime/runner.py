"""Runs a region: picks or makes the plan for the shapes at hand, runs its program, follows its cut."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.border import at_node
from bolt_numba.base.budget import ask, is_granted
from bolt_numba.base.config import MAX_PLANS
from bolt_numba.base.files.mapped import check_intact
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.turns import hurry, is_wanted, later, short_turns, stop
from bolt_numba.base.types import Array, NestedType, TensorType, only_in_python
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import as_value
from bolt_numba.kernels.compiles import LackingError
from bolt_numba.ops.control import ControlFlow, Trips
from bolt_numba.ops.evaluate import evaluate
from bolt_numba.runtime.copies import Home, elsewhere, homes, is_elsewhere, on_host
from bolt_numba.runtime.device import hold
from bolt_numba.runtime.packs import MakerContext, Packs
from bolt_numba.runtime.plan import Plan, Planner
from bolt_numba.runtime.prepared import MAX_IDLE_CONTEXTS, Prepared, RunMemory, Targets, clock, finish
from bolt_numba.runtime.region import VALUE_ELEMENTS, Cut, Region, outgrown, region_of, resolved
from bolt_numba.runtime.stand_ins import Serving, computed_now, planned_now, run_stand_in
from bolt_numba.runtime.tape import Final, Tape, Taped, Tapes

if TYPE_CHECKING:
    from bolt_numba.runtime.device import Device, Memory
    from bolt_numba.runtime.reports.tune import Tuner
    from bolt_numba.runtime.views import Orders

MOST_DECIDED = 64
"""Contents of inputs that decide shapes for which a region has tapes."""
FEW_PASSES, MOST_PASSES = 4, 1024
"""Runs behind a cut of data after which a tape is tried first, and last: it is tried whenever they have doubled."""
FEW_TRIPS = 3
"""Iterations of a loop from which it pays to run them in one call."""


class Runner:
    """Runs one region for any shapes.  Safe to call from many threads at once.

    A known shape waits for nobody.  New ones are planned one after the other, each once, and linked side by side.

    serving: of the session; one of its own unless given.
    max_plans: plans kept; the least recently used goes first, also when all take more memory than one may.
    devices: in order of preference, as `bolt_numba.devices.in_order` gives them.
    """

    def __init__(
        self,
        region: Region,
        threads: int,
        packs: Packs,
        devices: Sequence[Device],
        tuner: Tuner | None = None,
        max_plans: int = MAX_PLANS,
        serving: Serving | None = None,
    ) -> None:
        self.region, self.threads, self.packs, self.tuner = region, threads, packs, tuner
        self.max_plans, self.devices = max_plans, devices
        self.serving = Serving("") if serving is None else serving
        self.is_first, self.is_looped = True, False
        self.make: Callable[[], Region] | None = None
        self.prepared: dict[Hashable, Prepared] = {}
        self.tapes: dict[Hashable, Tapes] = {}
        self.lock = threading.RLock()  # a signal handler may call the session that plans
        renew_after_fork(self, "lock", threading.RLock)
        self.bodies: dict[int, Runner] = {}
        self.orders: dict[Orders, Runner | None] = {}  # of inputs that are views
        self.data: dict[int, Sequence[Sequence[int]]] = {}  # see `runtime.stops.Data`; of all runners of a session
        self.by_value = sorted(region.by_value)
        self.far = elsewhere(devices)
        if self.far:
            hold(self)
        self.nested = region.is_nested

    @property
    def untaped(self) -> str:
        """Why no tape of the region is tried; "" where one is."""
        if self.tuner is not None:
            return "kernels are measured for each shape (tune=True)"
        if self.far:
            return f"{', '.join([device.name for device in self.far])}: a memory of its own"
        return "an input is a list, a dictionary or None" if self.nested else ""

    def key(self, arrays: Sequence[Any]) -> Hashable:
        shapes: Hashable
        if self.nested:
            shapes = tuple([a.shape if isinstance(a, np.ndarray) or is_elsewhere(a) else None for a in arrays])
        else:
            shapes = tuple([a.shape for a in arrays])
        if self.region.bounds:
            shapes = shapes, *outgrown(self.region.bounds, arrays).items()
        if not self.by_value:
            return shapes
        deciding = [arrays[i] for i in self.by_value]
        return shapes, tuple([a.tobytes() if a.size <= VALUE_ELEMENTS else None for a in deciding])

    def prepare(self, arrays: Sequence[Array], waits: bool = False) -> Prepared:
        """The plan for these arrays' shapes, made if there is none yet.

        waits: for kernels, whatever happens; a plan that does without some is made anew.
        """
        key = self.key(arrays)
        found = self.prepared.get(key)
        if found is None and self.tapes:
            found = self._taped(key, arrays)
        if found is None or (waits and found.stands_in):
            self.serving.is_running |= self.is_first and bool(self.prepared) and not waits
            with short_turns(), np.errstate(all="ignore"):
                plan, types = partial(self._plan, key, arrays, waits), self._types(arrays)
                found = planned_now(self, plan, types, waits)
        elif len(self.prepared) > 1:
            found.used = next(clock)
        if type(found) is not Taped:
            found.plan.link()  # another thread may have planned and not be done
        return found

    def _keep(self, key: Hashable, made: Prepared) -> None:
        """Add a plan, and drop those that were used least recently where all are too many or too large."""
        # One call lists them: a signal handler that comes between two rows may plan, too.
        others = sorted([row for row in list(self.prepared.items()) if row[0] != key], key=lambda row: row[1].used)
        self.prepared[key] = made
        nbytes = sum(p.nbytes for p in list(self.prepared.values())) + sum(t.nbytes for t in list(self.tapes.values()))
        for number, (old, prepared) in enumerate(others):
            if len(others) - number < self.max_plans and is_granted(nbytes):
                return
            self.prepared.pop(old, None)
            nbytes -= prepared.nbytes

    def _taped(self, key: Hashable, arrays: Sequence[Array]) -> Prepared | None:
        """What a tape gives for these arrays' shapes, if one holds for them."""
        tapes = self.tapes.get(self._apart(key)[1])
        found = None if tapes is None else tapes.at(arrays)
        if found is None and tapes is not None and is_wanted(tapes):
            hurry(tapes, tapes.plan_s)  # as long as a plan would take, which it may save
            found = tapes.at(arrays)
        if found is not None:
            others = list(self.prepared.items())  # no lock: who plans has it for long, and who drops empties it
            if len(others) >= self.max_plans:
                self.prepared.pop(min(others, key=lambda row: row[1].used)[0], None)
            self.prepared[key] = found
        return found

    def _passing(
        self, key: Any, arrays: Sequence[Array], targets: Sequence[Array | None] | None
    ) -> tuple[Tape, list[Array]] | None:
        """One run by the first tape that holds; nothing of it is kept."""
        shapes, decided = self._apart(key)
        tapes = self.tapes.get(decided)
        return None if tapes is None else tapes.run(arrays, shapes, targets)

    def planned_for(self, types: Sequence[TensorType]) -> Plan:
        """A plan of its own, not linked yet, for types that a tape serves or that somebody packs for."""
        with self.lock, short_turns(), np.errstate(all="ignore"):
            self._complete()
            return self.made(types).plan

    def apart(self, arrays: Sequence[Array]) -> Prepared:
        """The plan up to its first cut, for a tape whose runs end or go on elsewhere."""
        key = "apart", self.key(arrays)
        found = self.prepared.get(key)
        if found is None:
            with self.lock, np.errstate(all="ignore"):
                self._complete()
                found = self.made(self._types(arrays))
                self._keep(key, found)
        return found

    def _follow(self, key: Hashable, arrays: Sequence[Array], spent: float, behind_cuts: bool = False) -> None:
        """Have another tape, where plans have become many enough for one to pay: behind the back of runs.

        A loop waits for that of its body, which serves the iterations that are left.  behind_cuts: one in any case, if
        it goes on where data decide.
        """
        if self.untaped or self.make is not None:  # closed meanwhile: the graph is gone
            return
        decided = self._apart(key)[1]
        tapes = self.tapes.get(decided)
        if tapes is None:
            if len(self.tapes) >= MOST_DECIDED:
                self.tapes.clear()
            tapes = self.tapes[decided] = Tapes()
        tapes.plan_s = tapes.plan_s if behind_cuts else spent
        tapes.note([a.shape for a in arrays])
        if is_wanted(tapes) or not tapes.is_due(behind_cuts):
            return
        follow = partial(tapes.follow, self, self._types(arrays), behind_cuts)
        if self.is_looped:
            follow()
        else:
            later(self.serving, tapes, follow)

    def _apart(self, key: Any) -> tuple[Sequence[tuple[int, ...]], Hashable]:
        """Shapes of a key, and what it holds besides them and content that decides them."""
        shapes = key[0] if self.by_value else key
        return (shapes[0], shapes[1:]) if self.region.bounds else (shapes, ())

    def _complete(self) -> None:
        """Have the graph again, after all was forgotten."""
        if self.make is not None:
            self.region, self.make = self.make(), None

    def _plan(self, key: Hashable, arrays: Sequence[Array], anew: bool, waits: bool) -> Prepared:
        """The plan for a key, linked: one is made at a time, but several threads link.

        anew: rather than one that does without kernels.  waits: for them.
        """
        began, lacking = time.perf_counter(), len(self.packs.lacking)
        with self.lock:
            found = self.prepared.get(key)
            is_new = found is None or (anew and found.stands_in)
            if found is None or is_new:
                self._complete()
                reads = [v for node in self.region.nodes for v in node.operands if v is not None]
                check_intact([v.const for v in (*self.region.outputs, *reads) if v.const is not None])
                for i in () if self.is_first else self.by_value:
                    self._note_content(self.region.inputs[i], arrays[i])
                found = self.made(self._types(arrays), waits)
                self._keep(key, found)
        try:
            if type(found) is not Taped:
                found.plan.link()
        except LackingError:
            self.drop(found)
            if len(self.packs.lacking) == lacking:
                raise
            return self._plan(key, arrays, anew, waits)  # now it is known what cannot be packed yet
        if is_new and not found.stands_in:
            if self.serving.keep is not None:
                self.serving.keep(self, key, found)
            with self.lock:
                self._follow(key, arrays, time.perf_counter() - began)
        return found

    def _types(self, arrays: Sequence[Array]) -> list[TensorType]:
        types: list[TensorType] = []
        by_value = {*self.region.by_value, *outgrown(self.region.bounds, arrays)}
        for index, (array, value) in enumerate(zip(arrays, self.region.inputs, strict=True)):
            if isinstance(value.type, NestedType):
                types.append(value.type)
                continue
            deciding = index in by_value and array.size <= VALUE_ELEMENTS
            types.append(TensorType(value.type.dtype, array.shape, value=array.copy() if deciding else None))
        return types

    def made(self, types: Sequence[TensorType], waits: bool = True) -> Prepared:
        context = MakerContext(self.threads, self.packs, self.devices, self.tuner)
        try:
            plan = Planner(self.region, context, waits).plan(types)
        finally:
            self.packs.done()
        if self.tuner is not None:
            self.tuner.save()
        rest = self.like(plan.cut.rest) if plan.cut is not None else None
        return Prepared(plan, rest, bool(plan.lacking))

    def drop(self, old: Prepared) -> None:
        """Forget a plan: the next run of its shape makes another."""
        with self.lock:
            for key in [key for key, prepared in self.prepared.items() if prepared is old]:
                del self.prepared[key]

    def let_go(self, memory: Memory) -> bool:
        """Free what no run has of the memory of a device; whether there was anything."""
        plans = [prepared for prepared in list(self.prepared.values()) if memory in prepared.plan.memory.arenas]
        idle = [prepared.idle for prepared in plans]
        was_any = any(idle)
        for contexts in idle:
            contexts.clear()
        return was_any

    def run(self, arrays: Sequence[Array], targets: Sequence[Array | None] | None = None) -> list[Array]:
        """Outputs for these inputs (C-contiguous, of the declared dtypes).

        targets: for each output the array to write it to, or None for a fresh one; `Targets` say by which plan.
        """
        runner, given = self, arrays
        prepared: Any
        chosen = None
        if type(targets) is Targets:  # another runner may have to end what this one begins
            chosen, targets = targets.prepared, list(targets)
        while True:
            key = runner.key(given)
            prepared, chosen = chosen or runner.prepared.get(key), None
            if prepared is None:
                found = runner._passing(key, given, targets) if runner.tapes else None
                prepared, results = (runner.prepare(given), None) if found is None else found
            else:
                results = None
                if len(runner.prepared) > 1:
                    prepared.used = next(clock)
            if runner.far:
                given = on_host(prepared.plan, given)
            cut = prepared.cut
            if results is None:
                run = partial(run_stand_in, runner, run_plan) if prepared.stands_in else run_plan
                results = run(prepared, given, targets if cut is None else None)
                if results is None:
                    continue
            if cut is None or type(results) is Final:
                if self is not runner and self.is_first:
                    self.serving.is_running = True  # what follows a cut has its kernels now, too
                return results
            reads = prepared.reads
            made = runner.run_cut(cut, results[:reads])
            runner._pass(key, given, prepared)
            runner, operands, given = prepared.rest, results[:reads], [*results[reads:], *made]
            if prepared.ends is not None and targets is None and not any(m is a for m in made for a in operands):
                return [given[i] for i in prepared.ends]

    def _pass(self, key: Hashable, given: Sequence[Array], prepared: Any) -> None:
        """A run has gone on behind a cut of data: try to have a tape that does so, after a few, then more seldom."""
        if prepared.stands_in or not prepared.cut.is_told(self.data):
            return
        prepared.passed += 1
        if prepared.passed < FEW_PASSES or prepared.passed & (prepared.passed - 1) or prepared.passed > MOST_PASSES:
            return
        with self.lock, short_turns():
            self._follow(key, given, 0.0, True)

    def drop_cuts(self) -> None:
        """Have plans that end where data decide give way to a tape that goes on there."""
        for key in [k for k, p in list(self.prepared.items()) if p.cut is not None and not p.late]:
            self.prepared.pop(key, None)

    def homes(self, arrays: Sequence[Any], count: int) -> list[Home | None]:
        """Where results may stay; ``count`` of them, the last ones, are the last inputs of the next run."""
        prepared = self.prepare(arrays)
        if prepared.homes is None:
            prepared.homes = homes(prepared.plan, len(arrays), count, () if prepared.stands_in else self.far)
        return prepared.homes

    def run_cut(self, cut: Cut, results: Sequence[Array]) -> list[Array]:
        """Run the node that a plan could not contain; ``results`` are its operands that are not omitted."""
        try:
            if cut.is_nested:  # nothing is computed
                return self._run_cut(cut, results)
            with np.errstate(all="ignore"):
                return self._run_cut(cut, results)
        except Exception as error:
            raise at_node(error, cut.node.op, cut.node.name) from error

    def _run_cut(self, cut: Cut, results: Sequence[Array]) -> list[Array]:
        op, args = cut.node.op, list(results)
        if len(args) < len(cut.reads):
            left = iter(results)
            args = [None if s is None else next(left) for s in cut.reads]  # type: ignore[misc]
        if cut.compute is not None:
            compute, by_reference = partial(cut.compute.compute, op, args, _empty), partial(evaluate, op, args)
            outs = computed_now(self.serving, compute, by_reference)
            self._note(id(cut.node), [x.shape for x in outs])
        elif isinstance(op, ControlFlow):
            is_looped = not op.branches

            def run(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
                return self._inner(graph, is_looped).run(inputs)

            outs = tuple(op.execute(args, run, self._ahead))
        else:
            for i, value in enumerate(cut.node.operands):
                if i in op.value_inputs and value is not None:
                    self._note_content(resolved(value, cut.rest.alias), args[i])
            if cut.alone is not None:
                return self._alone(cut.alone).run(results)
            outs = evaluate(op, args, cut.amounts)
        return [dense_result(x, v.type) for x, v in zip(outs, cut.node.outputs, strict=True)]

    def _note(self, key: int, found: Sequence[Sequence[int]]) -> None:
        """Keep what data have decided, for a tape; rather where something is there than nothing."""
        if key not in self.data or all(0 not in numbers for numbers in found):
            self.data[key] = found

    def _note_content(self, value: Value, array: Any) -> None:
        if type(array) is np.ndarray and array.dtype.kind == "i" and array.size <= VALUE_ELEMENTS:
            self._note(id(value), [array.reshape(-1).tolist()])

    def _ahead(self, graph: Graph, trips: Trips) -> bool:
        """Run iterations of a body in one native call, if that can be."""
        left = FEW_TRIPS if trips.limit is None else trips.limit - trips.number
        inner = self._inner(graph, True)
        if trips.number < trips.later or left < FEW_TRIPS or inner.nested or inner.far or inner.region.bounds:
            return False
        arrays = trips.inputs()
        prepared = inner.prepare(arrays)
        count = prepared.ahead(trips, arrays, inner.by_value)
        if not count and inner.tapes and type(prepared) is not Taped:  # it serves this iteration alone
            taped = inner._taped(inner.key(arrays), arrays)
            count = 0 if taped is None else taped.ahead(trips, arrays, ())
        if not count:  # not tried for every iteration where it is in vain
            trips.later, trips.wait = trips.number + trips.wait, 2 * trips.wait
        return count > 0

    def cut_label(self, cut: Cut) -> str:
        """What ran the node of a cut: a kernel, or ``host``."""
        if cut.compute is not None:
            return cut.compute.name
        if cut.alone is not None:
            plans = [p.plan for p in self._alone(cut.alone).prepared.values()]
            for job in (job for plan in plans for job in plan.jobs if plan.cut is None):
                return job.runner
        return "host"

    def _alone(self, region: Region) -> Runner:
        """The runner of a cut's node by itself."""
        runner = self.bodies.get(id(region))
        if runner is None:
            runner = self.bodies.setdefault(id(region), self.like(region))
        return runner

    def _inner(self, graph: Graph, is_looped: bool) -> Runner:
        runner = self.bodies.get(id(graph))
        if runner is None:
            runner = self.bodies.setdefault(id(graph), self.like(region_of(graph)))
            runner.is_looped |= is_looped
        return runner

    def forget(self, packs: Packs, make: Callable[[], Region]) -> None:
        """Drop all plans and the graph, which ``make`` gives anew for the next plan."""
        with self.lock:
            stop(self.serving)  # a plan that comes before this asks for no tape behind it
            self.prepared.clear()
            self.tapes.clear()
            self.bodies.clear()
            self.orders.clear()
            self.data.clear()
            self.packs, self.make = packs, make  # first: a child of a fork, or an interrupt, may find it half done
            self.region = Region([Value(v.name, v.type) for v in self.region.inputs], [], [])

    def anew(self, threads: int) -> Runner:
        """A runner without plans for so many threads: of the same graph, with the same packs."""
        with self.lock:
            self._complete()
            old = self.region
        serving = Serving(self.serving.name, self.serving.stand_ins, self.serving.is_early)
        region = Region(old.inputs, old.nodes, old.outputs, dict(old.alias), dict(old.known))
        tuner = None if self.tuner is None else type(self.tuner)(threads)
        return Runner(region, threads, self.packs, self.devices, tuner, self.max_plans, serving)

    def like(self, region: Region) -> Runner:
        """A runner of another region of the same session."""
        made = Runner(region, self.threads, self.packs, self.devices, self.tuner, self.max_plans, self.serving)
        made.is_first, made.is_looped, made.data = False, self.is_looped, self.data
        return made


def _empty(shape: Any, dtype: Any) -> Array:
    """Memory for what data sizes, once it is granted."""
    count = math.prod(shape) if isinstance(shape, tuple) else int(shape)
    ask(count * np.dtype(dtype).itemsize, "result by data")
    return np.empty(shape, dtype)


def dense_result(result: Any, wanted: TensorType) -> Any:
    """A result as what regions take: a contiguous array, or a Python value by its type."""
    if only_in_python(wanted):
        return as_value(result, wanted)
    if type(result) is np.ndarray and result.dtype is wanted.dtype and result.flags.c_contiguous:
        return result
    array = np.asarray(result, wanted.dtype)
    return np.ascontiguousarray(array) if array.ndim else array


def run_plan(prepared: Prepared, arrays: Sequence[Array], targets: Sequence[Array | None] | None = None) -> list[Array]:
    """One run of one plan, segment by segment, in a context of its own."""
    outputs: list[Any]
    if targets is None and prepared.plain:
        outputs = [e and np.empty(*e) for e in prepared.empties]
    else:
        wanted = targets or [None] * len(prepared.empties)
        outputs = [np.empty(*e) if e and t is None else t for e, t in zip(prepared.empties, wanted, strict=True)]
    try:
        context: Any = prepared.turned() if type(prepared) is Taped else prepared.idle.pop()
    except IndexError:
        context = RunMemory(prepared.plan)
    try:
        for run in context.runs:
            run(arrays, outputs)
        if prepared.late:
            outputs = prepared.tape.ended(context, arrays, outputs, targets)  # type: ignore[attr-defined]
    except BaseException:
        prepared.synchronise()  # before another run has the context
        raise
    finally:
        if type(prepared) is Taped:
            prepared.take_back(context)
        elif len(prepared.idle) < MAX_IDLE_CONTEXTS:
            prepared.idle.append(context)
    return outputs if prepared.plain or type(outputs) is Final else finish(prepared, arrays, outputs)
