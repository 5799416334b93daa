"""Sessions with plug-ins: shapes, threads, forks, copies of sessions, profiles, and what they leave behind."""

from __future__ import annotations

import gc
import os
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import DeviceError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import BOOL, F32, I64, Sym, TensorType
from tests.graphs import integers, make
from tests.plugins.plain_driver import PlainDriver, after, nth
from tests.plugins.two_parts import BROKEN, GRAPH, cache, driver, expect, fails_in, session_of

__all__ = ["cache", "driver"]
pytestmark = pytest.mark.usefixtures("cache")


def test_few_compiled_graphs_are_kept(driver: PlainDriver) -> None:
    session = session_of(properties={"plain": {"max_compiled": 2}})
    for n in (2, 3, 4, 5, 2, 2):
        expect(session, n)
    assert driver.live["compiled"] == 4
    assert driver.calls["restore"] + driver.calls["compile"] == 10


@pytest.mark.parametrize("shapes", ["fixed", "ranges", "free"])
def test_devices_serve_one_shape_or_many(driver: PlainDriver, shapes: Any) -> None:
    driver.shapes = shapes
    session = session_of(fallback="forbid")
    for n in (2, 3, 4, 5, 2, 9, 16):
        expect(session, n)
    assert driver.calls["compile"] == {"fixed": 12, "ranges": 8, "free": 2}[shapes]


@pytest.mark.parametrize("shapes", ["fixed", "free"])
def test_a_symbol_may_have_several_sizes_on_a_device(
    driver: PlainDriver, shapes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    driver.shapes = shapes
    graph = Graph("two")
    x, y = (graph.add_input(name, TensorType(F32, (Sym("n"), 3))) for name in "xy")
    build = Builder(graph)
    graph.add_output(build(make("Relu"), build(make("Add"), x, y)), "z")
    with bn.compile(graph, device=["plain", "cpu"], fallback="forbid", threads=1) as session:
        for rows, others in ((4, 4), (1, 4), (4, 1), (2, 2), (1, 4)):
            a, b = integers(np.random.default_rng(1), rows, 3), integers(np.random.default_rng(2), others, 3)
            np.testing.assert_array_equal(session(a, b)["z"], np.maximum(a + b, 0))
        assert {row["device"] for row in session.report()} == {"plain"}
        with pytest.raises(bn.ShapeError, match=r"dimension 'n': got 3 in input 'y', but 2 in 'x': .*Add"):
            session(np.zeros((2, 3), F32), np.zeros((3, 3), F32))
    assert not +driver.live
    assert sum("dimension 'n'" in record.getMessage() for record in caplog.records) == 1


def test_a_session_is_closed_and_used_again(driver: PlainDriver) -> None:
    session = session_of()
    expect(session)
    session.close()
    assert not +driver.live
    expect(session)
    assert driver.calls["open"] == 2
    with session:
        expect(session, 4)
    assert not +driver.live


def test_a_session_that_nobody_has_is_closed(driver: PlainDriver) -> None:
    session = session_of()
    expect(session)
    del session
    gc.collect()
    assert not +driver.live


def test_a_session_is_pickled(driver: PlainDriver) -> None:
    session = session_of(properties={"plain": {"chip": "two"}}, fallback="forbid", placement="Add")
    again = pickle.loads(pickle.dumps(session))
    expect(again)
    assert driver.opened_with["chip"] == "two"
    rows = [row for row in again.report() if row["op"] == "Foreign"]
    assert [row["nodes"] for row in rows] == [["MatMul", "Relu"], ["MatMul.1"]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_opens_a_device_of_its_own(driver: PlainDriver) -> None:
    session = session_of()
    expect(session)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        code = 1
        try:
            expect(session)
            expect(session, 4)
            code = 0 if driver.calls["open"] == 2 and driver.live["accelerator"] == 2 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    expect(session)
    assert driver.calls["open"] == 1


def test_many_threads_have_a_request_each(driver: PlainDriver) -> None:
    session = session_of(fallback="forbid")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: expect(session, 2 + i % 3, i), range(60)))
    assert driver.calls["compile"] == 6
    assert 6 <= driver.live["request"] <= 48
    session.close()
    assert not +driver.live


