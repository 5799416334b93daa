"""Which kernel runs which operator, and what a planned kernel call (a `Step`) looks like.  No numba here.

A kernel module registers *makers*: plan-time functions that choose an algorithm, prepack constant weights and return
the `Step`s that compute one node.  Everything a step needs is in its arguments; running it allocates nothing.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np

from bolt_numba.base.errors import InternalError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.records import record
from bolt_numba.base.types import BF16, F16, NUMERICS, Array, TensorType
from bolt_numba.kernels.maker_index import COMMON, makers_of, write_index
from bolt_numba.kernels.unseen import Making, Packed
from bolt_numba.ops.registry import Op

Given: TypeAlias = Sequence[TensorType | None]
"""Types of a node's operands, None for one that is omitted."""
Outs: TypeAlias = Sequence[TensorType]
"""Types of its results."""

if TYPE_CHECKING:

    class Types(list[TensorType | None]):
        """The same as makers see it: an index gives one that is always there; what may be omitted comes by a slice."""

        @overload
        def __getitem__(self, index: SupportsIndex) -> TensorType: ...
        @overload
        def __getitem__(self, index: slice) -> list[TensorType | None]: ...
        def __getitem__(self, index: Any) -> Any: ...

else:
    Types = list


@record(frozen=True)
class In:
    """Address of the node's input ``index`` plus ``offset`` bytes."""

    index: int
    offset: int = 0


@record(frozen=True)
class Out:
    """Address of the node's output ``index`` plus ``offset`` bytes."""

    index: int = 0
    offset: int = 0


@record(eq=False)
class Scratch:
    """Address of ``nbytes`` of workspace, 64-byte aligned, alive from the node's first step to its last.

    The same object given to two steps of one node is the same memory.  Content is undefined at the start.
    """

    nbytes: int


@record(frozen=True)
class Fault:
    """Address of the record of what a step refuses in the content of the node's input ``operand``.

    See `kernels.cpu.faults`.  A run that wrote one raises a DataError before anything reads its results.
    """

    operand: int


@record(frozen=True)
class Pitch:
    """Elements from one row of an operand to the next, where a row is the last axis.

    A step that passes ``Pitch(Out(0))`` promises to work when the rows of that operand are further apart than they are
    long (the planner then lets it write into a slice of a concatenation); an operand without a Pitch is dense.
    """

    of: In | Out


class Operands(Types):
    """The types of a node's operands as makers see them, and what was found of them (`once`)."""

    def __init__(self, types: Given, result: TensorType | None = None) -> None:
        super().__init__(types)
        self.answers: dict[Any, Any] = {} if result is None else {result_of: result}


class Kernel(Protocol):
    """What computes: a function with a documented argument record; what else it has is between it and its device.

    names: its fields.  extents: how far it reaches from its addresses (see `kernels.extents`).  pointers: its fields
    that are addresses of operands, and whether they may be 0.  references: its fields that are addresses of anything,
    and what may stand there besides 0 and None.
    """

    name: str
    names: frozenset[str]
    extents: Any
    pointers: dict[str, bool]
    references: dict[str, frozenset[type]]


@record(eq=False)
class Record:
    """Address of a parameter record of another kernel, which the step's kernel hands on.

    args: as those of a `Step`, but no operands and no workspace: the planner looks for these in steps alone.
    """

    kernel: Kernel
    args: Mapping[str, Argument]

    def __post_init__(self) -> None:
        _check(self.kernel, self.args)
        for name, arg in self.args.items():
            if isinstance(arg, _OF_STEPS):
                raise _misplaced(self.kernel, name, arg, frozenset((Record, np.ndarray)))


Argument: TypeAlias = "In | Out | Scratch | Pitch | Fault | Kernel | Record | Packed | Array | int | float | None"
MEMORY: frozenset[type] = frozenset((In, Out, Scratch, Packed, np.ndarray))
"""Arguments that are addresses of data."""


@record()
class Step:
    """One call of one kernel.

    args: a value for each field of the kernel; an array or a kernel is passed by address and kept alive; None is
    address 0.  They are not changed afterwards.  parallel: whether all threads call it (each with its tid) or only one
    with ``nthreads == 1``.  Steps of under about 3 us of work should not be parallel: a barrier costs more than it
    brings.  in_bands: whether its device may know how to run it a band of rows at a time behind another step.  when:
    whether it runs at all, and not others in its place; a followed comparison where sizes decide (`runtime.tape`).

    Raises InternalError for arguments that are not the kernel's fields, and for numbers where an address belongs.
    """

    kernel: Kernel
    args: Mapping[str, Argument]
    parallel: bool = True
    in_bands: bool = False
    when: Any = True

    def __post_init__(self) -> None:
        _check(self.kernel, self.args)


