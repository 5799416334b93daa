"""Ends of tasks that come at once, or where nobody looks: no worker and no task is lost."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from bolt_numba.errors import BoltError
from bolt_numba.flow import Flow, FlowError
from tests.flow.test_tasks import LONG


def test_one_of_two_readers_may_end_a_task() -> None:
    """On the way in, and behind a worker."""
    flow = Flow(inputs="x", outputs=["y", "z"], workers=1)
    flow.function(lambda x: x, "x", "y", name="list", each="x")
    flow.function(lambda x: x, "x", "z", name="other")
    with flow:
        assert isinstance(flow.submit(x=5).exception(LONG), FlowError)
        assert flow(x=[5]) == {"y": [5], "z": [5]}
    flow = Flow(inputs="x", outputs=["y", "z"], workers=1)
    flow.function(lambda x: x, "x", "m", name="first")
    flow.function(lambda x: x, "m", "y", name="list", each="m")
    flow.function(lambda x: x, "m", "z", name="other")
    with flow:
        assert isinstance(flow.submit(x=5).exception(LONG), FlowError)
        assert flow(x=[5]) == {"y": [5], "z": [5]}


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_nothing_that_a_batch_raises_ends_a_worker(raised: type[BaseException]) -> None:
    def node(x: Any) -> Any:
        if (x < 0).any():
            raise raised
        return x

    flow = Flow(inputs="x", outputs="y", workers=1)
    flow.function(node, "x", "y", max_batch=2, max_wait=0.2)
    with flow:
        for task in [flow.submit(x=np.full((1, 2), -1)) for _ in range(2)]:
            assert isinstance(task.exception(LONG), FlowError)
        np.testing.assert_array_equal(flow(x=np.ones((1, 2)))["y"], np.ones((1, 2)))


def test_who_is_told_of_an_end_may_submit_to_a_full_flow() -> None:
    flow = Flow(inputs="x", outputs="y", workers=1, capacity=1)
    flow.function(lambda x: x, "x", "y")
    told: list[int] = []
    is_over = threading.Event()

    def tell(_: Any) -> None:
        told.append(len(told))
        if len(told) == 3:
            is_over.set()
        else:
            flow.submit(x=len(told)).add_done_callback(tell)

    with flow:
        flow.submit(x=0).add_done_callback(tell)
        assert is_over.wait(LONG)
    assert told == [0, 1, 2]


def test_who_is_told_of_a_cancelled_task_may_close_the_flow() -> None:
    release, is_running = threading.Event(), threading.Event()

    def node(x: int) -> int:
        is_running.set()
        release.wait(LONG)
        return x

    flow = Flow(inputs="x", outputs="y", workers=1)
    flow.function(node, "x", "y")
    first, second = flow.submit(x=0), flow.submit(x=1)
    assert is_running.wait(LONG)
    second.add_done_callback(lambda _: (release.set(), flow.close()))
    second.cancel()
    assert first.result(LONG) == {"y": 0}


def test_an_error_before_the_first_task_is_the_one_that_is_seen() -> None:
    flow = Flow(inputs="x", outputs="y", workers=1)
    flow.function(lambda x: x, "x", "h")
    with pytest.raises(ZeroDivisionError), flow:
        raise ZeroDivisionError


def test_a_flow_that_had_no_task_is_closed_without_ado() -> None:
    """No model of it is compiled for that, and it need not be sound."""
    flow = Flow("f", inputs="x", outputs="y").function(len, "nothing", "y")
    flow.close()
    assert list(flow) == []
    assert flow.statistics().tasks == 0
    with pytest.raises(FlowError, match="flow 'f': got a task after the flow was finished or closed"):
        flow.submit(x=1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_of_fork_waits_for_nobody_who_makes_the_flow() -> None:
    flow = Flow(inputs="x", outputs="y", workers=1).function(lambda x: x * 2, "x", "y", name="twice")
    begun, release = threading.Event(), threading.Event()

    def hold() -> None:
        with flow._lock:
            begun.set()
            release.wait(LONG)

    thread = threading.Thread(target=hold)
    thread.start()
    assert begun.wait(LONG)
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if flow(x=2) == {"y": 4} else 1)
    assert os.waitpid(child, 0)[1] == 0
    release.set()
    thread.join()
    with flow:
        assert flow(x=3) == {"y": 6}


class MuteError(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class PairError(BoltError):
    """Is not made of one text."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize("how", [{"workers": 1}, {"copies": 1}])
@pytest.mark.parametrize("error", [MuteError(), PairError(1, 2), SystemExit(3)])
def test_no_error_of_the_callers_ends_a_worker(error: BaseException, how: dict[str, int]) -> None:
    def raises(x: int) -> int:
        if x:
            raise error
        return x

    with Flow(inputs="x", outputs="y", **how).function(raises, "x", "y", name="bad") as flow:  # type: ignore[arg-type]
        found = flow.submit(x=1).exception(LONG)
        assert isinstance(found, FlowError)
        assert str(found).startswith(f"node 'bad': {type(error).__name__}")
        assert found.__cause__ is error
        assert flow.submit(x=0).result(LONG) == {"y": 0}


def test_who_is_told_of_an_end_may_wait_for_a_task_of_the_same_batch() -> None:
    def inverse(x: Any) -> Any:
        if not x.all():
            raise ZeroDivisionError
        return 1 / x

    good: Future[Any] = Future()
    found: Future[Any] = Future()
    flow = Flow(inputs="x", outputs="z", workers=2)
    flow.function(inverse, "x", "y", name="inverse", max_batch=2, max_wait=5.0)
    flow.function(lambda y: y + 1, "y", "z", name="more")
    with flow:
        bad = flow.submit(x=np.zeros(1))
        bad.add_done_callback(lambda _: found.set_result(good.result(LONG).result(LONG)["z"].tolist()))
        good.set_result(flow.submit(x=np.full(1, 2.0)))
        assert found.result(LONG) == [1.5]
