"""LabelEncoder and OneHotEncoder of numbers: a row of a table for each element, by a search among sorted keys."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.types import F32, F64, I32, STRING, Array, dtype_name
from bolt_numba.base.types import I64 as INT64
from bolt_numba.kernels.declare import I64, PTR, Inline, inline
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.geometry.elements import FAULT, DeviceParts, elements
from bolt_numba.kernels.registry import Argument, Context, Fault, In, Out, Outs, Step, Types, always, everywhere
from bolt_numba.kernels.unseen import content
from bolt_numba.ops.data.ml import MOST_ONE_HOT, LabelEncoder, OneHotEncoder, one_hot_rows, whole_range

_SORTED = (F32, F64, I32, INT64)


def searched(on: DeviceParts, dtype: str) -> Inline:
    """Helper ``(keys, k, given)``: place of the last of k ascending keys that is not above a number, 0 without one."""
    load, size = on.load(dtype), int(dtype[1:]) // 8

    @inline
    def search(keys, k, given):
        at, left = 0, k
        while left > 1:
            half = left >> 1
            at = at + half if load(keys + size * (at + half)) <= given else at
            left -= half
        return at

    made: Inline = search
    return made


def _found(a: Numbers, dtype: str, strict: bool) -> dict[str, Reach]:
    size = int(dtype[1:]) // 8
    return {"x": size * a.count, "keys": size * a.k, "rows": (a.k + 2) * a.run, "y": a.count * a.run}


@elements(
    over={"i": "count"}, extents=_found, x=PTR, keys=PTR, rows=PTR, y=PTR, k=I64, run=I64,
    fault=FAULT, low=I64, high=I64,
)  # fmt: skip
def find_rows(on: DeviceParts, dtype: str, strict: bool):
    """Kernel of y[i] = the row of the last of k ascending keys that is x[i].  NaN: behind all keys.

    rows: [k + 2, run], the last but one of what is no key, the last of NaN; x: [count] of ``dtype``.  strict: what is
    no key is reported, as keys are all from low to high.
    """
    load, move, report, size = on.load(dtype), on.move, on.report, int(dtype[1:]) // 8
    search = searched(on, dtype)

    @inline
    def element(i, c, x, keys, rows, y, k, run, fault, low, high):
        given = load(x + size * i)
        at = search(keys, k, given)
        if load(keys + size * at) != given:
            at = k + 1 if given != given else k
            if strict:
                report(fault, i, np.int64(given), low, high)
                return -1
        move(y + i * run + c, rows + at * run + c, run)
        return at

    return element


def _order(keys: Array) -> Array:
    """Places of the keys in ascending order; of equal ones the first comes last, and NaN behind all."""
    return len(keys) - 1 - np.argsort(keys[::-1], kind="stable")


def _ascending(keys: Array) -> Array:
    return np.ascontiguousarray(keys[_order(keys)])


def _label_rows(keys: Array, values: Array, default: Array) -> Array:
    nan = np.flatnonzero(keys != keys)[:1]
    return np.concatenate([values[_order(keys)], default.reshape(-1), values[nan] if nan.size else default.reshape(-1)])


def _category_rows(categories: Array) -> Array:
    rows = one_hot_rows(categories)
    return np.concatenate([rows[:-1][_order(categories)], rows[-1:], rows[-1:]])


def _steps(
    ins: Types, rows: Argument, run: int, bounds: tuple[int, int] | None, context: Context, on: DeviceParts
) -> list[Step]:
    x, keys = ins[0], ins[1]
    low, high = bounds or (0, 0)
    args: dict[str, Argument] = {"x": In(0), "rows": rows, "y": Out(0), "count": x.size, "k": keys.size, "run": run}
    args |= {"keys": context.packed(keys.known, "ascending", _ascending), "low": low, "high": high}
    args |= {"fault": None if bounds is None else Fault(0)}
    return [on.step(find_rows, (dtype_name(x.dtype), bounds is not None), args, on.pays(x.size * run, x.size))]


def _known(ins: Types) -> tuple[Any, ...]:
    return tuple(ins[i].known for i in (1, 2, 3))


def _is_table(op: LabelEncoder, ins: Types) -> bool:
    is_known = all(known is not None for known in _known(ins))
    return is_known and ins[0].dtype in _SORTED and ins[2].dtype != STRING and bool(ins[1].size)


@everywhere(LabelEncoder, accepts=_is_table, computes=always, few=True)
def label_encoder(op: LabelEncoder, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Numbers by numbers that are known."""
    if not outs[0].size:
        return []
    return _steps(
        ins, context.packed(_known(ins), "label rows", _label_rows), outs[0].dtype.itemsize, None, context, on
    )


def _is_small(op: OneHotEncoder, ins: Types) -> bool:
    categories = ins[1].known
    if categories is None or ins[0].dtype not in _SORTED or not 0 < ins[1].size <= MOST_ONE_HOT:
        return False
    return op.zeros or whole_range(content(categories)) is not None


@everywhere(OneHotEncoder, accepts=_is_small, computes=always, few=True)
def one_hot_encoder(op: OneHotEncoder, ins: Types, outs: Outs, context: Context, on: DeviceParts) -> list[Step]:
    """Numbers of a few known categories, which are all from one to another where a number must be one."""
    if not outs[0].size:
        return []
    bounds = None if op.zeros else whole_range(content(ins[1].known))
    rows = context.packed(ins[1].known, "category rows", _category_rows)
    return _steps(ins, rows, F32.itemsize * ins[1].size, bounds, context, on)
