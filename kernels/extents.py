"""How far kernels reach from the addresses they are given, and the gate that refuses operands that end before.

A kernel declares ``extents``: a function of a step's arguments that gives, for each address among its fields, the bytes
that any share of the work may touch, counted from there.  It looks at sizes that the maker took from the operands that
define the work, so an operand that does not fit them is refused before native code runs.  So is an array of objects,
which holds addresses: who copies one must count it, and no kernel does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bolt_numba.base.errors import InternalError, ShapeError
from bolt_numba.base.follow import value_of
from bolt_numba.base.records import record
from bolt_numba.base.selects import either, is_filled
from bolt_numba.base.types import AnyDType, Array, TensorType
from bolt_numba.kernels.registry import (
    Argument,
    Context,
    Entry,
    Fault,
    Given,
    In,
    Kernel,
    Maker,
    Out,
    Outs,
    Pitch,
    Scratch,
    Step,
)
from bolt_numba.kernels.unseen import Packed, Unseen
from bolt_numba.ops.registry import Op

Reach: TypeAlias = "int | tuple[int, int]"
"""Bytes from an address on, or (first, end) where they begin elsewhere: ``first`` is negative for those before it."""
KEPT = (0, -1)
"""Reach of what a table leads to that an earlier step of the node makes from data: that step keeps to what is there."""
Extents: TypeAlias = Callable[[Any], Mapping[str, Reach]]
"""``extents(a)``: a reach for every address field; ``a.name`` is the step's argument, a `Pitch` as its number.

``a.threads``: how many share the step, for workspace that each has a part of.
"""


# ------------------------------------------------------------------------------------------------- words for extents


def box(run: int, *axes: tuple[int, int]) -> Reach:
    """What a box of runs of ``run`` bytes touches; axes: (indices, bytes from one to the next, also negative)."""
    first, end = 0, run
    for size, stride in axes:
        if size <= 0:
            return 0
        if stride < 0:
            first += (size - 1) * stride
        else:
            end += (size - 1) * stride
    return (first, end) if run > 0 else 0


def offsets(table: Array, run: int) -> Reach:
    """What runs of ``run`` bytes at all byte offsets of a table touch."""
    if is_filled(table):
        return table.least, table.greatest + run  # type: ignore[attr-defined]
    return (table.min().item(), table.max().item() + run) if table.size and run > 0 else 0


def both(one: Reach, two: Reach) -> Reach:
    """What two reaches touch from one address."""
    (a, b), (c, d) = ends(one), ends(two)
    return (c, d) if a == b else (a, b) if c == d else (min(a, c), max(b, d))


def ends(reach: Reach) -> tuple[int, int]:
    """A reach as (first, end)."""
    return (0, reach) if isinstance(reach, int) else reach


def span(array: Array) -> tuple[int, int]:
    """Bytes before an array's address, and all bytes that it lies on: strides may leave gaps, or be negative."""
    if array.dtype.hasobject:
        raise _no_bytes(array.dtype)
    if array.flags.c_contiguous:
        return 0, array.nbytes
    first, end = ends(box(array.itemsize, *zip(array.shape, array.strides, strict=True)))
    return -first, end - first


# -------------------------------------------------------------------------------------------------------------- gate


