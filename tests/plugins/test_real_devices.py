"""Sessions on onnxruntime, OpenVINO, JAX: all of a model, cut at random, new shapes, kept models, runs side by side."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bench.halves import split
from bench.plugins import error_of
from bolt_numba.base import config
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.arrays.shape import Concat
from bolt_numba.ops.layers.norm import LayerNormalization
from bolt_numba.ops.layers.pool import MaxPool
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Clip, Gelu, Mul, Relu, Sigmoid
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.plugins import registry
from bolt_numba.types import F32, Array, Sym, TensorType
from tests.plugins.drivers import layer, near, wanted_of

SDKS = [name for name in ("jax", "onnxruntime", "openvino") if not registry.obstacle(name)]
pytestmark = pytest.mark.skipif(len(SDKS) < 2, reason="fewer than two of jax, onnxruntime and openvino are installed")
DIGITS = Path(__file__).parents[2] / "examples" / "digits"


def digits() -> tuple[Path, dict[str, Array]]:
    images = np.load(DIGITS / "digits.npz")["image"][:8]
    return DIGITS / "digits.onnx", {"image": (images / 16).astype(np.float32)}


def network(seed: int) -> tuple[Graph, dict[str, Array]]:
    """Branches of convolutions, gates and a normalised product, as real networks have them."""
    rng = np.random.default_rng(seed)

    def weight(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(F32)

    graph = Graph("network")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(F32, (2, 4, 8, 8)))
    left = b(Relu(), b(Conv(pads=(1, 1, 1, 1)), x, weight(8, 4, 3, 3), weight(8)))
    gate = b(Sigmoid(), b(Conv(), left, weight(8, 8, 1, 1)))
    right = b(Clip(0.0, 6.0), b(Conv(pads=(1, 1, 1, 1), group=4), x, weight(8, 1, 3, 3)))
    joined = b(Concat(1), b(Mul(), left, gate), right)
    small = b(MaxPool((2, 2), strides=(2, 2)), joined)
    rows = b(Gelu(), b(MatMul(), small, weight(4, 6).copy()))
    norm = b(LayerNormalization(), rows, weight(6), weight(6))
    graph.add_output(b(Softmax(-1), b(Add(), norm, rows)), "y")
    graph.add_output(gate, "gate")
    return graph, {"x": rng.standard_normal((2, 4, 8, 8)).astype(F32)}


@pytest.mark.parametrize("device", SDKS)
def test_a_whole_model_runs_there_as_one_part(device: str) -> None:
    path, feeds = digits()
    with bn.compile(path, threads=1) as own, bn.compile(path, threads=1, device=[device, "cpu"],
                                                        fallback="forbid") as session:
        for _ in range(2):
            assert error_of(session(**feeds), own(**feeds)) < 1e-3
        placed = session.report().placed
        assert {row["device"] for row in placed} == {device}
        assert len({row["part"] for row in placed}) == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_network_split_at_random_gives_the_same(seed: int) -> None:
    graph, feeds = network(seed)
    with bn.compile(graph, threads=1) as own:
        wanted = own(**feeds)
    placement = split(run_pipeline(graph, until="quantise"), SDKS, seed)
    with bn.compile(graph, threads=1, device=[*SDKS, "cpu"], placement=placement, fallback="forbid") as session:
        assert error_of(session(**feeds), wanted) < 1e-3
        assert len({row["device"] for row in session.report().placed}) >= 2


@pytest.mark.parametrize("device", SDKS)
def test_sizes_change_from_run_to_run(device: str) -> None:
    graph = layer(Sym("rows"))
    with bn.compile(graph, threads=1, device=[device, "cpu"], fallback="forbid") as session:
        for rows in (3, 1, 3, 5):
            x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(F32)
            near(list(session.run(None, {"x": x})), wanted_of(graph, x))


@pytest.mark.parametrize("device", SDKS)
def test_the_next_process_takes_what_was_kept(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(config.CACHE_DIR.name, str(tmp_path))
    graph = layer(2)
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(F32)
    states = []
    for _ in range(2):
        with bn.compile(graph, threads=1, device=[device, "cpu"], fallback="forbid") as session:
            near(list(session.run(None, {"x": x})), wanted_of(graph, x))
            states.append({row["state"] for row in session.report() if row["op"] == "Foreign"})
    assert states == [{"compiled"}, {"cached"}]


@pytest.mark.parametrize("device", SDKS)
def test_runs_side_by_side_do_not_meet(device: str) -> None:
    graph = layer(2)
    wrong: list[Any] = []
    with bn.compile(graph, threads=1, device=[device, "cpu"], fallback="forbid") as session:

        def work(seed: int) -> None:
            x = np.random.default_rng(seed).standard_normal((2, 64)).astype(F32)
            want = wanted_of(graph, x)
            for _ in range(20):
                for got, value in zip(session.run(None, {"x": x}), want, strict=True):
                    if not np.allclose(got, value, atol=1e-4):
                        wrong.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.parametrize("device", SDKS)
def test_weights_outlive_the_caller_s(device: str) -> None:
    """What the SDK shares with us must not go away with the graph that was compiled."""
    graph = layer(2)
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(F32)
    wanted = wanted_of(graph, x)
    uncached = {device: {"cache": False}}
    session = bn.compile(graph, threads=1, device=[device, "cpu"], fallback="forbid", properties=uncached)
    near(list(session.run(None, {"x": x})), wanted)
    del graph
    gc.collect()
    held = [np.full((64, 96), np.nan, F32) for _ in range(64)]  # what would lie where the weights were
    near(list(session.run(None, {"x": x})), wanted)
    assert np.isnan(held[-1]).all()
    session.close()


CHILD = """
import os, sys, numpy as np, bolt_numba as bn
from tests.plugins.drivers import layer
graph, x = layer(8), np.ones((8, 64), np.float32)
wanted = bn.compile(graph)(x=x)[0]
session = bn.compile(graph, device=[sys.argv[1], "cpu"], threads=2, properties={sys.argv[1]: {"cache": False}})
session(x=x)
child = os.fork()
for made in (session, bn.compile(graph, device=[sys.argv[1], "cpu"], threads=2)):
    assert np.allclose(made(x=x)[0], wanted, atol=1e-4)
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
said = str(session.report())
assert (sys.argv[1] != "onnxruntime") == ("forked" in said), said
session.close()
if sys.argv[1] != "openvino":
    os._exit(0)  # as multiprocessing ends its children: the SDKs' own ends want threads that are not there
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("device", SDKS)
def test_a_child_computes_and_ends(device: str) -> None:
    """Also where the SDK's own threads did not come along."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CHILD, device], capture_output=True, text=True,
                          timeout=120, cwd=Path(__file__).parents[2], check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
