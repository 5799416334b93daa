"""The commands of flows: what `show` lists, what `run` makes of folders, lines and values."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.cli.options import load_arrays, save_arrays
from tests.flow.test_files import BOLT
from tests.flow.test_nodes import DIGITS, images
from tests.test_cli import Call, call

__all__ = ["call"]
STEPS = '''
import time
from dataclasses import dataclass

import time

import numpy as np

def best(p):
    if p.sum() < 0.5:
        raise ValueError("no digit")
    return int(p.argmax())

def image(content):
    return np.frombuffer(content, np.uint8).reshape(1, 1, 8, 8) / np.float32(255)

@dataclass
class Box:
    left: int
    score: np.float32

def boxes(x):
    return [Box(x, np.float32(0.5))]

def counted(x, seen):
    return [x, seen], seen + 1

def same(x):
    return x

def slow(x):
    time.sleep(x)
    return x

class Mute:
    def __repr__(self):
        raise ValueError("no text")

    def __array__(self, *dtype, **how):
        raise KeyError("no array")

def odd(x, lines):
    round = []
    round.append(round)
    for _ in range(1000 if x == 3 else 0):
        with open(lines) as file:
            if '"y": 0' in file.read():
                return "seen"
        time.sleep(0.02)
    return [0, round, Mute(), None][x]

def before(values, most):
    return {"image": values["pixels"] / np.float32(most)}

def behind(values):
    return {"digit": values["probabilities"].argmax(1)}
'''
FLOW = '''
inputs = { image = "f32[n,1,8,8]" }
outputs = ["digit", "p"]
workers = { count = 2, threads = 1 }

[nodes.digits]
model = "digits.onnx"
outputs = "p"
max_batch = 4
workers = [{ count = 1, threads = 1, cpus = [0] }, { device = "host" }]

[nodes.best]
function = "command_steps:best"
inputs = "p"
outputs = "digit"
'''
BYTES = '''
inputs = ["content", "scale"]
outputs = "image"
[nodes.image]
function = "command_steps:image"
inputs = "content"
outputs = "image"
'''
COUNT = 'inputs = "x"\noutputs = "y"\n[nodes.n]\nfunction = "command_steps:counted"\ninputs = "x"\noutputs = "y"\n' \
        'states = { seen = { output = "next", initial = 0 } }\n'  # fmt: skip
PLAIN = 'inputs = "x"\noutputs = "file"\n[nodes.n]\nfunction = "command_steps:same"\ninputs = "x"\noutputs = "file"\n'
ODD = 'inputs = "x"\noutputs = "y"\nworkers = 1\n[nodes.n]\nfunction = "command_steps:odd"\ninputs = { x = "x" }\n' \
      'outputs = "y"\nqueue = 1\nfixed = { lines = "FOLDER/out.jsonl" }\n'  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {"command_steps.py": STEPS, "flow.toml": FLOW, "bytes.toml": BYTES, "count.toml": COUNT, "f.prototxt": BOLT}
    files["plain.toml"] = PLAIN
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "digits.onnx").write_bytes(DIGITS.read_bytes())
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "command_steps", raising=False)
    return tmp_path


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def digits(several: Any) -> list[int]:
    session = bn.compile(DIGITS, threads=1)
    return [int(np.asarray(session(x)).argmax()) for x in several]


def test_show_lists_nodes(call: Call, folder: Path) -> None:
    done = call("flow", "show", folder / "flow.toml")
    assert done.code == 0
    assert "inputs: image: f32[n,1,8,8]" in done.out
    assert "workers: 2 with 1 threads" in done.out
    (row,) = [line for line in done.out.splitlines() if line.startswith("digits ")]
    assert "p: f32[batch,10]" in row
    assert "1 with 1 threads on processors [0] and 1 on host" in row
    assert "max_batch=4" in row
    found = call("flow", "show", folder / "flow.toml", "--json").json
    assert [node["node"] for node in found["nodes"]] == ["digits", "best"]
    assert found["nodes"][1]["runs"] == "command_steps:best"
    (folder / "flow.toml").write_text(FLOW.replace('outputs = "digit"', 'outputs = "digit"\nprocess = 2'))
    (best,) = call("flow", "show", folder / "flow.toml", "--json").json["nodes"][1:]
    assert (best["workers"], best["options"]) == ("2", {"process": 2})
    (folder / "apart.toml").write_text(PLAIN + "process = 2\n")
    (node,) = call("flow", "show", folder / "apart.toml", "--json").json["nodes"]
    assert (node["runs"], node["workers"], node["options"]) == ("command_steps:same", "2", {"process": 2})


def test_one_task_of_files_and_values(call: Call, folder: Path) -> None:
    np.save(folder / "x.npy", images(1))
    done = call("flow", "run", folder / "flow.toml", "--input", f"image={folder / 'x.npy'}")
    (line,) = lines(done.out)
    assert (done.code, line["task"], line["outputs"]["digit"]) == (0, "0", digits([images(1)])[0])
    assert len(line["outputs"]["p"][0]) == 10
    done = call("flow", "run", folder / "count.toml", "--input", 'x={"a": NaN, "b": [1, "c"]}')
    assert lines(done.out)[0]["outputs"] == {"y": [{"a": None, "b": [1, "c"]}, 0]}
    done = call("flow", "run", folder / "count.toml", "--input", "x=a text")
    assert (done.err, lines(done.out)[0]["outputs"]) == ("", {"y": ["a text", 0]})
    done = call("flow", "run", folder / "count.toml", "--input", f"x={folder / 'flow.toml'}")
    assert done.err.endswith(f"flow.toml for a text; @{folder / 'flow.toml'} is what the file holds\n")
    assert call("flow", "run", folder / "count.toml", "--input", "x=" + 9000 * "a").code == 0


def test_a_folder_of_arrays_becomes_a_folder_of_results(call: Call, folder: Path) -> None:
    tasks = folder / "tasks"
    tasks.mkdir()
    for i in range(70):  # more than the flow holds
        np.save(tasks / f"{i:03}.npy", images(1, i))
    np.savez(tasks / "last.npz", image=images(1, 70))
    trace = folder / "trace.json"
    done = call("flow", "run", folder / "flow.toml", "--tasks", tasks, "-o", folder / "out", "--statistics",
                "--trace", trace, "--workers", 1)  # fmt: skip
    assert (done.code, done.out) == (0, "")
    assert "71 tasks: 71 done" in done.err
    assert "best" in {e["name"] for e in json.loads(trace.read_text())["traceEvents"]}
    found = [int(np.load(path)["digit"]) for path in sorted((folder / "out").iterdir())]
    assert (folder / "out" / "last.npz").is_file()
    assert found == digits(images(1, i) for i in range(71))


def test_lines_of_tasks_become_lines(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(folder / "x.npy", images(1))
    bad = images(1)[0].tolist()
    given = [{"image": {"file": "x.npy"}}, {"image": bad}, {"picture": 3}, {"image": images(1).tolist()}]
    text = "\n\n".join(map(json.dumps, given))
    (folder / "tasks.jsonl").write_text(text)
    done = call("flow", "run", folder / "flow.toml", "--tasks", folder / "tasks.jsonl", "-o", folder / "out.jsonl")
    found = lines((folder / "out.jsonl").read_text())
    assert (done.code, done.out) == (1, "")
    assert "error: 2 of 4 tasks failed" in done.err
    results = {line["task"]: line for line in found}
    assert results["0"]["outputs"]["digit"] == results["6"]["outputs"]["digit"]
    assert results["2"]["error"].startswith("input 'image': got shape (1, 8, 8)")
    assert "inputs: got ['picture'], wanted ['image']" in results["4"]["error"]
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"x": 5}\n{"x": 6}\n'))
    done = call("flow", "run", folder / "count.toml", "--tasks", "-", "--stream")
    assert [line["outputs"]["y"] for line in lines(done.out)] == [[5, 0], [6, 1]]


def test_tasks_that_cannot_be_read_fail_alone(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"x": 5}\n1\n{"x"\n{"x": {"file": "none.bin"}}\n{"x": 6}\n'
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    done = call("flow", "run", folder / "count.toml", "--tasks", "-", "--stream")
    found = {line["task"]: line.get("error") or line["outputs"]["y"] for line in lines(done.out)}
    assert done.code == 1
    assert (found.pop("0"), found.pop("4")) == ([5, 0], [6, 1])
    assert found.pop("2").startswith("-: line 3: got what is no JSON: ")
    assert found == {
        "1": "-: line 2: got a int, wanted inputs by name", "3": "none.bin: No such file or directory",
    }  # fmt: skip
    tasks = folder / "tasks"
    tasks.mkdir()
    (tasks / "bad.npz").write_bytes(b"PK")
    np.savez(tasks / "good.npz", x=3)
    done = call("flow", "run", folder / "count.toml", "--tasks", tasks)
    assert ["error" in line for line in lines(done.out)] == [True, False]
    for name, shape in (("large", "(10000000000000000,)"), ("torn", "((((")):
        head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode()
        (folder / f"{name}.npy").write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + head + b"\n")
    names = ("large.npy", "torn.npy", "a\0b")
    rows = [{"x": {"file": name}} for name in names]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"x": 7}])))
    done = call("flow", "run", folder / "count.toml", "--tasks", folder / "rows.jsonl")
    assert ["error" in line for line in lines(done.out)] == [True, True, True, False]
    (folder / "latin.jsonl").write_bytes(b'{"x": "\xe4"}')
    done = call("flow", "run", folder / "count.toml", "--tasks", folder / "latin.jsonl")
    assert (done.code, "got bytes that are no UTF-8" in done.err) == (1, True)


def test_results_are_not_written_over_tasks_or_each_other(call: Call, folder: Path) -> None:
    tasks, text = folder / "tasks", '{"x": 1}'
    tasks.mkdir()
    np.save(tasks / "1.npy", 1)
    np.savez(tasks / "1.npz", x=2)
    (folder / "tasks.jsonl").write_text(text)
    for place in (tasks, folder / "tasks.jsonl"):
        done = call("flow", "run", folder / "plain.toml", "--tasks", place, "-o", place)
        assert (done.code, "got the place of the tasks" in done.err) == (2, True)
    assert (folder / "tasks.jsonl").read_text() == text
    done = call("flow", "run", folder / "plain.toml", "--tasks", tasks, "-o", folder / "out")
    assert done.code == 1
    assert lines(done.out)[0]["error"] == "000001.npz: got a second task of this name, wanted others"
    assert np.load(folder / "out" / "000001.npz")["file"] == 1


def test_tasks_have_a_deadline(call: Call, folder: Path) -> None:
    (folder / "slow.toml").write_text(PLAIN.replace("same", "slow"))
    (folder / "tasks.jsonl").write_text('{"x": 2}\n{"x": 0}\n')
    args = ("flow", "run", folder / "slow.toml", "--tasks", folder / "tasks.jsonl", "--workers", 2)
    first, second = lines(call(*args, "--deadline", 1).out)
    assert "got no result by its deadline" in first["error"]
    assert second["outputs"] == {"file": 0}


def test_all_texts_become_lines_of_json(call: Call, folder: Path) -> None:
    text = "\ud800 \x85 \x1b \u4e2d"
    args = ("flow", "run", folder / "plain.toml", "--input", f"x={json.dumps(text)}")
    done = call(*args)
    assert lines(done.out)[0]["outputs"]["file"] == text
    assert "\u4e2d" in done.out
    assert call(*args, "-o", folder / "out.jsonl").code == 0
    assert lines((folder / "out.jsonl").read_text(encoding="utf-8"))[0]["outputs"]["file"] == text


def test_records_become_tables(call: Call, folder: Path) -> None:
    text = 'inputs = "x"\noutputs = "y"\n[nodes.n]\nfunction = "command_steps:boxes"\ninputs = "x"\noutputs = "y"\n'
    (folder / "boxes.toml").write_text(text)
    done = call("flow", "run", folder / "boxes.toml", "--input", "x=3")
    assert lines(done.out) == [{"task": "0", "outputs": {"y": [{"left": 3, "score": 0.5}]}}]


def test_a_folder_without_files_has_no_tasks(call: Call, folder: Path) -> None:
    (folder / "tasks" / "inside").mkdir(parents=True)
    done = call("flow", "run", folder / "count.toml", "--tasks", folder / "tasks")
    assert (done.code, done.out, done.err) == (0, "", f"got no task in {folder / 'tasks'}\n")


def test_results_that_no_file_can_hold_fail_alone(call: Call, folder: Path) -> None:
    """Lists that hold themselves, objects without a text; those before are in the file at once."""
    (folder / "odd.toml").write_text(ODD.replace("FOLDER", str(folder)))
    (folder / "rows.jsonl").write_text('{"x": 0}\n{"x": 1}\n{"x": 2}\n{"x": 3}\n')
    done = call("flow", "run", folder / "odd.toml", "--tasks", folder / "rows.jsonl", "-o", folder / "out.jsonl")
    assert (done.code, "error: 2 of 4 tasks failed" in done.err) == (1, True)
    found = lines((folder / "out.jsonl").read_text())
    assert [line.get("outputs") for line in found] == [{"y": 0}, None, None, {"y": "seen"}]
    assert all("outputs: got what is no JSON: " in line["error"] for line in found[1:3])
    done = call("flow", "run", folder / "odd.toml", "--tasks", folder / "rows.jsonl", "-o", folder / "out")
    assert (done.code, len(list((folder / "out").iterdir()))) == (1, 2)


def test_a_file_of_arrays_is_whole_or_not_there(tmp_path: Path) -> None:
    """What ends the writing of the second array takes the first one along, and leaves an older file as it was."""
    path = tmp_path / "a.npz"
    for there in ([], ["a.npz"]):
        with pytest.raises(ValueError, match="allow_pickle"):
            save_arrays(path, {"x": np.ones(3), "y": np.array([None])})
        assert [file.name for file in tmp_path.iterdir()] == there
        save_arrays(path, {"x": np.zeros(3)})
    assert not load_arrays(path)["x"].any()


def test_files_are_bytes_and_other_inputs_are_common(call: Call, folder: Path) -> None:
    tasks = folder / "tasks"
    tasks.mkdir()
    (tasks / "a.raw").write_bytes(bytes(range(64)))
    done = call("flow", "run", folder / "bytes.toml", "--tasks", tasks, "--input", "scale=2")
    assert lines(done.out) == [{"task": "a.raw", "outputs": {"image": "f32[1, 1, 8, 8], 0 to 0.247059"}}]
    done = call("flow", "run", folder / "bytes.toml", "--tasks", tasks)
    assert done.code == 1
    assert "a.raw: got one value for inputs ['content', 'scale'], wanted an .npz file" in done.err
    args = ("--input", f"content=@{tasks / 'a.raw'}", "--input", "scale=1")
    done = call("flow", "run", folder / "bytes.toml", *args, "-o", folder / "out")
    assert np.load(folder / "out" / "000000.npz")["image"].shape == (1, 1, 8, 8)


def test_a_graph_of_bolt_gets_functions_and_models(call: Call, folder: Path) -> None:
    np.save(folder / "x.npy", np.full((1, 1, 8, 8), 9, np.uint8))
    args = ["--function", "pixelProcess=command_steps:before", "--function", "best=command_steps:behind"]
    args += ["--model", f"digits_f32.bolt={DIGITS}"]
    done = call("flow", "run", folder / "f.prototxt", *args, "--input", f"pixels={folder / 'x.npy'}")
    assert lines(done.out)[0]["outputs"]["digit"] == digits([np.full((1, 1, 8, 8), 9, np.float32) / np.float32(255)])
    shown = call("flow", "show", folder / "f.prototxt", *args).out
    assert "inference/before  command_steps:before" in shown
    done = call("flow", "show", folder / "f.prototxt")
    assert done.code == 1
    assert "functions: got none for 'pixelProcess', 'best'; models: got none for '/data/local/tmp/digits" in done.err


def test_a_pipe_gets_each_result_before_the_next_task_comes(folder: Path) -> None:
    command = [sys.executable, "-m", "bolt_numba", "flow", "run", str(folder / "count.toml"), "--tasks", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        for i in range(3):
            process.stdin.write(json.dumps({"x": i}) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == {"task": str(i), "outputs": {"y": [i, 0]}}
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--input", "image"], 2, "got 'image', wanted NAME=VALUE"),
        (["--input", "picture=3"], 2, "got 'picture=3', wanted one of image"),
        ([], 2, "got [], wanted ['image'], or --tasks"),
        (["--input", "image=none.npy"], 1, "error: none.npy: No such file"),
        (["--input", "image=3", "-o", "x.txt"], 2, "got 'x.txt', wanted a folder or a .jsonl file"),
        (["--input", "image=3", "--model", "x"], 2, "got 'x', wanted NAME=..."),
        (["--input", "image=3", "--model", "x=y"], 1, "models: got ['x'], wanted only what the file names"),
        (["--tasks", "none.jsonl"], 1, "none.jsonl: No such file"),
    ],
)
def test_mistakes_of_the_command_line(call: Call, folder: Path, args: list[str], code: int, said: str) -> None:
    done = call("flow", "run", folder / "flow.toml", *args)
    assert done.code == code
    assert said in " ".join(done.err.replace("│", " ").split())
    assert call("flow", "run", folder / "none.toml").code == 1
