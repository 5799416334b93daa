"""Sessions of files that an earlier one gave to a device as one part begin without their model, and lose nothing."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.base.files import stamps
from bolt_numba.plugins import interface, registry, starts
from bolt_numba.plugins.interface import DeviceFullError, DeviceLostError
from bolt_numba.sessions.session import Session
from tests.plugins.one_part import (
    StartingAccelerator,
    StartingDriver,
    X,
    driver,
    expect,
    is_known,
    model,
    primed,
    session_of,
    write_model,
)
from tests.plugins.plain_driver import nth
from tests.plugins.two_parts import BROKEN, cache

__all__ = ["cache", "driver", "model"]
pytestmark = pytest.mark.usefixtures("cache")


# --- what it is good for ----------------------------------------------------------------------------------------------


def test_the_second_session_asks_the_device_for_nothing_but_a_start(
    model: Path, driver: StartingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    primed(model)
    before = driver.calls.copy()
    monkeypatch.setattr("bolt_numba.sessions.loading.read_model", lambda *a: pytest.fail("the model was read"))
    session = session_of(model)
    expect(session)
    expect(session, X * 3)
    assert is_known(session)
    assert [s.name for s in session.inputs] == ["x"]
    assert session.outputs[1].shape == ("n", 3)
    assert list(session.run(["z"], {"x": X})[0][0]) == list(X[0] * 2)
    new = driver.calls - before
    assert new == {"open": 1, "start": 1, "request": 1, "run": 3}
    session.close()
    assert set(driver.live.values()) == {0}
    expect(session)


@pytest.mark.parametrize(
    "look",
    [
        lambda s: s.report(),
        lambda s: s.graph,
        lambda s: s.optimised,
        lambda s: s.memory(),
        lambda s: s.warmup(x=(2, 3)),
        lambda s: s.profile(X, runs=1),
        lambda s: s.run(["a"], {"x": X}),
        lambda s: pickle.loads(pickle.dumps(s))(X),
        lambda s: copy.copy(s).graph,
        lambda s: s.states,
        lambda s: s(np.ones((5, 3), np.float32)),
    ],
)
@pytest.mark.parametrize("ran", [True, False])
def test_what_else_is_asked_of_it_completes_it(model: Path, driver: StartingDriver, look: Any, ran: bool) -> None:
    primed(model)
    session = session_of(model)
    if ran:
        expect(session)
    look(session)
    expect(session)
    expect(session, np.ones((4, 3), np.float32))
    assert type(session) is Session or look(session) == {}
    assert not hasattr(session, "nothing_like_this")


def test_a_completed_session_goes_on_with_what_was_loaded(model: Path, driver: StartingDriver) -> None:
    primed(model)
    session = session_of(model)
    for _ in range(3):
        expect(session)
    (row,) = session.report()
    assert (row["device"], row["state"], row["runs"], row["fallbacks"]) == ("starting", "cached", 3, {})
    assert (row["copies"], row["bytes"], len(row["nodes"])) == (6, 300, 3)
    expect(session)
    assert session.report()[0]["runs"] == 4
    assert (driver.calls["compile"], driver.calls["start"], driver.calls["restore"]) == (1, 1, 0)
    assert driver.calls["open"] == 2


def test_another_shape_completes_it_and_is_known_to_the_next(model: Path, driver: StartingDriver) -> None:
    primed(model)
    wide = np.ones((7, 3), np.float32)
    session = session_of(model)
    expect(session, wide)
    assert type(session) is Session
    for x in (wide, X):
        again = session_of(model)
        expect(again, x)
        assert is_known(again)


def test_it_is_left_to_itself_what_is_no_single_part(model: Path, driver: StartingDriver) -> None:
    driver.only = {"Mul", "Add"}
    for _ in range(2):
        primed(model)


def test_a_driver_that_does_not_say_that_it_can_gets_the_graph(
    model: Path, driver: StartingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(StartingAccelerator, "start")
    for _ in range(2):
        primed(model)


@pytest.mark.parametrize(
    "options",
    [
        {"properties": {"starting": {"cache": False}}},
        {"properties": {"starting": {"self_check": True}}},
        {"properties": {"starting": {"buckets": "n:4"}}},
        {"placement": "# nothing\n"},
        {"stages": ()},
        {"tune": True},
        {"memory_limit": 1 << 30},
    ],
)
def test_what_only_whole_sessions_do_begins_from_the_model(
    model: Path, driver: StartingDriver, options: dict[str, Any]
) -> None:
    for _ in range(2):
        session = session_of(model, **options)
        assert type(session) is Session
        session.run(None, {"x": X})


# --- what makes it begin anew -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["written", "replaced", "with its old times"])
def test_a_model_that_changed_is_read(model: Path, driver: StartingDriver, way: str) -> None:
    primed(model)
    found = model.stat()
    if way == "replaced":
        os.replace(write_model(model.with_name("other.onnx"), 3.0), model)
    else:
        write_model(model, 3.0)
        assert model.stat().st_size == found.st_size
    if way == "with its old times":
        os.utime(model, ns=(found.st_atime_ns, found.st_mtime_ns))
    session = session_of(model)
    assert type(session) is Session
    expect(session, weight=3.0)
    again = session_of(model)
    assert is_known(again)
    expect(again, weight=3.0)


def test_weights_beside_a_model_are_looked_at_too(tmp_path: Path, driver: StartingDriver) -> None:
    model = write_model(tmp_path / "m.onnx", folder="w.bin")
    primed(model)
    assert is_known(session_of(model))
    shutil.copy(model, tmp_path / "kept")
    write_model(tmp_path / "other.onnx", 3.0, folder="v.bin")
    (tmp_path / "v.bin").replace(tmp_path / "w.bin")
    session = session_of(model)
    assert type(session) is Session
    expect(session, weight=3.0)


@pytest.mark.parametrize("way", ["replaced", "link"])
def test_weights_that_change_before_the_first_run_are_not_those_that_are_known(
    tmp_path: Path, driver: StartingDriver, way: str
) -> None:
    """The device computes with those that were read; what is remembered of them must not hold for others."""
    model = write_model(tmp_path / "m.onnx", folder="w.bin")
    write_model(tmp_path / "other.onnx", 3.0, folder="v.bin")
    if way == "link":
        (tmp_path / "w.bin").rename(tmp_path / "u.bin")
        (tmp_path / "w.bin").symlink_to("u.bin")
        primed(model)
        assert is_known(session_of(model))
    session = session_of(model)
    if way == "link":
        (tmp_path / "l").symlink_to("v.bin")
        (tmp_path / "l").replace(tmp_path / "w.bin")
    else:
        (tmp_path / "v.bin").replace(tmp_path / "w.bin")
    expect(session)
    expect(session_of(model), weight=3.0)


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 2},
        {"precision": "bf16"},
        {"numerics": "strict"},
        {"device": ["starting", "host", "cpu"]},
        {"properties": {"starting": {"chip": "two"}}},
        {"properties": {"starting": {"speed": 4}}},
        {"signature": "main"},
    ],
)
def test_other_options_are_another_start(model: Path, driver: StartingDriver, options: dict[str, Any]) -> None:
    primed(model)
    primed(model, **options)
    assert is_known(session_of(model, **options))
    assert is_known(session_of(model))


def test_wrong_options_are_refused_as_ever(model: Path, driver: StartingDriver) -> None:
    primed(model)
    wrong: list[dict[str, Any]] = [
        {"fallback": "maybe"},
        {"max_plans": 0},
        {"stand_ins": 3},
        {"threads": 0},
        {"signature": "?"},
        {"properties": {"starting": {"what": 1}}},
        {"properties": 3},
        {"device": ["starting", "?"]},
    ]
    for options in wrong:
        with pytest.raises(bn.BoltError):
            session_of(model, **options)


@pytest.mark.filterwarnings("ignore:device 'starting'. open")
@pytest.mark.parametrize("change", ["version", "sources", "package", "driver", "its file", "absent", "open"])
def test_another_surrounding_is_another_start(
    model: Path, driver: StartingDriver, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    primed(model)
    assert is_known(session_of(model))
    if change == "version":
        driver.version = "2.0"
    elif change == "sources":
        monkeypatch.setattr(starts, "state_of", lambda folder: "others")
    elif change == "package":
        (tmp_path / "new-1.0.dist-info").mkdir()
        monkeypatch.syspath_prepend(tmp_path)
    elif change == "driver":
        registry.register_driver(StartingDriver)
    elif change == "its file":
        monkeypatch.setattr(starts, "_file_of", lambda driver: [1])
    elif change == "absent":
        driver.absent = "it was taken away"
    else:
        driver.fails["open"] = BROKEN
    session = session_of(model)
    assert type(session) is Session
    expect(session)


def start_file(cache: Path) -> Path:
    (found,) = (cache / "plugins").glob("*.start")
    return found


def _marked(document: Any) -> bytes:
    text = json.dumps(document).encode()
    return sha256(text).hexdigest().encode() + text


def _told(found: Any, at: int, to: Any) -> Any:
    """What is remembered, with something else at a place of its only hookup."""
    (row,) = found["hookups"]
    return found | {"hookups": [[*row[:at], to, *row[at + 1 :]]]}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data, _: b"",
        lambda data, _: data[:-1],
        lambda data, _: data[:50] + b"?" + data[51:],
        lambda data, _: data[:90] + b"?" + data[91:],
        lambda data, found: _marked([]),
        lambda data, found: _marked({"facts": found["facts"]}),
        lambda data, found: _marked(found | {"hookups": [[[[2, 3]], 1, 2, 3, 4, 5, 6, 7]]}),
        lambda data, found: _marked(found | {"hookups": [3]}),
        *(lambda data, found, at=at, to=to: _marked(_told(found, at, to)) for at, to in [
            (5, [5]), (5, ["0"]), (5, [-1]), (6, [2, 0]), (6, 0), (7, [[2, 3]]), (7, [[2], [2]]),
            (7, [[-1, 3], [2, 3]]), (0, [[2]]),
            (8, [["f32", [2], "00"]]), (8, [["f32", [2], "zz"]]), (8, [["string", [1], "00" * 8]]),
        ]),
        lambda data, found: _marked(found | {"inputs": [["x", "f99", [2]]]}),
        lambda data, found: _marked(found | {"made_by": ["os:system", True, None]}),
        lambda data, found: _marked(found | {"version": None}),
        lambda data, found: b"[" * 100_000,
    ],
)
def test_a_damaged_start_is_no_start(model: Path, driver: StartingDriver, cache: Path, damage: Any) -> None:
    primed(model)
    path = start_file(cache)
    data = path.read_bytes()
    path.write_bytes(damage(data, json.loads(data[64:])))
    session = session_of(model)
    assert type(session) is Session
    expect(session)
    assert is_known(session_of(model)), "it was written anew"


@pytest.mark.filterwarnings("ignore::bolt_numba.base.files.trusted.UntrustedCacheWarning")
def test_a_start_that_others_could_have_written_is_none(model: Path, driver: StartingDriver, cache: Path) -> None:
    primed(model)
    start_file(cache).chmod(0o666)
    assert type(session_of(model)) is Session


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "refused"])
def test_a_blob_that_is_no_good_is_made_anew(model: Path, driver: StartingDriver, cache: Path, damage: str) -> None:
    primed(model)
    (path,) = (cache / "plugins").glob("*.blob")
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "refused":
        driver.fails["start"] = driver.fails["restore"] = BROKEN
    else:
        path.write_bytes(data[:-2] if damage == "cut" else data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    session = session_of(model)
    expect(session)
    (row,) = session.report()
    assert (row["state"], driver.calls["compile"]) == ("compiled", 2)
    assert bool(row["notes"]) == (damage != "missing")


# --- when the device fails --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:device 'starting'. open")
@pytest.mark.parametrize("error", [BROKEN, DeviceLostError("gone"), DeviceFullError("no room"), MemoryError()])
@pytest.mark.parametrize("when", [1, 2])
def test_a_run_that_fails_is_computed_by_others(
    model: Path, driver: StartingDriver, error: Exception, when: int
) -> None:
    primed(model)
    driver.calls["run"] = 0
    driver.fails["run"] = nth(when, error)
    session = session_of(model)
    for _ in range(3):
        expect(session)
    (facts,) = session.report().devices
    assert sum(facts["failures"].values()) >= (not isinstance(error, DeviceFullError))
    assert ("lost: run: gone" in facts["state"]) == isinstance(error, DeviceLostError)


def test_forbid_and_warn_hold_without_the_model(model: Path, driver: StartingDriver) -> None:
    primed(model)
    driver.fails["run"] = BROKEN
    with pytest.raises(bn.DeviceError, match=r"part 'starting.0' \(.*\): run: RuntimeError: no answer"):
        session_of(model, fallback="forbid")(x=X)
    with pytest.warns(interface.FallbackWarning, match="no answer"):
        expect(session_of(model, fallback="warn"))


def test_an_interrupt_is_no_failure(model: Path, driver: StartingDriver) -> None:
    primed(model)
    driver.calls["run"] = 0
    driver.fails["run"] = nth(1, KeyboardInterrupt())
    session = session_of(model, fallback="forbid")
    with pytest.raises(KeyboardInterrupt):
        session(x=X)
    expect(session)
    assert is_known(session)


def test_a_file_that_is_replaced_serves_the_session_that_has_it(model: Path, driver: StartingDriver) -> None:
    primed(model)
    session = session_of(model)
    os.replace(write_model(model.with_name("other.onnx"), 3.0), model)
    expect(session)
    expect(session, np.ones((4, 3), np.float32))
    expect(session_of(model), weight=3.0)


def test_a_file_that_is_written_to_is_told(model: Path, driver: StartingDriver) -> None:
    primed(model)
    session = session_of(model)
    write_model(model, 3.0)
    expect(session)
    with pytest.raises(bn.InvalidModelError, match="was written to since it was loaded"):
        session(x=np.ones((4, 3), np.float32))


def test_threads_may_run_and_complete_it_at_once(model: Path, driver: StartingDriver) -> None:
    primed(model)
    for _ in range(5):
        session = session_of(model)
        gate = threading.Barrier(8)

        def work(i: int, session: bn.Session = session, gate: threading.Barrier = gate) -> None:
            gate.wait()
            for k in range(4):
                if i == 0 and k == 2:
                    session.report()
                expect(session, X if i % 3 else np.ones((2 + i, 3), np.float32))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        session.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_goes_on_by_itself(model: Path, driver: StartingDriver) -> None:
    primed(model)
    session = session_of(model)
    expect(session)
    child = os.fork()
    if not child:
        try:
            expect(session)
            expect(session, np.ones((4, 3), np.float32))
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    expect(session)
    assert is_known(session)


def test_files_that_were_just_written_are_not_noted(
    model: Path, driver: StartingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may write to them within the same moment, which leaves size and times as they are."""
    monkeypatch.setattr(stamps, "SETTLED", 2.0)
    for _ in range(2):
        primed(model)


def test_only_so_many_shapes_are_remembered(
    model: Path, driver: StartingDriver, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "MAX_PLANS", 3)
    for n in range(1, 7):
        expect(session_of(model), np.ones((n, 3), np.float32))
    hookups = json.loads(start_file(cache).read_bytes()[64:])["hookups"]
    assert [row[0][0][0] for row in hookups] == [4, 5, 6]
