"""Shapes: known ones wait for nobody, new ones are planned once or not at all, few are kept."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.base import turns as behind
from bolt_numba.base.turns import TURN_S, short_turns
from bolt_numba.errors import BoltError, BudgetError, ShapeError
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.runtime.packs import Pack, Packs
from bolt_numba.runtime.prepared import Prepared
from bolt_numba.runtime.runner import Runner
from bolt_numba.runtime.tape import Tape, Taped, Tapes
from tests.harness import served
from tests.rule_cases import graph_of, o
from tests.test_fillers import net
from tests.test_session import two_layers

WAIT_S = 60.0


def rows(count: int) -> Any:
    return np.ones((count, 8), np.float32)


def in_threads(*calls: Callable[[], Any]) -> list[threading.Thread]:
    made = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in made:
        thread.start()
    return made


class Held:
    """Planning that waits until it is let go on, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.free, self.count = threading.Event(), threading.Event(), 0
        plan = Runner.made

        def held(runner: Runner, types: Sequence[Any], waits: bool) -> Prepared:
            self.count += 1
            self.begun.set()
            assert self.free.wait(WAIT_S)
            return plan(runner, types, waits)

        monkeypatch.setattr(Runner, "made", held)


def test_a_known_shape_does_not_wait_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    session = bn.compile(two_layers(), threads=1)
    wanted = session(rows(2))
    held = Held(monkeypatch)
    (planning,) = in_threads(lambda: session(rows(3)))
    assert held.begun.wait(WAIT_S)
    assert np.array_equal(session(rows(2))["y"], wanted["y"])  # would wait for ever
    assert planning.is_alive()
    held.free.set()
    planning.join(WAIT_S)
    assert not planning.is_alive()


def taped(first: int = 101, graph: Graph | None = None, **options: Any) -> bn.Session:
    """A session with a tape that serves many numbers of rows around ``first``, which it has from planning four."""
    session = bn.compile(two_layers() if graph is None else graph, threads=1, **options)
    for count in range(first, first + 4):
        session(rows(count))
    assert behind.idle()
    session(rows(first + 4))
    assert served(session._runner) == 1
    return session


def counts(session: bn.Session) -> list[int]:
    """Rows of the shapes that are kept."""
    return sorted(p.empties[0][0][0] for p in session._runner.prepared.values())  # type: ignore[index]


def test_a_tape_serves_new_shapes_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = two_layers()
    session = taped(graph=graph)
    given = [np.random.default_rng(count).standard_normal((count, 8)).astype(np.float32) for count in range(90, 99)]
    wanted = [bn.compile(graph, threads=1)(x)["y"] for x in given]
    held = Held(monkeypatch)
    results = [session(x)["y"] for x in given]  # would wait for ever
    buffers = [np.empty_like(y) for y in results]
    for x, y in zip(given, buffers, strict=True):
        session.run_into({"x": x}, {"y": y})
    assert held.count == 0
    for y, into, want in zip(results, buffers, wanted, strict=True):
        assert y.tobytes() == into.tobytes() == want.tobytes()


def test_a_buffer_for_an_output_that_is_an_input_has_the_sizes_of_this_run() -> None:
    """No result of a tape's own tells these."""
    graph = graph_of(lambda b, x, z: (b(o("Add"), x, x), b(o("Identity"), z)), {"x": ("n", 8), "z": (3, "m")})
    session = bn.compile(graph, threads=1)
    for count in (91, 92, 93, 94):
        session(rows(count), np.full((3, count - 80), 7, np.float32))
    assert behind.idle()
    for count, size in ((95, 6), (96, 7)):
        z = np.full((3, size), size, np.float32)
        sums, same = np.empty((count, 8), np.float32), np.empty_like(z)
        session.run_into({"x": rows(count), "z": z}, {"out0": sums, "out1": same})
        assert served(session._runner) == count - 94
        assert (sums == 2).all()
        assert (same == size).all()
        with pytest.raises(ShapeError, match=rf"got shape \(3, 2\), wanted \(3, {size}\)"):
            session.run_into({"x": rows(count), "z": z}, {"out1": same[:, :2].copy()})


