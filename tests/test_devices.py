"""A device joins from one file of the examples: two kernels, memory of its own.  The CPU takes the rest."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import devices
from bolt_numba.errors import DeviceError
from bolt_numba.flow.errors import FlowError
from bolt_numba.flow.parts import want_devices
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.arrays.accumulate import LogCumSumExp
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.arrays.shape import Reshape
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Relu
from bolt_numba.plugins import registry
from bolt_numba.types import F32, Array, Sym, TensorType
from tests.test_examples import EXAMPLES, example

Toy: Any = example("toy_device").Toy
TOY: Any = devices.device("toy")


def whole(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(F32)


def network(build: Callable[[Builder, Value, Value], Any]) -> Graph:
    """Inputs x and z, [n, 4]."""
    graph = Graph("toy")
    x, z = (graph.add_input(name, TensorType(F32, (Sym("n"), 4))) for name in "xz")
    for i, y in enumerate(build(Builder(graph), x, z)):
        graph.add_output(y, f"y{i}")
    return graph


def mixed(b: Builder, x: Value, z: Value) -> Any:
    """Toy, CPU, toy, the host's reference, toy; results and a view of the toy's, one of which others read, too."""
    first = b(Relu(), x)
    middle = b(Softmax(-1), b(MatMul(), first, whole(4, 4)))
    third = b(Add(), middle, z)
    coded = b(LogCumSumExp(), first)
    last = b(Add(), coded, third)
    return first, third, last, b(Reshape(), last, np.array([2, -1]))


def alone(b: Builder, x: Value, z: Value) -> Any:
    """Nothing for others to do; a result is an input, too."""
    return b(Add(), z, z), x


def feeds(n: int, seed: int = 0) -> dict[str, Array]:
    return {"x": whole(n, 4, seed=seed), "z": whole(n, 4, seed=seed + 1)}


def expect(session: bn.Session, graph: Graph, given: dict[str, Array]) -> None:
    wanted = interpret(graph, given)
    for name, got in session(**given).items():
        np.testing.assert_allclose(got, wanted[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("build", [mixed, alone])
@pytest.mark.parametrize("threads", [1, 2])
def test_nodes_run_where_they_are_preferred(build: Any, threads: int) -> None:
    graph = network(build)
    session = bn.compile(graph, device=["toy", "cpu"], threads=threads)
    for n in (2, 6, 2, 4):
        expect(session, graph, feeds(n, seed=n))
    runners = {row["runner"] for row in session.report()}
    assert "toy Add" in runners
    assert ("reference" in runners) == ("matmul" in runners) == (build is mixed)


def test_copies_are_seen_and_made_once() -> None:
    session, given = bn.compile(network(mixed), device="toy", threads=1), feeds(6)
    session(**given)
    before = list(TOY.memory.copied)
    session(**given)
    nbytes = given["x"].nbytes  # of every value
    assert [b - a for a, b in zip(before, TOY.memory.copied, strict=True)] == [4 * nbytes, 4 * nbytes]
    profile = session.profile(**given, runs=2)
    copies = [row for row in profile.rows if row.op == "Copy"]
    assert [row.runner for row in copies].count("copy to toy") == 4
    assert [row.runner for row in copies].count("copy from toy") == 4
    assert all(row.seconds > 0 for row in profile.rows)
    assert session.memory()["arena"] >= 3 * nbytes


def test_segments_are_runs_of_one_device() -> None:
    session = bn.compile(network(mixed), device="toy", threads=1)
    session(**feeds(4))
    (prepared,) = session._runner.prepared.values()
    names = [segment.device.name for segment in prepared.plan.segments]
    assert all(a != b for a, b in itertools.pairwise(names))
    assert set(names) == {"toy", "mover", "cpu", "host"}
    assert [job for segment in prepared.plan.segments for job in segment.jobs] == prepared.plan.jobs


def test_many_threads_share_a_session() -> None:
    graph = network(mixed)
    session = bn.compile(graph, device="toy", threads=1)
    shapes = [2, 4, 6, 8] * 8
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda row: expect(session, graph, feeds(row[1], seed=row[0])), enumerate(shapes)))


def test_the_host_runs_everything_when_it_is_preferred() -> None:
    graph = network(mixed)
    session = bn.compile(graph, device="host", threads=1)
    expect(session, graph, feeds(4))
    assert {row["runner"] for row in session.report()} <= {"reference", "copy in host"}


def test_a_session_keeps_its_devices(tmp_path: Any) -> None:
    import pickle

    session = bn.compile(network(alone), device=("toy", "cpu"), threads=1)
    again = pickle.loads(pickle.dumps(session))
    assert again.device == session.device == ("toy", "cpu")
    np.testing.assert_array_equal(again(**feeds(4))[0], session(**feeds(4))[0])


@pytest.mark.parametrize("device", ["tpu", 7, ["toy", "tpu"], None, [None], {"cpu": 1}])
def test_unknown_devices_are_refused(device: Any) -> None:
    with pytest.raises(DeviceError, match=r"device: got .*, wanted one of .*'cpu', .*'host', .*'toy'"):
        bn.compile(network(alone), device=device)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(DeviceError, match="got a second 'cpu'"):
        devices.register("cpu", Toy)


ANNOUNCED = """
import sys
sys.path[:0] = {paths!r}
import bolt_numba as bn
from bolt_numba import devices
from bolt_numba.flow.parts import want_devices
from bolt_numba.ops.pointwise import Relu
from bolt_numba.ir.build import Builder
from bolt_numba.types import F32, TensorType
graph = bn.Graph("g")
graph.add_output(Builder(graph)(Relu(), graph.add_input("x", TensorType(F32, (2,)))), "y")
for name in {names!r}:
    try:
        want_devices("device", name)
        print(devices.device(name).name, bn.compile(graph, device=name).device)
    except bn.BoltError as error:
        print(error)
