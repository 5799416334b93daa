"""How much a server bears: the highest rate of requests at random at which it is steady."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from bench.serving.client import Latencies

STEPS, FACTOR, TRIES = 16, 0.9, 2
"""Rates that are tried, each this much of the one before: halving would be quicker, but one disturbance misleads it."""
LEAST_REQUESTS, LEAST_S, MOST_S = 200, 1.0, 3.0
ABOVE = 1.1
"""Of what clients without pause got: the first rate that is tried."""
ROUNDS = 5

Probe = Callable[[str, float, float, int], Latencies]
"""One window of a contestant's requests: its name, requests a second, seconds, and a seed."""


def window(rate: float) -> float:
    """Seconds that give percentiles something to stand on."""
    return min(MOST_S, max(LEAST_S, LEAST_REQUESTS / rate))


def highest(
    probe: Probe, closed: Mapping[str, float], single: Mapping[str, float]
) -> dict[str, tuple[float, Latencies | None]]:
    """The highest rate at which each is steady, and its latencies then.

    closed: requests a second without pause.  single: the median of requests one after the other.
    Contestants take turns.  What fails has one more try: other programs disturb, and they disturb all alike.
    """
    found = dict[str, tuple[float, Latencies | None]]()
    for step in range(STEPS):
        for name in [name for name in closed if name not in found]:
            rate = closed[name] * ABOVE * FACTOR**step
            for attempt in range(TRIES):
                latencies = probe(name, rate, window(rate), step * TRIES + attempt)
                if latencies.is_steady(single[name]):
                    found[name] = rate, latencies
                    break
    return {name: found.get(name, (0.0, None)) for name in closed}


def at_equal(probe: Probe, names: Sequence[str], rate: float) -> dict[str, tuple[float, float]]:
    """The medians over rounds of p50 and p99 of each at one rate, in turns."""
    late: dict[str, list[Latencies]] = {name: [] for name in names}
    for number in range(ROUNDS):
        for name in names:
            late[name].append(probe(name, rate, window(rate), number))
    return {name: (median(f.p50 for f in own), median(f.p99 for f in own)) for name, own in late.items()}
