"""Sessions that began without their model do without it where they can, and are none the worse where they complete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.sessions.session import Session
from tests.plugins.one_part import StartingDriver, X, driver, expect, is_known, model, primed, session_of, write_model
from tests.plugins.plain_driver import PlainRequest
from tests.plugins.two_parts import BROKEN, cache

__all__ = ["cache", "driver", "model"]
pytestmark = pytest.mark.usefixtures("cache")


def test_a_name_and_buffers_for_results_do_not_complete_it(model: Path, driver: StartingDriver) -> None:
    primed(model)
    session = session_of(model)
    assert repr(session) == f"Session('{model.name}', device=('starting', 'cpu'), threads=1)"
    assert ">f32<" in session._repr_html_()
    for inputs, where in ((X, np.empty((2, 3), np.float32)), (x := X.copy(), x)):  # the second is its own input
        buffer: Any = where
        session.run_into({"x": inputs}, {"z": buffer})
        np.testing.assert_array_equal(buffer, X * 2)
    both = {"y": np.empty((2, 3), np.float32), "z": np.empty((2, 3), np.float32)}
    session.run_into({"x": X}, both)
    np.testing.assert_array_equal(both["y"], np.maximum(both["z"], 0) + 1)
    for wrong in (np.empty((2, 4), np.float32), np.empty((2, 3)), np.empty((3, 2), np.float32).T):
        runs = driver.calls["run"]
        with pytest.raises(bn.BoltError, match="buffer for output 'y'"):
            session.run_into({"x": X}, {"y": wrong})
        assert driver.calls["run"] == runs
    with pytest.raises(bn.ShapeError, match="overlap"):
        session.run_into({"x": X}, {"y": both["y"], "z": both["y"]})
    with pytest.raises(bn.ShapeError, match=r"'y' is not one of \['x'\]"):
        session(y=X)
    assert is_known(session)
    session.run_into({"x": np.ones((5, 3), np.float32)}, {"z": np.empty((5, 3), np.float32)})
    assert type(session) is Session


def test_results_go_straight_into_buffers(model: Path, driver: StartingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    primed(model)
    session, buffer, where = session_of(model), np.empty((2, 3), np.float32), []
    run = PlainRequest.run

    def seen(self: Any, inputs: Any, outputs: Any) -> None:
        where.extend(a.ctypes.data for a in outputs)
        run(self, inputs, outputs)

    monkeypatch.setattr(PlainRequest, "run", seen)
    session.run_into({"x": X}, {"y": buffer})
    assert buffer.ctypes.data in where
    np.testing.assert_array_equal(buffer, np.maximum(X * 2, 0) + 1)
    assert is_known(session)


def test_a_run_into_buffers_that_fails_is_computed_by_others(model: Path, driver: StartingDriver) -> None:
    primed(model)
    session, buffer = session_of(model), np.empty((2, 3), np.float32)
    driver.fails["run"] = BROKEN
    session.run_into({"x": X}, {"y": buffer})
    np.testing.assert_array_equal(buffer, np.maximum(X * 2, 0) + 1)
    assert session.report().devices[0]["failures"]


def test_a_report_tells_of_the_shapes_that_ran_last(model: Path, driver: StartingDriver) -> None:
    wide = np.ones((7, 3), np.float32)
    expect(session_of(model), X)
    expect(session_of(model), wide)
    session, whole = session_of(model), session_of(model, properties={"starting": {"speed": 4}})
    for each in (session, whole):
        for x in (X, wide, X):
            expect(each, x)
    assert is_known(session)
    (row,), (want,) = session.report(), whole.report()
    assert row == want | {"state": "cached"}
    assert row["output"] == "f32[2, 3], f32[2, 3]"
    assert session.report().placed == whole.report().placed


@pytest.mark.parametrize("which", ["m.onnx", "w.bin"])
def test_rights_of_files_and_other_names_are_not_what_is_in_them(
    tmp_path: Path, driver: StartingDriver, which: str
) -> None:
    model = write_model(tmp_path / "m.onnx", folder="w.bin")
    primed(model)
    session = session_of(model)
    (tmp_path / which).chmod(0o600)
    os.link(tmp_path / which, tmp_path / "another name")
    assert is_known(session)
    assert session.graph.name == "g"
    expect(session, np.ones((4, 3), np.float32))


@pytest.mark.parametrize("which", ["m.onnx", "w.bin"])
def test_files_that_are_not_in_their_place_are_told_where_there_are_several(
    tmp_path: Path, driver: StartingDriver, which: str
) -> None:
    model = write_model(tmp_path / "m.onnx", folder="w.bin")
    write_model(tmp_path / "other.onnx", 3.0, folder="v.bin")
    primed(model)
    session = session_of(model)
    (tmp_path / {"m.onnx": "other.onnx", "w.bin": "v.bin"}[which]).replace(tmp_path / which)
    with pytest.raises(bn.InvalidModelError, match="was written to since it was loaded"):
        session(x=np.ones((4, 3), np.float32))