class Numbers:
    """Arguments as attributes."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> int: ...


def reaches(kernel: Kernel, values: dict[str, Any], threads: int) -> Mapping[str, Reach]:
    """The declared reach of every address; raises ShapeError where the declaration does not name the fields.

    values: get one more, ``threads``.
    """
    if kernel.extents is None:
        raise ShapeError(f"{kernel.name}: extents: got none, wanted how far it reaches from each address")
    values["threads"] = threads
    numbers = Numbers()
    numbers.__dict__ = values
    found: Mapping[str, Reach] = kernel.extents(numbers)
    if found.keys() != kernel.pointers.keys():
        odd = sorted(found.keys() ^ kernel.pointers.keys())
        raise ShapeError(f"{kernel.name}: extents: got {odd} in one of both, wanted the addresses among its fields")
    return found


def check_arrays(kernel: Kernel, values: Mapping[str, Any]) -> None:
    """Refuse arrays for a call by hand that end before one thread's reach; addresses as numbers are the caller's."""
    for name, reach in reaches(kernel, dict(values), 1).items():
        value = values[name]
        if value is None or isinstance(value, np.ndarray):
            before, there = (0, None) if value is None else span(value)
            if not _fits(reach, before, there, kernel.pointers[name]):
                raise _misfit(kernel.name, kernel, name, reach, before, there, "array")


def check_steps(op: Op, steps: Sequence[Step], ins: Given, outs: Outs, threads: int = 1) -> None:
    """Refuse steps whose kernels reach beyond their operands, results, workspace or tables: a ShapeError says which.

    What is packed takes note of the bytes that it must have; sizes that would ask more of it are other ones for a
    trail.  Every new shape is planned anew, so this is written for speed.
    """
    given: dict[int, int | None] = {}
    made: dict[int, int] = {}
    for step in steps:
        kernel, args = step.kernel, step.args
        sharing = 1 if threads == 1 else either(step.parallel, threads, 1)
        for name, reach in reaches(kernel, numbers_of(step, ins, outs), sharing).items():
            if reach == 0:
                continue
            arg: Any = args[name]
            kind, offset = type(arg), 0
            there: int | None
            if kind is In:
                offset, index = arg.offset, arg.index
                if index not in given:
                    t = ins[index] if index < len(ins) else None
                    given[index] = None if t is None else _nbytes(t)
                there = given[index]
            elif kind is Out:
                offset, index = arg.offset, arg.index
                if index not in made:
                    made[index] = _nbytes(outs[index])
                there = made[index]
            else:
                offset, there = _room(arg, reach)
            if type(reach) is int and there is not None and 0 < reach <= there - offset and offset >= 0:
                continue
            if not _fits(reach, offset, there, kernel.pointers[name]):
                raise _misfit(op.name, kernel, name, reach, offset, there, _called(arg))


def _room(arg: Any, reach: Reach) -> tuple[int, int | None]:
    """Bytes before the address of what is no operand, and all of it."""
    if type(arg) is Scratch:
        return 0, arg.nbytes
    if type(arg) is Packed:
        return 0, arg.need(1 if reach is KEPT else value_of(ends(reach)[1]))
    return span(arg) if isinstance(arg, np.ndarray) else (0, None)


def _nbytes(t: TensorType) -> int:
    """`TensorType.nbytes` of a concrete type, in half the time."""
    if t.dtype.hasobject:
        raise _no_bytes(t.dtype)
    return math.prod(t.shape) * t.dtype.itemsize  # type: ignore[arg-type]


def _no_bytes(dtype: AnyDType) -> InternalError:
    return InternalError(f"operand of a kernel: got an array of {dtype.name}s, wanted numbers")


def numbers_of(step: Step, ins: Given, outs: Outs) -> dict[str, Any]:
    """A copy of the step's arguments, with dense rows for each Pitch."""
    args: dict[str, Any] = dict(step.args)
    if Pitch in map(type, args.values()):
        for name, arg in step.args.items():
            if type(arg) is Pitch:
                kind = (ins if type(arg.of) is In else outs)[arg.of.index]
                args[name] = kind.dims[-1] if kind is not None and kind.dims else 1
    return args


def _called(arg: Any) -> str:
    """What an argument is, for people."""
    if isinstance(arg, (In, Out)):
        return f"{'operand' if isinstance(arg, In) else 'result'} {arg.index}"
    if isinstance(arg, Scratch):
        return "workspace"
    return "table" if isinstance(arg, np.ndarray) else "operand"


def _fits(reach: Reach, offset: int, there: int | None, optional: bool) -> bool:
    first, end = reach if type(reach) is tuple else (0, reach)
    if first == end:
        return True
    if there is None:
        return optional
    if reach is KEPT:
        return there > 0
    return first + offset >= 0 and first < end and end + offset <= there  # type: ignore[operator]


