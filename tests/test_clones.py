"""Clones of sessions: what they share, what each has of its own, and what closing one leaves to the others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.types import F32
from tests.test_session import data, two_layers
from tests.test_states import ONE, counter, runs

DIGITS = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"
IMAGES = np.random.default_rng(3).random((2, 1, 8, 8), F32)


def test_a_clone_shares_plans_and_weights_until_both_are_closed() -> None:
    session = bn.compile(DIGITS, threads=1)
    want = np.asarray(session(IMAGES))
    clone = session.clone()
    assert clone.report() == session.report()
    assert clone.report()
    session.close()
    assert not session.report()
    assert clone.report()
    assert clone.memory()["packed"] > session.memory()["packed"] == 0
    np.testing.assert_array_equal(clone(IMAGES), want)
    np.testing.assert_array_equal(session(IMAGES), want)
    clone.close()
    assert not clone.report()
    assert session.report()
    again = session.clone()
    session.close()
    again.close()
    assert not again.report()
    np.testing.assert_array_equal(again(IMAGES), want)


def test_a_clone_with_other_threads_has_plans_of_its_own_and_the_same_weights() -> None:
    session = bn.compile(DIGITS, threads=2)
    want = np.asarray(session(IMAGES))
    packed = session.packs()
    clone = session.clone(threads=1)
    assert (clone.threads, session.threads) == (1, 2)
    assert not clone.report()
    np.testing.assert_array_equal(clone(IMAGES), want)
    now = clone.packs()
    assert packed
    assert all(now[key] is array for key, array in packed.items())
    assert clone.memory()["packed"] == session.memory()["packed"]
    session.close()
    assert clone.report()
    np.testing.assert_allclose(clone(IMAGES[:1]), want[:1], rtol=1e-4)


def test_clones_of_many_shapes_and_threads_at_once() -> None:
    """They plan beside each other."""
    session = bn.compile(two_layers(), threads=2)
    sessions = [session, session.clone(), session.clone(1), session.clone(3)]
    inputs = [data(n) for n in range(1, 24)]
    want = [session(x) for x in inputs]
    session.close()

    def work(one: bn.Session) -> None:
        for x, (y, total) in zip(inputs, want, strict=True):
            got = one(x)
            np.testing.assert_array_equal(got["y"], y)
            np.testing.assert_array_equal(got["total"], total)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, sessions * 2))


def test_each_has_a_state_of_its_own() -> None:
    session = bn.compile(counter())
    assert runs(session, 2) == [2, 4]
    clone = session.clone()
    assert runs(clone, 1) == [2]
    assert runs(session, 1) == [6]
    clone.reset_state({"s": 9 * ONE})
    assert clone.run(["total", "y"], {"x": ONE, "unused": ONE})[1].tolist() == [20, 20, 20]
    assert session.states["s"].tolist() == [3, 3, 3]
    assert session.run(["total"], {"x": ONE, "unused": ONE})[0].tolist() == [4, 4, 4]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: runs(one, 20), [clone.clone(1 + i % 2) for i in range(8)]))
    assert found == [[2.0 * i for i in range(1, 21)]] * 8


def test_a_clone_with_a_plug_in() -> None:
    pytest.importorskip("onnxruntime")
    session = bn.compile(two_layers(), threads=1, device=["onnxruntime", "cpu"], fallback="forbid")
    x = data(3)
    want = session(x)
    clone, other = session.clone(), session.clone(threads=2)
    session.close()
    for one in (clone, other, session):
        np.testing.assert_array_equal(one(x)["y"], want["y"])
        assert "onnxruntime" in str(one.report())
    clone.close()
    del clone
    np.testing.assert_array_equal(session(x)["y"], want["y"])


def test_closing_twice_leaves_a_plug_in_to_clones() -> None:
    pytest.importorskip("onnxruntime")
    session = bn.compile(two_layers(), threads=1, device=["onnxruntime", "cpu"], fallback="forbid")
    clone, x = session.clone(), data(3)
    assert clone._plugins is not None
    opened = clone._plugins.by_name["onnxruntime"].opened
    want = clone(x)
    (loaded,) = opened.live.values()
    for _ in range(2):
        with session:
            np.testing.assert_array_equal(session(x)["y"], want["y"])
        session.close()
    assert loaded.is_usable
    assert [*opened.live.values()] == [loaded]
    clone.close()
    assert not opened.live


def test_wrong_threads() -> None:
    with pytest.raises(bn.BoltError, match="threads: got 0"):
        bn.compile(DIGITS).clone(threads=0)


def test_a_report_has_the_sessions_inside() -> None:
    """Those that also return intermediate values."""
    session = bn.compile(DIGITS, threads=1)
    name = session.graph.nodes[-2].outputs[0].name
    session.run([name], {session.inputs[0].name: IMAGES})
    rows = session.report()
    assert rows
    assert {row["inputs"] for row in rows} == {"image [batch, 1, 8, 8]"}
    assert session.memory()["packed"] > 0
    assert session.packs()
