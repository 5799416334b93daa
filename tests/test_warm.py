"""What `bolt-numba cache warm` compiles is all that sessions want later; `doctor` says what folders there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer

import bolt_numba as bn
from bolt_numba.base.files.kept import contents, keep
from bolt_numba.cli.options import read_sets
from bolt_numba.ir.build import Builder
from bolt_numba.kernels.jit import version_name
from bolt_numba.types import F32, I64, Array, Sym, TensorType
from tests.conftest import Done
from tests.rule_cases import o
from tests.test_security import VICTIM, as_root, as_user, public

__all__ = ["public"]
Call = Callable[..., Done]

_RUN = """
import json, sys
import numpy as np
import bolt_numba as bn
from bolt_numba.kernels import jit
seen = []
jit.on_compile(lambda name, done: seen.append(name) if done else None)
for model, precision, threads, tune, shape in json.loads(sys.argv[1]):
    sess = bn.compile(model, precision=precision, threads=threads, tune=tune)
    sess(np.ones(shape, np.float32))
print(json.dumps([seen, "numba" in sys.modules]))
"""


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    """One with a free size and a part that is planned by its data; one that is another."""
    first = bn.Graph("first")
    build = Builder(first)
    x = first.add_input("x", TensorType(F32, (Sym("n"), 40)))
    y = build(o("MatMul"), x, weights(40, 24))
    first.add_output(build(o("NonZero"), build(o("Relu"), y)), "where")
    second = bn.Graph("second")
    build = Builder(second)
    x = second.add_input("z", TensorType(F32, (3, 8)))
    second.add_output(build(o("Softmax", axis=-1), x), "y")
    found = [str(tmp_path / "first.bolt"), str(tmp_path / "second.bolt")]
    for graph, file in zip((first, second), found, strict=True):
        bn.save(graph, file)
    return found


def weights(rows: int, columns: int) -> Array:
    return np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)


def test_what_is_warm_compiles_nothing(models: list[str], tmp_path: Path) -> None:
    env = {**os.environ, "BOLT_NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "bolt_numba", "cache", "warm", *models]
    options = ["--shape", "x=1,40", "--shape", "x=30,40", "--precision", "f32", "--precision", "bf16",
               "--threads", "1", "--threads", "2", "--tune"]  # fmt: skip
    done = subprocess.run([*command, *options], env=env, capture_output=True, text=True, check=True)
    assert "kernels; " in done.stdout
    runs = [
        [model, precision, threads, tune, shape]
        for model, shapes in ((models[0], ([1, 40], [30, 40])), (models[1], ([3, 8],)))
        for shape in shapes
        for precision in ("f32", "bf16")
        for threads in (1, 2)
        for tune in (False, True)
    ]
    command = [sys.executable, "-c", _RUN, json.dumps(runs)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], False]


def test_shapes_of_several_inputs_go_together() -> None:
    assert read_sets([]) == [{}]
    assert read_sets(["x=1,2", "x=3,4", "y=5", "z=6", "z=7"]) == [
        {"x": (1, 2), "y": (5,), "z": (6,)},
        {"x": (3, 4), "y": (5,), "z": (7,)},
    ]
    with pytest.raises(typer.BadParameter, match="got 2 shapes of 'y' and 3 of another"):
        read_sets(["x=1", "x=2", "x=3", "y=1", "y=2"])
    for size in ("1.." + "9" * 19, "9" * 5000):
        with pytest.raises(typer.BadParameter, match="wanted NAME=1,3,224,224"):
            read_sets([f"x={size}"])


def test_a_name_that_no_model_has_is_an_error(models: list[str], call: Call) -> None:
    done = call("cache", "warm", *models, "--shape", "z=3,8", "--shape", "n=4", "--shape", "q=1")
    assert done.code == 1
    assert "--shape: got q, wanted inputs or symbols of the models" in done.err


def test_a_model_that_does_not_run_on_random_inputs_is_warm_all_the_same(tmp_path: Path, call: Call) -> None:
    graph = bn.Graph("picky")
    build = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (2, 4)))
    i = graph.add_input("i", TensorType(I64, (3,)))
    graph.add_output(build(o("Gather", axis=0), x, build(o("Add"), i, i)), "y")  # 2 is beyond
    bn.save(graph, tmp_path / "picky.bolt")
    done = call("cache", "warm", tmp_path / "picky.bolt")
    assert done.code == 0, done.err
    assert "does not run on random inputs: " in done.err


def test_a_model_that_runs_need_not_be_planned_without_data(
    models: list[str], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros, for which `warmup` plans, choose a branch that does not fit in some models."""

    def refuse(*_: object, **__: object) -> None:
        raise bn.BoltError("zeros do not fit")

    monkeypatch.setattr(bn.Session, "warmup", refuse)
    assert call("cache", "warm", models[1]).code == 0


# -------------------------------------------------------------------------------------------------------------- doctor


def doctor(call: Call) -> tuple[bool, str]:
    ok, text = json.loads(call("doctor", "--json").out)["checks"]["kernel cache"]
    return ok, text


def test_doctor_says_which_folders_are_of_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    system, own = tmp_path / "system", tmp_path / "own"
    system.mkdir()
    monkeypatch.setenv("BOLT_NUMBA_SYSTEM_CACHE", str(system))
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(own))
    assert doctor(call) == (True, f"{system}: 0 kernels, only read; {own}: made when it is wanted")
    assert keep(f"{version_name()}/x.kernel", b"x") is None
    assert doctor(call)[1].endswith(f"{own}: 1 kernels, writable")
    assert json.loads(call("cache", "list", "--json").out)[0]["folder"] == str(own)
    system.chmod(0o777)
    ok, text = doctor(call)
    assert not ok
    assert text.startswith(f"BoltError: {system}: not used: {system}: got owner ")


@as_root
def test_doctor_tells_a_user_what_he_cannot_write_or_read(
    public: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    cache = public / "cache"
    cache.mkdir()
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(cache))
    from bolt_numba.cli.machine import _cache_folders, _checked

    def told() -> list[object]:
        return list(_checked(_cache_folders))

    assert as_user(VICTIM, told) == [
        True, f"{cache}: 0 kernels, read-only: {cache} cannot be written; each process compiles those that it lacks",
    ]  # fmt: skip
    cache.chmod(0o700)
    assert as_user(VICTIM, told) == [False, f"BoltError: {cache}: not used: Permission denied"]
    os.chown(cache, VICTIM, -1)
    ok, text = told()
    assert not ok
    assert f"{cache}: not used: {cache}: got owner {VICTIM}" in str(text)


@as_root
def test_a_private_umask_does_not_hide_what_is_for_all(
    public: Path, models: list[str], monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    for folder in (public / "system", public / "own"):
        assert not folder.exists()
    monkeypatch.setenv("BOLT_NUMBA_SYSTEM_CACHE", f"{public / 'system'}:{public / 'other'}")
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(public / "own"))
    before = os.umask(0o077)
    try:
        assert call("cache", "warm", "--system", models[1]).code == 0
        assert keep("kind/file", b"x") is None
    finally:
        os.umask(before)
    assert not (public / "own").exists()
    assert as_user(VICTIM, lambda: [found.decode() for _, found in contents("kind/file")]) == ["x"]
    monkeypatch.setenv("BOLT_NUMBA_SYSTEM_CACHE", "")
    assert "BOLT_NUMBA_SYSTEM_CACHE: got no folder" in call("cache", "warm", "--system", models[1]).err
