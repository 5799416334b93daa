"""NonMaxSuppression: candidates by their scores, each tested against the boxes kept so far, a vector at a time.

Where few boxes of many are wanted a heap gives the candidates, as long as few are asked for; else they are sorted.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.selects import greatest, least, table
from bolt_numba.base.types import I64 as INT64
from bolt_numba.base.types import Array, TensorType
from bolt_numba.kernels.cpu.language.lang import (
    LANES,
    any_lane,
    lanes_below,
    load_f32,
    load_i64,
    splat,
    store_f32,
    store_i64,
    vload_n,
    vmax,
    vmin,
)
from bolt_numba.kernels.cpu.reductions.sorting import COUNTERS, LAST_KEY, key_f32, sift_down, sort_keys
from bolt_numba.kernels.data_sized import Empty, Sized, data_sized, sized
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.jit import F32, I64, PTR, inline, native
from bolt_numba.kernels.registry import Argument, In, Out, Scratch, Step, Types
from bolt_numba.ops.arrays.gather import NonMaxSuppression

HEAPED_PART = 4
"""A heap gives candidates where fewer than one of so many may be kept, and until one of so many has been looked at."""


@inline
def corners_of(box, center):
    """A box of 4 f32 as y1, x1, y2, x2 with y1 <= y2 and x1 <= x2, and the area."""
    half = np.float32(0.5)
    a, b, c, d = load_f32(box), load_f32(box + 4), load_f32(box + 8), load_f32(box + 12)
    if center:
        y1, x1, y2, x2 = b - d * half, a - c * half, b + d * half, a + c * half
    else:
        y1, x1, y2, x2 = min(a, c), min(b, d), max(a, c), max(b, d)
    return y1, x1, y2, x2, (y2 - y1) * (x2 - x1)


@inline
def candidates_of(scores, items, count, threshold, limited):
    """Items of key << 32 | place of the boxes that score above the threshold; the greatest score has the least key."""
    found = 0
    least = splat(threshold)
    for block in range(0, count, LANES):
        left = min(count - block, LANES)
        if limited and not any_lane((vload_n(scores + 4 * block, left) > least) & lanes_below(left)):
            continue
        for i in range(block, block + left):
            score = load_f32(scores + 4 * i)
            key = LAST_KEY - key_f32(scores + 4 * i) if score == score else LAST_KEY
            store_i64(items + 8 * found, (key << 32) | i)
            found += 1 if not limited or score > threshold else 0  # no branch, as nobody could foresee it
    return found


@inline
def heap_up(items, places, m, count):
    """Make items of candidates a heap: keys that are greater for greater scores, and ``count`` less the places."""
    for i in range(m):
        item = load_i64(items + 8 * i)
        store_i64(places + 8 * i, count - (item & LAST_KEY))
        store_i64(items + 8 * i, LAST_KEY - ((item >> 32) & LAST_KEY))
    for i in range(m // 2 - 1, -1, -1):
        sift_down(items, places, m, i)


@inline
def overlaps_any(kept, room, n, box, limit):
    """Whether a box shares more than ``limit`` of the union with any of the first n kept ones, rows [5, room].

    box: as `corners_of` gives it.
    """
    y1, x1, y2, x2, area = splat(box[0]), splat(box[1]), splat(box[2]), splat(box[3]), splat(box[4])
    most, zero = splat(limit), splat(np.float32(0))
    for i in range(0, n, LANES):
        at, left = kept + 4 * i, n - i
        high = vmin(y2, vload_n(at + 8 * room, left)) - vmax(y1, vload_n(at, left))
        wide = vmin(x2, vload_n(at + 12 * room, left)) - vmax(x1, vload_n(at + 4 * room, left))
        shared = vmax(high, zero) * vmax(wide, zero)
        union = (vload_n(at + 16 * room, left) + area) - shared
        if any_lane((shared / union > most) & (union > zero) & lanes_below(left)):
            return True
    return False


def _suppressed(a: Numbers) -> dict[str, Reach]:
    lists = a.images * a.classes
    return {
        "boxes": 16 * a.images * a.count,
        "scores": 4 * lists * a.count,
        "y": 24 * lists * a.most,
        "found": 8,
        "kept": 20 * a.most,
        "items": 16 * a.count + COUNTERS,
    }


@inline
def suppress_lists(p, most, limit, threshold):
    """Of each image and class at most ``most`` boxes, of which the record has room for ``p.most``."""
    count, room, kept = p.count, p.most, p.kept
    rows = 0
    for image in range(p.images):
        for c in range(p.classes):
            scores = p.scores + 4 * (image * p.classes + c) * count
            items, places, counters = p.items, p.items + 8 * count, p.items + 16 * count
            m = candidates_of(scores, items, count, threshold, p.limited)
            heaped = m // HEAPED_PART if most < m // HEAPED_PART else 0
            if heaped:
                heap_up(items, places, m, count)
            n = 0
            for i in range(m):
                if n >= most:
                    break
                if i < heaped:
                    place = count - load_i64(places)
                    store_i64(items, load_i64(items + 8 * (m - 1 - i)))
                    store_i64(places, load_i64(places + 8 * (m - 1 - i)))
                    sift_down(items, places, m - 1 - i, 0)
                else:
                    if i == heaped:
                        m = candidates_of(scores, p.items, count, threshold, p.limited)
                        items = sort_keys(p.items, places, counters, m, 32)
                    place = load_i64(items + 8 * i) & LAST_KEY
                box = corners_of(p.boxes + 16 * (image * count + place), p.center)
                if overlaps_any(kept, room, n, box, limit):
                    continue
                for row in range(5):
                    store_f32(kept + 4 * (row * room + n), box[row])
                n += 1
                store_i64(p.y + 24 * rows, image)
                store_i64(p.y + 24 * rows + 8, c)
                store_i64(p.y + 24 * rows + 16, place)
                rows += 1
    store_i64(p.found, rows)


@native(
    fastmath=set(), extents=_suppressed, boxes=PTR, scores=PTR, y=PTR, found=PTR, kept=PTR, items=PTR,
    images=I64, classes=I64, count=I64, most=I64, limit=F32, threshold=F32, limited=I64, center=I64,
)  # fmt: skip
def suppress(p, tid, nthreads):
    """y: rows (image, class, box) i64, found[0] of them.

    kept: [5, most] f32; items: 16 count + `COUNTERS` bytes.
    """
    suppress_lists(p, p.most, p.limit, p.threshold)


@native(
    fastmath=set(), extents=lambda a: {**_suppressed(a), "limits": 8, "overlap": 4, "score": 4}, boxes=PTR, scores=PTR,
    y=PTR, found=PTR, kept=PTR, items=PTR, limits=PTR, overlap=PTR, score=PTR, images=I64, classes=I64,
    count=I64, most=I64, limited=I64, center=I64,
)  # fmt: skip
def suppress_within(p, tid, nthreads):
    """The same by limits in memory: limits [1] i64, how many boxes, at most ``most``; overlap, score: [1] f32."""
    suppress_lists(p, min(load_i64(p.limits), p.most), load_f32(p.overlap), load_f32(p.score))


def _number(operand: Any) -> float:
    return 0 if operand is None else operand.reshape(-1)[0].item()


def _numbers(op: NonMaxSuppression, shape: Sequence[int], most: Any, overlap: Any, threshold: Any) -> dict[str, Any]:
    """Fields of a call that are no addresses, for scores of this shape and the contents of the last operands."""
    images, classes, count = shape
    return {
        "images": images, "classes": classes, "count": count, "most": greatest(least(_number(most), count), 0),
        "limit": _number(overlap), "threshold": _number(threshold), "limited": int(threshold is not None),
        "center": int(bool(op.center_point_box)),
    }  # fmt: skip


@data_sized(NonMaxSuppression)
def non_max_suppression(op: NonMaxSuppression, operands: Sequence[Any], empty: Empty) -> tuple[Array, ...]:
    """Class by class."""
    boxes, scores, limit_count, overlap, threshold = (*operands, None, None, None)[:5]
    numbers = _numbers(op, scores.shape, limit_count, overlap, threshold)
    count, most = numbers["count"], numbers["most"]
    y, found = empty((numbers["images"] * numbers["classes"] * most, 3), INT64), empty(1, INT64)
    if not y.size:
        return (y,)
    kept, items = empty(5 * most, np.float32), empty(2 * count + COUNTERS // 8, INT64)
    record = suppress.record(boxes=boxes, scores=scores, y=y, found=found, kept=kept, items=items, **numbers)
    suppress.call(record)
    return (y[: int(found[0])],)


@sized(NonMaxSuppression)
def sized_non_max_suppression(op: NonMaxSuppression, ins: Types) -> Sized | None:
    """The same as a step; limits that are not known are read from memory."""
    scores, limits = ins[1], (*ins[2:], None, None, None)[:3]
    is_known = all(t is None or t.known is not None for t in limits)
    is_open = limits[0] is not None and limits[0].known is None
    known = [None if t is None else t.known for t in limits]
    numbers = _numbers(op, scores.dims, table([scores.dims[2]]) if is_open else known[0], *known[1:])
    count, most = numbers["count"], numbers["most"]
    result = TensorType(INT64, (numbers["images"] * numbers["classes"] * most, 3))
    args: dict[str, Argument] = {
        "boxes": In(0), "scores": In(1), "y": Out(0), "found": Out(1), "kept": Scratch(20 * most),
        "items": Scratch(16 * count + COUNTERS), **numbers,
    }  # fmt: skip
    if not is_known:
        defaults = np.zeros(1, INT64), np.zeros(1, np.float32), np.zeros(1, np.float32)
        for i, name in enumerate(("limits", "overlap", "score")):
            args[name] = defaults[i] if limits[i] is None else In(2 + i)
        args = {name: args[name] for name in args.keys() - {"limit", "threshold"}}
    limited = int(limits[2] is not None)
    kernel = suppress if is_known else suppress_within
    return Sized((result,), (0,), [Step(kernel, {**args, "limited": limited}, parallel=False)])
