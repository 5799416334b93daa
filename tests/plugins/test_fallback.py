"""Whatever a plug-in fails at, a session computes right: each failure in each situation, counted, told, forbidden."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bolt_numba.errors import DeviceError
from bolt_numba.passes.rewrite import Pat, rule
from bolt_numba.plugins.interface import DeviceFullError, DeviceLostError, FallbackWarning
from tests.plugins.plain_driver import PlainDriver, nth, throw
from tests.plugins.two_parts import BROKEN, cache, driver, expect, fails_in, session_of

__all__ = ["cache", "driver"]
pytestmark = pytest.mark.usefixtures("cache")




@rule(Pat(None, name="y"))
def raises(match: Any, build: Any) -> Any:
    throw(BROKEN)


FAILURES: dict[str, Callable[[PlainDriver], Any]] = {
    "open": lambda d: d.fails.update(open=BROKEN),
    "missing": lambda d: setattr(d, "absent", "the vendor's package is not installed"),
    "supports": lambda d: d.fails.update(supports=BROKEN),
    "compile": lambda d: d.fails.update(compile=BROKEN),
    "request": lambda d: d.fails.update(request=BROKEN),
    "run": lambda d: d.fails.update(run=BROKEN),
    "run once": lambda d: d.fails.update(run=nth(d.calls["run"] + 1, BROKEN)),
    "compile full": lambda d: d.fails.update(compile=DeviceFullError("plain: memory")),
    "run full": lambda d: d.fails.update(run=DeviceFullError("plain: memory")),
    "compile lost": lambda d: d.fails.update(compile=DeviceLostError("plain: gone")),
    "run lost": lambda d: d.fails.update(run=DeviceLostError("plain: gone")),
    "wrong": lambda d: setattr(d, "wrong", 100.0),
}
AT_OPENING = ("open", "missing", "supports")
PROPERTIES = {"plain": {"self_check": True}}


@pytest.mark.filterwarnings("ignore:device 'plain'. open")
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("situation", ["first build", "cached", "new shape", "concurrent"])
def test_results_are_right_whatever_fails(driver: PlainDriver, failure: str, situation: str) -> None:
    if situation == "cached":
        with session_of() as first:
            expect(first, 3)
        assert driver.calls["serialise"] == 2
    throw = FAILURES[failure]
    if situation == "new shape" and failure not in AT_OPENING:
        session = session_of(properties=PROPERTIES)
        expect(session, 3)
        throw(driver)
        expect(session, 5)
    elif situation == "concurrent" and failure not in AT_OPENING:
        session = session_of(properties=PROPERTIES)
        throw(driver)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: expect(session, 2 + i % 3, i), range(12)))
    else:
        throw(driver)
        session = session_of(properties=PROPERTIES)
    unseen = failure == "wrong" and situation == "new shape"  # a result that was right is not looked at again
    for n in (4, 4, 5, 4, 4, 4) if unseen else (3, 3, 4, 3, 3, 3):
        expect(session, n)
    report = session.report()
    if failure in AT_OPENING:
        assert not any(row["op"] == "Foreign" for row in report)
        assert [row["failures"] for row in report.devices] != [{}]
    else:
        assert fails_in(report) or (situation == "cached" and failure.startswith("compile") and not fails_in(report))
    session.close()
    assert not +driver.live, "all is closed, also what failed"


@pytest.mark.parametrize("failure", [name for name in FAILURES if name != "run once"])
def test_a_session_may_forbid_that_others_compute(driver: PlainDriver, failure: str) -> None:
    FAILURES[failure](driver)
    text = {"wrong": "self-check: output 0 of f32: got a difference", "missing": "vendor's package"}.get(failure)
    with pytest.raises(DeviceError, match=f"device 'plain': .*{text or ''}") as caught:
        expect(session_of(fallback="forbid", properties=PROPERTIES))
    if failure not in AT_OPENING:
        assert "part 'plain." in str(caught.value)
    del caught  # its traceback has the session
    gc.collect()
    assert not +driver.live


def test_a_forbidden_session_goes_on_when_the_device_does(driver: PlainDriver) -> None:
    session = session_of(fallback="forbid")
    driver.fails["run"] = nth(1, BROKEN)
    with pytest.raises(DeviceError, match=r"part 'plain.0' \(MatMul, Relu\): run: RuntimeError: no answer"):
        expect(session)
    expect(session)


def test_each_cause_is_warned_of_once(driver: PlainDriver) -> None:
    driver.fails["run"] = BROKEN
    session = session_of(fallback="warn")
    with pytest.warns(FallbackWarning, match="run: RuntimeError: no answer; the session goes on without") as caught:
        expect(session)
    assert len([w for w in caught if w.category is FallbackWarning]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        expect(session)
        driver.fails.clear()
        expect(session, 6)


def test_a_device_that_does_not_open_is_told_by_default(driver: PlainDriver) -> None:
    """With what is missing, at the line that asked for it; who makes errors of warnings gets one."""
    driver.absent = "the vendor's package is not installed"
    text = "^device 'plain': open: the vendor's package is not installed; the session goes on without the device$"
    with pytest.warns(FallbackWarning, match=text) as caught:
        session = session_of()
    assert caught[0].filename == session_of.__code__.co_filename
    expect(session)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        with pytest.raises(FallbackWarning, match=text):
            session_of()


def test_silence_is_the_default_for_all_else(driver: PlainDriver) -> None:
    driver.fails["compile"] = BROKEN
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        expect(session_of())


def test_three_failures_in_a_row_end_it(driver: PlainDriver) -> None:
    driver.fails["run"] = BROKEN
    session = session_of()
    for _ in range(5):
        expect(session)
    rows = [row for row in session.report() if row["op"] == "Foreign"]
    assert driver.calls["run"] == 3 * len(rows)
    assert all(row["state"].endswith("(3 times in a row)") for row in rows)
    assert all(sum(row["fallbacks"].values()) == 5 for row in rows)
    assert all(row["runs"] == 0 for row in rows)


def test_a_failure_now_and_then_ends_nothing(driver: PlainDriver) -> None:
    driver.fails["run"] = lambda number: throw(BROKEN) if number % 3 == 0 else None
    session = session_of()
    for _ in range(12):
        expect(session)
    rows = [row for row in session.report() if row["op"] == "Foreign"]
    assert sum(row["runs"] for row in rows) == 16
    assert sum(fails_in(rows).values()) == 8
    assert [row["state"] for row in rows] == ["compiled", "compiled"]


def test_a_lost_device_is_asked_no_more(driver: PlainDriver) -> None:
    session = session_of()
    expect(session)
    driver.fails["run"] = DeviceLostError("plain: gone")
    expect(session)
    calls = +driver.calls
    for n in (3, 4, 5):
        expect(session, n)
    assert driver.calls == calls
    assert session.report().devices[0]["state"] == "lost: run: plain: gone"
    session.close()
    assert not +driver.live


def test_memory_is_made_before_a_device_is_full(driver: PlainDriver) -> None:
    session = session_of()
    for n in (2, 3, 4):
        expect(session, n)
    held = driver.live["compiled"]
    driver.fails["compile"] = nth(driver.calls["compile"] + 1, DeviceFullError("plain: memory"))
    expect(session, 5)
    assert held == 6
    assert driver.live["compiled"] == 2, "the others made room"
    assert not fails_in(session.report())
    for n in (2, 3, 4, 5):
        expect(session, n)


def test_a_run_that_finds_the_device_full_is_tried_again(driver: PlainDriver) -> None:
    session = session_of()
    for n in (2, 3):
        expect(session, n)
    driver.fails["run"] = nth(driver.calls["run"] + 1, DeviceFullError("plain: memory"))
    expect(session, 3)
    assert not fails_in(session.report())


def test_an_interrupt_is_no_failure(driver: PlainDriver) -> None:
    session = session_of()
    expect(session)
    driver.fails["run"] = nth(driver.calls["run"] + 1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        expect(session)
    expect(session)
    assert not fails_in(session.report())
    session.close()
    assert not +driver.live


def test_a_compiler_that_gives_nothing_is_a_failure(driver: PlainDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.plugins.plain_driver.PlainCompiled", lambda *args: None)
    session = session_of()
    expect(session)
    assert any("compile: got a NoneType, wanted a Compiled" in reason for reason in fails_in(session.report()))


def test_a_lowering_that_raises_leaves_the_node_here(driver: PlainDriver, nothing_swallowed: Counter[str]) -> None:
    driver.lowerings = (raises,)
    session = session_of()
    expect(session)
    assert {row["device"] for row in session.report()} == {"plain", "cpu"}
    assert [text.partition(":")[0] for text in session.report().swallowed] == ["rule 'raises'"]
    nothing_swallowed.clear()


def test_a_report_tells_of_the_shape_that_ran_last(driver: PlainDriver) -> None:
    session = session_of()
    expect(session, 3)
    driver.fails["compile"] = BROKEN
    expect(session, 4)
    states = {row["state"] for row in session.report() if row["op"] == "Foreign"}
    assert states == {"fallback: compile: RuntimeError: no answer"}
    session = session_of()
    driver.fails = {}
    expect(session, 4)
    assert {row["state"] for row in session.report() if row["op"] == "Foreign"} == {"compiled"}
