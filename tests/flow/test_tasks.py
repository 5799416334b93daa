"""Tasks of a flow: order, futures, room, errors, cancellation, deadlines, the end, forks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from bolt_numba.flow import Flow, FlowDeadlineError, FlowEmptyError, FlowError, FlowFullError, FlowTask

LONG = 30.0


class Gate:
    """A function that waits until it is let through, and says that it has begun."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Semaphore(0), threading.Event()

    def __call__(self, x: Any) -> Any:
        self.begun.release()
        assert self.open.wait(LONG)
        return x


def flow_of(function: Callable[..., Any], **options: Any) -> Flow:
    return Flow("f", inputs="x", outputs="y", **options).function(function, "x", "y", name="node")


def test_a_graph_forks_and_joins() -> None:
    flow = Flow(inputs=["x"], outputs=["sum", "double"])
    flow.function(lambda a, b: a + b, ["more", "double"], "sum", name="add")
    flow.function(lambda x: (x + 1, 2 * x), "x", ["more", "double"], name="both")
    with flow:
        assert flow(x=3) == {"sum": 10, "double": 6}
        assert flow({"x": 4})["sum"] == 13


def test_tasks_come_back_in_the_order_they_came() -> None:
    first = Gate()
    with flow_of(lambda x: first(x) if x == 0 else x, workers=3) as flow:
        tasks = [flow.enqueue(x=i) for i in range(10)]
        concurrent.futures.wait(tasks[1:], LONG)
        with pytest.raises(FlowEmptyError):
            flow.dequeue(block=False)
        with pytest.raises(FlowEmptyError):
            flow.dequeue(timeout=0.001)
        assert flow.size() == 10
        first.open.set()
        assert [flow.dequeue(timeout=LONG) for _ in tasks] == tasks
        assert flow.size() == 0


def test_tasks_come_back_as_they_are_done() -> None:
    first = Gate()
    with flow_of(lambda x: first(x) if x == 0 else x, workers=2, order="completed") as flow:
        tasks = [flow.enqueue(x=i) for i in range(4)]
        assert {flow.dequeue(timeout=LONG).result()["y"] for _ in range(3)} == {1, 2, 3}
        first.open.set()
        assert flow.dequeue(timeout=LONG) is tasks[0]


def test_dequeue_waits_only_for_what_is_under_way() -> None:
    with flow_of(lambda x: x, order="completed") as flow:
        with pytest.raises(FlowEmptyError, match="no task is left"):
            flow.dequeue()
        tasks = [flow.enqueue(x=i) for i in range(20)]
        found = list[FlowTask]()

        def read() -> None:
            with contextlib.suppress(FlowEmptyError):
                while True:
                    found.append(flow.dequeue())

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert not any(thread.is_alive() for thread in threads)
        assert sorted(found, key=lambda t: t.number) == tasks


def test_a_task_is_a_future() -> None:
    called: list[FlowTask] = []
    with flow_of(lambda x: x + 1) as flow:
        tasks = [flow.submit(x=i) for i in range(5)]
        tasks[0].add_done_callback(called.append)  # type: ignore[arg-type]
        done = list(concurrent.futures.as_completed(tasks, LONG))
        assert sorted(t.result()["y"] for t in done) == [1, 2, 3, 4, 5]
        assert flow.size() == 0
    assert called == tasks[:1]


def test_iteration_ends_with_a_finished_flow() -> None:
    with flow_of(lambda x: -x) as flow:
        for i in range(5):
            flow.enqueue(x=i)
        flow.finish()
        assert [task.result()["y"] for task in flow] == [0, -1, -2, -3, -4]
        with pytest.raises(FlowEmptyError, match="no task is left"):
            flow.dequeue()
        with pytest.raises(FlowError, match="after the flow was finished"):
            flow.enqueue(x=1)


def test_one_thread_enqueues_while_another_reads() -> None:
    with flow_of(lambda x: x, capacity=4, workers=2) as flow:

        def fill() -> None:
            for i in range(200):
                flow.enqueue(x=i)
            flow.finish()

        thread = threading.Thread(target=fill)
        thread.start()
        assert [task.result()["y"] for task in flow] == list(range(200))
        thread.join()


def test_map_takes_no_more_than_there_is_room_for() -> None:
    taken = []

    def source() -> Any:
        for i in range(50):
            taken.append(i)
            yield {"x": i}

    with flow_of(lambda x: x * x, workers=2) as flow:
        results = flow.map(source(), ahead=3)
        assert next(results) == {"y": 0}
        assert len(taken) == 3
        assert [r["y"] for r in results] == [i * i for i in range(1, 50)]


