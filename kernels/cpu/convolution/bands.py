"""A convolution and the depthwise one behind it, a band of rows at a time, so that what is between stays in cache.

The two kernels are those that the layers have alone; this one only calls them with changed parameter records: the first
computes a band into a buffer of the thread, the second every row of results whose inputs are there by then.  The rows
that the next band needs again are kept.  Every number is computed as without bands, so the bits are the same.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from bolt_numba.base.selects import divisor, either, greatest, least
from bolt_numba.kernels.cpu.convolution.depthwise import FIELDS as DEPTHWISE
from bolt_numba.kernels.cpu.convolution.depthwise import depthwise_reach
from bolt_numba.kernels.cpu.language.lang import address_of, call_kernel, ceil_div, copy_bytes, split, store_i64
from bolt_numba.kernels.cpu.machine import L2
from bolt_numba.kernels.cpu.products.sweep import sweep
from bolt_numba.kernels.cpu.products.sweep_bf16 import sweep_bf16
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.jit import CODE, I64, PTR, Field, Native, native
from bolt_numba.kernels.registry import Argument, In, Out, Pitch, Scratch, Step
from bolt_numba.kernels.unseen import Packed, tested

_RECORD: Any = sweep.params
FIRST, SECOND = "first_", "second_"
FIELDS: dict[str, Any] = {
    **{FIRST + name: kind for name, kind in sweep.fields.items()},
    **{SECOND + name: kind for name, kind in DEPTHWISE.items()},
    "first": CODE, "second": CODE, "work": PTR, "work_step": I64, "images": I64, "bands": I64, "rows": I64, "row": I64,
    "reach": I64, "outs": I64,
}  # fmt: skip
"""Parameters: the records of `sweep` and of a depthwise kernel, and
first, second: the kernels · work: ``work_step`` bytes a thread: both records, workspace of the first kernel, rows ·
bands: of ``rows`` rows of ``row`` bytes of each of the ``images`` · reach: rows that a result looks at, less one ·
outs: rows of results of an image."""


def _at(params: Any, name: str) -> int:
    return int(params.fields[name][1])


def _record(fields: dict[str, Field]) -> Any:
    return np.dtype([(k, f.dtype) for k, f in fields.items()], align=True)


_WHOLE, _SECOND = _record(FIELDS), _record(DEPTHWISE)
FIRST_SIZE, SECOND_SIZE = _RECORD.itemsize, _SECOND.itemsize
SECOND_AT = _at(_WHOLE, SECOND + "x")
RECORDS = -(-(FIRST_SIZE + SECOND_SIZE) // 64) * 64
C_AT, SHARE_AT, SCRATCH_AT = (_at(_RECORD, name) for name in ("c", "share", "scratch"))
X_AT, Y_AT, RES_AT, H_AT, TOP_AT, OH_AT, IMAGES_AT = (
    _at(_SECOND, name) for name in ("x", "y", "res", "h", "top", "oh", "images")
)


def _reach(first: Native, a: Any) -> dict[str, Reach]:
    """Extents of `bands` in front of which stands this kernel: those of both but for what is between."""
    one, two = (
        SimpleNamespace(**{k.removeprefix(part): v for k, v in vars(a).items() if k.startswith(part)}, threads=1)
        for part in (FIRST, SECOND)
    )
    reach = {FIRST + name: value for name, value in {**tested(first.extents)(one), "c": 0, "scratch": 0}.items()}
    reach |= {SECOND + name: value for name, value in {**depthwise_reach(two), "x": 0}.items()}
    used = RECORDS + one.scratch_step + (a.rows + a.reach) * a.row
    return {**reach, "work": (a.threads - 1) * a.work_step + used}


@native(extents=partial(_reach, sweep), **FIELDS)
def bands(p, tid, nthreads):
    rows, row, n, reach = p.rows, p.row, p.bands, p.reach
    sh, top, line, res_line = p.second_sh, p.second_top, 4 * p.second_yp * p.second_ow, 4 * p.second_rp * p.second_ow
    total = p.images * n
    first = p.work + p.work_step * tid
    second, scratch = first + FIRST_SIZE, first + RECORDS
    buffer = scratch + p.first_scratch_step
    copy_bytes(first, address_of(p), FIRST_SIZE)
    copy_bytes(second, address_of(p) + SECOND_AT, SECOND_SIZE)
    store_i64(first + SHARE_AT, 0)
    store_i64(second + IMAGES_AT, 1)
    store_i64(second + X_AT, buffer)
    lo, hi = split(total, tid, nthreads)
    begin, end = 0, 0
    for unit in range(lo - (1 if lo % n > 0 and hi > lo else 0), hi):
        image, b = unit // n, unit % n
        if b == 0 or end != b * rows:
            begin, end = b * rows, b * rows
        keep = min(end - begin, reach)
        if keep < end - begin:
            copy_bytes(buffer, buffer + (end - keep - begin) * row, keep * row)
        begin = end - keep
        # The first kernel takes this band for the share of one thread of many.
        store_i64(first + C_AT, buffer + keep * row - rows * row * unit)
        store_i64(first + SCRATCH_AT, scratch - p.first_scratch_step * unit)
        call_kernel(p.first, first, unit, total)
        end = begin + keep + rows
        if unit >= lo:
            o_lo = 0 if b == 0 else min(ceil_div(max(b * rows + top - reach, 0), sh), p.outs)
            o_hi = p.outs if b == n - 1 else min(ceil_div(max(end + top - reach, 0), sh), p.outs)
            if o_hi > o_lo:
                store_i64(second + H_AT, end - begin)
                store_i64(second + TOP_AT, begin + top - o_lo * sh)
                store_i64(second + OH_AT, o_hi - o_lo)
                store_i64(second + Y_AT, p.second_y + (image * p.outs + o_lo) * line)
                if p.second_res != 0:
                    store_i64(second + RES_AT, p.second_res + (image * p.outs + o_lo) * res_line)
                call_kernel(p.second, second, 0, 1)


bands_bf16 = native(extents=partial(_reach, sweep_bf16), **FIELDS)(bands.body)
"""`bands` behind `sweep_bf16`: the same machine code."""

BAND_BYTES = L2 * 7 // 16
"""Bytes of rows between the layers that are kept at once."""
WHOLE_BYTES = L2
"""Bytes of an image between the layers under which one thread has it as one band: most of it stays in cache."""


def choose_rows(h: int, row: int, reach: int, threads: int) -> int:
    """Rows of a band: the most that divide the image and fit, at least as many as are kept.

    Where there are none, or less than `WHOLE_BYTES`, they are the whole image for one thread; for several they are 0.
    Every thread but the first computes one band twice, so that bands are small where threads share them.
    """
    most = h if threads == 1 else greatest(h // (12 * threads), reach)
    rows = divisor(h, least(most, BAND_BYTES // row - reach))
    rows = either(rows >= greatest(reach, 1), rows, h if threads == 1 else 0)
    made: int = either((h * row < WHOLE_BYTES) & (threads == 1), h, rows)
    return made


def _moved(arg: Argument, offset: int, between: int) -> Argument:
    """An argument of one of two steps as one of the joined step; between: elements of a row of what is between."""
    if isinstance(arg, Pitch):
        return between if _is_between(arg.of, offset) else Pitch(_moved(arg.of, offset, between))  # type: ignore[arg-type]
    if isinstance(arg, In):
        return 0 if _is_between(arg, offset) else replace(arg, index=arg.index + offset)
    if isinstance(arg, Packed):
        return arg.moved(lambda index: index + offset) if offset else arg
    return 0 if isinstance(arg, Out) and _is_between(arg, offset) else arg


def _is_between(arg: In | Out, offset: int) -> bool:
    return isinstance(arg, Out) if offset == 0 else isinstance(arg, In) and arg.index == 0


def joined(one: Step, two: Step, inputs: int, h: int, threads: int) -> Step | None:
    """One step for a `sweep` or `sweep_bf16` over the pixels of images of h rows and the depthwise kernel behind it.

    inputs: operands of the first node; those of the second come behind them, but for the one between.  None where the
    first is another kernel or the image has no rows to divide.
    """
    a: Mapping[str, Any] = one.args
    b: Mapping[str, Any] = two.args
    width, c, images, reach = b["wd"], b["c"], b["images"], (b["rows"] - 1) * b["dh"]
    row = 4 * width * c
    if one.kernel not in (sweep, sweep_bf16) or a["blocks"] != 1 or a["m"] != images * h * width:
        return None
    rows = choose_rows(h, row, reach, threads)
    are_some, rows = rows > 0, greatest(rows, 1)
    if are_some is False:
        return None
    parallel = threads > 1 and images * h // rows >= 2 * threads
    count = either(parallel, threads, 1)
    work_step = RECORDS + a["scratch_step"] + (rows + reach) * row
    work_step = -(-work_step // 64) * 64
    args: dict[str, Argument] = {FIRST + name: _moved(arg, 0, c) for name, arg in a.items()}
    args |= {SECOND + name: _moved(arg, inputs - 1, c) for name, arg in b.items()}
    args |= {
        FIRST + "scratch": 0, "first": one.kernel, "second": two.kernel,
        "work": Scratch(count * work_step), "work_step": work_step, "images": images, "bands": h // rows, "rows": rows,
        "row": row, "reach": reach, "outs": b["oh"],
    }  # fmt: skip
    return Step(bands if one.kernel is sweep else bands_bf16, args, parallel, when=are_some)