_OF_STEPS = (In, Out, Scratch, Pitch, Fault)
"""Arguments that lead to operands or workspace."""


def _check(kernel: Kernel, args: Mapping[str, Argument]) -> None:
    if args.keys() != kernel.names:
        raise _misnamed(kernel, args)
    for name, kinds in kernel.references.items():
        arg = args[name]
        if type(arg) not in kinds and arg is not None and not (type(arg) is int and arg == 0):
            if arg.__class__ in kinds:  # an array that is followed
                continue
            raise _misplaced(kernel, name, arg, kinds)


def _misnamed(kernel: Kernel, args: Mapping[str, Argument]) -> InternalError:
    odd = [f"no {n!r}" for n in sorted(kernel.names - args.keys())]
    odd += [f"an unknown {n!r}" for n in sorted(args.keys() - kernel.names)]
    wanted = ", ".join(sorted(kernel.names)) or "none"
    return InternalError(f"{kernel.name}: arguments of a step: got {' and '.join(odd)}, wanted its fields {wanted}")


def _misplaced(kernel: Kernel, name: str, arg: Argument, kinds: frozenset[type]) -> InternalError:
    wanted = ", ".join(sorted(kind.__name__ for kind in kinds))
    what = f"argument {name!r} of a step, an address"
    return InternalError(f"{kernel.name}: {what}: got {arg!r} ({type(arg).__name__}), wanted {wanted}, 0 or None")


class Context(Protocol):
    """What a maker may ask of the planner.  precision, numerics: of the session."""

    threads: int
    precision: str
    numerics: str

    def packed(self, known: Any, key: Hashable, pack: Making) -> Any:
        """What steps read in the place of a constant: ``pack`` of it, once for this constant and key in a session.

        known: `TensorType.known` of an operand, what was packed before, or a tuple of these for as many arguments.
        """
        ...

    def weighed(self, entry: Entry, ask: Callable[[], bool]) -> bool:
        """What ``ask`` says of a maker's exactness for this node's weights; it may look at content freely."""
        ...


Maker: TypeAlias = Callable[[Any, Any, Outs, Context], "list[Step]"]
Accepts: TypeAlias = Callable[[Any, Any], bool]
Error: TypeAlias = Callable[[Any, Any, Context], float]
States: TypeAlias = "Callable[[Any, Any], frozenset[tuple[int, int]]]"

MOST_ERROR = 2e-5
"""Bound of a kernel's error over the largest value, from which sessions of ``numerics="default"`` do without it."""


@record(frozen=True)
class Entry:
    """One registered maker.  The highest rank that accepts wins; without any, the reference runs."""

    op: type[Op]
    device: str
    precision: str
    make: Maker
    accepts: Accepts
    rank: int
    name: str
    inplace: tuple[int, ...] = ()
    """Inputs whose memory the output may take over (same size, read before or as it is written)."""
    works: Accepts | None = None
    """Where the algorithm is correct, when ``accepts`` says where it is expected to be the fastest."""
    numerics: str = "strict"
    """The strictest of `NUMERICS` whose sessions may have it."""
    error: Error | None = None
    """Bound of its error for these operands, over the largest value; None: that of a direct sum, element by element."""
    states: States | None = None
    """Pairs of an operand and a result that may be one buffer of the caller's although other results are apart:
    what is passed in and out again.  No step reads an element there after one has written it."""
    arch: str = ""
    """Architecture of a GPU for which alone it is, such as ``sm_90a``; "" for all."""


KERNELS: dict[tuple[type[Op], str], list[Entry]] = {}
_loaded: set[str] = set()
_loaded_for: set[tuple[str, str, str]] = set()
_lock = threading.RLock()
renew_after_fork(sys.modules[__name__], "_lock", threading.RLock, awaited=True)
_NO_MAKERS = (".language.", ".compiler")  # they import Numba


def always(op: Op, ins: Types) -> bool:
    return True


def never(op: Op, ins: Types) -> bool:
    return False


Decision = TypeVar("Decision")


def once(decide: Callable[[Any, Types], Decision]) -> Callable[[Any, Given], Decision]:
    """Keep the answer about a node beside its operands: several makers ask in turn, then one makes its steps."""

    def remembered(op: Any, ins: Any) -> Decision:
        if type(ins) is not Operands:
            return decide(op, ins)
        if remembered not in ins.answers:
            ins.answers[remembered] = decide(op, ins)
        return ins.answers[remembered]  # type: ignore[no-any-return]

    return functools.wraps(decide)(remembered)


