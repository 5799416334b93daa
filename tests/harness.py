"""Runs one kernel between guard pages, for every number of threads, and checks that it keeps the kernel rules.

A kernel that reads or writes outside its buffers fails with a line that says where: see `tests.beyond`.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from bolt_numba.ir.build import infer_types
from bolt_numba.kernels.cpu.faults import COUNTER, FAULT
from bolt_numba.kernels.extents import KEPT, ends, made_steps, reaches
from bolt_numba.kernels.jit import Native
from bolt_numba.kernels.registry import Argument, Entry, Fault, In, Out, Pitch, Record, Scratch, Step, select
from bolt_numba.kernels.unseen import Packed, content
from bolt_numba.ops.content import refusal
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.packs import unseen
from bolt_numba.types import NUMERICS, PRECISIONS, Array, TensorType
from tests.beyond import NOWHERE, PAGE, close_page, summary, watched

CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
PITCH_GAP = 5
"""Elements between the rows of a pitched output."""


def guarded(nbytes: int, right: bool, fill: int, align: int = 1) -> Array:
    """``nbytes`` of memory that touch an unreadable page: the one after them, or (``right=False``) the one before."""
    pages = max(1, -(-(nbytes + align - 1) // PAGE))
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (base, base + (pages + 1) * PAGE):
        close_page(memory, page)
    start = ((pages + 1) * PAGE - nbytes) // align * align if right else PAGE
    made = np.frombuffer(memory, np.uint8, nbytes, start)
    made[:] = fill
    return made


@dataclass
class Planned:
    """A maker's answer for concrete types, ready to be run on arrays of these types."""

    op: Op
    entry: Entry
    ins: list[TensorType | None]
    outs: list[TensorType]
    steps: list[Step]


@dataclass
class PlainContext:
    """The planner's part in a test: packs on the spot, and notes what a maker looks at."""

    threads: int = 2
    precision: str = "f32"
    numerics: str = "default"
    asked: set[str] = field(default_factory=set)
    """Which of ``precision`` and ``numerics`` was read."""
    _packed: dict[Hashable, tuple[list[Array], Array]] = field(default_factory=dict)

    def __getattribute__(self, name: str) -> Any:
        if name in ("precision", "numerics"):
            self.asked.add(name)
        return super().__getattribute__(name)

    def packed(self, known: Any, key: Hashable, pack: Callable[..., Array]) -> Array:
        arrays = [content(one) for one in (known if type(known) is tuple else (known,))]
        at = (*map(id, arrays), key)
        if at not in self._packed:
            self._packed[at] = arrays, pack(*arrays)  # the key is the arrays' ids, so the arrays must stay
        return self._packed[at][1]

    def weighed(self, entry: Entry, ask: Callable[[], bool]) -> bool:
        return ask()


@dataclass
class Shown:
    """Shows content of operands to makers that ask for it."""

    ins: Sequence[TensorType | None]
    context: PlainContext

    def content(self, of: int | Packed) -> Any:
        if isinstance(of, Packed):
            return self.context.packed(tuple(self.content(o) for o in of.operands), of.form, of.make)
        t = self.ins[of]
        assert t is not None
        return t.value

    def linked(self, args: Mapping[str, Argument]) -> dict[str, Argument]:
        """Arguments with arrays in the place of references to what is packed."""
        return {name: self.content(arg) if isinstance(arg, Packed) else arg for name, arg in args.items()}


def default_constants(inputs: Sequence[Array | None]) -> list[bool]:
    """What a model usually holds: the first operand is data, the others are constants."""
    return [i > 0 for i in range(len(inputs))]


def types_of(inputs: Sequence[Array | None], constant: Sequence[bool] | None = None) -> list[TensorType | None]:
    """Concrete types; the operands marked as constant also carry their value."""
    flags = default_constants(inputs) if constant is None else constant
    return [
        None if a is None else TensorType(a.dtype, a.shape, value=a if flag else None)
        for a, flag in zip(inputs, flags, strict=True)
    ]


def plan(
    op: Op | Entry,
    inputs: Sequence[Array | None],
    constant: Sequence[bool] | None = None,
    *,
    instance: Op | None = None,
    context: PlainContext | None = None,
) -> Planned | None:
    """Steps of the selected kernel (or of a given Entry, for operator ``instance``); None when no kernel accepts.

    context: by default that of a session of the usual numerics, or of the least that may have the Entry.
    """
    ins = types_of(inputs, constant)
    if context is None and isinstance(op, Entry):
        context = PlainContext(precision=op.precision, numerics=max("default", op.numerics, key=NUMERICS.index))
    context = context or PlainContext()
    if isinstance(op, Entry):
        if instance is None:
            raise ValueError("an Entry needs the operator as `instance`")
        node: Op = instance
    else:
        node = op
    outs = [t.with_value(None) for t in infer_types(node, ins)]
    shown = Shown(ins, context)
    seen = unseen(ins, shown, outs)
    entry = select(node, seen, context) if not isinstance(op, Entry) else op if op.accepts(node, seen) else None
    if entry is None:
        return None
    steps = [replace(s, args=shown.linked(s.args)) for s in made_steps(entry, node, seen, outs, context)]
    return Planned(node, entry, ins, outs, steps)