"""


def announced(folder: Path, lines: Sequence[str], names: Sequence[str]) -> list[str]:
    """What a process says of devices where a package announces some."""
    info = folder / "vendor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(["[bolt_numba.devices]", *lines]) + "\n")
    shutil.copy(EXAMPLES / "toy_device.py", folder / "vendor_toy.py")
    (folder / "vendor_broken.py").write_text("raise RuntimeError('no such chip')\n")
    code = ANNOUNCED.format(paths=[str(folder), str(EXAMPLES.parent)], names=list(names))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_packages_announce_devices(tmp_path: Path) -> None:
    lines = ["toy = vendor_toy", "broken = vendor_broken", "several = vendor_several"]
    (tmp_path / "vendor_several.py").write_text(
        "from bolt_numba import devices\nfrom vendor_toy import Toy\n"
        "class Several(Toy):\n    def __init__(self, which):\n        super().__init__()\n"
        "        self.name = f'several:{which or 0}'\n"
        "devices.register_family('several', Several)\n"
    )
    told = announced(tmp_path, lines, ("toy", "several", "several:7", "broken"))
    assert told[:3] == ["toy toy", "several:0 several", "several:7 several:7"]
    assert told[3] == "device 'broken': vendor_broken: cannot be loaded: RuntimeError: no such chip"


@pytest.mark.parametrize("device", ["cuda-sim", "cuda-sim:sm_90a", ["cuda-sim", "cpu"]])
def test_without_the_simulator_the_error_names_its_package(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    monkeypatch.delitem(devices._families, "cuda-sim")
    monkeypatch.setattr(registry, "announced", lambda group: {})
    monkeypatch.setattr(devices, "_known", {})
    assert "cuda-sim" not in devices.names()
    wanted = r"wanted the package bolt-numba-simulator beside it: pip install \./simulator, in a copy of the repository"
    with pytest.raises(DeviceError, match=rf"^device: got .*cuda-sim.*, {wanted}$"):
        bn.compile(network(alone), device=device)
    with pytest.raises(FlowError, match=rf"^device: got 'cuda-sim.*, {wanted}$"):
        want_devices("device", device)


def test_the_example_shows_what_runs_where() -> None:
    assert len((EXAMPLES / "toy_device.py").read_text().splitlines()) < 200
    done = subprocess.run([sys.executable, EXAMPLES / "toy_device.py"], capture_output=True, text=True, check=True)
    assert "y = [[-0.917  0.083  1.225  2.61 ]]" in done.stdout
    for row in ("Relu       toy Relu", "Add        toy Add", "Softmax    softmax", "Copy       copy to toy"):
        assert row in done.stdout