@once
def result_of(op: Op, ins: Types) -> TensorType:
    """The type of an operator's only result."""
    made = op.infer(*ins)
    assert isinstance(made, TensorType)
    return made


def kernel(
    *ops: type[Op],
    device: str = "cpu",
    precision: str = "f32",
    rank: int = 0,
    accepts: Accepts = always,
    inplace: tuple[int, ...] = (),
    works: Accepts | None = None,
    numerics: str = "strict",
    error: Error | None = None,
    states: States | None = None,
    arch: str = "",
) -> Callable[[Maker], Maker]:
    """Register a maker for one or several operators; the keywords are fields of `Entry`."""

    def register(make: Maker) -> Maker:
        for op in ops:
            entry = Entry(
                op, device, precision, make, accepts, rank, make.__name__, inplace, works, numerics, error,
                states, arch,
            )  # fmt: skip
            # A new list, as another thread may go through the old one.
            KERNELS[op, device] = sorted([*KERNELS.get((op, device), ()), entry], key=lambda e: -e.rank)
        return make

    return register


CommonMaker: TypeAlias = "Callable[[Any, Types, Outs, Context, Any], list[Step]]"
_common: dict[str, list[tuple[Any, ...]]] = {}
_entered: set[tuple[str, str]] = set()
_FOUND = "bolt_numba.kernels."  # below which `load` finds makers


def everywhere(
    *ops: type[Op], accepts: Accepts = always, few: bool = False, computes: Accepts = never, **options: Any
) -> Callable[[CommonMaker], CommonMaker]:
    """Register a maker of ``kernels/common``, or of another package, for every device of ours; options: as `kernel`.

    Its last argument is what the device's kernels are made by, a `kernels.geometry.elements.DeviceParts`.  few=True: a
    device that counts elements in 32 bits only has it where they are few enough.  computes: whether it looks at
    elements, so that a device needs words for the dtypes of all operands.
    """

    def declare(make: CommonMaker) -> CommonMaker:
        if make.__module__.startswith(_FOUND):
            _common.setdefault(make.__module__, []).append((ops, make, accepts, few, computes, options))
            return make
        for device in ("cpu", "cuda"):  # the module of another package is imported once, for all devices

            def taken(op: Op, ins: Types, on: str = device) -> bool:
                return bool(parts_of(on).limited(accepts, few, computes)(op, ins))

            kernel(*ops, device=device, accepts=taken, **options)(_made_on(make, device))
        return make

    return declare


def _enter(module: str, device: str) -> None:
    """Register the makers of a common module for a device, once."""
    if (module, device) in _entered:
        return
    _entered.add((module, device))
    for ops, make, accepts, few, computes, options in _common.get(module, ()):
        taken = parts_of(device).limited(accepts, few, computes)
        kernel(*ops, device=device, accepts=taken, **options)(_made_on(make, device))


def _made_on(make: CommonMaker, device: str) -> Maker:
    @functools.wraps(make)
    def made(op: Op, ins: Types, outs: Outs, context: Context) -> list[Step]:
        return make(op, ins, outs, context, parts_of(device))

    return made


@functools.cache
def parts_of(device: str) -> Any:
    """What kernels of a device are made by: a `kernels.geometry.elements.DeviceParts`."""
    return importlib.import_module(f"bolt_numba.kernels.{device}.elements").PARTS


def load(device: str) -> None:
    """Import every module below ``kernels/<device>`` and ``kernels/common``: registering is all that they do."""
    if device in _loaded:
        return
    import pkgutil

    own, of = f"bolt_numba.kernels.{device}", f"bolt_numba.kernels.{device}.{COMMON}"  # a twin has its own
    for name in (own, of if importlib.util.find_spec(of) else f"bolt_numba.kernels.{COMMON}"):
        package = importlib.import_module(name)
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not any(part in info.name for part in _NO_MAKERS):
                importlib.import_module(info.name)
                _enter(info.name, device)
    _loaded.add(device)


