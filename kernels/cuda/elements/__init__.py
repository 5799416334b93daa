"""Kernels of `kernels.geometry.elements` on GPUs: a thread for each index, or for a part of a row."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.kernels.cuda.declare import BLOCK, I64, CudaKernel, ceil_div
from bolt_numba.kernels.cuda.elements.units import mover, widest
from bolt_numba.kernels.cuda.faults import report
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.division import divider, fast_divide
from bolt_numba.kernels.cuda.language.lang import cuda, rint_f32
from bolt_numba.kernels.declare import Field, Source, inline
from bolt_numba.kernels.geometry.elements import MOST_LAUNCHED, Elements, own_of
from bolt_numba.kernels.geometry.scalars import float_max, float_min
from bolt_numba.kernels.geometry.transfers import Transfer
from bolt_numba.kernels.registry import Accepts, Argument, Step, result_of

_CHUNKS = "chunks"
"""Size of the axis of the parts of a row."""
_SCOPE: dict[str, Any] = {"np": np, "cuda": cuda, "fast_divide": fast_divide}


@functools.cache
def _movers(unit: int) -> tuple[Any, Any]:
    """Helpers that move, and that keep, the part of a row."""
    move = mover(unit or 1)
    zeros, store = (np.uint32(0),) * 4, lang.store4_u32 if unit == 16 else getattr(lang, f"store_u{8 * (unit or 1)}")

    @inline
    def move_part(to, source, nbytes):
        move(source, to)

    @inline
    def keep_part(to, source, c, low, high, nbytes):
        if c >= low and c < high:
            move(source + c, to + c)
        elif unit == 16:
            store(to + c, *zeros)
        else:
            store(to + c, 0)

    return move_part, keep_part


def _sizes(made: Elements, unit: int) -> list[str]:
    return [*made.over.values(), *[_CHUNKS] * bool(unit)]


def _fields(made: Elements, unit: int) -> dict[str, Field]:
    """Those of all devices, how many threads there are, and what divides by the sizes of all axes but the first."""
    sizes = _sizes(made, unit)
    more = [f"{letter}_{size}" for size in sizes[1:] for letter in "mh"]
    return {**made.all_fields, **dict.fromkeys((*[_CHUNKS] * bool(unit), "threads", *more), I64)}


def _text(made: Elements, wanted: tuple[str, ...], unit: int, name: str) -> str:
    sizes, indices = _sizes(made, unit), [*made.over, *["c"] * bool(unit)]
    lines = [f"_u = np.uint32(cuda.blockIdx.x * {BLOCK} + cuda.threadIdx.x)", "if _u < threads:"]
    if made.several > 1:
        lines = [f"_first = np.uint32(cuda.blockIdx.x * {BLOCK * made.several} + cuda.threadIdx.x)"]
        lines += [f"for _part in range({made.several}):", f"  _u = np.uint32(_first + np.uint32({BLOCK} * _part))"]
        lines.append("  if _u < threads:")
    for k in range(len(sizes) - 1, -1, -1):
        index, size = indices[k], sizes[k]
        if index == (indices[-2] if unit else indices[-1]):
            lines.append("    t = np.int64(_u)")
        if k:
            lines.append(f"    _above = fast_divide(_u, m_{size}, h_{size})")
            part = f"{unit} * " * (index == "c")
            lines += [f"    {index} = {part}np.int64(np.uint32(_u - _above * np.uint32({size})))", "    _u = _above"]
        else:
            lines.append(f"    {index} = np.int64(_u)")
    for letter in made.strides:
        outer = [f"{index} * {letter}{k}" for k, index in enumerate([*made.over][:-1])]
        lines.append(f"    {letter} = {' + '.join(outer) or 'np.int64(0)'}")
    lines.append(f"    element({', '.join(wanted)})")
    return f"def {name}({', '.join(_fields(made, unit))}):\n" + "".join(f"    {line}\n" for line in lines)


@inline
def _rint(x):
    return rint_f32(np.float32(x))


class CudaParts:
    """See `kernels.geometry.elements.DeviceParts`; unit: bytes of a row that a thread moves; 0: there are none."""

    in_order = False
    report, rint, floor, divide = report, _rint, lang.floor_f32, lang.divide_exact
    own = staticmethod(functools.partial(own_of, __name__))

    def __init__(self, unit: int = 0) -> None:
        self.move, self.keep = _movers(unit)

    def limited(self, accepts: Accepts, few: bool, computes: Accepts) -> Accepts:
        if not few:
            return accepts
        return lambda op, ins: (
            accepts(op, ins)
            and all(t is None or (t.is_static and t.size <= MOST_LAUNCHED) for t in (*ins, result_of(op, ins)))
        )

    def load(self, dtype: str) -> Any:
        return getattr(lang, f"load_{dtype}")

    def store(self, dtype: str) -> Any:
        return getattr(lang, f"store_{dtype}")

    def word(self, name: str) -> Any:
        return getattr(lang, name)

    def extremes(self, dtype: str) -> tuple[Any, Any]:
        return (float_max, float_min) if dtype == "f64" else (lang.maximum, lang.minimum)

    def carried(self, transfers: Iterable[Transfer]) -> list[Step]:
        steps: list[Step] = self.own("movement.moves.carried")(transfers)
        return steps

    def table_gather_steps(self, shape: Sequence[int], indices: Sequence[Array], unit: int) -> list[Step]:
        steps: list[Step] = self.own("movement.table_gather.table_gather_steps")(shape, indices, unit)
        return steps

    def pays(self, nbytes: int, count: int = 0) -> bool:
        return True

    def step(
        self, made: Elements, settings: tuple[Any, ...], args: Mapping[str, Argument], parallel: Any = True,
        unit: int = 0,
    ) -> Step:  # fmt: skip
        numbers: dict[str, Any] = dict(args)
        run = numbers.get("run", 0)
        unit = unit or (widest(run) if run else 0)
        kernel = _kernel(made, settings, unit)
        more: dict[str, Argument] = {"threads": made.count(numbers)}
        if _CHUNKS in kernel.fields:
            more |= {_CHUNKS: run // unit, "threads": made.count(numbers) * (run // unit)}
        for size in kernel.names:
            if f"m_{size}" in kernel.fields:
                more[f"m_{size}"], more[f"h_{size}"] = divider(max((numbers | more)[size], 1))
        return Step(kernel, {**args, **more})

    def kernel(self, made: Elements, *settings: Any, run: int = 0) -> CudaKernel:
        return _kernel(made, settings, widest(run) if run else 0)


@functools.cache
def _kernel(made: Elements, settings: tuple[Any, ...], unit: int) -> CudaKernel:
    body = made.make(CudaParts(unit), *settings)
    wanted = made.wanted(body)
    unit = unit if "c" in wanted else 0
    name = "_".join([made.name, *map(str, settings), *[f"u{8 * unit}"] * bool(unit)])
    source = Source(_text(made, wanted, unit, name), name, _SCOPE | {"element": body})
    return CudaKernel(
        source, name, _fields(made, unit), threads=BLOCK, blocks=lambda a: ceil_div(a.threads, BLOCK * made.several),
        extents=lambda a: made.reach(a, *settings),
    )  # fmt: skip


PARTS = CudaParts()