def plans(
    op: Op | Entry,
    inputs: Sequence[Array | None],
    constant: Sequence[bool] | None = None,
    *,
    instance: Op | None = None,
) -> list[Planned]:
    """What `plan` gives at each level of numerics, of an Entry at each precision, too: steps that are alike once."""
    found: dict[Hashable, Planned] = {}
    levels, precisions = NUMERICS, ("f32",)
    if isinstance(op, Entry):
        levels = NUMERICS[NUMERICS.index(op.numerics) :]
        precisions = PRECISIONS if op.precision == "f32" else (op.precision,)
    for context in contexts(levels, precisions):
        planned = plan(op, inputs, constant, instance=instance, context=context)
        if planned is not None:
            found.setdefault(_form(planned.steps), planned)
    return list(found.values())


def contexts(levels: Sequence[str], precisions: Sequence[str], threads: int = 2) -> Iterator[PlainContext]:
    """A context for each level and precision, but for those that cannot matter.

    What nobody has read of the contexts before is taken as it was in them.
    """
    tried: list[PlainContext] = []
    for numerics, precision in product(levels, precisions):
        asked = set[str]().union(*(context.asked for context in tried))
        now = PlainContext(threads, precision, numerics)
        if not any(all(vars(now)[name] == vars(other)[name] for name in asked) for other in tried):
            yield now
            tried.append(now)


def _form(steps: Sequence[Step | Record], rooms: dict[int, int] | None = None) -> Hashable:
    """Steps of equal form do the same."""
    numbers: dict[int, int] = {} if rooms is None else rooms

    def of(arg: Argument) -> Hashable:
        match arg:
            case np.ndarray():
                return arg.dtype.str, arg.shape, arg.tobytes()
            case Scratch():
                return numbers.setdefault(id(arg), len(numbers)), arg.nbytes
            case Record():
                return _form([arg], numbers)
            case In() | Out() | Pitch() | Fault() | int() | float() | None:
                return repr(arg)
            case _:
                return id(arg)

    parallel = (getattr(step, "parallel", None) for step in steps)
    calls = (tuple((name, of(step.args[name])) for name in sorted(step.args)) for step in steps)
    return tuple(zip((id(step.kernel) for step in steps), parallel, calls, strict=True))


@dataclass
class Memory:
    """Guarded operands of one run; ``pitch`` maps outputs to elements between rows."""

    ins: list[Array | None]
    outs: list[Array]
    pitch: dict[int, int]
    right: bool
    fill: int
    as_declared: bool = False
    """Whether kernels see copies of just the bytes that they declare."""
    scratch: dict[int, Array] = field(default_factory=dict)
    faults: dict[int, Array] = field(default_factory=dict)
    kept: list[Array] = field(default_factory=list)

    def arrays(self) -> list[Array]:
        """Everything that kernels may touch."""
        given = [a for a in self.ins if a is not None]
        return [*given, *self.outs, *self.scratch.values(), *self.faults.values(), *self.kept]

    def resolve(self, planned: Planned, arg: Argument) -> int | float:
        match arg:
            case None:
                return 0
            case In(index, offset):
                array = self.ins[index]
                return 0 if array is None else array.ctypes.data + offset
            case Out(index, offset):
                return self.outs[index].ctypes.data + offset
            case Scratch():
                if id(arg) not in self.scratch:
                    self.scratch[id(arg)] = guarded(arg.nbytes, self.right, self.fill, 64)
                return self.scratch[id(arg)].ctypes.data
            case Fault(operand):
                return self.faults.setdefault(operand, _fault_record()).ctypes.data
            case Pitch(Out(index)) if index in self.pitch:
                return self.pitch[index]
            case Pitch(of):
                kind = (planned.ins if isinstance(of, In) else planned.outs)[of.index]
                assert kind is not None
                return kind.dims[-1] if kind.dims else 1
            case np.ndarray():
                return arg.ctypes.data
            case Native():
                return arg.address
            case Record(kernel, args):
                made = kernel.record(**{name: self.resolve(planned, value) for name, value in args.items()})  # type: ignore[attr-defined]
                self.kept.append(made)
                return made.ctypes.data
            case _:
                return arg


