"""Plans that a process keeps of files for later ones: the same bits without the model, which is read when needed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import bolt_numba as bn
from bolt_numba.base.files import stamps
from bolt_numba.base.types import Array
from bolt_numba.cli.app import app
from bolt_numba.devices import kept_plans
from bolt_numba.kernels.registry import KERNELS
from bolt_numba.ops.registry import OPS
from bolt_numba.sessions import known_plans
from bolt_numba.sessions.known import KnownSession
from bolt_numba.sessions.session import Session

X = np.random.default_rng(0).standard_normal((4, 8)).astype("f4")
WEIGHTS = np.random.default_rng(1).standard_normal((8, 96)).astype("f4")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where plans are kept, beside the kernels of the suite."""
    monkeypatch.setenv("BOLT_NUMBA_PLANS_MIB", "64")
    monkeypatch.setattr(stamps, "SETTLED", -60.0)  # files are as new as the tests
    monkeypatch.setattr(kept_plans, "FOLDER", f"plans-{os.getpid()}")
    yield (made := kept_plans.cache_root() / kept_plans.FOLDER)
    known_plans.wait_for_kept()
    shutil.rmtree(made, ignore_errors=True)


def write(path: Path, rows: Any = 4, weights: Array = WEIGHTS, location: str = "") -> Path:
    """y = softmax(relu(x @ w)[:, i]), and i = the index of columns."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("Gather", ["r", "i"], ["g"], axis=1),
        helper.make_node("Softmax", ["g"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, 8))
    i = helper.make_tensor_value_info("i", TensorProto.INT64, (3,))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (rows, 3))
    graph = helper.make_graph(nodes, "picked", [x, i], [y], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    external = {"save_as_external_data": True, "location": location, "size_threshold": 0} if location else {}
    onnx.save(model, path, **external)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "m.onnx")


def run(session: Session, x: Array = X, columns: Any = (5, 0, 95)) -> Array:
    return session(x=x, i=np.array(columns))["y"]


def kept(model: Path, **options: Any) -> Array:
    """The results of a session that has its plan kept."""
    session = bn.compile(model, **({"threads": 1} | options))
    assert type(session) is Session
    made = run(session)
    known_plans.wait_for_kept()
    return made


def known(model: Path, **options: Any) -> Session:
    session = bn.compile(model, **({"threads": 1} | options))
    assert type(session) is KnownSession
    return session


def is_known(model: Path, **options: Any) -> bool:
    return type(bn.compile(model, **({"threads": 1} | options))) is KnownSession


def test_the_second_session_has_the_same_bits_without_the_model(model: Path) -> None:
    first, session = kept(model), known(model)
    assert run(session).tobytes() == first.tobytes()
    assert run(session).tobytes() == first.tobytes()
    into = np.empty((4, 3), "f4")
    session.run_into({"x": X, "i": np.array([5, 0, 95])}, {"y": into})
    assert into.tobytes() == first.tobytes()
    assert [spec.name for spec in session.inputs] == ["x", "i"]
    assert session.inputs[0].shape == (4, 8)
    session.warmup()
    session.close()
    assert run(session).tobytes() == first.tobytes(), "it is read once more"
    assert type(session) is KnownSession


@pytest.mark.parametrize("look", [
    lambda s: s.graph.nodes, lambda s: s.report(), lambda s: s.optimised, lambda s: s.memory(), lambda s: s.packs(),
    lambda s: s.profile(X, np.zeros(3, "i8"), runs=1), lambda s: s.clone(), pickle.dumps,
    lambda s: s.run(["p"], {"x": X, "i": np.zeros(3, "i8")}),
    lambda s: s.warmup(x=[4, 8], i=[2]),
])  # fmt: skip
def test_what_else_is_asked_of_it_is_as_that_of_others(model: Path, look: Callable[[Session], Any]) -> None:
    first, session = kept(model), known(model)
    with suppress(bn.ShapeError):  # of a size that the model does not take
        look(session)
    assert type(session) is Session
    assert run(session).tobytes() == first.tobytes()


def test_reports_tell_of_runs_that_came_before(model: Path) -> None:
    kept(model)
    session = known(model)
    assert not bn.compile(model, threads=1).report(), "nothing has run"
    run(session)
    assert [row["node"] for row in session.report()] == [row["node"] for row in plain(model).report()]


def plain(model: Path) -> Session:
    made = Session(bn.load(model), threads=1)
    run(made)
    return made


def test_other_shapes_and_views_complete_it(tmp_path: Path) -> None:
    model = write(tmp_path / "open.onnx", "n")
    first = kept(model)
    session = known(model)
    np.testing.assert_array_equal(run(session, X[:2]), first[:2])
    assert type(session) is Session
    assert run(session).tobytes() == first.tobytes()
    wide = np.repeat(X, 2, 1)
    session = known(model)
    np.testing.assert_array_equal(run(session, wide[:, ::2]), first)
    assert is_known(model), "the plan for the first shapes stays"


def test_an_index_out_of_range_names_its_node(model: Path) -> None:
    kept(model)
    session = known(model)
    with pytest.raises(bn.DataError, match=r"node 'g': Gather: indices\[2\]: got 96"):
        run(session, columns=(1, 2, 96))
    assert type(session) is Session


def test_refused_inputs_are_refused_alike(model: Path) -> None:
    kept(model)
    for refused in ({"x": X}, {"x": X, "i": np.zeros(3, "i8"), "z": X}, {"x": X[:, :3], "i": np.zeros(3, "i8")}):
        with pytest.raises(bn.BoltError) as one:
            known(model)(refused)
        with pytest.raises(bn.BoltError) as other:
            plain(model)(refused)
        assert str(one.value) == str(other.value)


@pytest.mark.parametrize("options", [
    {"threads": 2}, {"precision": "bf16"}, {"numerics": "strict"}, {"tune": True}, {"memory_limit": 1 << 28},
    {"device": "host"}, {"device": ["host", "cpu"]}, {"stages": ()},
])  # fmt: skip
def test_other_options_have_plans_of_their_own_or_none(model: Path, options: dict[str, Any]) -> None:
    kept(model)
    assert not is_known(model, **options)
    assert is_known(model)


def test_commands_begin_with_kept_plans_too(model: Path) -> None:
    """They say so where nobody chose a device or properties."""
    kept(model)
    assert is_known(model, device=["cpu"], properties={}, placement=None, time_limit=None)


def _rewritten(model: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
    write(model, weights=-WEIGHTS)


def _replaced(model: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
    write(model.with_name("n.onnx"), weights=-WEIGHTS).replace(model)


def _set(name: str, value: str) -> Callable[[Path, Path, pytest.MonkeyPatch], None]:
    return lambda model, folder, patch: patch.setenv(name, value)


def _upgraded(model: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kept_plans, "state_of", lambda *folders: "another")


def _other_kernels(model: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kept_plans, "version_name", lambda: "another level or compiler")


def _other_processor(model: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kept_plans, "processor", lambda: ("another", frozenset(), (1, 2, 3, 4)))


def _writable(model: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("warnings.warn", lambda *args, **kwargs: None)
    (file,) = folder.iterdir()
    file.chmod(0o666)


def _own_kernel(model: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(OPS, "Own", type("Own", (), {}))


def _own_maker(model: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
    (key, entries) = next((key, rows) for key, rows in KERNELS.items() if rows)
    own = type("Entry", (), {"make": lambda: None, "rank": 0})()
    patch.setitem(KERNELS, key, [*entries, own])


def _damaged(at: float) -> Callable[[Path, Path, pytest.MonkeyPatch], None]:
    def damage(model: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
        (file,) = folder.iterdir()
        data = bytearray(file.read_bytes())
        data[int(at * (len(data) - 1))] ^= 0x10
        file.write_bytes(data)

    return damage


def _cut(model: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
    (file,) = folder.iterdir()
    os.truncate(file, file.stat().st_size - 64)


@pytest.mark.parametrize("change", [
    _rewritten, _replaced, _other_kernels, _set("BOLT_NUMBA_CHECK", "1"),
    _set("BOLT_NUMBA_MEMORY", "1G"), _set("BOLT_NUMBA_PLANS_MIB", "0"), _upgraded, _other_processor, _writable,
    _own_kernel, _own_maker, _cut, *[_damaged(at) for at in (0.0, 0.02, 0.2, 0.5, 0.9, 1.0)],
])  # fmt: skip
def test_what_has_changed_or_is_damaged_does_not_serve(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[..., None]
) -> None:
    first = kept(model)
    assert is_known(model)
    change(model, folder, monkeypatch)
    session = bn.compile(model, threads=1)
    expected = first if change not in (_rewritten, _replaced) else plain(model)(x=X, i=np.array([5, 0, 95]))["y"]
    if change is not _own_maker:
        np.testing.assert_allclose(run(session), expected, rtol=1e-5)
    assert type(session) is Session


def test_files_that_a_model_names_count(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", location="w.bin")
    first = kept(model)
    assert run(known(model)).tobytes() == first.tobytes()
    (tmp_path / "w.bin").write_bytes((-WEIGHTS).tobytes())
    assert not is_known(model)


def test_a_copy_of_the_same_content_is_known_too(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, where the system gives other inodes and times."""
    first = kept(model)
    shutil.copy(model, other := model.with_name("copy.onnx"))
    other.replace(model)
    session = known(model)
    assert run(session).tobytes() == first.tobytes()
    assert session.report(), "the model is the one that is there"
    known_plans.wait_for_kept()
    monkeypatch.setattr("bolt_numba.devices.seals.key_of_seals", lambda: b"another secret of 16 bytes")
    assert not is_known(model)


