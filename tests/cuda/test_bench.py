"""The script that asks a GPU everything, on the simulator and over the stand-in for NVIDIA's functions."""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.gpu import launches, ours
from bench.gpu.__main__ import main
from bench.gpu.cases import Case, cases
from bench.gpu.checks import check_file, files
from bench.gpu.findings import RESERVED_S, Findings
from bench.gpu.launches import LENGTHS, time_launches
from bench.gpu.page import markdown
from bench.gpu.prepare import NAME, prepare
from bolt_numba import devices
from bolt_numba.devices.cuda.device import Cuda
from bolt_numba.devices.cuda.driver import Gpu
from bolt_numba.kernels.cuda import code
from bolt_numba.kernels.cuda.code import CUBIN, PTX
from bolt_numba.ops.pointwise import Add, Relu
from tests.cuda import harness
from tests.cuda.fake_driver import FakeDriver

_numbers = itertools.count()


def fake() -> Cuda:
    name = f"fake-bench{next(_numbers)}"
    device = Cuda(name, Gpu(0, FakeDriver(), PTX))
    devices.register(name, lambda: device)
    return device


def test_a_dry_run_goes_through_the_parts_and_gives_no_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ["describe", "launches", "memory"]
    monkeypatch.setattr(sys, "argv", ["bench.gpu", *parts, "--device", "cuda-sim", "-o", str(tmp_path)])
    main()
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert set(found) == {*parts, "took_s", "ran_on", "left_out"}
    assert found["describe"]["simulated"]
    assert found["describe"]["compiles"] == "yes"
    rows = [*found["launches"]["empty"], *found["launches"]["plans"]]
    assert {row["name"] for row in rows} > {"mlp", "kws_dscnn", *(f"a graph of {n}" for n in LENGTHS)}
    assert all(row["host_s"] is row["device_s"] is None for row in rows), rows
    (softmax,) = found["memory"]
    assert softmax["difference"] < 1e-3
    assert "seconds" not in softmax
    page = (tmp_path / "gpu.md").read_text()
    assert "| softmax f16 | n/a on the simulator |" in page
    assert "times are not those of any GPU" in page


def test_a_gpu_gives_times_of_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "LENGTHS", (1, 20))
    monkeypatch.setattr(launches, "BURST", 2)
    device = fake()
    rows = time_launches(device.name, 2)
    assert all(row["host_s"] > 0 and row["device_s"] > 0 for row in rows)
    page = markdown({"launches": {"empty": rows, "plans": [{"name": "lacking", "error": "no file"}]}})
    assert "| a graph of 20 | 20 |" in page
    assert "| lacking | no file |" in page


def test_the_harness_waits_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are read in another stream than kernels run in, and constants are there until they have run."""
    monkeypatch.setattr(harness, "GPU", fake())
    plain = harness._Apart.run

    def run(self: harness._Apart) -> None:
        gc.collect()
        plain(self)

    monkeypatch.setattr(harness._Apart, "run", run)
    x = np.arange(-4, 4, dtype=np.float32)
    harness.expect(Relu(), x)
    harness.expect(Add(), x, x[::-1].copy(), constants=(1,))
    with pytest.raises(pytest.skip.Exception), harness.counted():
        raise AssertionError("a GPU counts nothing")


def test_what_is_prepared_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path))
    made = prepare(tmp_path, "sm_90a", ["product"], [], small=True)
    assert made["errors"] == []
    assert made["cubins"] == len(list(tmp_path.rglob("*-sm_90a-cubin.kernel"))) >= 3
    device: Any = devices.device(NAME)
    code._known.clear()
    (case,) = [case for case in cases(small=True) if case.name.startswith("f32")]
    asked: list[Any] = []
    monkeypatch.setattr(device, "prepare", lambda jobs: asked.extend(s.kernel for job in jobs for s in job.steps or ()))
    ours.session_of(case, case.arrays(), NAME)[0].warmup()
    assert asked
    assert code.lacking(asked, "sm_90a", CUBIN) == []


def test_the_checks_name_files_that_run_kernels_by_the_harness() -> None:
    found = files(small=False)
    assert "tests/cuda/test_products.py" in found
    assert "tests/cuda/test_driver.py" not in found
    assert set(files(small=True)) <= set(found)


def test_a_run_that_is_cut_off_has_its_rows_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(case: Case, arrays: Any, *_: Any) -> Any:
        if case.name.startswith("f32"):
            raise KeyboardInterrupt
        return {"runner": "made up", "result": ours.expected(case, arrays)}

    monkeypatch.setattr(ours, "time_case", interrupted)
    monkeypatch.setattr(sys, "argv", ["bench.gpu", "product", "--device", "cuda-sim", "-o", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        main()
    rows = json.loads((tmp_path / "gpu.json").read_text())["product"]
    assert [row.get("runner") for row in rows] == ["made up", "made up"]
    assert "| f16 64x64x64 |" in (tmp_path / "gpu.md").read_text()


def test_parts_that_are_run_later_go_to_the_same_files(tmp_path: Path) -> None:
    first = Findings(tmp_path, "cuda", ["memory", "checks"], RESERVED_S["checks"] - 1)
    first.rows("memory").append({"name": "x", "unit": "byte", "bar": 1, "runner": "kept"})
    assert first.left("checks") > 100
    assert not first.has_time("memory", "add")
    assert first.has_time("checks", "all")
    first.end("memory", 1.0)
    assert "left out for lack of time: memory add" in (tmp_path / "gpu.md").read_text()
    second = Findings(tmp_path, "cuda", ["models"], 100)
    second.rows("models")
    second.end("models", 2.0)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["memory"][0]["runner"] == "kept"
    assert (found["took_s"], found["left_out"]) == ({"memory": 1.0, "models": 2.0}, ["memory add"])
    assert Findings(tmp_path, "cuda", ["memory"], 100).by_part["left_out"] == []
    assert "memory" not in Findings(tmp_path, "cuda-sim", ["models"], 100).by_part


SLOW = """
import time


def test_first():
    pass


def test_second():
    time.sleep(100)
"""


def test_tests_that_ended_in_time_are_told(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(SLOW)
    found = check_file(str(tmp_path / "test_slow.py"), "cuda:7", time.monotonic() + 8)
    assert next((name.rpartition("::")[2], outcome.how) for name, outcome in found.items()) == ("test_first", "passed")
    assert [outcome.message for outcome in found.values() if outcome.how == "failed"] == ["got no end within 8 s"]


BROKEN = """
import os
import pytest

NAMES = ["fine", "breaks", "later", "breaks too", "last", "wrong"]
broken = []


@pytest.mark.parametrize("name", NAMES)
def test_it(name):
    assert os.environ["BOLT_NUMBA_TEST_GPU"] == "cuda:7"
    broken.extend([name] if name.startswith("breaks") else [])
    if broken:
        raise RuntimeError("cuda: the GPU failed: got an address, wanted a new process to use it again")
    assert name != "wrong"
"""


def test_what_a_broken_gpu_fails_runs_again_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text(BROKEN)
    found = check_file(str(tmp_path / "test_broken.py"), "cuda:7", time.monotonic() + 100)
    outcomes = {name.partition("[")[2].rstrip("]"): outcome.how for name, outcome in found.items()}
    failed = {"breaks", "breaks too", "wrong"}
    assert outcomes == {
        name: "failed" if name in failed else "passed" for name in ("fine", "later", "last", *sorted(failed))
    }
    late = check_file(str(tmp_path / "test_broken.py"), "cuda:7", time.monotonic() - 100)
    assert [outcome.message.startswith("got no end within") for outcome in late.values()] == [True]