def test_closing_waits_for_runs(driver: PlainDriver) -> None:
    session = session_of()
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(expect, session, 2 + i % 3, i) for i in range(40)]
        for _ in range(10):
            session.close()
        for each in done:
            each.result()
    session.close()
    assert not fails_in(session.report())
    assert not +driver.live


@pytest.mark.parametrize("what", ["request", "run", "compile"])
def test_an_interrupt_leaves_nothing_open(driver: PlainDriver, what: str) -> None:
    driver.fails = {what: nth(1, KeyboardInterrupt())}
    with pytest.raises(KeyboardInterrupt):
        expect(session_of())
    session = session_of()
    driver.fails = {what: nth(driver.calls[what] + 1, KeyboardInterrupt())}
    with pytest.raises(KeyboardInterrupt):
        expect(session)
    expect(session)
    session.close()
    del session
    gc.collect()
    assert not +driver.live


def test_a_device_stays_open_while_it_compiles(driver: PlainDriver) -> None:
    """Whoever closes the session meanwhile closes what is not in use."""
    session = session_of()
    opened = session._plugins.by_name["plain"].opened
    seen: list[int] = []

    def closed_meanwhile(number: int) -> None:
        opened.close()
        seen.append(driver.live["accelerator"])

    driver.fails = {"compile": closed_meanwhile}
    expect(session)
    assert set(seen) == {1}
    session.close()
    assert not +driver.live


def test_outputs_go_where_the_caller_says(driver: PlainDriver) -> None:
    session = session_of(fallback="forbid")
    x, out = integers(np.random.default_rng(1), 3, 8), np.empty((3, 8), F32)
    session.run_into({"x": x}, {"y": out})
    np.testing.assert_allclose(out, interpret(GRAPH, {"x": x})["y"], rtol=1e-4, atol=1e-5)


def test_an_output_may_replace_an_input(driver: PlainDriver) -> None:
    for failure in ({}, {"run": BROKEN}):
        driver.fails = failure
        session, x = session_of(), integers(np.random.default_rng(1), 3, 8)
        wanted = interpret(GRAPH, {"x": x.copy()})["y"]
        session.run_into({"x": x}, {"y": x})
        np.testing.assert_allclose(x, wanted, rtol=1e-4, atol=1e-5)


def test_intermediate_values_inside_a_part_are_compared(driver: PlainDriver) -> None:
    session = session_of(fallback="forbid")
    x = integers(np.random.default_rng(1), 3, 8)
    names = [node.output.name for node in GRAPH.nodes]
    wanted = interpret(GRAPH, {"x": x}, names)
    for name, got in zip(names, session.run(names, {"x": x}), strict=True):
        np.testing.assert_allclose(got, wanted[name], rtol=1e-4, atol=1e-5)
    session.close()
    assert not +driver.live


def test_profiles_show_steps_of_the_device(driver: PlainDriver) -> None:
    session = session_of()
    profile = session.profile(np.ones((3, 8), F32), runs=2)
    rows = [row for row in profile.rows if row.op == "Foreign"]
    assert [row.runner for row in rows] == ["plain", "plain"]
    assert all(row.counts == {"copies": 2, "bytes": 100} for row in rows)
    assert "2 copies, 100 bytes" in profile.table()


def test_nothing_leaks_over_many_cycles(driver: PlainDriver) -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def cycle(count: int) -> None:
        for i in range(count):
            driver.fails = {} if i % 2 else {("run", "compile", "request")[i % 3]: BROKEN}
            session = session_of(properties={"plain": {"cache": False}})
            expect(session)
            session.close()

    counts = []
    for _ in range(3):
        cycle(20)
        driver.compiled.clear()
        gc.collect()
        counts.append((len(gc.get_objects()), files()))
    assert counts[2][0] - counts[1][0] < 100
    assert counts[2][1] <= counts[0][1]
    assert not +driver.live


def test_after_counts_calls(driver: PlainDriver) -> None:
    """A device that works for a while: what was right stays right."""
    driver.fails["run"] = after(4, BROKEN)
    session = session_of()
    for _ in range(8):
        expect(session)
    rows = [row for row in session.report() if row["op"] == "Foreign"]
    assert [row["runs"] for row in rows] == [2, 2]