def test_who_writes_to_a_small_model_changes_no_session(model: Path) -> None:
    first = kept(model)
    session = known(model)
    write(model, weights=-WEIGHTS)
    assert len(session.report()) == 0
    assert run(session).tobytes() == first.tobytes()


def test_nobody_keeps_what_was_written_just_now(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "SETTLED", 2.0)
    kept(model)
    assert not is_known(model)


def test_only_this_user_may_read_a_plan(model: Path, folder: Path) -> None:
    kept(model)
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_all_together_keep_to_their_limit(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLT_NUMBA_PLANS_MIB", "1")
    large = np.random.default_rng(2).standard_normal((8, 12_000)).astype("f4")
    models = [write(tmp_path / f"{n}.onnx", weights=large) for n in range(4)]
    for number, model in enumerate(models):
        kept(model)
        os.utime(max(folder.iterdir(), key=lambda f: f.stat().st_mtime_ns), (number, number))
    assert [is_known(model) for model in models] == [False, False, False, True] or sum(map(is_known, models)) == 2
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 1 << 20
    huge = write(tmp_path / "huge.onnx", weights=np.ones((8, 40_000), "f4"))
    kept(huge)
    assert not is_known(huge)


def test_other_shapes_have_plans_of_their_own(tmp_path: Path, folder: Path) -> None:
    model = write(tmp_path / "open.onnx", "n")
    first = kept(model)
    for count in (2, 3, 1):
        assert run(known(model), X[:count]).tobytes() == first[:count].tobytes()
        known_plans.wait_for_kept()
    assert len([*folder.iterdir()]) == 4
    for count in (1, 4, 3, 2):
        session = known(model)
        session.warmup(x=[count, 8], i=[3])
        into = np.empty((count, 3), "f4")
        session.run_into({"x": X[:count], "i": np.array([5, 0, 95])}, {"y": into})
        assert into.tobytes() == run(session, X[:count]).tobytes() == first[:count].tobytes()
        assert type(session) is KnownSession
        session.close()
        assert run(session).tobytes() == first.tobytes(), "nothing is loaded, so it may be another one"
        assert type(session) is KnownSession
        run(session, X[:1])
        assert type(session) is Session, "only one is loaded"


def test_a_few_shapes_have_plans_and_one_that_rests_gives_way(tmp_path: Path, folder: Path) -> None:
    model, wide = write(tmp_path / "open.onnx", "n"), np.repeat(X, 2, 0)
    kept(model)

    def serves(count: int) -> bool:
        session = known(model)
        run(session, wide[:count])
        known_plans.wait_for_kept()
        time.sleep(0.02)  # files have times of whole ticks
        return type(session) is KnownSession

    assert [serves(count) for count in (1, 2, 3, 5)] == [False] * 4
    assert [serves(count) for count in (4, 1, 2, 3, 5)] == [True, True, True, True, False]
    os.utime(min(folder.glob("*-*"), key=lambda file: file.stat().st_mtime_ns), (1.0, 1.0))
    assert [serves(count) for count in (5, 5, 1)] == [False, True, False]


def test_models_of_several_parts_have_no_plan(tmp_path: Path, folder: Path) -> None:
    """Here data decide a size."""
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 8))
    y = helper.make_tensor_value_info("y", TensorProto.INT64, (2, "n"))
    graph = helper.make_graph(nodes, "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "z.onnx")
    bn.compile(tmp_path / "z.onnx", threads=1)(x=X)
    assert not folder.exists()


def test_nothing_is_compiled_to_keep_a_plan(model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the cache cannot be written, and kernels are in memory alone."""
    compiled: list[Any] = []
    session = bn.compile(model, threads=1)
    session.warmup()
    known_plans.wait_for_kept()
    shutil.rmtree(folder)
    monkeypatch.setattr("bolt_numba.kernels.code_files.found", lambda name: None)
    monkeypatch.setattr("bolt_numba.kernels.jit._made", compiled.append)
    kept(model)
    assert not folder.exists()
    assert not compiled


def test_what_writers_left_behind_goes(model: Path, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    for name, age in ((".old.plan.1.tmp", 7200), (".new.plan.2.tmp", 0)):
        (folder / name).write_bytes(b"part")
        os.utime(folder / name, (time.time() - age,) * 2)
    kept(model)
    assert [file.name for file in folder.glob(".*.tmp")] == [".new.plan.2.tmp"]
    assert is_known(model)


def test_commands_list_and_clear_them(model: Path, folder: Path) -> None:
    kept(model)
    listed = CliRunner().invoke(app, ["cache", "list"]).output
    assert "1 plan, " in " ".join(listed.split())
    assert kept_plans.clear() == 1
    assert not is_known(model)


_START = """
import json, sys
import numpy as np
import bolt_numba as bn
from bolt_numba.base.files import stamps
stamps.SETTLED = -60
before = set(sys.modules)
session = bn.compile(sys.argv[1], threads=2)
y = session(x=np.load(sys.argv[2]), i=np.array([5, 0, 95]))["y"]
late = ("passes", "converters", "runtime.plan", "runtime.runner", "ir.decode", "ops.layers", "plugins")
ours = [m for m in sys.modules if any(m.startswith(f"bolt_numba.{name}") for name in late)]
print(json.dumps([type(session).__name__, y.tobytes().hex(), ours]))
"""


def test_the_next_process_imports_neither_readers_nor_passes(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    command = [sys.executable, "-c", _START, str(model), str(tmp_path / "x.npy")]
    made = [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(2)]
    (first, bits, ours), (second, again, few) = made
    assert (first, second) == ("Session", "KnownSession")
    assert bits == again
    assert ours
    assert few == []
    name = known_plans._asked(model, None, bn.Options(threads=2))
    assert name is not None
    (kept_plans.cache_root() / name.name.replace(kept_plans.FOLDER, "plans")).unlink()


def test_many_threads_run_one_session(model: Path) -> None:
    first, session = kept(model), known(model)
    made: list[bytes] = []

    def work() -> None:
        made.extend(run(session).tobytes() for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [first.tobytes()] * 120
    assert type(session) is KnownSession


@pytest.mark.parametrize("cache", [None, "int8"])
def test_a_generator_begins_with_kept_steps(tmp_path: Path, cache: str | None) -> None:
    """A short text needs no model, and appends to its caches where they lie; a long prompt has the model read."""
    pytest.importorskip("tokenizers")
    from bolt_numba.text import Generator
    from tests.text.decoders import whole

    file, texts = whole(tmp_path / "small.bolt"), []
    for kind in (Session, KnownSession):
        with Generator(file, threads=1, cache=cache) as generator:
            texts.append(generator.generate("Once upon", max_tokens=20).text)
            assert type(generator.session) is kind
            if kind is KnownSession:
                frame = generator.decoder._frame(0, 1, 1, 1)
                made = generator.session._targets([*frame.feeds.values()], frame.call.buffers)
                assert all(a is b for a, b in zip(made, frame.call.buffers.values(), strict=True))
            texts.append(generator.generate("Once upon a time " * 6, max_tokens=20).text)
            assert type(generator.session) is Session
        known_plans.wait_for_kept()
    assert texts[:2] == texts[2:]
