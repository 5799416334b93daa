"""Resize: nearest by tables of offsets, any dtype; linear and cubic by blends of all axes at once if taps are few."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.types import BF16, F16, F32, AnyDType, dtype_name
from bolt_numba.kernels.cuda.declare import I64, PTR, inline_source
from bolt_numba.kernels.cuda.elements import PARTS
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import load_f32_nc, load_i64_nc
from bolt_numba.kernels.cuda.movement.moves import carried
from bolt_numba.kernels.cuda.movement.table_gather import table_gather_steps
from bolt_numba.kernels.declare import Inline
from bolt_numba.kernels.extents import Numbers, Reach, ends, offsets
from bolt_numba.kernels.geometry.elements import MOST_LAUNCHED, DeviceParts, Elements
from bolt_numba.kernels.geometry.resample import Pass, is_inside, nearest_tables, passes_of, plans_of
from bolt_numba.kernels.geometry.strides import dense
from bolt_numba.kernels.geometry.transfers import Transfer, has_fixed_size, whole
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.kernels.unseen import tested
from bolt_numba.ops.layers.resize import Resize

TOGETHER = 16
"""Taps of an element, of all axes, up to which they are blended in one pass over memory."""
WRITTEN_OUT = 4
"""Taps of an axis up to which a kernel is made for their number."""
WIDTH = 16
"""Bytes of the elements of a thread."""


def _text(form: str, taps: Sequence[int], vector: int, unit: int, fields: Iterable[str]) -> str:
    """The body: nested loops over the taps of the axes ``p`` of the form; the innermost adds to the totals."""
    totals, indent, weight, at = [f"a{i}" for i in range(vector)], "    ", "one", "at"
    moves = "".join(f" + i{k} * s{k}" for k, letter in enumerate(form) if letter == "u")
    text = f"    at = src{moves}\n" + "".join(f"    {total} = zero\n" for total in totals)
    for q, k in enumerate(i for i, letter in enumerate(form) if letter == "p"):
        count = taps[q] or f"taps{q}"
        text += f"{indent}for t{q} in range({count}):\n"
        indent += "    "
        text += f"{indent}w{q} = {weight} * load_f32_nc(weights{q} + 4 * (i{k} * {count} + t{q}))\n"
        text += f"{indent}at{q} = {at} + load_i64_nc(index{q} + 8 * (i{k} * {count} + t{q}))\n"
        weight, at = f"w{q}", f"at{q}"
    text += f"{indent}{', '.join(f'v{i}' for i in range(vector))} = load({at})\n"
    text += "".join(f"{indent}a{i} += {weight} * v{i}\n" for i in range(vector))
    text += f"    store(dst + {unit * vector} * t, {', '.join(totals)})\n"
    return f"def element({', '.join((*(f'i{k}' for k in range(len(form))), 't', *fields))}):\n{text}"


@cache
def blend(form: str) -> Elements:
    """Kernels of weighted sums, ``vector`` neighbours of the last axis to a thread; y is dense.

    form: of each axis, ``u`` (goes along, s bytes apart) or ``p``.  An axis ``p`` has tables [indices, taps]: index
    (i64, byte offsets into x) and weights (f32).  taps: their number for each, 0 where it is a field.
    """
    letters, along = range(form.count("p")), [k for k, letter in enumerate(form) if letter == "u"]
    fields = dict.fromkeys(("src", "dst", *(f"{w}{q}" for q in letters for w in ("index", "weights"))), PTR)
    fields |= dict.fromkeys((*(f"s{k}" for k in along), *(f"taps{q}" for q in letters)), I64)

    def make(on: DeviceParts, source: str, target: str, vector: int, *taps: int) -> Inline:
        many = "" if vector == 1 else str(vector)
        scope = {"load_f32_nc": load_f32_nc, "load_i64_nc": load_i64_nc, "one": np.float32(1), "zero": np.float32(0)}
        scope |= {"load": getattr(lang, f"load{many}_{source}_nc"), "store": getattr(lang, f"store{many}_{target}")}
        return inline_source(_text(form, taps, vector, lang.SIZES[target], fields), "element", **scope)

    def reach(a: Numbers, source: str, target: str, vector: int, *_: int) -> dict[str, Reach]:
        tables = {f"{w}{q}": (8 if w == "index" else 4) * getattr(a, f"{w}{q}").size
                  for q in letters for w in ("index", "weights")}  # fmt: skip
        count = math.prod(getattr(a, f"n{k}") for k in range(len(form)))
        last = sum(ends(offsets(getattr(a, f"index{q}"), 1))[1] - 1 for q in letters)
        last += sum((getattr(a, f"n{k}") - 1) * getattr(a, f"s{k}") for k in along)
        src = last + lang.SIZES[source] * vector if count else 0
        return {"src": src, "dst": lang.SIZES[target] * vector * count, **tables}

    return Elements(f"blend_{form}", {f"i{k}": f"n{k}" for k in range(len(form))}, "", fields, reach, make)


def _axes(shape: Sequence[int], passes: Sequence[Pass], unit: int) -> list[tuple[int, int, Pass | None]]:
    """Axes of the result, untouched neighbours merged: indices, bytes between them in the source, what is blended."""
    by_axis = {p[0]: p for p in passes}
    made: list[tuple[int, int, Pass | None]] = []
    for axis, (n, stride) in enumerate(zip(shape, dense(shape, unit), strict=True)):
        found = by_axis.get(axis)
        if found is None and made and made[-1][2] is None:
            made[-1] = made[-1][0] * n, stride, None
        else:
            made.append((n if found is None else found[1].shape[0], stride, found))
    return made


def _step(shape: Sequence[int], passes: Sequence[Pass], src: Any, dst: Any, dtypes: tuple[AnyDType, AnyDType]) -> Step:
    """Some axes of ``shape`` blended; dtypes: of source and destination."""
    source, target = dtypes
    axes = _axes(shape, passes, source.itemsize)
    size, stride, blended = axes[-1]
    vector = math.gcd(WIDTH // max(source.itemsize, target.itemsize), size) if blended is None else 1
    axes[-1] = size // vector, stride * vector, blended
    args: dict[str, Argument] = {"src": src, "dst": dst}
    taps = []
    for q, (_, stride, found) in enumerate(a for a in axes if a[2] is not None):
        _, index, weights = tested(found)
        args[f"index{q}"], args[f"weights{q}"] = np.ascontiguousarray(index * stride), np.ascontiguousarray(weights)
        args[f"taps{q}"] = index.shape[1]
        taps.append(index.shape[1] if index.shape[1] <= WRITTEN_OUT else 0)
    args |= {f"n{k}": n for k, (n, _, _) in enumerate(axes)}
    args |= {f"s{k}": s for k, (_, s, found) in enumerate(axes) if found is None}
    form = "".join("u" if found is None else "p" for _, _, found in axes)
    return PARTS.step(blend(form), (dtype_name(source), dtype_name(target), vector, *taps), args)


def _accepts(op: Resize, ins: Types) -> bool:
    x = ins[0]
    if not x.is_static or not x.size or not has_fixed_size(op, ins):
        return False
    if any(t is not None and t.known is None for t in ins[1:]):
        return False
    if op.mode != "nearest" and x.dtype not in (F32, F16, BF16):
        return False
    plans = plans_of(op, ins)
    grown = math.prod(p.out for p in plans) * (x.size // math.prod(p.size for p in plans))
    return max(x.size, grown) <= MOST_LAUNCHED and is_inside(op, plans)


def _order(passes: list[Pass], dims: Sequence[int]) -> list[list[Pass]]:
    """Passes that are carried out together.  Those that shrink ``dims`` come first: nothing between is large then."""
    taps = math.prod(index.shape[1] for _, index, _ in passes)
    return [passes] if taps <= TOGETHER else [[p] for p in sorted(passes, key=lambda p: p[1].shape[0] / dims[p[0]])]


@kernel(Resize, device="cuda", accepts=_accepts)
def resize(op: Resize, ins: Types, outs: Outs, context: Context) -> list[Step]:
    """Any rank, layout and coordinate mode; sums in f32; nothing extrapolated."""
    x = ins[0]
    if not outs[0].size:
        return []
    if op.mode == "nearest":
        return table_gather_steps(x.dims, nearest_tables(op, ins), x.dtype.itemsize)
    groups = _order(passes_of(op, ins), x.dims)
    if not groups[0]:
        return carried([Transfer(whole(x.nbytes), In(0), Out(0))])
    made: list[Step] = []
    src: Any = In(0)
    dtype, shape = x.dtype, list(x.dims)
    for i, group in enumerate(groups):
        after = list(shape)
        for axis, index, _ in group:
            after[axis] = index.shape[0]
        last = i == len(groups) - 1
        dst, target = (Out(0), x.dtype) if last else (Scratch(4 * math.prod(after)), F32)
        made.append(_step(shape, group, src, dst, (dtype, target)))
        src, dtype, shape = dst, target, after
    return made
