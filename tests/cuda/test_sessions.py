"""Sessions on the simulated GPU: names, constants, concurrent runs, and what else the runtime owes them."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import devices
from bolt_numba.errors import DeviceError, InvalidModelError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.arrays.accumulate import LogCumSumExp
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Relu
from bolt_numba.surgery import packed
from bolt_numba.types import F32, Array, Sym, TensorType

SIM: Any = devices.device("cuda-sim")


def whole(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(F32)


def network() -> Graph:
    """Relu on the GPU, LogCumSumExp by the host's reference, Relu once more; a weight in between."""
    graph = Graph("small")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 4)))
    b = Builder(graph)
    first = b(Relu(), x)
    coded = b(LogCumSumExp(), first)
    graph.add_output(b(Relu(), b(MatMul(), coded, whole(4, 4, seed=3))), "y")
    graph.add_output(first, "first")
    return graph


def expect(session: bn.Session, graph: Graph, **given: Array) -> None:
    wanted = interpret(graph, given)
    for name, got in session(**given).items():
        np.testing.assert_allclose(got, wanted[name], rtol=1e-6, atol=1e-6)


def test_names() -> None:
    assert {"cuda", "cuda-sim"} <= set(devices.names())
    assert devices.device("cuda-sim:sm_80") is SIM
    other = devices.device("cuda-sim:sm_90a")
    assert (other.name, other.driver.arch) == ("cuda-sim:sm_90a", "sm_90a")  # type: ignore[attr-defined]
    with pytest.raises(DeviceError, match="got 'cuda-sim:fast', wanted an architecture"):
        devices.device("cuda-sim:fast")
    for old in ("sm_12", "sm_75", "sm_10a"):
        with pytest.raises(DeviceError, match=f"cuda-sim:{old}: got a GPU of {old}, wanted sm_80 or newer"):
            devices.device(f"cuda-sim:{old}")
    with pytest.raises(DeviceError, match="got a second 'cuda:7'"):
        devices.register("cuda:7", lambda: SIM)


def test_what_has_no_kernel_runs_elsewhere_between_copies() -> None:
    graph = network()
    session = bn.compile(graph, device=["cuda-sim", "cpu"], threads=1)
    for n in (3, 5, 3):
        expect(session, graph, x=whole(n, 4, seed=n))
    runners = {row["node"]: row["runner"] for row in session.report()}
    assert "reference" in runners.values()
    assert any(name.endswith("(copy to cuda-sim)") for name in runners)


def test_many_threads_share_a_session() -> None:
    graph = network()
    session = bn.compile(graph, device="cuda-sim", threads=1)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: expect(session, graph, x=whole(2 + i % 2, 4, seed=i)), range(12)))


def test_a_constant_is_on_the_gpu_once_for_all_plans_and_goes_with_the_last() -> None:
    graph, weight = Graph("weights"), whole(8, 4)
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 8)))
    b = Builder(graph)
    graph.add_output(b(Softmax(-1), b(MatMul(), b(Relu(), x), weight)), "y")
    gc.collect()
    before = SIM.memory.uploaded
    session = bn.compile(graph, device="cuda-sim", threads=1)
    expect(session, graph, x=whole(2, 8))
    once = SIM.memory.uploaded
    for n in (3, 4):
        expect(session, graph, x=whole(n, 8))
    assert SIM.memory.uploaded == once
    assert session.memory().get("uploaded", 0) == once - before
    session.close()
    gc.collect()
    assert SIM.memory.uploaded == before


def test_a_file_that_is_packed_for_the_processor_is_taken_in_every_precision(tmp_path: Path) -> None:
    graph, path = Graph("weights"), tmp_path / "packed.bolt"
    x = graph.add_input("x", TensorType(F32, (3, 8)))
    b = Builder(graph)
    graph.add_output(b(Add(), b(MatMul(), x, whole(8, 4)), whole(4, seed=1)), "y")
    bn.save(packed(graph), path)
    wanted = interpret(graph, {"x": whole(3, 8)})["y"]
    for precision in ("f32", "f16"):  # whole numbers are exact in both
        session = bn.compile(path, device="cuda-sim", threads=1, precision=precision)
        np.testing.assert_array_equal(session(x=whole(3, 8))["y"], wanted)
    at = path.read_bytes().find(whole(8, 4).tobytes())
    with path.open("r+b") as file:
        file.seek(at + 3)
        file.write(bytes([path.read_bytes()[at + 3] ^ 0x40]))
    with pytest.raises(InvalidModelError, match="its seal is wrong"):
        bn.compile(path, device="cuda-sim", threads=1, precision="f16")(x=whole(3, 8))