def _fault_record() -> Array:
    """A record of its own, whose last word is the counter."""
    made = np.zeros(FAULT, np.int64)
    made[COUNTER] = made.ctypes.data + 8 * (FAULT - 1)
    return made


def pitched_outputs(planned: Planned) -> list[int]:
    """Outputs that every step which writes them can write with any pitch."""
    found = []
    for i, kind in enumerate(planned.outs):
        writers = [s for s in planned.steps if any(isinstance(a, Out) and a.index == i for a in s.args.values())]
        offers = [any(isinstance(a, Pitch) and a.of == Out(i) for a in s.args.values()) for s in writers]
        if writers and all(offers) and kind.dims and kind.size:
            found.append(i)
    return found


def execute(planned: Planned, memory: Memory, nthreads: int, reverse: bool = False) -> None:
    """Run the steps on one Python thread: kernels split by output tiles, so the tids may run one after the other."""
    for step in planned.steps:
        params = np.zeros(1, step.kernel.params)
        values = {name: memory.resolve(planned, step.args[name]) for name in step.kernel.params.names}
        count = nthreads if step.parallel else 1
        pieces = _pieces(step, memory, values, count) if memory.as_declared else []
        for name in values:
            params[name] = values[name]
        call = CALL(step.kernel.address)
        with watched() as touched:
            for tid in reversed(range(count)) if reverse else range(count):
                call(params.ctypes.data, tid, count)
        if touched.first:
            how = ", on the bytes that its extents declare" if memory.as_declared else ""
            said = summary(touched, values, step.args, memory.arrays())
            raise AssertionError(f"kernel '{step.kernel.name}' of {planned.entry.name}{how}: {said}")
        for first, piece in pieces:
            ctypes.memmove(first, piece.ctypes.data, piece.nbytes)
    for operand, found in memory.faults.items():
        if found[0]:
            t = planned.ins[operand]
            assert t is not None
            place = np.unravel_index(found[1], t.dims) if t.dims else ()
            raise refusal(planned.op, operand, place, *found[2:COUNTER])


def _pieces(step: Step, memory: Memory, values: dict[str, Any], threads: int) -> list[tuple[int, Array]]:
    """Move each address in ``values`` to a copy of just the bytes that the kernel declares, beside a guard page.

    Fields that name the same result or workspace share a copy; returns these with the addresses they came from.
    """
    wanted: dict[Hashable, tuple[int, int, list[str]]] = {}
    as_given = {name: arg for name, arg in step.args.items() if arg is None or isinstance(arg, np.ndarray)}
    for name, reach in reaches(step.kernel, values | as_given, threads).items():
        arg, at, (first, end) = step.args[name], values[name], ends(reach)
        key = ("result", arg.index) if isinstance(arg, Out) else id(arg) if isinstance(arg, Scratch) else name
        if reach is KEPT:
            continue
        if first == end or not at:
            values[name] = NOWHERE if at else 0
        else:
            low, high, names = wanted.get(key, (at + first, at + end, []))
            wanted[key] = min(low, at + first), max(high, at + end), [*names, name]
    written = []
    for key, (low, high, names) in wanted.items():
        piece = guarded(high - low, memory.right, memory.fill, 64 if isinstance(key, int) else 1)
        ctypes.memmove(piece.ctypes.data, low, piece.nbytes)
        for name in names:
            values[name] += piece.ctypes.data - low
        if not isinstance(key, str):
            written.append((low, piece))
        memory.kept.append(piece)
    return written


