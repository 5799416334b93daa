"""Tasks with failures, cancellations, deadlines and streams at random: none is lost, none comes twice, order is kept.

    python -m tests.flow.test_stress 100000      # make flow-stress; also says what memory did
"""

from __future__ import annotations

import random
import resource
import sys
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from bolt_numba.flow import Flow, FlowDeadlineError, FlowError, FlowTask, State


def maybe(x: Any) -> Any:
    if x[0, 0] % 17 == 3:
        raise ValueError("unlucky")
    return x


def numbered(x: Any, seen: int) -> tuple[int, int]:
    return seen, seen + 1


def made(how: dict[str, Any], order: str) -> Flow:
    flow = Flow("stress", inputs="x", outputs=["y", "turn", "parts"], capacity=32, order=order, **how)
    flow.function(maybe, "x", "a", name="maybe")
    flow.function(lambda a: a * 2, "a", "b", name="batched", max_batch=4)
    flow.function(numbered, "a", "turn", name="turns", states={"seen": State("next", 0)})
    flow.function(lambda a: [a] * (int(a[0, 0]) % 4), "a", "list", name="list")
    flow.function(lambda x: x.shape, "list", "parts", name="parts", each="list")
    return flow.function(lambda b: b + 1, "b", "y", name="last", queue=2)


def fill(flow: Flow, count: int, chance: random.Random, tasks: dict[int, FlowTask]) -> None:
    """Enqueue tasks, cancel some, give some too little time."""
    for i in range(count):
        x = np.full((1, chance.choice((1, 2))), i, np.int64)
        deadline = chance.choice((None, None, None, 1e-4, 10.0))
        task = flow.enqueue(x=x, stream=chance.choice((None, 0, 1, 2)), deadline=deadline)
        tasks[i] = task
        if chance.random() < 0.1:
            task.cancel()
    flow.finish()


def stress(count: int, seed: int, how: dict[str, Any], order: str) -> Counter[str]:
    """How many tasks ended in each way; raises AssertionError where one is lost, comes twice or is another's."""
    tasks: dict[int, FlowTask] = {}
    ends: Counter[str] = Counter()
    turns: dict[Any, int] = {}
    numbers: set[int] = set()
    with made(how, order) as flow:
        filling = threading.Thread(target=fill, args=(flow, count, random.Random(seed), tasks))
        filling.start()
        last = -1
        for task in flow:
            assert task.done()
            assert task.number not in numbers
            numbers.add(task.number)
            assert order != "fifo" or task.number == last + 1
            last = task.number
            ends[outcome(task, turns if order == "fifo" else None)] += 1
            tasks.pop(task.number, None)
        filling.join()
        assert flow.size() == 0
    assert numbers == set(range(count))
    found = flow.statistics()
    assert (found.done, found.cancelled) == (ends["done"], ends["cancelled"])
    assert found.failed == ends["failed"] + ends["late"]
    assert not flow.engine.open
    assert not any(station.queue for station in flow.engine.stations)
    lines = [line for memory in flow.engine.streams.values() for line in memory.lines.values()]
    assert not any(line.tasks or line.parked or line.is_taken for line in lines)
    return ends


def outcome(task: FlowTask, turns: dict[Any, int] | None) -> str:
    """How a task ended; its results are its own."""
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    if error is not None:
        assert isinstance(error, FlowDeadlineError) or "unlucky" in str(error)
        return "late" if isinstance(error, FlowDeadlineError) else "failed"
    results, i = task.result(), task.number
    assert (results["y"] == 2 * i + 1).all()
    assert len(results["parts"]) == i % 4
    if task.stream is None:
        assert results["turn"] == 0
    elif turns is not None:
        assert results["turn"] >= turns.get(task.stream, 0)  # tasks that ended later than their turn took one
        turns[task.stream] = results["turn"] + 1
    return "done"


HOWS = [({"workers": 3}, "fifo"), ({"workers": 3}, "completed"), ({"copies": 2}, "fifo")]


@pytest.mark.parametrize(("how", "order"), HOWS)
def test_no_task_is_lost_and_none_comes_twice(how: dict[str, Any], order: str) -> None:
    ends = stress(700, 0, how, order)
    assert ends.total() == 700
    assert min(ends["done"], ends["failed"], ends["cancelled"]) > 0


def main(count: int) -> None:
    """All of it at length: prints how tasks ended and the peak of memory after each tenth."""
    for part in range(10):
        how, order = HOWS[part % 3]
        ends = stress(count // 10, part, how, order)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        sys.stdout.write(f"{count // 10 * (part + 1):8d} tasks: {dict(ends)}, peak {peak} MiB\n")


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except FlowError as error:
        sys.exit(str(error))