def test_map_cancels_what_is_left_behind_an_error() -> None:
    gate = Gate()
    with flow_of(lambda x: 1 // x if x < 2 else gate(x), workers=1) as flow:
        with pytest.raises(FlowError, match="node 'node': ZeroDivisionError"):
            list(flow.map([{"x": 1}, {"x": 0}, *({"x": i} for i in range(2, 9))]))
        gate.open.set()
    assert flow.statistics().cancelled == 7


def test_enqueue_waits_for_room() -> None:
    gate = Gate()
    with flow_of(gate, workers=1, capacity=2) as flow:
        flow.enqueue(x=0)
        flow.enqueue(x=1)
        with pytest.raises(FlowFullError):
            flow.enqueue(x=2, timeout=0)
        with pytest.raises(FlowFullError):
            flow.submit(x=2, timeout=0.001)
        later: list[FlowTask] = []
        thread = threading.Thread(target=lambda: later.append(flow.enqueue(x=2)))
        thread.start()
        gate.open.set()
        assert flow.dequeue(timeout=LONG).result() == {"y": 0}
        thread.join(LONG)
        assert later[0].result(LONG) == {"y": 2}
        with pytest.raises(FlowFullError):  # two are not read
            flow.enqueue(x=3, timeout=0)


def test_a_full_queue_makes_those_before_it_wait() -> None:
    gate, made = Gate(), []
    flow = Flow(inputs="x", outputs="y", capacity=50)
    flow.function(lambda x: made.append(x) or x, "x", "z", name="first", workers=1)
    flow.function(gate, "z", "y", name="last", workers=1, queue=3)
    with flow:
        tasks = [flow.submit(x=i) for i in range(20)]
        assert gate.begun.acquire(timeout=LONG)
        deadline = time.monotonic() + LONG
        while len(made) < 4 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(made) == 4  # one in the node, three before it
        gate.open.set()
        assert [t.result(LONG)["y"] for t in tasks] == list(range(20))
    assert flow.statistics().nodes["last"].deepest == 3


def test_an_error_is_of_its_task_alone() -> None:
    with flow_of(lambda x: 10 // x, workers=2) as flow:
        tasks = [flow.enqueue(x=x) for x in (1, 0, 2)]
        error = tasks[1].exception(LONG)
        assert isinstance(error, FlowError)
        assert str(error) == "node 'node': ZeroDivisionError: integer division or modulo by zero"
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert [flow.dequeue(timeout=LONG) for _ in tasks] == tasks
        assert tasks[2].result() == {"y": 5}


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_nothing_that_a_function_raises_ends_a_worker(raised: type[BaseException]) -> None:
    def node(x: int) -> int:
        if x:
            raise raised
        return x

    with flow_of(node, workers=1) as flow:
        assert isinstance(flow.submit(x=1).exception(LONG), FlowError)
        assert flow(x=0) == {"y": 0}


def test_the_key_of_a_stream_can_be_a_key() -> None:
    with Flow(inputs="x", outputs="y").function(lambda x: x, "x", "y", name="n") as flow:
        for key in ([], (1, [])):
            with pytest.raises(FlowError, match=r"flow 'flow': stream: got .*, wanted a key"):
                flow.submit(x=1, stream=key)
        assert flow.submit(x=1, stream=(1, "a")).result(LONG) == {"y": 1}


def test_a_function_that_gives_the_wrong_number_of_results() -> None:
    flow = Flow(inputs="x", outputs=["a", "b"]).function(lambda x: (x,), "x", ["a", "b"], name="n")
    with flow, pytest.raises(FlowError, match="node 'n': results: got 1 of them, wanted 2: a, b"):
        flow(x=1)


def test_a_task_can_be_cancelled_in_the_queue_and_while_it_runs() -> None:
    gate, ran = Gate(), []
    with flow_of(lambda x: ran.append(x) or gate(x), workers=1) as flow:
        tasks = [flow.enqueue(x=i) for i in range(4)]
        assert gate.begun.acquire(timeout=LONG)
        assert tasks[0].cancel()
        assert tasks[2].cancel()
        assert not tasks[2].cancel()
        assert concurrent.futures.wait([tasks[0], tasks[2]], LONG).not_done == set()
        gate.open.set()
        assert [flow.dequeue(timeout=LONG).cancelled() for _ in tasks] == [True, False, True, False]
        assert not tasks[1].cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            tasks[0].result()
    assert ran == [0, 1, 3]


def test_a_deadline_passes_in_the_queue_and_while_a_task_runs() -> None:
    gate = Gate()
    with flow_of(gate, workers=1) as flow:
        tasks = [flow.enqueue(x=0, deadline=0.02), flow.enqueue(x=1, deadline=0.01), flow.enqueue(x=2, deadline=LONG)]
        for task in tasks[:2]:
            with pytest.raises(FlowDeadlineError, match="deadline"):
                task.result(LONG)
        gate.open.set()
        assert tasks[2].result(LONG) == {"y": 2}
        with pytest.raises(TimeoutError):
            raise tasks[0].exception()  # type: ignore[misc]


def test_close_waits_for_tasks_and_ends_threads() -> None:
    before = threading.active_count()
    flow = flow_of(lambda x: x, workers=3)
    tasks = [flow.enqueue(x=i) for i in range(50)]
    flow.close()
    assert all(t.done() for t in tasks)
    assert threading.active_count() == before
    assert [flow.dequeue(block=False) for _ in tasks] == tasks
    flow.close()
    with pytest.raises(FlowError):
        flow.submit(x=1)


def test_close_cancels_where_that_is_wanted() -> None:
    gate = Gate()
    flow = flow_of(gate, workers=1)
    tasks = [flow.enqueue(x=i) for i in range(5)]
    assert gate.begun.acquire(timeout=LONG)
    closing = threading.Thread(target=flow.close, args=(True,))
    closing.start()
    assert concurrent.futures.wait(tasks, LONG).not_done == set()
    gate.open.set()
    closing.join(LONG)
    assert not closing.is_alive()
    assert all(t.cancelled() for t in tasks)


def test_an_exception_in_a_with_block_cancels() -> None:
    gate = Gate()
    flow = flow_of(gate, workers=1)
    tasks = [flow.enqueue(x=i) for i in range(3)]
    threading.Timer(0.01, gate.open.set).start()
    with pytest.raises(RuntimeError, match="mine"), flow:
        raise RuntimeError("mine")
    assert all(t.cancelled() for t in tasks)


def test_who_waits_for_room_hears_of_the_end() -> None:
    gate = Gate()
    flow = flow_of(gate, workers=1, capacity=1)
    flow.submit(x=0)
    raised: list[Exception] = []

    def wait() -> None:
        try:
            flow.submit(x=1)
        except FlowError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    gate.open.set()
    flow.finish()
    thread.join(LONG)
    flow.close()
    assert not thread.is_alive()


def test_a_flow_that_nobody_has_ends_its_threads() -> None:
    before = threading.active_count()
    flow = flow_of(lambda x: x, workers=2)
    flow(x=1)
    engine = weakref.ref(flow.engine)
    del flow
    gc.collect()
    deadline = time.monotonic() + LONG
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    gc.collect()
    assert engine() is None


def test_a_flow_lives_as_long_as_its_tasks() -> None:
    gate = Gate()
    task = flow_of(gate, workers=1).submit(x=1)
    gc.collect()
    gate.open.set()
    assert task.result(LONG) == {"y": 1}


def test_coroutines_wait_for_results_and_for_room() -> None:
    async def main(flow: Flow) -> list[int]:
        async def fill() -> None:
            for i in range(100):
                await flow.enqueue_async(x=i)
            flow.finish()

        filling = asyncio.create_task(fill())
        found = [task.result()["y"] async for task in flow]
        await filling
        return found

    with flow_of(lambda x: x + 1, capacity=3, workers=2) as flow:
        assert asyncio.run(main(flow)) == list(range(1, 101))


def test_coroutines_run_tasks_and_cancel_them() -> None:
    gate = Gate()

    async def main(flow: Flow) -> None:
        waiting = asyncio.create_task(flow.run_async(x=-1))
        await asyncio.to_thread(gate.begun.acquire)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.open.set()
        assert await asyncio.gather(*(flow.run_async(x=i) for i in range(20))) == [{"y": i} for i in range(20)]

    with flow_of(gate, workers=1) as flow:
        asyncio.run(main(flow))
    assert flow.statistics().cancelled == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_hears_that_tasks_are_elsewhere() -> None:
    gate = Gate()
    with flow_of(gate, workers=1) as flow:
        task = flow.enqueue(x=1)
        assert gate.begun.acquire(timeout=LONG)
        child = os.fork()
        if not child:
            status = 1
            try:
                fails = isinstance(task.exception(LONG), FlowError)
                try:
                    flow.enqueue(x=2)
                except FlowError:
                    flow.close()
                    own = flow_of(lambda x: x, workers=1)
                    status = 0 if fails and own(x=3) == {"y": 3} else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        gate.open.set()
        assert task.result(LONG) == {"y": 1}


def test_an_interpreter_ends_with_a_flow_at_work() -> None:
    code = (
        "import threading, time\nfrom bolt_numba.flow import Flow\n"
        "flow = Flow(inputs='x', outputs='y', workers=2).function(lambda x: time.sleep(x), 'x', 'y', name='n')\n"
        "tasks = [flow.enqueue(x=0.05) for _ in range(40)]\nprint('end')"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG, check=True)
    assert (done.stdout, done.stderr) == ("end\n", "")
    assert time.monotonic() - start < LONG


def test_importing_the_package_does_not_import_flows() -> None:
    code = "import sys, bolt_numba as bn; bn.compile; bn.Session; assert 'bolt_numba.flow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