def _place(planned: Planned, inputs: Sequence[Array | None], right: bool, fill: int, gap: bool) -> Memory:
    ins: list[Array | None] = []
    for a in inputs:
        if a is None:
            ins.append(None)
            continue
        place = guarded(a.nbytes, right, 0)
        place[:] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
        ins.append(place)
    pitch = {i: planned.outs[i].dims[-1] + PITCH_GAP for i in pitched_outputs(planned)} if gap else {}
    outs = []
    for i, t in enumerate(planned.outs):
        size = t.size if i not in pitch else (t.size // t.dims[-1] - 1) * pitch[i] + t.dims[-1]
        outs.append(guarded(size * t.dtype.itemsize, right, fill))
    return Memory(ins, outs, pitch, right, fill)


def _read(planned: Planned, memory: Memory) -> list[Array]:
    results = []
    for i, t in enumerate(planned.outs):
        flat = memory.outs[i].view(t.dtype)
        if i in memory.pitch:
            pitch, row = memory.pitch[i], t.dims[-1]
            rows = np.lib.stride_tricks.as_strided(
                flat, (t.size // row, row), (pitch * t.dtype.itemsize, t.dtype.itemsize), writeable=False
            )
            for r in range(t.size // row - 1):
                between = flat[r * pitch + row : (r + 1) * pitch].view(np.uint8)
                assert (between == memory.fill).all(), f"{planned.entry.name}: writes between the rows of output {i}"
            flat = rows.reshape(-1)
        results.append(flat.copy().reshape(t.dims))
    return results


def _runs(planned: Planned, threads: Sequence[int]) -> Iterator[tuple[int, bool, int, bool, bool]]:
    """(threads, right-aligned, fill byte, pitched, as declared).

    Fills are NaN in every float type, or a valid large integer.
    """
    for i, nthreads in enumerate(threads):
        yield nthreads, i % 2 == 0, (0xFF, 0xAB)[i % 2], False, False
    if len(threads) == 1:
        yield threads[0], False, 0xAB, False, False
    pitched = bool(pitched_outputs(planned))
    if pitched:
        yield threads[-1], True, 0xAB, True, False
    yield threads[-1], True, 0xFF, pitched, True
    yield threads[0], False, 0xAB, False, True


def _same_bits(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def run_planned(planned: Planned, inputs: Sequence[Array | None], threads: Sequence[int] = (1, 2)) -> list[Array]:
    """Outputs of a planned kernel, after every check that `run_kernel` promises."""
    first: list[Array] = []
    name = planned.entry.name
    for nthreads, right, fill, gap, declared in _runs(planned, threads):
        memory = _place(planned, inputs, right, fill, gap)
        memory.as_declared = declared
        execute(planned, memory, nthreads, reverse=not right)
        for i, (place, a) in enumerate(zip(memory.ins, inputs, strict=True)):
            if place is not None and a is not None:
                assert place.tobytes() == a.tobytes(), f"{name}: input {i} was written"
        results = _read(planned, memory)
        first = first or results
        for i, (a, b) in enumerate(zip(first, results, strict=True)):
            how = f"{nthreads} threads, {'right' if right else 'left'} guard, {'pitched' if gap else 'dense'}"
            how += ", bytes as declared" * declared
            assert _same_bits(a, b), f"{name}: output {i} differs for {how}"
    for index in planned.entry.inplace:
        _check_inplace(planned, inputs, index, first)
    return first


def run_once(planned: Planned, inputs: Sequence[Array | None]) -> list[Array]:
    """Outputs of one run on one thread, between guard pages."""
    memory = _place(planned, inputs, True, 0xFF, False)
    execute(planned, memory, 1)
    return _read(planned, memory)


def _check_inplace(planned: Planned, inputs: Sequence[Array | None], index: int, wanted: list[Array]) -> None:
    given = planned.ins[index] if index < len(planned.ins) else None
    if given is None or given.nbytes != planned.outs[0].nbytes:
        return
    memory = _place(planned, inputs, True, 0xFF, False)
    shared = memory.ins[index]
    assert shared is not None
    memory.outs[0] = shared
    execute(planned, memory, 2)
    assert _same_bits(_read(planned, memory)[0], wanted[0]), f"{planned.entry.name}: wrong in place of input {index}"


def run_kernel(
    op: Op | Entry,
    inputs: Sequence[Array | None],
    threads: Sequence[int] = (1, 2),
    *,
    constant: Sequence[bool] | None = None,
    instance: Op | None = None,
) -> list[Array]:
    """Outputs of the kernel selected for ``op`` (or of a given Entry, for ``instance``).

    Checks: nothing outside the buffers is touched, inputs stay as they are, every number of threads, both alignments,
    a pitched output and in-place operation (where offered) give the same bits.

    inputs: dense arrays, None for an omitted optional one.
    constant: which inputs the maker may see at plan time (default: all but the first).
    """
    planned = plan(op, inputs, constant, instance=instance)
    if planned is None:
        raise LookupError(f"no kernel accepts {op} for {[str(t) for t in types_of(inputs, constant)]}")
    return run_planned(planned, inputs, threads)


def timed(planned: Planned, inputs: Sequence[Array | None], repeat: int = 20) -> float:
    """Best time of a run on one thread, in seconds (about 0.3 us a step of it is the call)."""
    memory = _place(planned, inputs, False, 0, False)
    calls: list[tuple[Any, int, Array]] = []
    for step in planned.steps:
        params = np.zeros(1, step.kernel.params)
        for name in step.kernel.params.names:
            params[name] = memory.resolve(planned, step.args[name])
        calls.append((CALL(step.kernel.address), params.ctypes.data, params))
    best = float("inf")
    for _ in range(repeat):
        begin = time.perf_counter()
        for call, address, _ in calls:
            call(address, 0, 1)
        best = min(best, time.perf_counter() - begin)
    return best


def served(runner: Any) -> int:
    """Runs that tapes of the runner's region served."""
    return sum(tapes.hits for tapes in runner.tapes.values())
