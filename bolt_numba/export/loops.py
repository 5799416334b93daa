"""Loops as stages: one that begins, one for the body, and one that hands on what the body gave, to which runs return.

What a loop carries lies in places of its own, with the number of the iteration and whether there is another one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BOOL, I64, Array, TensorType, type_of
from bolt_numba.devices.program import Program, laid_out
from bolt_numba.export.stages import NotAheadError, Place, RunStage, StagedPlan, with_inputs
from bolt_numba.export.tapes import Slices
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.kernels.registry import In, Out
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.control import ControlFlow, Loop, Scan
from bolt_numba.ops.pointwise import Add, And, Less, Sub
from bolt_numba.passes.pipeline import deep_clone
from bolt_numba.runtime.copies import Copy
from bolt_numba.runtime.region import Cut, Region, region_of
from bolt_numba.runtime.slots import CONST, INPUT, TEMP, Job, Slot

_FLAG, _COUNT = TensorType(BOOL, ()), TensorType(I64, ())


@record(eq=False)
class _Iteration:
    """What a loop is made of: operands as numbers or constants.

    limit: how often at most, where that is known.  is_sure: whether it is as often as that, whatever data say.
    backwards: which stacked results begin with the last slice.
    """

    body: Graph
    trips: int | Array | None
    cond: int | Array | None
    carried: list[int | Array]
    captures: list[int | Array]
    limit: int | None
    is_sure: bool
    backwards: tuple[int, ...] = ()


def loop_stages(
    chain: StagedPlan, cut: Cut, operands: Sequence[int | Array | None]
) -> tuple[RunStage, list[int], Region, tuple[RunStage, RunStage]]:
    """Add the stages of a loop but what follows it: the first, numbers of its results, what follows, and who chooses.

    Two stages choose by a flag.  For 1 the choice is there, the body; 0 is what follows.
    """
    op = cut.node.op
    assert isinstance(op, ControlFlow)
    made = _of_scan(chain, op, operands) if isinstance(op, Scan) else _of_loop(op, operands)
    body = _region(made)
    i, go = (chain.place(Place(TensorType(v.type.dtype, _ones(v)))) for v in body.inputs[:2])
    carried = [chain.place(Place(_type(chain, a))) for a in made.carried]
    first, begun = _begun(chain, made)
    zero = np.zeros(chain.types[i].type.dims, np.int64)
    begins = _copies(chain, [(begun, go), (zero, i), *zip(made.carried, carried, strict=True)])
    first.choices = [(0, 0, chain.stages.index(begins))]
    trips = [made.trips] if isinstance(made.trips, int) else []
    region, numbers = with_inputs(body, [i, go, *carried, *made.captures, *trips])
    plan = chain.plan(region, [chain.types[n].type for n in numbers])
    if plan.cut is not None:
        raise NotAheadError("data decide sizes or branches in its body")
    stage, found = chain.left(plan, numbers)
    results, slices = found[2 : 2 + len(carried)], found[2 + len(carried) :]
    _check_carried(chain, results, carried)
    scanned = [_stacked(chain, made, piece, i) for piece in slices]
    pairs = [(found[0], go), (found[1], i), *zip(results, carried, strict=True)]
    ends = _copies(chain, pairs, list(zip(slices, scanned, strict=True)), made, i)
    stage.choice = i if slices else -1
    stage.choices = [(0, (made.limit or 1) - 1, chain.stages.index(ends))]
    for one in (begins, ends):
        one.choice, one.choices = go, [(1, 1, chain.stages.index(stage))]
    numbers = [*carried, *scanned]
    rest = in_order(cut.rest, op, cut.node.outputs, [chain.types[n].type for n in numbers])
    return first, numbers, rest, (begins, ends)


def _ones(value: Value) -> tuple[int, ...]:
    """Sizes of one element, of as many axes as a value has."""
    return (1,) * len(value.type.shape or ())


def _stacked(chain: StagedPlan, made: _Iteration, piece: int | Array, i: int) -> int:
    """The place of all slices of a result."""
    t = _type(chain, piece)
    if made.limit is None:
        raise NotAheadError("it stacks results, and nothing says how many at most")
    whole = TensorType(t.dtype, (made.limit, *t.dims))
    return chain.place(Place(whole) if made.is_sure else Place(whole, i, 0))


def _type(chain: StagedPlan, operand: int | Array) -> TensorType:
    return type_of(operand).with_value(None) if isinstance(operand, np.ndarray) else chain.types[operand].type


def _known(operand: int | Array | None) -> int | None:
    """The number that a constant operand holds."""
    return int(operand.reshape(-1)[0]) if isinstance(operand, np.ndarray) else None


def _of_loop(op: ControlFlow, operands: Sequence[int | Array | None]) -> _Iteration:
    if not isinstance(op, Loop) or op.listed:
        raise NotAheadError("a body runs as often as data say")
    trips, cond, given = operands[0], operands[1], operands[2:]
    if any(a is None for a in given):
        raise NotAheadError("an operand is omitted")
    there = [a for a in given if a is not None]
    goes_on = op.body.outputs[0]
    holds = cond is None or bool(_known(cond))
    is_true = goes_on.const is not None and bool(goes_on.const.all())
    is_sure = holds and (is_true or goes_on is op.body.inputs[1])
    limit = None if trips is None else _known(trips)
    return _Iteration(
        op.body, trips, cond, there[: op.carried], there[op.carried :], limit, is_sure and limit is not None
    )


def _of_scan(chain: StagedPlan, op: Scan, operands: Sequence[int | Array | None]) -> _Iteration:
    """The same loop with a body that takes its slices by itself."""
    there = [a for a in operands if a is not None]
    if len(there) < len(operands):
        raise NotAheadError("an operand is omitted")
    ends = op.states + op.scans
    sizes = [_type(chain, a).dims for a in there[op.states : ends]]
    axes = [(op.input_axes[k] if k < len(op.input_axes) else 0) % len(dims) for k, dims in enumerate(sizes)]
    limit = sizes[0][axes[0]]
    inner, body = deep_clone(op.body), Graph("scan")
    i, go = body.add_input("i", _COUNT), body.add_input("go", _FLAG)
    body.inputs += inner.inputs[: op.states]
    b = Builder(body)
    for k, value in enumerate(inner.inputs[op.states : ends]):
        whole = body.add_input(f"scanned{k}", _type(chain, there[op.states + k]))
        backwards = k < len(op.input_directions) and op.input_directions[k]
        at = b(Sub(), limit - 1, i) if backwards else i
        inner.replace_uses(value, b(Gather(axes[k]), whole, at))
    body.inputs += inner.inputs[ends:]
    body.nodes += inner.nodes
    for value in (go, *inner.outputs):
        body.add_output(value)
    trips = np.array(limit)
    return _Iteration(body, trips, None, there[: op.states], there[op.states :], limit, True, op.output_directions)


def _begun(chain: StagedPlan, made: _Iteration) -> tuple[RunStage, int | Array]:
    """The stage that finds out whether there is a first iteration, and what says so."""
    graph = Graph("begin")
    b, given, parts = Builder(graph), list[int](), list[Value]()
    for operand in (made.cond, made.trips):
        if operand is None:
            continue
        if isinstance(operand, int):
            value: Value = graph.add_input(f"x{len(given)}", chain.types[operand].type)
            given.append(operand)
        else:
            value = b.const(operand)
        parts.append(b(Less(), 0, value) if operand is made.trips else value)
    graph.add_output(b(And(), *parts) if len(parts) == 2 else parts[0] if parts else b.const(np.array(True)), "go")
    region, numbers = with_inputs(region_of(graph), given)
    stage, (found,) = chain.left(chain.plan(region, [chain.types[n].type for n in numbers]), numbers)
    return stage, found


def _region(made: _Iteration) -> Region:
    """The body, which also counts, and says whether there is another iteration; its results begin with these two."""
    body = deep_clone(made.body)
    b, i, outputs = Builder(body), body.inputs[0], list(body.outputs)
    after, again = b(Add(), i, 1), outputs[0]
    if isinstance(made.trips, int):
        again = b(And(), again, b(Less(), after, body.add_input("trips", _COUNT)))
    elif made.trips is not None:
        again = b(And(), again, b(Less(), after, b.const(made.trips)))
    return Region(list(body.inputs), list(body.nodes), [again, after, *outputs[1:]])


def _check_carried(chain: StagedPlan, results: Sequence[int | Array], carried: Sequence[int]) -> None:
    for operand, place in zip(results, carried, strict=True):
        if _type(chain, operand).dims != chain.types[place].type.dims:
            raise NotAheadError("a value that it carries changes its shape")


def _copies(
    chain: StagedPlan, pairs: Sequence[tuple[int | Array, int]], slices: Sequence[tuple[int | Array, int]] = (),
    made: _Iteration | None = None, i: int = -1,
) -> RunStage:
    """A stage that copies arrays to places; slices go to the part of a place that the iteration says."""
    targets = {to for _, to in pairs}
    first, then = list[tuple[int | Array, int]](), list[tuple[int | Array, int]]()
    for source, to in pairs:
        if isinstance(source, int) and source in targets and source != to:  # it is written over meanwhile
            kept = chain.place(Place(chain.types[source].type))
            first.append((source, kept))
            then.append((kept, to))
        elif isinstance(source, np.ndarray) or source != to:
            then.append((source, to))
    jobs, inputs, outputs = list[Job](), list[int](), list[int]()
    for source, to in (*first, *slices, *then):
        t = _type(chain, source)
        if isinstance(source, int):
            slot = Slot("from", t, INPUT, len(inputs))
            inputs.append(source)
        else:
            slot = Slot("constant", t, CONST, const=np.ascontiguousarray(source))
        out = Slot("to", t, TEMP, result=len(outputs))
        outputs.append(to)
        steps = [chain.cpu.copy_step(In(0), Out(0), 1, t.nbytes, 1)] if t.nbytes else []
        jobs.append(Job("loop (copy)", Copy(), chain.cpu, [slot], [out], steps))
    chain.cpu.prepare(jobs)
    program = laid_out(jobs, chain.threads)
    stage = RunStage(program, jobs, 0, inputs, outputs)
    if slices:
        assert made is not None, "what a loop stacks"
        nbytes = [_type(chain, source).nbytes for source, _ in slices]
        stage.served = _by_iteration(program, made, i, nbytes, len(first))
    chain.stage(stage)
    return stage


def _by_iteration(program: Program, made: _Iteration, i: int, nbytes: Sequence[int], first: int) -> Slices:
    """Where slices go; i: the place with the number of the iteration, first: number of the first slice."""
    assert made.limit is not None, "as many slices have room"
    rows = list[tuple[int, int, int]]()
    for k, each in enumerate(nbytes):
        backwards = k < len(made.backwards) and made.backwards[k]
        begin, step = ((made.limit - 1) * each, -each) if backwards else (0, each)
        rows += [(word, begin, step) for word, _ in program.outputs.get(first + k, ())]
    return Slices(i, rows)


def in_order(region: Region, op: ControlFlow, results: Sequence[Value], types: Sequence[TensorType]) -> Region:
    """The region behind a loop whose results are stacked along their first axis, as places have them."""
    made, nodes, alias = {id(v): v for v in region.inputs}, list[Node](), dict(region.alias)
    for k, value in enumerate(results):
        axis = op.output_axes[k - op.states] if isinstance(op, Scan) and 0 <= k - op.states < len(op.output_axes) else 0
        rank = len(types[k].dims)
        if axis % max(rank, 1) == 0:
            continue
        graph = Graph("stacked")
        b, stacked = Builder(graph), graph.add_input("stacked", types[k])
        rest = list(range(1, rank))
        rest.insert(axis % rank, 0)
        alias[id(value)] = b(Transpose(tuple(rest)), stacked)
        nodes += graph.nodes
        made[id(value)] = stacked
    return Region(list(made.values()), [*nodes, *region.nodes], region.outputs, alias, region.known)