def _misfit(who: str, kernel: Kernel, name: str, reach: Reach, offset: int, there: int | None, what: str) -> ShapeError:
    first, end = ends(reach)
    got = "none" if there is None else f"{there} bytes"
    wanted = f"bytes {first + offset} to {end + offset}" if first + offset else f"{end + offset} bytes"
    return ShapeError(f"{who}: {what} ({name!r} of kernel {kernel.name}): got {got}, wanted {wanted}")


def made_steps(entry: Entry, op: Op, ins: Given, outs: Outs, context: Context) -> list[Step]:
    """The steps of a maker, after the gate."""
    steps = entry.make(op, ins, outs, context)
    if not isinstance(steps, list):
        raise TypeError(f"maker {entry.name}: got {steps!r:.60}, wanted a list of steps")
    check_steps(op, steps, ins, outs, context.threads)
    return steps


# ------------------------------------------------------------------------------------------------- steps of others


Place: TypeAlias = "In | Out | Scratch | Packed | Array"


@record(frozen=True)
class Lent:
    """An operand or result of an operator whose steps another one borrows: its type, and where the borrower has it.

    at: None where no step may touch it.  rows: of an In or Out, whether its last axis is that of the operand there, so
    that its rows may be as far apart as they are there; else they are dense.
    """

    type: TensorType
    at: Place | None
    rows: bool = False

    @staticmethod
    def constant(known: Any, t: TensorType | None = None, context: Any = None) -> Lent:
        """A constant: an array, its content as makers see it, or what ``context`` packed, which is of this type."""
        if type(known) is Packed:
            assert t is not None, "it does not say its shape itself"
            known = Unseen(t.dtype, t.dims, known, context)
        at: Any = known.of if type(known) is Unseen else known
        return Lent(TensorType(known.dtype, known.shape, value=known), at)


def borrowed(make: Maker, op: Op, ins: Sequence[Lent | None], outs: Sequence[Lent], context: Context) -> list[Step]:
    """The steps that a maker gives for another operator, whose operands and results lie elsewhere for the borrower.

    Which operands the steps read, and by which fields, the maker decides anew for each level of numerics.  So all that
    they name is led to its place here.  Raises InternalError for what has none.
    """
    made = make(op, [None if t is None else t.type for t in ins], [t.type for t in outs], context)

    def led(arg: Argument) -> Argument:
        if isinstance(arg, Pitch):
            lent, place = _place_of(op, arg.of, ins, outs)
            if lent.rows and isinstance(place, (In, Out)):
                return Pitch(replace(place, offset=0))
            return lent.type.dims[-1] if lent.type.dims else 1
        if isinstance(arg, Fault):
            place = _place_of(op, In(arg.operand), ins, outs)[1]
            if isinstance(place, In) and not place.offset:
                return Fault(place.index)
            raise _placeless(op, arg, place)
        return _place_of(op, arg, ins, outs)[1] if isinstance(arg, (In, Out)) else arg

    return [replace(step, args={name: led(arg) for name, arg in step.args.items()}) for step in made]


def _place_of(op: Op, of: In | Out, ins: Sequence[Lent | None], outs: Sequence[Lent]) -> tuple[Lent, Place]:
    """What is lent there, and where it is."""
    side = ins if isinstance(of, In) else outs
    lent = side[of.index] if of.index < len(side) else None
    if lent is None or lent.at is None:
        raise _placeless(op, of, None)
    if not of.offset:
        return lent, lent.at
    if isinstance(lent.at, (In, Out)):
        return lent, replace(lent.at, offset=lent.at.offset + of.offset)
    raise _placeless(op, of, lent.at)


def _placeless(op: Op, arg: In | Out | Fault, place: Place | None) -> InternalError:
    where = "no place" if place is None else type(place).__name__
    return InternalError(f"{op.name}: a borrowed step names {arg}: got {where} for it, wanted one that serves")