@pytest.mark.parametrize("call", ["run", "run_into"])
def test_a_tape_stands_for_a_plan_that_is_not_made(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    session = taped()
    monkeypatch.setattr(Tape, "planned_for", lambda self, shapes: pytest.fail("somebody asked for the plan"))
    x, y = rows(90), np.empty((90, 4), np.float32)
    wanted = session(x)["y"] if call == "run" else session.run_into({"x": x}, {"y": y})
    assert wanted is None or wanted.shape == y.shape


def test_a_known_shape_of_a_tape_does_not_wait_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    session = taped()
    wanted = session(rows(90))
    session._runner.prepare([rows(90)])  # what passes by is not kept
    session._runner.tapes.clear()
    held = Held(monkeypatch)
    (planning,) = in_threads(lambda: session(rows(91)))
    assert held.begun.wait(WAIT_S)
    assert np.array_equal(session(rows(90))["y"], wanted["y"])  # would wait for ever
    assert planning.is_alive()
    held.free.set()
    planning.join(WAIT_S)
    assert not planning.is_alive()


def test_threads_that_want_one_new_shape_plan_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    session, held, results = bn.compile(two_layers(), threads=1), Held(monkeypatch), list[Any]()
    waiting = in_threads(*[lambda: results.append(session(rows(5))["y"])] * 4)
    assert held.begun.wait(WAIT_S)
    held.free.set()
    for thread in waiting:
        thread.join(WAIT_S)
    assert held.count == 1
    assert len(results) == 4
    assert all(np.array_equal(r, results[0]) for r in results)


def test_a_plan_that_fails_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    session = bn.compile(two_layers(), threads=1)
    before = sys.getswitchinterval()

    def fail(runner: Runner, types: Sequence[Any], waits: bool) -> Prepared:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "made", fail)
        with pytest.raises(KeyboardInterrupt):
            session(rows(2))
    assert sys.getswitchinterval() == before
    assert session(rows(2))["y"].shape == (2, 4)


def test_the_plan_used_least_recently_goes_first() -> None:
    session = bn.compile(two_layers(), threads=1, max_plans=3)
    for count in (1, 2, 3, 1, 4):
        session(rows(count))
    kept = session._runner.prepared.values()
    assert sorted(p.plan.results[0].type.dims[0] for p in kept) == [1, 3, 4]


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_the_shape_of_a_tape_used_least_recently_goes_first(order: tuple[int, ...]) -> None:
    """Where all were used since they came, too."""
    session = taped(max_plans=3)
    for count in (1, 2, 3, *order):
        session._runner.prepare([rows(90 + count)])
    assert counts(session) == [91, 92, 93]
    for i, count in enumerate(order):
        session._runner.prepare([rows(80 + i)])
        assert 90 + count not in counts(session)
        assert len(counts(session)) == 3


def test_plans_and_tapes_are_kept_up_to_max_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    session = taped(max_plans=2)
    at = Tapes.at
    monkeypatch.setattr(Tapes, "at", lambda self, arrays: at(self, arrays) if len(arrays[0]) % 3 else None)
    for count in (80, 81, 82, 83, 84, 85, 86, 87, 81, 82):
        session._runner.prepare([rows(count)])  # what passes by is not kept
        assert session(rows(count))["y"].shape == (count, 4)
        assert len(counts(session)) <= 2
        assert count in counts(session)
    kinds = {type(p) for p in session._runner.prepared.values()}
    assert kinds == {Prepared, Taped}


def test_a_tape_keeps_to_the_limit_of_memory() -> None:
    """A session that has a tape refuses what one without refuses: results count, too."""
    graph = graph_of(lambda b, x: b(o("Relu"), x), {"x": ("n", 8)})
    limit = 10_000_000
    for session in (bn.compile(graph, threads=1, memory_limit=limit), taped(30_000, graph, memory_limit=limit)):
        with pytest.raises(BudgetError):
            session(rows(600_000))
        assert session(rows(29_000))[0].shape == (29_000, 8)


def test_memory_of_a_large_shape_goes_with_it() -> None:
    w = np.ones((8, 8), np.float32)
    graph = graph_of(lambda b, x: b(o("MatMul"), b(o("MatMul"), x, w), w), {"x": ("n", 8)})
    session = taped(30_000, graph, max_plans=2)
    small = idle(session)
    session(rows(600_000))
    assert served(session._runner) == 2
    for count in (30_100, 30_101, 30_102, 30_103):
        session(rows(count))
    assert 0 < idle(session) <= 2 * small


def idle(session: bn.Session) -> int:
    """Bytes that the runs of tapes keep."""
    return sum(arena.nbytes for tapes in session._runner.tapes.values() for arena in tapes.arenas)


def test_tables_that_idle_runs_keep_are_counted() -> None:
    session = bn.compile(net(), threads=1, stand_ins=False)
    for side in (8, 16, 24, 32, 40, 48, 80):
        session(np.ones((1, 3, side, side), np.float32))
        behind.wait(session._runner.serving)
    (tapes,) = session._runner.tapes.values()
    blocks = [run.block.nbytes for tape in tapes.tapes for run in tape.idle]
    assert sum(blocks) > 0
    assert tapes.nbytes >= sum(blocks) + idle(session)


