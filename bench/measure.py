"""Timing that can be trusted on a shared machine: turns of each contestant in fresh random order, medians, ratios."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Contestant = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call: the smallest, the median and the 90th percentile over all turns' medians."""

    best: float
    median: float
    p90: float
    calls: int


def interleave(
    contestants: Mapping[str, Contestant], *, turns: int = 9, turn_s: float = 0.15, pause_s: float = 0.01
) -> dict[str, Timing]:
    """Let every contestant run for ``turn_s`` seconds, ``turns`` times, in random order.

    The pause before a turn lets the other contestant's spinning worker threads go to sleep; the first call of a turn
    is not counted, because it wakes the own ones.
    """
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    counts = dict.fromkeys(contestants, 0)
    for run in contestants.values():
        run()
    order = list(contestants)
    for _ in range(turns):
        random.shuffle(order)
        for name in order:
            time.sleep(pause_s)
            spent = _turn(contestants[name], turn_s)
            samples[name].append(float(np.median(spent)))
            counts[name] += len(spent)
    return {
        name: Timing(min(s), float(np.median(s)), float(np.quantile(s, 0.9)), counts[name])
        for name, s in samples.items()
    }


def _turn(run: Contestant, turn_s: float) -> list[float]:
    run()
    spent: list[float] = []
    end = time.perf_counter() + turn_s
    while True:
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        spent.append(now - start)
        if now > end and len(spent) >= 2:
            return spent


def geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if values else float("nan")
