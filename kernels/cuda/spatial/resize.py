"""Resize: nearest by tables of offsets, any dtype; linear and cubic by blends of all axes at once if taps are few."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from bolt_numba.base.types import BF16, F16, F32, AnyDType, dtype_name
from bolt_numba.kernels.cuda.declare import BLOCK, I64, PTR, CudaKernel, ceil_div
from bolt_numba.kernels.cuda.language import lang
from bolt_numba.kernels.cuda.language.lang import load_f32_nc, load_i64_nc
from bolt_numba.kernels.cuda.movement.index import SCOPE, axis_args, axis_fields
from bolt_numba.kernels.cuda.movement.moves import carried
from bolt_numba.kernels.cuda.movement.table_gather import table_gather_steps
from bolt_numba.kernels.declare import Source
from bolt_numba.kernels.extents import Numbers, Reach, ends, offsets
from bolt_numba.kernels.geometry.elements import MOST_LAUNCHED
from bolt_numba.kernels.geometry.resample import Pass, is_inside, nearest_tables, passes_of, plans_of
from bolt_numba.kernels.geometry.strides import dense
from bolt_numba.kernels.geometry.transfers import Transfer, has_fixed_size, whole
from bolt_numba.kernels.geometry.unseen import tested
from bolt_numba.kernels.registry import Argument, Context, In, Out, Outs, Scratch, Step, Types, kernel
from bolt_numba.ops.layers.resize import Resize

TOGETHER = 16
"""Taps of an element, of all axes, up to which they are blended in one pass over memory."""
WRITTEN_OUT = 4
"""Taps of an axis up to which a kernel is made for their number."""
WIDTH = 16
"""Bytes of the elements of a thread."""


def _loops(form: str, taps: Sequence[int], vector: int) -> str:
    """Nested loops over the taps of the axes ``p`` of the form; the innermost adds to the totals."""
    indent, weight, text = "        ", "one", ""
    at = "x"
    for q, k in enumerate(i for i, letter in enumerate(form) if letter == "p"):
        text += f"{indent}for t{q} in range({taps[q] or f'taps{q}'}):\n"
        indent += "    "
        text += f"{indent}w{q} = {weight} * load_f32_nc(weights{q} + 4 * (b{k} + t{q}))\n"
        text += f"{indent}at{q} = {at} + load_i64_nc(index{q} + 8 * (b{k} + t{q}))\n"
        weight, at = f"w{q}", f"at{q}"
    text += f"{indent}{', '.join(f'v{i}' for i in range(vector))} = load({at})\n"
    return text + "".join(f"{indent}a{i} += {weight} * v{i}\n" for i in range(vector))


def _axes_text(form: str, taps: Sequence[int]) -> str:
    """Statements that take ``rest`` apart: x moves along the axes ``u``; b: where the tables of an axis ``p`` begin."""
    text = ""
    for k in range(len(form) - 1, -1, -1):
        if k:
            text += f"        above = fast_divide(rest, m{k}, h{k})\n"
            text += f"        i = np.int64(np.uint32(rest - above * np.uint32(n{k})))\n        rest = above\n"
        else:
            text += "        i = np.int64(rest)\n"
        q = form[:k].count("p")
        text += f"        x += i * s{k}\n" if form[k] == "u" else f"        b{k} = i * {taps[q] or f'taps{q}'}\n"
    return text


@cache
def blend(source: str, target: str, form: str, taps: tuple[int, ...], vector: int) -> CudaKernel:
    """Kernel of weighted sums, ``vector`` neighbours of the last axis to a thread; y is dense.

    form: of each axis, ``u`` (goes along, s bytes apart) or ``p``.  An axis ``p`` has tables [indices, taps]: index
    (i64, byte offsets into x) and weights (f32).  taps: their number for each, 0 where it is a field.
    """
    letters, many = form.count("p"), "" if vector == 1 else str(vector)
    name = f"blend_{source}_{target}_{form}_{'_'.join(map(str, taps))}x{vector}"
    fields = dict.fromkeys(("src", "dst", *(f"{w}{q}" for q in range(letters) for w in ("index", "weights"))), PTR)
    fields |= {"count": I64, **axis_fields(len(form), "s"), **{f"taps{q}": I64 for q in range(letters)}}
    unit = lang.SIZES[target] * vector
    text = (
        f"def {name}({', '.join(fields)}):\n"
        f"    t = np.uint32(cuda.blockIdx.x * {BLOCK} + cuda.threadIdx.x)\n"
        "    if t < count:\n"
        "        rest, x = t, src\n"
        + _axes_text(form, taps)
        + "".join(f"        a{i} = np.float32(0)\n" for i in range(vector))
        + _loops(form, taps, vector)
        + f"        store(dst + {unit} * np.int64(t), {', '.join(f'a{i}' for i in range(vector))})\n"
    )
    scope = {**SCOPE, "load_f32_nc": load_f32_nc, "load_i64_nc": load_i64_nc, "one": np.float32(1)}
    scope |= {"load": getattr(lang, f"load{many}_{source}_nc"), "store": getattr(lang, f"store{many}_{target}")}

    def reach(a: Numbers) -> dict[str, Reach]:
        tables = {f"{w}{q}": (8 if w == "index" else 4) * getattr(a, f"{w}{q}").size
                  for q in range(letters) for w in ("index", "weights")}  # fmt: skip
        last = sum(ends(offsets(getattr(a, f"index{q}"), 1))[1] - 1 for q in range(letters))
        last += sum((getattr(a, f"n{k}") - 1) * getattr(a, f"s{k}") for k, letter in enumerate(form) if letter == "u")
        return {"src": last + lang.SIZES[source] * vector if a.count else 0, "dst": unit * a.count, **tables}

    return CudaKernel(
        Source(text, name, scope), name, fields, threads=BLOCK, blocks=lambda a: ceil_div(a.count, BLOCK),
        extents=reach,
    )  # fmt: skip


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
    args |= axis_args([n for n, _, _ in axes], s=[s for _, s, _ in axes])
    args["count"] = math.prod(n for n, _, _ in axes)
    form = "".join("u" if found is None else "p" for _, _, found in axes)
    return Step(blend(dtype_name(source), dtype_name(target), form, tuple(taps), vector), args)


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


def samples() -> list[CudaKernel]:
    """A kernel of each kind, for the table of resources."""
    forms = [blend("f32", "f32", "uppu", (2, 2), 4), blend("f16", "f16", "uppu", (2, 2), 8)]
    return [*forms, blend("f32", "f32", "upp", (4, 4), 1), blend("f32", "f16", "upu", (0,), 4)]