def test_options_of_plug_ins_are_held_against_the_session() -> None:
    with pytest.raises(DeviceError, match=r"properties: got .* for a session without plug-ins"):
        bn.compile(GRAPH, properties={"plain": {}, "cpu": {"a": 1}})
    with pytest.raises(DeviceError, match=r"placement: got 'rows\.txt' for a session without plug-ins"):
        bn.compile(GRAPH, placement=Path("rows.txt"))
    with pytest.raises(DeviceError, match="placement: got 'Add' for a session without plug-ins"):
        bn.compile(GRAPH, placement="Add")
    with pytest.raises(DeviceError, match="fallback: got 'never', wanted one of"):
        bn.compile(GRAPH, fallback="never")


def test_properties_are_held_against_the_device(driver: PlainDriver) -> None:
    with pytest.raises(DeviceError, match="properties: got some of 'cpu', wanted those of 'plain'"):
        session_of(properties={"cpu": {}})
    with pytest.raises(DeviceError, match="device 'plain': got 'chops', wanted one of"):
        session_of(properties={"plain": {"chops": 1}})


def test_memory_of_the_device_is_counted(driver: PlainDriver) -> None:
    session = session_of()
    assert "uploaded" not in session.memory()
    expect(session, 3)
    expect(session, 4)
    assert session.memory()["uploaded"] == 4000


def test_a_packed_graph_has_no_parts(driver: PlainDriver) -> None:
    from bolt_numba.surgery import packed

    with pytest.raises(DeviceError, match="device: got 'plain' for a packed graph"):
        bn.compile(packed(GRAPH, shapes={"x": (3, 8)}), device="plain")


def test_bodies_of_loops_and_branches_run_there(driver: PlainDriver) -> None:
    inner = Graph("body")
    build = Builder(inner)
    number, truth, state = (
        inner.add_input(name, t)
        for name, t in (("i", TensorType(I64, ())), ("go", TensorType(BOOL, ())), ("s", TensorType(F32, (2, 8))))
    )
    weights = integers(np.random.default_rng(0), 8, 8) / 8
    inner.add_output(build(make("Identity"), truth), "go_on")
    inner.add_output(build(make("Relu"), build(make("MatMul"), state, weights)), "next")
    assert number.type.dtype == I64
    graph = Graph("loop")
    x = graph.add_input("x", TensorType(F32, (2, 8)))
    count = graph.add_input("count", TensorType(I64, ()))
    loop = Builder(graph).node(make("Loop", body=inner, carried=1), count, np.array(True), x)
    graph.add_output(loop.outputs[0], "y")
    session = bn.compile(graph, device="plain", fallback="forbid", threads=1)
    feeds = {"x": integers(np.random.default_rng(1), 2, 8), "count": np.array(3)}
    np.testing.assert_allclose(session(**feeds)[0], interpret(graph, feeds)["y"], rtol=1e-5)
    assert driver.calls["run"] == 3
    driver.fails["run"] = BROKEN
    np.testing.assert_allclose(
        bn.compile(graph, device="plain", threads=1)(**feeds)[0], interpret(graph, feeds)["y"], rtol=1e-5
    )


def test_a_gpu_and_a_plug_in_share_a_session_of_halves(driver: PlainDriver) -> None:
    session = bn.compile(GRAPH, device=["cuda-sim", "plain"], precision="f16", fallback="forbid", threads=1)
    x = integers(np.random.default_rng(1), 3, 8)
    np.testing.assert_allclose(session(x=x)[0], interpret(GRAPH, {"x": x})["y"], rtol=2e-2, atol=2e-2)
    assert {"plain", "cuda-sim"} <= {row["device"] for row in session.report()}


def test_a_part_forgets_what_was_refused_long_ago(driver: PlainDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bolt_numba.devices.parts.part.MOST_REFUSED", 3)
    driver.fails["compile"] = BROKEN
    session = session_of()
    for n in (*range(1, 7), 6):
        expect(session, n)
    assert driver.calls["compile"] == 2 * 6
    plugins: Any = session._plugins
    assert {len(part.refused) for part in plugins.by_name["plain"].parts.values()} == {3}
