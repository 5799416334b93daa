"""Several flows with one line of tasks: order, room, errors, threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from bolt_numba.flow import Flow, FlowEmptyError, FlowError, FlowFullError, Flows

LONG = 60.0


def flows_of(*, gate: threading.Event | None = None, **options: Any) -> Flows:
    slow = Flow("slow", inputs="x", outputs="y")
    slow.function(lambda x: (x, gate is None or gate.wait(LONG))[0], "x", "y", name="wait")
    quick = Flow("quick", inputs="x", outputs="y").function(lambda x: -x, "x", "y", name="turn")
    return Flows({"slow": slow, "quick": quick}, **options)


@pytest.mark.parametrize("order", ["fifo", "completed"])
def test_tasks_of_all_come_in_one_order(order: str) -> None:
    gate = threading.Event()
    with flows_of(gate=gate, order=order) as flows:
        flows.enqueue("slow", x=1)
        flows.enqueue("quick", {"x": 2})
        if order == "completed":
            assert flows.dequeue(timeout=LONG).result() == {"y": -2}
        with pytest.raises(FlowEmptyError, match=r"no task was done within 0\.0 s"):
            flows.dequeue(block=False)
        gate.set()
        assert flows.dequeue(timeout=LONG).result() == {"y": 1}
        if order == "fifo":
            assert flows.dequeue().result() == {"y": -2}
        assert flows.size() == 0


def test_room_is_that_of_all_together() -> None:
    gate = threading.Event()
    with flows_of(gate=gate, capacity=2) as flows:
        flows.enqueue("slow", x=1)
        flows.enqueue("quick", x=1)
        with pytest.raises(FlowFullError, match="got 2 tasks that are not done or not read"):
            flows.enqueue("quick", x=2, timeout=0)
        gate.set()
        flows.dequeue()
        assert flows.enqueue("quick", x=3, timeout=LONG).result(LONG) == {"y": -3}


def test_a_task_that_is_refused_takes_no_room() -> None:
    with flows_of(capacity=1) as flows:
        for _ in range(3):
            with pytest.raises(FlowError, match="inputs: got"):
                flows.enqueue("quick", z=1)
        with pytest.raises(FlowError, match="flow: got 'other', wanted one of"):
            flows.enqueue("other", x=1)
        assert flows.enqueue("quick", x=1, timeout=0).result(LONG) == {"y": -1}
    with pytest.raises(FlowError, match="flows: got"):
        Flows({})


def test_threads_fill_and_read_without_loss() -> None:
    found: list[int] = []
    lock = threading.Lock()
    with flows_of(capacity=5, order="completed") as flows:

        def fill(name: str) -> None:
            for i in range(1, 101):
                flows.enqueue(name, x=i)

        def read() -> None:
            for _ in range(100):
                made = flows.dequeue(timeout=LONG).result()["y"]
                with lock:
                    found.append(made)

        threads = [threading.Thread(target=fill, args=(name,)) for name in ("slow", "quick")]
        threads += [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
    assert sorted(found) == [*range(-100, 0), *range(1, 101)]


def test_who_waits_for_room_is_told_of_the_end() -> None:
    gate, said = threading.Event(), list[str]()
    flows = flows_of(gate=gate, capacity=1)
    flows.enqueue("slow", x=1)

    def waits() -> None:
        with pytest.raises(FlowError) as caught:
            flows.enqueue("quick", x=2)
        said.append(str(caught.value))

    thread = threading.Thread(target=waits, daemon=True)
    thread.start()
    gate.set()
    flows.close()
    thread.join(LONG)
    assert said == ["flow 'quick': got a task after the flows were closed, wanted it before"]
    assert flows.dequeue().result() == {"y": 1}
