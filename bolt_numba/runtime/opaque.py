"""Nodes that do what cannot be followed: a tape asks Python for what they need, and keeps it by their sizes.

A maker that fills tables by NumPy, or an operator whose types need more than arithmetic, is one function of its sizes
for a trail.  What it gives is taken apart into numbers and arrays; all else must come out as it did first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.files.mapped import for_kernels
from bolt_numba.base.follow import LostError, fixed, followed, is_followed, value_of
from bolt_numba.base.types import STRING, Array, TensorType
from bolt_numba.kernels.registry import Argument, Fault, Given, In, Operands, Out, Pitch, Record, Scratch, Step
from bolt_numba.kernels.unseen import Packed
from bolt_numba.ops.evaluate import infer_types
from bolt_numba.ops.registry import Op


def _open_numbers(types: Given) -> list[Any]:
    """The followed numbers of types: dimensions, then content."""
    made: list[Any] = []
    for t in types:
        if t is not None:
            content = [] if t.value is None or t.value.dtype != object else list(t.value.flat)
            made += [n for n in (*(t.shape or ()), *content) if is_followed(n)]
    return made


def _closed(types: Given, numbers: Iterator[int]) -> list[TensorType | None]:
    """The same types with plain numbers."""
    made: list[TensorType | None] = []
    for t in types:
        if t is None or t.shape is None:
            made.append(t)
            continue
        shape = tuple([next(numbers) if is_followed(d) else d for d in t.shape])
        value = t.value
        if value is not None and value.dtype == object and is_followed(list(value.flat)):
            plain = [next(numbers) if is_followed(n) else n for n in value.flat]
            value = np.array(plain, t.dtype).reshape(value.shape)
        made.append(TensorType(t.dtype, shape, value))
    return made


def _asked(types: Given, function: Callable[[Sequence[TensorType | None]], Any]) -> Any:
    """``function`` of plain types, as one line of the trail of their numbers."""
    return followed(lambda *numbers: function(_closed(types, iter(numbers))), *_open_numbers(types))


def types_of(op: Op, ins: Given) -> tuple[TensorType, ...]:
    """`infer_types` of sizes that are followed, whatever inference does with them."""
    try:
        return infer_types(op, ins)
    except LostError:
        pass
    kinds: list[Any] = []

    def inferred(plain: Sequence[TensorType | None]) -> list[int] | None:
        found = infer_types(op, plain)
        if any(t.value is not None or not t.is_static for t in found):
            raise LostError("content of a result")
        got = [(t.dtype, len(t.dims)) for t in found]
        if not kinds:
            kinds.append(got)
        return [d for t in found for d in t.dims] if got == kinds[0] else None

    numbers, made = iter(_asked(ins, inferred)), []
    for dtype, rank in kinds[0]:
        made.append(TensorType(dtype, tuple([next(numbers) for _ in range(rank)])))
    return tuple(made)


def chosen(ins: Given, choose: Callable[[Given], Any]) -> Any:
    """What a device selects for types: the same for all sizes that a trail holds for."""
    try:
        return choose(ins)
    except LostError:
        pass
    first: list[Any] = []

    def is_same(plain: Given) -> bool:
        found = choose(plain)
        if not first:
            first.append(found)
        return found is first[0]

    if not _asked(ins, is_same):
        raise LostError("a choice that changes")
    return first[0]


def steps_of(make: Callable[[Given, Sequence[TensorType]], list[Step]], ins: Given, outs: Given) -> list[Step]:
    """Steps of a maker that cannot be followed, with followed numbers and arrays."""
    first: list[Any] = []
    count = len(ins)

    def made(plain: Sequence[TensorType | None]) -> list[Any] | None:
        steps = make(Operands(plain[:count], *plain[count:][:2][:1]), plain[count:])  # type: ignore[arg-type]
        apart = _Apart()
        form = [apart.step(step) for step in steps]
        if not first:
            first.append((steps, form))
        return apart.values if form == first[0][1] else None

    values = _asked([*ins, *outs], made)
    again = _Together(iter([values[i] for i in range(fixed(len(value_of(values))))]))
    return [again.step(step) for step in first[0][0]]


class _Apart:
    """Takes steps apart: what varies with sizes goes to ``values``, the rest makes the form."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._scratch: dict[int, int] = {}

    def step(self, step: Step) -> Any:
        self.values.append(int(step.parallel))
        return step.kernel, bool(step.in_bands), self._args(step.args)

    def _args(self, args: Mapping[str, Argument]) -> Any:
        return [(name, self._arg(arg)) for name, arg in args.items()]

    def _arg(self, arg: Any) -> Any:
        kind = type(arg)
        if kind in (In, Out):
            self.values.append(int(arg.offset))
            return kind, arg.index
        if kind is Scratch:
            if id(arg) not in self._scratch:
                self._scratch[id(arg)] = len(self._scratch)
                self.values.append(int(arg.nbytes))
            return kind, self._scratch[id(arg)]
        if kind is Record:
            return kind, arg.kernel, self._args(arg.args)
        if isinstance(arg, np.ndarray):
            if arg.dtype == STRING:
                raise LostError("an array of objects")
            self.values.append(for_kernels(arg))
            return Array
        if isinstance(arg, (int, float, np.number)) and kind is not bool:
            self.values.append(arg.item() if isinstance(arg, np.number) else arg)
            return float if isinstance(self.values[-1], float) else int
        if kind is Packed:
            return arg, arg.least
        return arg if kind in (Pitch, Fault, bool) or arg is None else (kind, id(arg))


class _Together:
    """Makes the same steps with other values."""

    def __init__(self, values: Iterator[Any]) -> None:
        self.values = values
        self._scratch: dict[int, Scratch] = {}

    def step(self, step: Step) -> Step:
        parallel = next(self.values)
        return Step(step.kernel, self._args(step.args), parallel, step.in_bands)

    def _args(self, args: Mapping[str, Argument]) -> dict[str, Argument]:
        return {name: self._arg(arg) for name, arg in args.items()}

    def _arg(self, arg: Any) -> Any:
        kind = type(arg)
        if kind in (In, Out):
            return kind(arg.index, next(self.values))
        if kind is Scratch:
            if id(arg) not in self._scratch:
                self._scratch[id(arg)] = Scratch(next(self.values))
            return self._scratch[id(arg)]
        if kind is Record:
            return Record(arg.kernel, self._args(arg.args))
        if isinstance(arg, np.ndarray) or (isinstance(arg, (int, float, np.number)) and kind is not bool):
            return next(self.values)
        return arg