def test_plans_share_the_limit_of_memory() -> None:
    session = bn.compile(two_layers(), threads=1, memory_limit=3_000_000)
    for count in (8_000, 9_000, 10_000, 11_000):
        session(rows(count))
    kept = list(session._runner.prepared.values())
    assert 1 <= len(kept) < 4
    assert sum(p.nbytes for p in kept) <= 3_000_000
    assert kept[-1].plan.results[0].type.dims[0] == 11_000


def test_max_plans_is_kept_and_checked() -> None:
    session = bn.compile(two_layers(), max_plans=2)
    assert session.options.max_plans == 2
    for wrong in (0, -1, 1.5, "many"):
        with pytest.raises(BoltError, match="max_plans: got"):
            bn.compile(two_layers(), max_plans=wrong)  # type: ignore[arg-type]


def test_sessions_for_intermediate_values_are_few() -> None:
    session = bn.compile(two_layers(), threads=1)
    names = [v.name for v in session.graph.values() if v.name not in ("x", "y", "total")]
    sets = [names[:n] for n in range(1, len(names) + 1)] + [[n] for n in names[1:]]
    for wanted in sets:
        session.run(wanted, {"x": rows(2)})
    assert len(sets) > 4
    assert len(session._wider) == 4


def test_turns_are_short_while_anybody_wants_it() -> None:
    before = sys.getswitchinterval()
    with short_turns():
        with short_turns():
            assert sys.getswitchinterval() == pytest.approx(TURN_S)
        assert sys.getswitchinterval() == pytest.approx(TURN_S)
    assert sys.getswitchinterval() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_meanwhile_has_turns_of_the_usual_length() -> None:
    before = sys.getswitchinterval()
    with short_turns():
        child = os.fork()
        if child == 0:
            os._exit(0 if sys.getswitchinterval() == before else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def held_pack(monkeypatch: pytest.MonkeyPatch, layout: str) -> tuple[threading.Event, threading.Event, list[Pack]]:
    """Hold up the first pack of a layout: set when it begins, to be set to let it go on, and all packs made."""
    begun, free, made = threading.Event(), threading.Event(), list[Pack]()
    packed = Packs._packed

    def held(packs: Packs, how: Any, pack: Any, *rest: Any) -> Any:
        if pack not in packs._made:
            made.append(pack)
        if layout in str(pack) and not begun.is_set():
            begun.set()
            assert free.wait(WAIT_S)
        return packed(packs, how, pack, *rest)

    monkeypatch.setattr(Packs, "_packed", held)
    return begun, free, made


def test_other_shapes_are_planned_while_a_pack_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wants the same pack waits for it; nobody else does, and it is made once."""
    w = np.random.default_rng(0).standard_normal((64, 64, 3, 3), np.float32)
    graph = graph_of(lambda b, x: b(Conv(pads=(1, 1, 1, 1)), x, w), {"x": (1, 64, "h", "w")})
    images = {n: np.random.default_rng(n).standard_normal((1, 64, n, n), np.float32) for n in (2, 3, 7, 8)}
    wanted = {n: bn.compile(graph, threads=1)(x)["out0"] for n, x in images.items()}
    session, found = bn.compile(graph, threads=1), dict[int, Any]()
    session(images[2])
    begun, free, made = held_pack(monkeypatch, "winograd")
    waiting = in_threads(*[partial(lambda n: found.update({n: session(images[n])["out0"]}), n) for n in (7, 8)])
    assert begun.wait(WAIT_S)
    assert np.array_equal(session(images[3])["out0"], wanted[3])  # would wait for ever
    assert not found
    free.set()
    for thread in waiting:
        thread.join(WAIT_S)
    assert {n: y.tobytes() for n, y in found.items()} == {n: wanted[n].tobytes() for n in (7, 8)}
    assert sum("winograd" in str(pack) for pack in made) == 1


def test_a_pack_that_fails_is_made_by_the_next_who_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, packed = two_layers(), Packs._packed
    session, wanted = bn.compile(graph, threads=1), bn.compile(graph, threads=1)(rows(2))["y"]

    def fail(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Packs, "_packed", fail)
    with pytest.raises(KeyboardInterrupt):
        session(rows(2))
    monkeypatch.setattr(Packs, "_packed", packed)
    assert np.array_equal(session(rows(2))["y"], wanted)