def _load_for(kind: type[Op], name: str, device: str, precision: str) -> None:
    """Import the modules that have makers of one operator for a precision, as far as it is known which they are."""
    if device in _loaded or (device, name, precision) in _loaded_for:
        return
    with _lock:
        known = makers_of(device)
        if known is None:
            load(device)
            rows_of = ((op, rows) for (op, of), rows in KERNELS.items() if of == device)
            found = {op.name: [_place(e) for e in rows if e.make.__module__.startswith(_FOUND)] for op, rows in rows_of}
            write_index(device, found)
            return
        order = {place: i for i, place in enumerate(known.get(name, ()))}
        for module, _, narrow in order:
            if narrow in ("f32", precision):
                importlib.import_module(module)
                _enter(module, device)
        # Of makers of equal rank, the first one wins that registers when all modules are imported.
        rows = KERNELS.get((kind, device), [])
        if all(_place(e) in order for e in rows):
            KERNELS[kind, device] = sorted(rows, key=lambda e: order[_place(e)])
        _loaded_for.add((device, name, precision))


def _place(entry: Entry) -> tuple[str, str, str]:
    return entry.make.__module__, entry.make.__qualname__, entry.precision


@record()
class QueryContext:
    """A `Context` for who only asks what would run a node: it keeps nothing."""

    threads: int = 1
    precision: str = "f32"
    numerics: str = "default"

    def packed(self, known: Any, key: Hashable, pack: Making) -> Array:
        return pack(*known) if type(known) is tuple else pack(known)

    def weighed(self, entry: Entry, ask: Callable[[], bool]) -> bool:
        return ask()


QUERY = QueryContext()


def ways(
    op: Op, ins: Given, context: Context = QUERY, device: str = "cpu", arch: str = ""
) -> Iterator[tuple[Any, Entry]]:
    """The makers that the session's context allows and that may accept, the best first, each with whether it does.

    Of sizes that are followed that is a comparison.
    """
    for entry in _allowed(type(op), op.name, context, device, arch):
        accepts = entry.accepts(op, ins)
        if accepts is not False:
            yield accepts, entry
    if any(t is not None and t.dtype in (F16, BF16) for t in ins) or getattr(op, "to", None) in (F16, BF16):
        widen = _widener(device)
        wide = None if widen is None else widen.select_wide(op, ins, context)
        if wide is not None:
            yield True, wide


def select(op: Op, ins: Given, context: Context = QUERY, device: str = "cpu", arch: str = "") -> Entry | None:
    """The best maker that the session's context allows and that accepts, or None (the reference will run).

    arch: of the device, where it has makers of its own.
    """
    for accepts, entry in ways(op, ins, context, device, arch):
        if accepts and (entry.error is None or is_exact(entry, op, ins, context)):
            return entry
    return None


@functools.cache
def _widener(device: str) -> Any:
    """The module that runs nodes of halves by kernels of f32, where a device has one."""
    name = f"bolt_numba.kernels.{device}.elementwise.widen"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


_of_contexts: dict[tuple[type[Op], str, str, str, str], tuple[list[Entry], list[Entry]]] = {}
"""By operator, device, architecture, precision and numerics: all makers, and those allowed."""


def _allowed(kind: type[Op], name: str, context: Context, device: str, arch: str) -> Sequence[Entry]:
    """Makers of an operator that the session's context allows, the best first."""
    key = kind, device, arch, context.precision, context.numerics
    all_rows, allowed = _of_contexts.get(key, (None, ()))
    rows = KERNELS.get((kind, device))
    if rows is None or rows is not all_rows:  # makers may have been registered since
        _load_for(kind, name, device, context.precision)
        rows = KERNELS.get((kind, device), [])
        allowed = [e for e in rows if e.arch in ("", arch) and _is_allowed(e, context)]
        _of_contexts[key] = rows, allowed
    return allowed


def _is_allowed(entry: Entry, context: Context) -> bool:
    level = NUMERICS.index(entry.numerics) <= NUMERICS.index(context.numerics)
    return level and entry.precision in ("f32", context.precision)


def is_exact(entry: Entry, op: Op, ins: Given, context: Context) -> bool:
    """Whether the bound of a maker's error, which may follow from weights, is within the session's limit."""
    lax = context.numerics == "fast" and entry.precision == "f32"  # else an error says that weights do not fit
    error = entry.error
    return error is None or lax or context.weighed(entry, lambda: error(op, ins, context) <= MOST_ERROR)


def candidates(op: Op, ins: Given, context: Context = QUERY, device: str = "cpu", arch: str = "") -> list[Entry]:
    """Every maker that can run a node, the one that `select` takes first."""
    rows = _allowed(type(op), op.name, context, device, arch)
    preferred = [e for e in rows if e.accepts(op, ins)]
    found = preferred + [e for e in rows if e not in preferred and e.works is not None and e.works(op, ins)]
    return [e for e in found if is_exact(e, op, ins, context)]
