"""Runs that another thread ends: in native steps, in stages, in loops, in references; the session goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
import bolt_numba.onnxruntime as ort
from bolt_numba.base.cancelling import IN_FORCE
from bolt_numba.flow import Flow
from bolt_numba.types import Array
from tests.budget_cases import model, node, value
from tests.test_time_limit import COUNT, feeds, looping

SIDE, LAYERS, SOON_S, MOST = 512, 160, 0.03, 0.6
W = np.roll(np.eye(SIDE, dtype=np.float32), 1, 0)
X = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)


def chain(layers: int = LAYERS, last: str = "") -> bytes:
    """Products one behind another, which move columns; last: an operator whose size data decide, and more behind it."""
    nodes = [node("MatMul", [f"v{i}", "w"], [f"v{i + 1}"]) for i in range(layers)]
    made = value(f"v{layers}", "f", [SIDE, SIDE])
    if last:
        nodes += [node(last, [made.name], ["i"]), node("Neg", ["i"], ["y"])]
        made = value("y", "i", [2, "n"])
    return model(nodes, [value("v0", "f", [SIDE, SIDE])], [made], {"w": W}).SerializeToString()


def ended(run: Callable[[], Any], cancel: Callable[[], Any], whole_s: float) -> None:
    """Have a run end with a CancelledError in less than so many seconds."""
    timer = threading.Timer(min(SOON_S, whole_s / 4), cancel)
    start = time.perf_counter()
    timer.start()
    try:
        with pytest.raises(bn.CancelledError, match=r"got a call of CancelToken.cancel\(\), wanted none"):
            run()
    finally:
        timer.join()
    assert time.perf_counter() - start < whole_s


def seconds(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def check_ends(session: bn.Session, x: Array, most: float = MOST) -> None:
    first = session(x)[0]
    result, whole = seconds(lambda: session(x)[0])
    token = bn.CancelToken()
    for _ in range(2):
        token.reset()
        with token:
            ended(lambda: session(x), token.cancel, max(most * whole, 0.1))
            with pytest.raises(bn.CancelledError):
                session(x)
        assert not IN_FORCE
        assert session(x)[0].tobytes() == first.tobytes() == result.tobytes()
    token.reset()
    with token:
        assert session(x)[0].tobytes() == first.tobytes()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("last", ["", "NonZero"])
def test_a_run_ends_between_steps_and_the_session_goes_on(threads: int, last: str) -> None:
    with bn.compile(chain(last=last), threads=threads, stand_ins=False) as session:
        for _ in range(4):  # a tape takes over
            session(X)
        check_ends(session, X)


def test_references_end_too() -> None:
    with bn.compile(chain(LAYERS // 4), device="host") as session:
        check_ends(session, X)


def test_a_loop_ends_between_iterations() -> None:
    session, token = bn.compile(looping("loop").SerializeToString()), bn.CancelToken()
    with token:
        ended(lambda: session(feeds("loop", COUNT)), token.cancel, 20.0)


def test_a_fault_before_the_end_is_told_once() -> None:
    """What a run found stays none of the next one's."""
    nodes = [node("Gather", ["t", "i"], ["g"], axis=0), node("MatMul", ["g", "w"], ["v0"])]
    nodes += [node("MatMul", [f"v{i}", "w"], [f"v{i + 1}"]) for i in range(LAYERS)]
    given = [value("t", "f", [SIDE, SIDE]), value("i", "i", [SIDE])]
    graph = model(nodes, given, [value(f"v{LAYERS}", "f", [SIDE, SIDE])], {"w": W}).SerializeToString()
    token, right, wrong = bn.CancelToken(), np.arange(SIDE), np.full(SIDE, SIDE)
    with bn.compile(graph, threads=1, stand_ins=False) as session:
        first = session(t=X, i=right)[0]
        timer = threading.Timer(SOON_S, token.cancel)
        timer.start()
        with token, pytest.raises(bn.DataError, match="indices"):
            session(t=X, i=wrong)
        timer.join()
        assert session(t=X, i=right)[0].tobytes() == first.tobytes()


def test_others_run_on() -> None:
    token, other = bn.CancelToken(), []
    with bn.compile(chain(LAYERS // 4), threads=1, stand_ins=False) as session:
        first = session(X)[0]
        beside = threading.Thread(target=lambda: other.extend(session(X)[0].tobytes() for _ in range(4)))
        beside.start()
        with token:
            token.cancel()
            for _ in range(50):
                with pytest.raises(bn.CancelledError):
                    session(X)
        beside.join()
        assert other == [first.tobytes()] * 4


def test_of_two_tokens_each_ends_a_run() -> None:
    with bn.compile(chain(4), threads=1) as session:
        for which in (0, 1):
            tokens = bn.CancelToken(), bn.CancelToken()
            with tokens[0], tokens[1]:
                session(X)
                tokens[which].cancel()
                with pytest.raises(bn.CancelledError):
                    session(X)
            session(X)


def test_a_coroutine_that_is_cancelled_ends_its_run() -> None:
    async def main(session: bn.Session) -> float:
        task = asyncio.create_task(session.run_async(X))
        await asyncio.sleep(SOON_S)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        start = time.perf_counter()
        await asyncio.get_running_loop().shutdown_default_executor()  # waits for the thread
        return time.perf_counter() - start

    with bn.compile(chain(), threads=1, stand_ins=False) as session:
        _, whole = seconds(lambda: session(X))
        assert asyncio.run(main(session)) < max(MOST * whole, 0.1)
        assert asyncio.run(session.run_async(X))[0].tobytes() == session(X)[0].tobytes()


def test_the_drop_in_ends_runs_by_their_options() -> None:
    session, options = ort.InferenceSession(chain(), providers=["CPUExecutionProvider"]), ort.RunOptions()
    for _ in range(2):
        first, whole = seconds(lambda: session.run(None, {"v0": X}, options)[0])
    timer = threading.Timer(min(SOON_S, whole / 4), lambda: setattr(options, "terminate", True))
    timer.start()
    start = time.perf_counter()
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match="CancelToken"):
        session.run(None, {"v0": X}, options)
    assert time.perf_counter() - start < max(MOST * whole, 0.1)
    with pytest.raises(bn.CancelledError, match="terminate=True, wanted False"):
        session.run(None, {"v0": X}, options)
    options.terminate = False
    assert session.run(None, {"v0": X}, options)[0].tobytes() == first.tobytes()


def test_a_task_that_is_given_up_frees_its_worker() -> None:
    flow = Flow(inputs="v0", outputs="y", workers=1)
    graph, outputs = bn.load(chain()), {f"v{LAYERS}": "y"}
    flow.model(graph, inputs="v0", outputs=outputs, name="long", threads=1, stand_ins=False)
    with flow:
        first = flow.submit(v0=X).result()["y"]
        _, whole = seconds(lambda: flow.submit(v0=X).result())
        task, other = flow.submit(v0=X), flow.submit(v0=X)
        time.sleep(min(SOON_S, whole / 4))
        start = time.perf_counter()
        assert task.cancel()
        assert other.result()["y"].tobytes() == first.tobytes()
        assert time.perf_counter() - start < (1 + MOST) * max(whole, 0.1)
        assert flow.statistics().nodes["long"].failed == 0
