"""The command line: what each command writes, its exit codes, its error lines."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import benchmark, peers
from bolt_numba.__main__ import main
from bolt_numba.cli import app, console, formats
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.store import load_bolt
from bolt_numba.ops.control import If
from bolt_numba.ops.pointwise import Add, Relu
from bolt_numba.types import BOOL, F32, Sym, TensorType
from tests.graphs import make

DIGITS = str(Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx")
COMMANDS = ("convert", "inspect", "run", "bench", "verify", "profile", "viz", "ops", "cache", "flow", "doctor")
has_onnxruntime = pytest.mark.skipif(not importlib.util.find_spec("onnxruntime"), reason="onnxruntime is not installed")


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Done]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line in this process."""

    def run(*args: object) -> Done:
        code = app.run([str(a) for a in args])
        return Done(code, *capsys.readouterr())

    return run


class TestUsage:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_has_help(self, call: Call, command: str) -> None:
        done = call(command, "--help")
        assert done.code == 0
        assert "Usage: bolt-numba" in done.out
        assert len(done.out.splitlines()) > 5

    def test_help_lists_every_command(self, call: Call) -> None:
        text = call("--help").out
        assert all(f" {command} " in text for command in COMMANDS)

    @pytest.mark.parametrize(
        "args",
        [
            ["nothing"],
            ["run"],
            ["run", DIGITS, "--threads", "0"],
            ["run", DIGITS, "--shape", "x"],
            ["cache", "x"],
            [],
            ["run", DIGITS, "--threads", "2.5"],
            ["run", DIGITS, "--precision", "f31"],
            ["run", DIGITS, "--input", "x"],
            ["run", DIGITS, "--numerics", "exact"],
            ["verify", DIGITS, "--against", "nobody"],
            ["bench", DIGITS, "--vs", "nobody"],
            ["bench", DIGITS, "--vs", "bolt-numba"],
            ["convert", DIGITS, "-o", "x.bolt", "--store", "f8"],
            ["convert", DIGITS, "-o", "x.bolt", "--opset", "18"],
            ["convert", DIGITS, "-o", "x.bolt", "--external"],
            ["quantize", DIGITS, "--method", "best"],
            ["quantize", DIGITS, "--activations", "u4"],
            ["quantize", DIGITS, "--weight-type", "u8"],
            ["quantize", DIGITS, "--weights-only", "3"],
        ],
        ids=" ".join,
    )
    def test_wrong_usage_is_code_2(self, call: Call, args: list[str]) -> None:
        assert call(*args).code == 2

    def test_version(self, call: Call) -> None:
        assert call("--version") == Done(0, bn.__version__ + "\n", "")

    def test_module_and_script_are_the_same(self) -> None:
        version = [sys.executable, "-m", "bolt_numba", "--version"]
        done = subprocess.run(version, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == bn.__version__
        missing = [sys.executable, "-m", "bolt_numba", "inspect", "missing.onnx"]
        assert subprocess.run(missing, capture_output=True, check=False).returncode == 1

    @pytest.mark.parametrize(
        ("words", "wanted"),
        [("bolt-numba ins", "inspect"), ("bolt-numba run m.onnx --prec", "--precision"),
         ("bolt-numba run m.onnx --precision b", "bf16"), ("bolt-numba cache wa", "warm"),
         ("bolt-numba bench m.onnx --vs openv", "openvino")],
    )  # fmt: skip
    def test_shells_complete(self, words: str, wanted: str) -> None:
        asked = {"_BOLT_NUMBA_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        command = [sys.executable, "-m", "bolt_numba"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **asked})
        assert done.stdout.split() == [wanted], done.stderr

    def test_an_instruction_set_that_is_not_there(self) -> None:
        command = [sys.executable, "-m", "bolt_numba", "doctor"]
        given = {**os.environ, "BOLT_NUMBA_ISA": "avx"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=given)
        assert done.returncode == 1
        assert done.stderr.startswith("error: BOLT_NUMBA_ISA: instruction set: got avx, wanted")
        assert len(done.stderr.splitlines()) == 1


class TestErrors:
    def test_one_line_and_no_traceback(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "bad.onnx").write_bytes(b"\x08\x07garbage")
        for args in (("inspect", tmp_path / "bad.onnx"), ("inspect", tmp_path / "missing.onnx")):
            done = call(*args)
            assert done.code == 1
            assert done.err.startswith("error: ")
            assert "Traceback" not in done.err
            assert "fault of bolt-numba" not in done.err

    def test_names_do_not_steer_the_terminal(self, call: Call, tmp_path: Path) -> None:
        names = ["in\x1b]0;title\x07", "out\x1b[2J\u202e\x9b1m\nfake  line"]
        graph = Graph(names[0])
        x = graph.add_input(names[0], TensorType(F32, (Sym(names[0]), 2)))
        graph.add_output(Builder(graph)(Relu(), x, name=names[1]), names[1])
        bn.save(graph, tmp_path / "m.bolt")
        model, steering = tmp_path / "m.bolt", re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
        calls = (
            ["inspect", model], ["inspect", model, "--text"], ["viz", model], ["viz", model, "--text"], ["run", model],
            ["profile", model, "--runs", "1"], ["verify", model, "--against", "reference"],
            ["run", model, "--shape", "x=1,2"], ["convert", model, "-o", tmp_path / "c.bolt", "--extract", "a:b"],
        )  # fmt: skip
        for args in calls:
            done = call(*args)
            assert not steering.search(done.out + done.err), args
        assert not re.search("^fake  ", call("inspect", model).out, re.MULTILINE)

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (ModuleNotFoundError("No module", name="onnx"), "package onnx: got none, wanted it: pip install onnx"),
            (MemoryError("too much"), "memory: the system gave no more: too much"),
        ],
    )
    def test_what_is_no_fault(self, call: Call, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
        """A small installation has no onnx: commands that need it say so."""

        def fails(*args: object, **given: object) -> None:
            raise error

        monkeypatch.setattr(bn, "load_model", fails)
        assert call("convert", DIGITS, "-o", "m.onnx") == (1, "", f"error: bolt-numba: {said}\n")

    def test_an_interrupt_while_it_is_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Pressed:
            """A finder of modules: somebody interrupts when it is asked."""

            def find_spec(self, *given: object) -> None:
                raise KeyboardInterrupt

        monkeypatch.delitem(sys.modules, "bolt_numba.cli.app")
        monkeypatch.setattr("sys.meta_path", [Pressed()])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 130

    def test_debug_raises(self, tmp_path: Path) -> None:
        (tmp_path / "bad.bolt").write_bytes(b"\x89BOLT\r\n\x1a")
        with pytest.raises(bn.InvalidModelError):
            app.run(["--debug", "inspect", str(tmp_path / "bad.bolt")])

    @pytest.mark.parametrize(
        ("args", "text"),
        [
            (["--input", "nothing=3"], "inputs: 'nothing' is not one of ['image']"),
            (["--shape", "image=1,1,9,9"], r"got shape (1, 1, 9, 9)"),
            (["--shape", "nothing=1"], "got 'nothing', wanted one of image"),
            (["--input", "image=missing.npy"], "error: missing.npy: No such file"),
            (["--input", "missing.npz"], "error: missing.npz: No such file"),
        ],
    )
    def test_wrong_inputs(self, call: Call, args: list[str], text: str) -> None:
        done = call("run", DIGITS, *args)
        assert done.code == 1
        assert text in done.err


class TestModel:
    def test_convert_then_use(self, call: Call, tmp_path: Path) -> None:
        target = tmp_path / "digits.bolt"
        done = call("convert", DIGITS, "-o", target, "--json")
        assert done.code == 0
        assert done.json["bytes"] == target.stat().st_size
        assert len(load_bolt(target).nodes) == done.json["nodes"]
        facts = [call("inspect", model, "--json").json for model in (DIGITS, target)]
        assert facts[0].pop("file_operators")["Gemm"] == 2
        assert facts[1].pop("file_operators") == {}
        assert facts[0] == facts[1]

    def test_weights_within_branches_count(self, call: Call, tmp_path: Path) -> None:
        graph, branch = Graph("whole"), Graph("branch")
        ones = np.ones(3, "f4")
        branch.add_output(Builder(branch)(Add(), ones, ones + 1), "y")
        chosen = graph.add_input("chosen", TensorType(BOOL, ()))
        graph.add_output(Builder(graph)(If(branch, branch), chosen), "y")
        bn.save(graph, tmp_path / "m.bolt")
        assert call("inspect", tmp_path / "m.bolt", "--json").json["parameters"] == 6

    def test_inputs_of_many_layers_are_one_row(self, call: Call, tmp_path: Path) -> None:
        graph = Graph("layers")
        for i in range(8):
            for part in ("key", "value"):
                graph.add_output(graph.add_input(f"past.{i}.{part}", TensorType(F32, (3,))), f"present.{i}.{part}")
        graph.add_input("seventh.7", TensorType(F32, (2,)))
        bn.save(graph, tmp_path / "m.bolt")
        rows = [row.split() for row in call("inspect", tmp_path / "m.bolt").out.splitlines() if row.startswith("input")]
        assert [" ".join(row) for row in rows] == [
            "input past.0.key to past.7.key f32 [3]", "input past.0.value to past.7.value f32 [3]",
            "input seventh.7 f32 [2]",
        ]  # fmt: skip
        assert len(call("inspect", tmp_path / "m.bolt", "--json").json["inputs"]) == 17

    def test_inspect(self, call: Call) -> None:
        facts = call("inspect", DIGITS, "--json").json
        assert facts["inputs"] == [{"name": "image", "dtype": "f32", "shape": ["batch", 1, 8, 8]}]
        assert facts["operators"]["Conv"] == 2
        assert facts["parameters"] == 29914
        text = call("inspect", DIGITS).out
        assert "[batch, 1, 8, 8]" in text
        assert "Conv" in text
        assert "output %probabilities" in call("inspect", DIGITS, "--text").out

    def test_viz_before_and_after(self, call: Call, tmp_path: Path) -> None:
        before = call("viz", DIGITS).out
        assert before.startswith("digraph")
        assert before.count("Relu\\n") == 3
        after = call("viz", DIGITS, "--after", "--shape", "image=1,1,8,8").out
        assert "activation=Relu" in after
        assert "palegreen" in after
        assert call("viz", DIGITS, "-o", tmp_path / "g.dot").code == 0
        assert (tmp_path / "g.dot").read_text() == before

    def test_sizes_of_small_models(self, call: Call) -> None:
        assert (console.size_text(100 << 10), console.size_text(5 << 19)) == ("100.0 KiB", "2.5 MiB")
        assert f"weights: {console.size_text(4 * 29_914)}\n" in call("inspect", DIGITS).out


class TestRun:
    def test_outputs_are_those_of_a_session(self, call: Call, tmp_path: Path) -> None:
        x = np.random.default_rng(0).random((5, 1, 8, 8), np.float32)
        wanted = np.asarray(bn.compile(DIGITS)(image=x))
        np.save(tmp_path / "x.npy", x)
        np.savez(tmp_path / "x.npz", image=x)
        for given in (f"image={tmp_path}/x.npy", f"{tmp_path}/x.npz", f"image={tmp_path}/x.npz"):
            done = call("run", DIGITS, "--input", given, "--output-dir", tmp_path / "out", "--json")
            assert done.code == 0
            assert done.json["outputs"][0]["shape"] == [5, 10]
            np.testing.assert_array_equal(np.load(done.json["outputs"][0]["file"]), wanted)
            with np.load(tmp_path / "out" / "outputs.npz") as archive:
                np.testing.assert_array_equal(archive["probabilities"], wanted)

    def test_random_inputs_follow_the_seed(self, call: Call) -> None:
        runs = [call("run", DIGITS, "--seed", seed, "--json").json["outputs"] for seed in (1, 1, 2)]
        assert runs[0] == runs[1]
        assert runs[0] != runs[2]

    def test_a_value_may_be_json(self, call: Call) -> None:
        image = json.dumps(np.zeros((1, 1, 8, 8)).tolist())
        assert "[1, 10]" in call("run", DIGITS, "--input", f"image={image}").out

    @pytest.mark.parametrize("name", ["image=x.npy", "x.npz"])
    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04 is no archive", b"something else"])
    def test_files_that_are_no_arrays(
        self, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / name.rpartition("=")[2]).write_bytes(content)
        done = call("run", DIGITS, "--input", name)
        assert (done.code, done.out) == (1, "")
        assert f"{name[-5:]}: is no {name[-4:]} file" in done.err

    def test_pickled_arrays_are_refused(self, call: Call, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
        done = call("run", DIGITS, "--input", f"image={tmp_path}/x.npy")
        assert done.code == 1
        assert "x.npy: got an array of Python's objects" in done.err

    def test_one_array_for_one_input(self, call: Call, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.zeros((2, 1, 8, 8), np.float32))
        assert "[2, 10]" in call("run", DIGITS, "--input", tmp_path / "x.npy").out

    def test_too_much_to_draw(self, call: Call) -> None:
        done = call("run", DIGITS, "--shape", "image=9999999999,1,8,8")
        assert done.code == 1
        assert re.match(r"error: input 'image': memory: got .* MiB, wanted at most ", done.err), done.err

    def test_a_shape_beside_an_array(self, call: Call, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.zeros((2, 1, 8, 8), np.float32))
        done = call("run", DIGITS, "--input", f"image={tmp_path / 'x.npy'}", "--shape", "image=1,1,8,8")
        assert "input 'image': got shape (1, 1, 8, 8), and an array of (2, 1, 8, 8), wanted one of them" in done.err


@has_onnxruntime
class TestVerify:
    def test_agrees(self, call: Call) -> None:
        report = call("verify", DIGITS, "--shape", "image=3,1,8,8", "--json").json
        assert report["ok"]
        assert report["first_divergent"] is None
        assert [t["kind"] for t in report["tensors"]].count("intermediate") == 9
        assert call("verify", DIGITS, "--only-outputs").code == 0
        assert call("verify", DIGITS, "--against", "reference").code == 0

    def test_names_the_first_that_diverges(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        from bolt_numba.sessions.session import Session

        original = Session.run

        def wrong(self: Session, names: Any, feeds: Any) -> list[Any]:
            results = original(self, names, feeds)
            late = {"dense", "relu3", "logits", "probabilities"}
            return [a + 1 if n in late else a for n, a in zip(names or ["probabilities"], results, strict=True)]

        monkeypatch.setattr(Session, "run", wrong)
        done = call("verify", DIGITS, "--json")
        assert done.code == 1
        assert done.json["first_divergent"] == "dense"
        assert "first divergent tensor: dense" in call("verify", DIGITS).out

    def test_bisects_when_looking_hides_the_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A fault of fusion shows in the outputs but in no tensor as long as all of them are returned."""
        from bolt_numba.sessions.session import Session

        original = Session.run
        late = {"pool", "flat", "dense", "relu3", "logits"}

        def wrong(self: Session, names: Any, feeds: Any) -> list[Any]:
            results = original(self, names, feeds)
            hidden = names is not None and len(names) > 1
            return [a if hidden or (names and names[0] not in late) else a + 1 for a in results]

        monkeypatch.setattr(Session, "run", wrong)
        report = bn.verify(DIGITS)
        assert not report.ok
        assert report.first_divergent == "pool"

    @has_onnxruntime
    def test_a_bolt_file_is_judged_by_its_onnx_spelling(self, call: Call, tmp_path: Path) -> None:
        call("convert", DIGITS, "-o", tmp_path / "a.bolt")
        assert "agrees" in call("verify", tmp_path / "a.bolt").out
        assert call("verify", tmp_path / "a.bolt", "--against", "reference").code == 0
        assert bn.verify(bn.load(DIGITS)).ok


class TestSpeed:
    @has_onnxruntime
    def test_bench(self, call: Call) -> None:
        args = ("--vs", "onnxruntime", "--threads", 1, "--seconds", 0.2, "--tune")
        report = call("bench", DIGITS, *args, "--json").json
        ours, other = report["engines"]
        assert (ours["engine"], other["engine"]) == ("bolt-numba", "onnxruntime")
        for engine in (ours, other):
            assert 0 < engine["min_s"] <= engine["median_s"] <= engine["p90_s"]
            assert engine["load_s"] > 0
            assert engine["first_run_s"] > 0
            assert engine["peak_rss_bytes"] > 10 << 20
        assert report["ratios"]["onnxruntime"]["min"] == pytest.approx(other["min_s"] / ours["min_s"])
        text = call("bench", DIGITS, *args, "--no-processes").out
        assert "median ms" in text

    def test_peers_are_looked_for_before_anything_is_measured(self, call: Call, monkeypatch: Any) -> None:
        monkeypatch.setattr(benchmark, "bench", lambda *a, **k: pytest.fail("measured"))
        done = call("bench", DIGITS, "--vs", "onnxruntime,nothing")
        assert done.code == 2
        assert "got 'nothing', wanted one of onnxruntime," in " ".join(done.err.split())
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        done = call("bench", DIGITS, "--vs", "openvino")
        assert (done.code, "error: openvino: is not installed: pip install" in done.err) == (1, True)

    def test_profile(self, call: Call, tmp_path: Path) -> None:
        done = call("profile", DIGITS, "--runs", 2, "-o", tmp_path / "t.json", "--json")
        rows = done.json["rows"]
        assert {"MatMul", "Conv"} <= {r["op"] for r in rows}
        trace = json.loads((tmp_path / "t.json").read_text())
        assert len(trace["traceEvents"]) == len(rows)
        assert all(e["ph"] == "X" and e["dur"] >= 0 for e in trace["traceEvents"])
        assert "share" in call("profile", DIGITS, "--runs", 2).out

    def test_a_device_by_name(self, call: Call) -> None:
        rows = call("profile", DIGITS, "--json", "--runs", 1, "--device", "host,cpu").json["rows"]
        assert {r["runner"] for r in rows} <= {"reference", "copy in host"}
        error = call("run", DIGITS, "--device", "tpu").err
        assert "device: got ['tpu'], wanted one of " in error
        assert "'cpu'," in error
        assert "'cuda'," in error  # twins and plug-ins that others have loaded stand between them

    def test_a_trace_takes_no_models_place(self, call: Call, tmp_path: Path) -> None:
        model = tmp_path / "m.onnx"
        model.write_bytes(Path(DIGITS).read_bytes())
        done = call("profile", model, "-o", model)
        assert (done.code, "got 'm.onnx', wanted a name that ends" in done.err) == (2, True), done.err
        assert model.read_bytes() == Path(DIGITS).read_bytes()

    def test_kernels_are_measured_and_nothing_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No run of a bench stands in for a kernel that is being compiled."""

        class Seen(peers.BoltEngine):
            def run(self, feeds: peers.Feeds) -> Any:
                assert not self.session.options.does_stand_in
                return super().run(feeds)

        monkeypatch.setattr(benchmark, "BoltEngine", Seen)
        assert benchmark.bench(DIGITS, seconds=0.01, processes=False).engines[0].latencies


class TestMachine:
    def test_doctor_is_well(self, call: Call) -> None:
        done = call("doctor", "--json")
        assert done.code == 0, done.out
        assert done.json["ok"]
        assert "BOLT_NUMBA_CACHE_DIR" in call("doctor").out

    def test_doctor_says_what_is_wrong(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BOLT_NUMBA_NUM_THREADS", "many")
        done = call("doctor", "--json")
        assert done.code == 1
        assert "got 'many'" in done.json["checks"]["threads"][1]

    def test_cache(self, tmp_path: Path) -> None:
        """In processes of their own: this one's cache folder is fixed once it has been used."""
        graph = bn.Graph("tiny")
        x = graph.add_input("x", TensorType(F32, (7, 5)))
        graph.add_output(Builder(graph)(make("Relu"), x), "y")
        model = str(tmp_path / "tiny.bolt")
        bn.save(graph, model)
        env = {**os.environ, "BOLT_NUMBA_CACHE_DIR": str(tmp_path / "cache")}

        def run(*args: str) -> str:
            command = [sys.executable, "-m", "bolt_numba", "cache", *args]
            return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

        assert run("path").startswith(str(tmp_path / "cache"))
        assert json.loads(run("list", "--json")) == []
        assert "compiled" in run("warm", model)
        entries = json.loads(run("list", "--json"))
        assert entries
        assert all(e["bytes"] > 0 for e in entries)
        assert "compiled 0 kernels" in run("warm", model)
        assert f"removed {len(entries)} kernels" in run("clear")
        assert json.loads(run("list", "--json")) == []

    def test_one_is_no_plural(self) -> None:
        assert [console.counted(count, "kernel") for count in (0, 1, 2)] == ["0 kernels", "1 kernel", "2 kernels"]

    def test_ops(self, call: Call) -> None:
        found = call("ops", "--json").json
        rows = {r["op"]: r for r in found["operators"]}
        assert {"Conv", "If", "Gemm"} <= set(found["formats"]["ai.onnx"])
        assert rows["Relu"]["kernels"]
        assert len(rows) > 60
        assert "| Conv |" in call("ops", "--markdown").out
        assert "Conv" in call("ops").out

    def test_ops_by_name_have_their_attributes(self, call: Call) -> None:
        shown = call("ops", "Conv", "Relu").out
        assert "strides: tuple[int, ...] = ()" in shown
        assert "w: [k, c/g, r, s]" in shown
        assert shown.endswith("no attributes\n")
        assert "kernel_shape: tuple[int, ...]\n" in call("ops", "MaxPool").out, "without a default"
        assert "got 'Cnv', wanted Conv" in call("ops", "Cnv").err

    def test_the_page_of_formats_has_every_operator(self, call: Call) -> None:
        page = call("ops", "--formats").out
        for title, names in formats.names_read().items():
            rows = page.partition(f"## {title}\n\n{len(names)} operators.\n")[2].partition("\n## ")[0]
            assert re.findall(r"^\| (\S+) \|", rows, re.MULTILINE)[1:] == names, title
