"""Kernels of `kernels.geometry.elements` on the CPU: nests of loops, of which each thread takes a part."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from bolt_numba.base.types import BF16, F16
from bolt_numba.kernels.cpu.faults import report
from bolt_numba.kernels.cpu.language import lang
from bolt_numba.kernels.cpu.language.lang import copy_bytes, fill_bytes, inline, native_source, split
from bolt_numba.kernels.cpu.machine import PAYS_BYTES, PAYS_ELEMENTS
from bolt_numba.kernels.cpu.movement.move import UNITS, carried, copy_run
from bolt_numba.kernels.cpu.movement.table_gather import table_gather_steps
from bolt_numba.kernels.geometry.elements import Elements, own_of
from bolt_numba.kernels.geometry.scalars import float_max, float_min
from bolt_numba.kernels.jit import Native
from bolt_numba.kernels.registry import Accepts, Argument, Step, Types, never
from bolt_numba.ops.registry import Op


@inline
def _nothing(fault: int, position: int, value: int, low: int, high: int) -> None:
    pass


@inline
def _keep(to: int, source: int, c: int, low: int, high: int, nbytes: int) -> None:
    fill_bytes(to, np.uint8(0), low)
    copy_bytes(to + low, source + low, high - low)
    fill_bytes(to + high, np.uint8(0), nbytes - high)


@inline
def _rint(x: float) -> Any:
    return np.rint(x)


@inline
def _floor(x: float) -> Any:
    return np.floor(x)


@inline
def _divide(x: float, y: float) -> float:
    return x / y


@functools.cache
def _mover(unit: int) -> Any:
    """Helper ``(to, source, nbytes)``; unit: bytes of all rows where a register holds them, else 0."""
    if not unit:
        return copy_run
    load, store = UNITS[unit]

    @inline
    def move_unit(to: int, source: int, nbytes: int) -> None:
        store(to, load(source))

    return move_unit


def _text(made: Elements, wanted: tuple[str, ...], unit: int, name: str) -> str:
    """Loops: counters of all axes but the last carry, and the last one is a loop between carries."""
    indices, sizes = list(made.over), list(made.over.values())
    last, size = indices[-1], sizes[-1]
    own = {"t", "c", *indices, *made.strides}
    fields = sorted({*wanted, *sizes} - own - ({"run"} if unit else set()))
    fields += [f"{letter}{k}" for letter in made.strides for k in range(len(sizes) - 1)]
    lines = [f"{field} = p.{field}" for field in fields] + [f"run = {unit}"] * bool(unit) + ["c = 0"]
    lines += [f"_at, _end = split({' * '.join(sizes)}, tid, nthreads)", "_rest = _at", "_wrong = -1"]
    for index, n in reversed(list(zip(indices[1:], sizes[1:], strict=True))):
        lines += [f"_above = _rest // {n}", f"{index} = _rest - _above * {n}", "_rest = _above"]
    lines += [f"{indices[0]} = _rest", "while _at < _end:"]
    lines.append(f"    _first, _stop = _at - {last}, min({size}, _end - _at + {last})")
    for letter in made.strides:
        outer = [f"{index} * {letter}{k}" for k, index in enumerate(indices[:-1])]
        lines.append(f"    {letter} = {' + '.join(outer) or '0'}")
    lines += [f"    _begin = {last}", f"    for _i in range(_stop - {last}):", f"        {last} = _begin + _i"]
    lines += [f"        t = _first + {last}"] * ("t" in wanted)
    called = f"({', '.join(wanted)})"
    if "fault" in wanted:  # a report in the loop would cost a tenth of its time
        again = [f"        t = _first + {last}"] * ("t" in wanted)
        lines += [f"        if quiet{called} < 0 and _wrong < 0:", f"            _wrong = {last}"]
        lines.append("    if _wrong >= 0:")
        lines += [f"        {last} = _wrong", *again, f"        element{called}", "        _wrong = -1"]
    else:
        lines.append(f"        element{called}")
    lines += ["    _at = _first + _stop", f"    {last} = 0"]
    indent = "    "
    for index, n in reversed(list(zip(indices[:-1], sizes[:-1], strict=True))):
        lines += [f"{indent}{index} += 1", f"{indent}if {index} == {n}:", f"{indent}    {index} = 0"]
        indent += "    "
    return f"def {name}(p, tid, nthreads):\n" + "".join(f"    {line}\n" for line in lines)


class CpuParts:
    """See `kernels.geometry.elements.DeviceParts`."""

    in_order = True
    keep, rint, floor, divide = _keep, _rint, _floor, _divide
    carried = staticmethod(carried)
    table_gather_steps = staticmethod(table_gather_steps)
    own = staticmethod(functools.partial(own_of, __name__))

    def __init__(self, unit: int = 0, reports: bool = True) -> None:
        self.move = _mover(unit)
        self.report = report if reports else _nothing

    def limited(self, accepts: Accepts, few: bool, computes: Accepts) -> Accepts:
        """Halves have words for vectors alone."""
        if computes is never:
            return accepts

        def taken(op: Op, ins: Types) -> bool:
            halves = any(t is not None and t.dtype in (F16, BF16) for t in ins)
            return accepts(op, ins) and not (halves and computes(op, ins))

        return taken

    def load(self, dtype: str) -> Any:
        return getattr(lang, f"load_{dtype}")

    def store(self, dtype: str) -> Any:
        return getattr(lang, f"store_{dtype}")

    def word(self, name: str) -> Any:
        return getattr(lang, name)

    def extremes(self, dtype: str) -> tuple[Any, Any]:
        return float_max, float_min

    def pays(self, nbytes: int, count: int = 0) -> Any:
        return (nbytes >= PAYS_BYTES) | (count >= PAYS_ELEMENTS)

    def step(
        self, made: Elements, settings: tuple[Any, ...], args: Mapping[str, Argument], parallel: Any = True,
        unit: int = 0,
    ) -> Step:  # fmt: skip
        return Step(self.kernel(made, *settings, run=args.get("run", 0)), args, parallel)  # type: ignore[arg-type]

    def kernel(self, made: Elements, *settings: Any, run: int = 0) -> Native:
        unit = 0 if run > max(UNITS) else next((n for n in UNITS if n == run), 0)
        return _kernel(made, settings, unit)


@functools.cache
def _kernel(made: Elements, settings: tuple[Any, ...], unit: int) -> Native:
    body, quiet = (made.make(CpuParts(unit, reports), *settings) for reports in (True, False))
    wanted = made.wanted(body)
    unit = unit if "c" in wanted else 0
    name = "_".join([made.name, *map(str, settings), *[f"u{8 * unit}"] * bool(unit)])
    text = _text(made, wanted, unit, name)
    reach = lambda a: made.reach(a, *settings)  # noqa: E731
    return native_source(text, name, made.all_fields, extents=reach, split=split, element=body, quiet=quiet)


PARTS = CpuParts()
