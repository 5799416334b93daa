"""The C library against Python sessions: the same bits, refusals with a reason, and no memory that stays."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import surgery
from bolt_numba.cli.app import run
from bolt_numba.export.c_library import SOURCES, WARNINGS, constants
from bolt_numba.export.layout import TRAILER_MAGIC, HeaderWord
from bolt_numba.export.program import native_program
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.store import chunks
from bolt_numba.ir.trailer import trailer
from bolt_numba.ops.pointwise import Add
from bolt_numba.types import F32, Array, TensorType
from tests.native import c_programs as c
from tests.native.c_programs import CError, CSession, library, needs_cc, on_this_machine, program_bytes, stress
from tests.native.nets import counter, counting, dense, digits, doubling, lookup, nothing, selector

pytestmark = [needs_cc, on_this_machine]
EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "c"


def numbers(*shape: int) -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype(F32)


@pytest.fixture(scope="module")
def dense_bytes() -> bytes:
    return program_bytes(dense(), shapes=[{"x": (64, 256)}, {"x": (1, 256)}], threads=3)


@pytest.fixture(scope="module")
def dense_file(dense_bytes: bytes) -> str:
    path = c.scratch() / "dense.program"
    path.write_bytes(dense_bytes)
    return str(path)


def test_the_header_of_the_layout_is_up_to_date() -> None:
    wanted = "write bolt_numba.export.c_library.constants() to bolt_numba/export/native/layout.h"
    assert (SOURCES / "layout.h").read_text() == constants(), wanted


def test_the_command_writes_the_library_and_refuses_what_is_no_compiler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = {"libbolt_numba.so", "libbolt_numba.a", "bolt_numba.h", "bolt_numba.hpp"}
    assert {file.name for file in c.built().iterdir()} == wanted
    assert run(["c-library", "-o", str(tmp_path), "--cc", "no-such-compiler"]) == 1
    assert "--cc: got 'no-such-compiler', wanted a C compiler" in capsys.readouterr().err


def test_sources_give_no_warning() -> None:
    sources = sorted(map(str, SOURCES.glob("*.c")))
    subprocess.run(["cc", "-std=c11", "-fsyntax-only", *WARNINGS, *sources], check=True)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_are_those_of_python_bit_by_bit(threads: int, dense_bytes: bytes) -> None:
    feeds = {"x": numbers(64, 256)}
    with CSession(dense_bytes, threads) as session:
        made = session.run(feeds)["y"]
    assert made.tobytes() == bn.compile(dense(), threads=threads)(**feeds)["y"].tobytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_program_in_c_reads_digits(threads: int, tmp_path: Path) -> None:
    (tmp_path / "digits").write_bytes(program_bytes(digits(), shapes=[{"image": (4, 1, 8, 8)}], threads=3))
    images = numbers(4, 1, 8, 8)
    command = [stress(), "run", tmp_path / "digits", str(threads), "2"]
    made = subprocess.run(command, input=images.tobytes(), capture_output=True, check=True).stdout
    session = bn.compile(digits(), threads=threads)
    assert made == b"".join(np.asarray(a).tobytes() for a in session(image=images).values())


def test_shapes_are_those_of_stored_plans(dense_bytes: bytes) -> None:
    with CSession(dense_bytes) as session:
        assert session.info("input", 0).shape == (64, 256)
        session.resize([(1, 256)])
        assert (session.info("input", 0).shape, session.info("output", 0).shape) == ((1, 256), (1, 256))
        one = numbers(1, 256)
        assert session.run({"x": one})["y"].tobytes() == bn.compile(dense())(x=one)["y"].tobytes()
        with pytest.raises(CError, match="shapes: got x 2x256; wanted x 64x256; or x 1x256") as caught:
            session.resize([(2, 256)])
        assert caught.value.status == c.NO_PLAN
        assert session.info("input", 0).shape == (1, 256)


def test_states_go_from_run_to_run() -> None:
    ours = bn.compile(counter())
    with CSession(program_bytes(counter())) as session:
        assert (session.names("input"), session.names("output")) == (["x"], ["y"])
        for _ in range(3):
            x = numbers(3)
            assert session.run({"x": x})["y"].tobytes() == ours(x=x)["y"].tobytes()
            assert session.find("s").tobytes() == ours.states["s"].tobytes()
        session.call("reset_state")
        assert session.find("s").tolist() == [0, 10, 20]


def test_states_are_passed_on_shared_and_exchanged() -> None:
    """A sum is an output and a state, two states change places, and one stays and is an output."""
    g, kind = Graph("passing"), TensorType(F32, (3,))
    x, p, q, r, w = (g.add_input(name, kind) for name in "xpqrw")
    total = Builder(g)(Add(), x, r)
    given = {"y": total, "s": total, "p2": q, "q2": p, "w2": w, "shown": w, "seen": p}
    for name, value in given.items():
        g.add_output(value, name)
    first = {"p": np.arange(3, dtype=F32), "w": np.full(3, 7, F32)}
    graph = surgery.with_states(g, {"p": "p2", "q": "q2", "r": "s", "w": "w2"}, initial=first)
    ours = bn.compile(graph)
    with CSession(program_bytes(graph)) as session:
        for step in range(3):
            feeds = {"x": np.full(3, step, F32)}
            made, wanted = session.run(feeds), ours(**feeds)
            assert {k: a.tolist() for k, a in made.items()} == {k: a.tolist() for k, a in wanted.items()}
            assert {k: session.find(k).tolist() for k in "pqrw"} == {k: a.tolist() for k, a in ours.states.items()}
            assert made["seen"].tolist() == ([0, 0, 0] if step == 1 else [0, 1, 2])


def test_outputs_have_the_sizes_that_data_give() -> None:
    session, x = bn.compile(selector(), threads=1, stand_ins=False), np.zeros((4, 3), F32)
    with CSession(program_bytes(selector())) as s:
        names = s.names("output")
        assert [s.info("output", i).shape for i in range(3)] == [(2, 12), (12, 2), (8, 3)]  # the greatest
        room = [library().bn_session_output_capacity(s.at, i) for i in range(3)]
        assert room == [s.info("output", i).nbytes for i in range(3)] == [192, 96, 96]
        taken = np.zeros(room[0], np.uint8)
        s.call("bind_output", 0, ctypes.c_void_p(taken.ctypes.data), ctypes.c_size_t(taken.nbytes))
        for places in ([0, 5, 7], [], range(12), [11], [0, 5, 7]):
            x[...] = 0
            x.flat[list(places)] = len(places) - 2
            found, wanted = s.run({"x": x}), session(x)
            for name in names:
                assert found[name].shape == wanted[name].shape
                assert found[name].tobytes() == wanted[name].tobytes()
            assert taken[: 16 * len(places)].tobytes() == wanted["places"].tobytes()
        assert [library().bn_session_output_capacity(s.at, i) for i in (*range(3), 3, -1)] == [*room, 0, 0]
        with pytest.raises(CError, match="places: got 48 bytes, wanted 192"):
            s.call("bind_output", 0, ctypes.c_void_p(taken.ctypes.data), ctypes.c_size_t(48))


def test_loops_run_as_often_as_data_say() -> None:
    session = bn.compile(doubling(), threads=1, stand_ins=False)
    with CSession(program_bytes(doubling())) as s:
        for first, steps in ((1.0, 6), (20.0, 3), (90.0, 1), (-1.0, 6)):
            x = np.array([first, 0, 0.5], F32)
            found, wanted = s.run({"x": x}), session(x)
            assert found["steps"].shape == (steps, 3)
            assert [found[name].tobytes() for name in ("last", "steps")] == [a.tobytes() for a in wanted.values()]


def test_content_that_asks_for_what_is_not_there_is_an_error_of_that_run() -> None:
    table = numbers(5, 3)
    ours = bn.compile(lookup())
    with CSession(program_bytes(lookup())) as session:
        for last in (4, 9, -5, -6, 0):
            feeds = {"at": np.array([[0, 1], [2, last]]), "table": table}
            if last in (9, -6):
                with pytest.raises(bn.DataError) as wanted:
                    ours(**feeds)
                with pytest.raises(CError) as caught:
                    session.run(feeds)
                assert (caught.value.status, str(caught.value)) == (c.DATA, str(wanted.value))
            else:
                made = session.run(feeds)
                assert {k: v.tobytes() for k, v in made.items()} == {k: v.tobytes() for k, v in ours(**feeds).items()}


def test_intermediate_values_are_kept_where_asked() -> None:
    graph = dense()
    hidden = graph.nodes[1].outputs[0]
    graph.add_output(hidden, "hidden")
    data = program_bytes(graph, shapes=[{"x": (2, 256)}], kept=["hidden"])
    with CSession(data) as session:
        x = numbers(2, 256)
        session.run({"x": x})
        assert session.names("output") == ["y"]
        assert session.find("hidden").tobytes() == bn.compile(graph)(x=x)["hidden"].tobytes()


def test_the_callers_memory_is_used_and_given_back(dense_bytes: bytes) -> None:
    x, y = numbers(64, 256), np.zeros((64, 256), F32)
    with CSession(dense_bytes) as session:
        session.call("bind_input", 0, x.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(x.nbytes))
        session.call("bind_output", 0, y.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(y.nbytes))
        session.call("run")
        assert y.tobytes() == bn.compile(dense())(x=x)["y"].tobytes()
        session.call("bind_output", 0, None, ctypes.c_size_t(0))
        session.call("run")
        assert session.array("output", 0).tobytes() == y.tobytes()


def test_clones_have_memory_of_their_own(dense_bytes: bytes) -> None:
    with CSession(dense_bytes) as session:
        first = session.run({"x": numbers(64, 256)})["y"]
        clone = object.__new__(CSession)
        clone.at = ctypes.c_void_p()
        c.check(library().bn_session_clone(session.at, ctypes.byref(clone.at)))
        with clone:
            clone.run({"x": numbers(64, 256) * 2})
        assert session.array("output", 0).tobytes() == first.tobytes()


def test_of_several_programs_in_a_file_the_best_is_taken(tmp_path: Path) -> None:
    made = [native_program(digits(), target=target) for target in ("x86-64-v3", "native")]
    path, programs, at = tmp_path / "digits.bolt", [], 0
    with path.open("wb") as file:
        for chunk in chunks(digits()):
            at += file.write(chunk)
        for program in made:
            at += file.write(bytes(-at % 4096))
            programs.append((at, program.block.nbytes))
            at += file.write(program.block.tobytes())
        file.write(trailer(programs))
    model = ctypes.c_void_p()
    c.check(library().bn_model_open(str(path).encode(), ctypes.byref(model)))
    assert library().bn_model_target(model).decode() == made[1].planned.cpu.isa.level
    assert library().bn_model_plans(model) == 1
    library().bn_model_close(model)


def changed(data: bytes, word: int, value: int) -> bytes:
    words = np.frombuffer(data, np.int64).copy()
    words[word] = value
    return words.tobytes()


def wrong_files(data: bytes) -> dict[str, tuple[int, str, bytes]]:
    end = np.array([TRAILER_MAGIC, 1, 4096, len(data), 0, 0, 0, 0]).tobytes()
    return {
        "empty": (c.FILE, "got no native program", b""),
        "model": (c.FILE, "got no native program", bytes(4096)),
        "version": (c.VERSION, "version: got 99", changed(data, HeaderWord.VERSION, 99)),
        "cut": (c.DAMAGED, "size", data[:-64]),
        "crc": (c.DAMAGED, "checksum", changed(data, HeaderWord.CRC, 1)),
        "weights": (c.DAMAGED, "weights: checksum", changed(data, _word_of_data(data), 1)),
        "trailer": (c.DAMAGED, "program 0: got bytes 4096", end),
        "place": (c.DAMAGED, "STRINGS", changed(data, HeaderWord.FIRST_TABLE, 1 << 40)),
    }


def _word_of_data(data: bytes) -> int:
    from bolt_numba.export.layout import ProgramTable

    return int(np.frombuffer(data, np.int64)[HeaderWord.FIRST_TABLE + 2 * ProgramTable.DATA]) // 8


@pytest.mark.parametrize("what", ["empty", "model", "version", "cut", "crc", "weights", "trailer", "place"])
def test_wrong_files_are_refused_with_a_reason(what: str, dense_bytes: bytes) -> None:
    status, text, data = wrong_files(dense_bytes)[what]
    with pytest.raises(CError, match=text) as caught:
        c.opened(data)
    assert caught.value.status == status


def test_what_is_wrong_with_a_file_names_it(tmp_path: Path, dense_bytes: bytes) -> None:
    for name, (status, text, data) in wrong_files(dense_bytes).items():
        path = tmp_path / f"{name}.bolt"
        path.write_bytes(data or b" ")
        with pytest.raises(CError, match=f"{re.escape(str(path))}: .*{text}") as caught:
            c.check(library().bn_model_open(str(path).encode(), ctypes.byref(ctypes.c_void_p())))
        assert caught.value.status == status


def test_a_level_that_the_processor_lacks_is_refused(dense_bytes: bytes) -> None:
    data = np.frombuffer(dense_bytes, np.int64).copy()
    strings, level = data[HeaderWord.FIRST_TABLE], data[HeaderWord.LEVEL]
    raw = data.view(np.uint8)
    raw[strings + level : strings + level + 3] = np.frombuffer(b"x99", np.uint8)
    mended = mend(raw.tobytes())
    with pytest.raises(CError, match="level: got x99-64") as caught:
        c.opened(mended)
    assert caught.value.status == c.TARGET


def mend(data: bytes) -> bytes:
    import zlib

    words = np.frombuffer(data, np.int64)
    at = _word_of_data(data) * 8
    nbytes = int(words[HeaderWord.FIRST_TABLE + 2 * 4 + 1])
    return changed(data, HeaderWord.CRC, zlib.crc32(data[at + nbytes :], zlib.crc32(data[8 * HeaderWord.FLAGS : at])))


@pytest.mark.parametrize(
    ("call", "args", "text"),
    [
        ("bind_input", (0, 64, ctypes.c_size_t(8)), "x: got 8 bytes, wanted 65536"),
        ("bind_input", (0, 3, ctypes.c_size_t(65536)), "x: got memory at an odd place"),
        ("bind_output", (1, 64, ctypes.c_size_t(8)), "output: got 1, wanted 0 to 0"),
        ("set_threads", (0,), "threads: got 0, wanted 1 to 256"),
        ("set_threads", (257,), "threads: got 257, wanted 1 to 256"),
        ("resize", (None,), "bn_session_resize: got NULL"),
    ],
)
def test_wrong_arguments_are_refused(call: str, args: tuple[Any, ...], text: str, dense_bytes: bytes) -> None:
    made = [ctypes.c_void_p(arg) if arg == 64 or arg == 3 else arg for arg in args]
    with CSession(dense_bytes) as session:
        with pytest.raises(CError, match=text) as caught:
            session.call(call, *made)
        assert caught.value.status == c.ARGUMENT
        for number in (-1, 1):
            with pytest.raises(CError, match=f"input: got {number}, wanted 0 to 0"):
                session.info("input", number)
        with pytest.raises(CError, match="value: got 'nothing'"):
            session.find("nothing")


def test_a_missing_file_is_told() -> None:
    model = ctypes.c_void_p()
    assert library().bn_model_open(b"/nowhere/model.bolt", ctypes.byref(model)) == c.FILE
    assert b"/nowhere/model.bolt: cannot be opened" in library().bn_error_message(None)
    assert not model


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.bolt")
    model = ctypes.c_void_p()
    assert library().bn_model_open(str(tmp_path / "model.bolt").encode(), ctypes.byref(model)) == c.FILE
    assert b"model.bolt: got no file with content" in library().bn_error_message(None)
    assert not model


def test_threads_change_between_runs(dense_bytes: bytes) -> None:
    feeds, found = {"x": numbers(64, 256)}, set()
    with CSession(dense_bytes, 1) as session:
        for threads in (1, 3, 2, 64, 1):
            session.call("set_threads", threads)
            found.add(session.run(feeds)["y"].tobytes())
    assert len(found) == 1


def test_statuses_have_words() -> None:
    texts = [library().bn_status_text(status) for status in range(10)]
    assert len(set(texts)) == 10
    assert library().bn_version().decode() == bn.__version__


def run_stress(program: Path, *args: object, **more: Any) -> str:
    done = subprocess.run([str(program), *map(str, args)], capture_output=True, text=True, timeout=300, **more)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def test_sessions_come_and_go_without_growth(dense_file: str) -> None:
    assert int(run_stress(stress(), "cycles", dense_file, 500)) < 1024


def test_damaged_programs_are_refused_or_run(dense_file: str) -> None:
    """With the checksum mended in half of them.  Machine code, and what tells it where to write, is not run changed."""
    program = stress("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    run_stress(program, "mutants", dense_file, 150, 1, env={"ASAN_OPTIONS": "allocator_may_return_null=1"})
    run_stress(program, "clones", dense_file, 4, 5)


def test_clones_run_on_threads_of_their_own(dense_file: str) -> None:
    run_stress(stress(), "clones", dense_file, 8, 50)


def test_threads_have_no_races(dense_file: str) -> None:
    run_stress(stress("-fsanitize=thread"), "clones", dense_file, 3, 10)


def test_a_limit_of_time_ends_a_loop() -> None:
    """Also in a clone; the session goes on, and without a limit a loop runs on."""
    feeds = {"x": np.zeros(3, F32), "n": np.array(1 << 40)}
    with CSession(program_bytes(counting())) as session:
        for seconds in (-1.0, float("nan"), float("inf")):
            with pytest.raises(CError, match=r"time limit: got .*, wanted 0 or more") as caught:
                session.call("set_time_limit", ctypes.c_double(seconds))
            assert caught.value.status == c.ARGUMENT
        session.call("set_time_limit", ctypes.c_double(0.1))
        for _ in range(2):
            with pytest.raises(CError, match=r"run: got more than 0.1 s") as caught:
                session.run(feeds)
            assert caught.value.status == c.TIME
            np.testing.assert_array_equal(session.run(feeds | {"n": np.array(7)})["y"], np.full(3, 7, F32))
        clone = ctypes.c_void_p()
        c.check(library().bn_session_clone(session.at, ctypes.byref(clone)))
        for number, name in enumerate(session.names("input")):
            info = session.info("input", number)
            place = library().bn_session_input(clone, number)
            ctypes.memmove(place, np.ascontiguousarray(feeds[name]).ctypes.data, info.nbytes)
        assert library().bn_session_run(clone) == c.TIME
        library().bn_session_destroy(clone)
        session.call("set_time_limit", ctypes.c_double(0))
        np.testing.assert_array_equal(session.run(feeds | {"n": np.array(5000)})["y"], np.full(3, 5000, F32))


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_no_memory_is_lost(tmp_path: Path) -> None:
    wanted = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=all"]
    for graph in (digits(), selector(), doubling()):
        (tmp_path / "model").write_bytes(program_bytes(graph, target="x86-64-v3", threads=2))
        subprocess.run([*wanted, stress(), "cycles", tmp_path / "model", "3"], check=True, capture_output=True)


@pytest.mark.parametrize(("source", "compiler"), [("classify.c", "cc"), ("classify.cpp", "c++")])
def test_examples_run(source: str, compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    data = program_bytes(digits(), shapes=[{"image": (1, 1, 8, 8)}])
    (tmp_path / "digits.program").write_bytes(data)
    standard = "-std=c11" if compiler == "cc" else "-std=c++17"
    command = [compiler, standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", EXAMPLES / source, f"-I{c.built()}",
               f"-L{c.built()}", "-lbolt_numba", f"-Wl,-rpath,{c.built()}", "-o", tmp_path / "classify"]  # fmt: skip
    subprocess.run(command, check=True)
    images = np.load(EXAMPLES.parent / "digits" / "digits.npz")["image"][:20].astype(F32) / 16
    run = [tmp_path / "classify", tmp_path / "digits.program"]
    made = subprocess.run(run, input=images.tobytes(), capture_output=True, check=True).stdout.decode()
    (scores,) = bn.compile(digits())(image=images).values()
    assert [int(line.split()[0]) for line in made.splitlines()] == np.argmax(scores, -1).tolist()
    for name, graph in (("lookup", lookup()), ("nothing", nothing())):
        (tmp_path / name).write_bytes(program_bytes(graph))
        run = [tmp_path / "classify", tmp_path / name]
        other = subprocess.run(run, input=bytes(1024), capture_output=True, timeout=30)
        assert (other.returncode, other.stdout) == (0 if (name, compiler) == ("nothing", "c++") else 1, b"")
    missing = subprocess.run([tmp_path / "classify", "nowhere"], capture_output=True, text=True)
    assert (missing.returncode, "nowhere: cannot be opened" in missing.stderr) == (1, True)


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_all_of_the_header_for_cpp_works(dense_file: str, tmp_path: Path) -> None:
    for name, graph in (("counter", counter()), ("selector", selector())):
        (tmp_path / name).write_bytes(program_bytes(graph))
    warnings = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
    command = ["c++", "-std=c++17", *warnings, c.HERE / "api.cpp", f"-I{c.built()}", c.built() / "libbolt_numba.a"]
    subprocess.run([*command, "-pthread", "-lm", "-o", tmp_path / "api"], check=True)
    subprocess.run([tmp_path / "api", dense_file, tmp_path / "counter", tmp_path / "selector"], check=True)


@pytest.mark.parametrize(("language", "compiler"), [("c", "cc"), ("cpp", "c++")])
def test_the_code_of_the_page_runs(language: str, compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    page = (EXAMPLES.parent.parent / "docs" / "c-api.md").read_text()
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    head, _, body = code.partition("\n\n")
    more = "#include <stdio.h>" if language == "c" else "#include <algorithm>\n#include <iostream>"
    used = "(void)image, (void)scores;" if language == "c" else ""
    (tmp_path / f"page.{language}").write_text(f"{more}\n{head}\nint main() {{\n{body}{used}\n}}\n")
    (tmp_path / "digits.bolt").write_bytes(program_bytes(digits(), shapes=[{"image": (1, 1, 8, 8)}]))
    command = [compiler, "-Wall", "-Wextra", f"page.{language}", f"-I{c.built()}", c.built() / "libbolt_numba.a"]
    subprocess.run([*command, "-Werror", "-pthread", "-lm", "-o", "page"], check=True, cwd=tmp_path)
    made = subprocess.run([tmp_path / "page"], check=True, cwd=tmp_path, capture_output=True, text=True).stdout
    assert len(made.split()) == (0 if language == "c" else 10), made
