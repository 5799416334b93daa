"""Exported folders: C that is compiled here, linked with what was exported, and gives the bits of a session."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import BoltError
from bolt_numba.export.building import archiver_of, compiler_for
from bolt_numba.export.exporting import Exported
from bolt_numba.export.library import c_name
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.pointwise import Relu
from bolt_numba.types import Array
from tests.rule_cases import graph_of
from tests.test_export import DIGITS, attention

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the libraries are of x86-64"),
]
IMAGE = np.random.default_rng(3).random((1, 1, 8, 8), np.float32)


def compiled(folder: Path, *more: str, standard: str = "c11") -> None:
    command = ["cc", f"-std={standard}", "-O1", "-Wall", "-Werror", "-I.", "-Iruntime", "-o", "main", *more]
    subprocess.run([*command, "-lm", "-lpthread"], cwd=folder, check=True)


def outputs(folder: Path, command: list[str], *feeds: Array) -> list[bytes]:
    """What the example of a folder writes for these inputs."""
    for number, array in enumerate(feeds):
        (folder / f"{number}.in").write_bytes(array.tobytes())
    given = [f"{number}.in" for number in range(len(feeds))]
    subprocess.run([*command, *given], cwd=folder, check=True, capture_output=True, timeout=60)
    return [(folder / f"{i}.out").read_bytes() for i in range(len(list(folder.glob("*.out"))))]


def wanted(graph: Graph, *feeds: Array) -> list[bytes]:
    return [array.tobytes() for _, array in bn.compile(graph, threads=1, stand_ins=False)(*feeds).items()]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return bn.export_model(DIGITS, tmp_path_factory.mktemp("made") / "digits", threads=2)


def test_a_static_library_gives_the_bits_of_a_session(digits: Exported) -> None:
    assert {file.name for file in digits.built} == {"libdigits.so", "libdigits.a"}
    compiled(digits.path, "main.c", "libdigits.a")
    assert outputs(digits.path, ["./main"], IMAGE) == wanted(bn.load(DIGITS), IMAGE)


def test_a_shared_library_shows_what_is_public(digits: Exported) -> None:
    compiled(digits.path, "main.c", "-L.", "-ldigits", "-Wl,-rpath,$ORIGIN")
    assert outputs(digits.path, ["./main"], IMAGE) == wanted(bn.load(DIGITS), IMAGE)
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", "libdigits.so"], cwd=digits.path, capture_output=True, text=True
    )
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert {"digits_open", "bn_session_run"} <= names
    assert all(name.startswith("bn_") or name == "digits_open" for name in names), names
    segments = subprocess.run(
        ["readelf", "-ld", "libdigits.so"], cwd=digits.path, capture_output=True, text=True
    ).stdout
    assert "TEXTREL" not in segments
    assert "RWE" not in segments


def test_weights_may_stand_beside_and_two_models_link_together(digits: Exported, tmp_path: Path) -> None:
    graph, x = graph_of(attention, {"x": (2, 5, 16)}), np.random.default_rng(1).random((2, 5, 16), np.float32)
    made = bn.export_model(graph, tmp_path / "Two words", threads=1, weights_in="file")
    folder = made.path
    assert (folder / "two_words.weights").stat().st_size > 3 * 16 * 16 * 4
    for file in ("libdigits.a", "digits.h"):
        shutil.copy(digits.path / file, folder / file)
    main = (folder / "main.c").read_text()
    other = "bn_model *other; if (digits_open(&other) != BN_OK) return 9; bn_model_close(other);"
    both = '#include "digits.h"\n' + main.replace("bn_model *model = NULL;", f"bn_model *model = NULL; {other}")
    (folder / "main.c").write_text(both)
    compiled(folder, "main.c", "libtwo_words.a", "libdigits.a")
    assert outputs(folder, ["./main"], x) == wanted(graph, x)
    (folder / "two_words.weights").write_bytes(bytes(8))
    assert subprocess.run(["./main"], cwd=folder, capture_output=True, check=False).returncode == 1


def test_the_example_says_which_file_is_wrong(digits: Exported) -> None:
    compiled(digits.path, "main.c", "libdigits.a")
    for name, content, said in (
        ("none", None, "No such file or directory"),
        ("short", bytes(255), "got fewer bytes, wanted 256"),
        ("long", bytes(257), "got more bytes, wanted 256"),
    ):
        if content is not None:
            (digits.path / name).write_bytes(content)
        done = subprocess.run(["./main", name], cwd=digits.path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, f"{name}: {said}\n")


def test_one_source_has_all_of_it(tmp_path: Path) -> None:
    made = bn.export_model(DIGITS, tmp_path / "digits", threads=2, one_file=True)
    assert sorted(file.name for file in made.files) == ["bolt_numba.h", "digits.c", "digits.h", "main.c"]
    assert not made.built
    compiled(made.path, "main.c", "digits.c", standard="gnu11")
    assert outputs(made.path, ["./main"], IMAGE) == wanted(bn.load(DIGITS), IMAGE)


def test_cmake_and_pkg_config_know_the_library(digits: Exported, tmp_path: Path) -> None:
    if shutil.which("cmake") is not None:
        for command in (["cmake", str(digits.path), "-DCMAKE_BUILD_TYPE=Release"], ["cmake", "--build", "."]):
            subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        assert outputs(digits.path, [str(tmp_path / "digits_example")], IMAGE) == wanted(bn.load(DIGITS), IMAGE)
    text = (digits.path / "digits.pc").read_text()
    assert "-ldigits" in text


def test_compilers_that_are_not_there_are_refused() -> None:
    assert compiler_for(True) is not None
    for name in ("", "no-such-compiler"):
        with pytest.raises(BoltError, match="--cc: got"):
            compiler_for(True, name)


def test_archivers_are_those_of_the_compiler() -> None:
    made = {"cc": "ar", "gcc-12": "ar", "clang": "ar", "aarch64-linux-gnu-gcc": "aarch64-linux-gnu-ar"}
    made |= {"aarch64-linux-gnu-gcc-12": "aarch64-linux-gnu-ar", "/opt/b-1/arm-none-g++-9.2": "/opt/b-1/arm-none-ar"}
    assert {cc: archiver_of(cc) for cc in made} == made


def test_sources_of_an_earlier_export_are_not_compiled(tmp_path: Path) -> None:
    graph = graph_of(lambda b, x: b(Relu(), x), {"x": (4,)})
    (tmp_path / "again" / "runtime").mkdir(parents=True)
    (tmp_path / "again" / "runtime" / "old.c").write_text("#error an older library had this file\n")
    made = bn.export_model(graph, tmp_path / "again", threads=1)
    assert len(made.built) == 2
    listed = (made.path / "CMakeLists.txt").read_text()
    assert "runtime/run.c" in listed
    assert "old.c" not in listed


def test_weights_that_no_linker_reaches_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bolt_numba.export.library.MOST_LINKED", 1000)
    for options in ({}, {"one_file": True}):
        with pytest.raises(BoltError, match=r"linked: got 0.0 GiB, wanted less than.*--weights-in file"):
            bn.export_model(DIGITS, tmp_path / "digits", threads=1, **options)
    assert bn.export_model(DIGITS, tmp_path / "digits", threads=1, weights_in="file").built


def test_names_for_c() -> None:
    assert [c_name(text) for text in ("ResNet-50 v1", "50", "..", "ä")] == ["resnet_50_v1", "m50", "model", "model"]
    assert [c_name(text) for text in ("main", "String", "bolt_numba")] == ["mmain", "mstring", "mbolt_numba"]


def test_a_model_without_inputs_is_a_library(tmp_path: Path) -> None:
    graph = graph_of(lambda b, x: b(Relu(), x), {"x": (4,)})
    made = bn.export_model(graph, tmp_path / "fixed", fixed={"x": [-1, 2, -3, 4]})
    compiled(made.path, "main.c", "libfixed.a")
    assert outputs(made.path, ["./main"])[0] == np.array([0, 2, 0, 4], np.float32).tobytes()
