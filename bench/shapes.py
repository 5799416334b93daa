"""What a new shape costs: the first call of sizes that a session has not seen, beside later calls of the same sizes.

Sessions have tapes before anything is timed.  Each size comes a few times in a row: first it is new, then known.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import onnx

import bolt_numba as bn
from bench.models import MODELS, Feeds, image, tokens
from bench.packages import path_of
from bench.zoo import ZOO

SERVED, MOST_BEFORE = 10, 60
"""Sizes in a row that tapes serve before the timing begins; sizes that a session is given until then, at most."""
CALLS = 5
"""Calls of each size; the last three are what a known shape costs."""


@dataclass(frozen=True)
class Sized:
    """A model that takes any sizes: its content or path, and inputs of so many different ones at random."""

    model: Callable[[], Any]
    feeds: Callable[[random.Random], Feeds]


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of new and known shapes, medians, and the median of their differences.

    counted: new sizes that tapes served; planned: others.
    """

    new: float
    known: float
    more: float
    counted: int
    planned: int


def pictures(name: str, least: int, most: int, step: int, height: int = 0) -> Callable[[random.Random], Feeds]:
    """Images of any height, or this one, and any width."""

    def made(draw: random.Random) -> Feeds:
        sides = [draw.randrange(least, most + 1, step) for _ in range(2)]
        return image(name, 1, 3, height or sides[0], sides[1])()

    return made


def any_yolo() -> bytes:
    """The zoo's detector with its height and width left open."""
    model = onnx.load(ZOO["yolo_n"].path())
    for axis, name in ((2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    for weight in model.graph.initializer:
        array = onnx.numpy_helper.to_array(weight)
        if array.dtype == np.int64 and array.shape == (3,) and array[1] == 144:
            weight.CopyFrom(onnx.numpy_helper.from_array(np.array([1, 144, -1]), weight.name))
    made: bytes = model.SerializeToString()
    return made


SIZED = {
    "minilm": Sized(MODELS["minilm_128"].path, lambda draw: tokens(draw.randrange(8, 400))()),
    "ppocr_rec": Sized(MODELS["ppocr_rec"].path, pictures("x", 32, 960, 8, height=48)),
    "ppocr_det": Sized(MODELS["ppocr_det"].path, pictures("x", 96, 512, 32)),
    "yolo_n": Sized(any_yolo, pictures("input", 96, 480, 32)),
    "isbn_yolo": Sized(path_of("isbn_yolo.onnx"), pictures("images", 160, 480, 32)),
}


def different(sized: Sized) -> Iterator[Feeds]:
    """Inputs of sizes that did not come before."""
    draw, seen = random.Random(0), set[Any]()
    for _ in range(10_000):
        feeds = sized.feeds(draw)
        shapes = tuple([x.shape for x in feeds.values()])
        if shapes not in seen:
            seen.add(shapes)
            yield feeds


def cost_of(sized: Sized, count: int, **options: Any) -> tuple[Cost, int]:
    """What ``count`` new sizes cost, and how many nodes the optimised graph has."""
    session = bn.compile(sized.model(), threads=1, stand_ins=False, **options)
    sizes = different(sized)
    served = 0
    for feeds in (next(sizes) for _ in range(MOST_BEFORE)):
        before = _plans(session)
        session.run(None, feeds)
        served = served + 1 if _plans(session) == before else 0
        if served >= SERVED:
            break
    new: list[float] = []
    known: list[float] = []
    planned = 0
    for feeds in islice(sizes, count):
        before = _plans(session)
        times = [_seconds(session, feeds) for _ in range(CALLS)]
        if _plans(session) > before:
            planned += 1
            continue
        new.append(times[0])
        known.append(float(np.median(times[2:])))
    more = [a - b for a, b in zip(new, known, strict=True)]
    middle = [1e3 * float(np.median(times)) if times else float("nan") for times in (new, known, more)]
    return Cost(*middle, len(new), planned), len(session.optimised.nodes)


def _seconds(session: bn.Session, feeds: Feeds) -> float:
    start = time.perf_counter()
    session.run(None, feeds)
    return time.perf_counter() - start


def _plans(session: bn.Session) -> int:
    """Plans that were made so far, by the session's region and those behind its cuts."""
    made, runners = 0, [session._runner]
    while runners:
        runner = runners.pop()
        made += sum(t.misses for t in runner.tapes.values())
        runners += runner.bodies.values()
        for prepared in {id(p): p for p in (*runner.prepared.values(), *_tapes(runner)) if p.rest is not None}.values():
            runners.append(prepared.rest)
    return made


def _tapes(runner: Any) -> list[Any]:
    return [tape for tapes in runner.tapes.values() for tape in tapes.tapes]
