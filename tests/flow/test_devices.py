"""Workers on other devices beside those of the CPU: a plug-in and a simulated GPU serve the same node."""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.flow import Flow, Workers
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.jit import cache_root
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Relu, Tanh
from bolt_numba.plugins import blobs, registry
from bolt_numba.types import F32, Sym, TensorType
from tests.flow.test_nodes import DIGITS, images
from tests.flow.test_tasks import LONG
from tests.plugins.simnpu import TOLERANCE, SimDriver, sdk

CHIP = {"simnpu": {"chip": "sim200", "self_check": "off"}}
PLACES = [Workers(1, threads=1), Workers(device=("simnpu", "cpu"), threads=1)]


@pytest.fixture
def simnpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plug-in, with a folder of the cache of its own; at the end the device has all back."""
    monkeypatch.setattr(blobs, "FOLDER", f"plugins-{tmp_path.name}-{os.getpid()}")
    registry.register_driver(SimDriver)
    before = sdk.live()
    yield
    registry.unregister_driver("simnpu")
    shutil.rmtree(cache_root() / blobs.FOLDER, ignore_errors=True)
    gc.collect()
    assert sdk.live() == before


def flow_of(workers: Any, **options: Any) -> Flow:
    flow = Flow(inputs="image", outputs="p", capacity=16)
    return flow.model(DIGITS, "image", "p", name="digits", workers=workers, **options)


def filled(flow: Flow, name: str, arrays: Sequence[Any]) -> list[Any]:
    """What tasks were given, and tasks that are done, until both workers have done some."""
    made, until = list[Any](), time.monotonic() + LONG
    while len(flow.statistics().nodes[flow.nodes[0].name].workers) < 2 and time.monotonic() < until:
        more = [(x, flow.submit({name: x})) for x in arrays]
        wait([task for _, task in more], LONG)
        made += more
    return made


IMAGES = [images(1, i) for i in range(12)]


@pytest.mark.usefixtures("simnpu")
def test_a_plug_in_works_beside_the_processor() -> None:
    session = bn.compile(DIGITS, threads=1)
    with flow_of(PLACES, properties=CHIP) as flow:
        tasks = filled(flow, "image", IMAGES)
        for x, task in tasks:
            want = np.asarray(session(x))
            np.testing.assert_allclose(task.result(LONG)["p"], want, rtol=0, atol=TOLERANCE["sim200"] * 10)
        node: Any = flow.nodes[0]
        reports = {place[0]: {r["device"] for r in s.report()} for place, s in node.sessions.items()}
        assert "simnpu" in reports["simnpu", "cpu"]
        assert "simnpu" not in reports[None]
        found = flow.statistics().nodes["digits"].workers
        assert {w.device for w in found.values()} == {None, ("simnpu", "cpu")}
        assert sum(w.pieces for w in found.values()) == len(tasks)
        assert all(w.runs and w.busy_s for w in found.values())
        assert "digits 1: simnpu, cpu" in flow.statistics().table()


@pytest.mark.usefixtures("simnpu")
def test_a_session_of_a_plug_in_has_workers_of_the_processor() -> None:
    session = bn.compile(DIGITS, threads=1, device=["simnpu", "cpu"], properties=CHIP)
    flow = Flow(inputs="image", outputs="p")
    flow.model(session, "image", "p", name="digits", workers=[Workers(1), Workers(device="cpu")])
    with flow, session:
        tasks = filled(flow, "image", IMAGES[:1])
        for _, task in tasks:
            np.testing.assert_allclose(task.result(LONG)["p"], np.asarray(session(IMAGES[0])), rtol=0, atol=1e-4)
        node: Any = flow.nodes[0]
        assert {s.device for s in node.sessions.values()} == {("simnpu", "cpu"), "cpu"}


@pytest.mark.usefixtures("simnpu")
def test_failures_of_a_plug_in_are_those_of_the_tasks_that_it_had() -> None:
    """Without a fallback; the worker of the processor does its own, and the flow goes on."""
    properties = {"simnpu": CHIP["simnpu"] | {"fail": "run"}}
    with flow_of(PLACES, properties=properties, fallback="forbid", queue=1) as flow:
        outcomes = [task.exception(LONG) for _, task in filled(flow, "image", IMAGES)]
        failed = [error for error in outcomes if error is not None]
        assert all(isinstance(e, bn.DeviceError) and "node 'digits': " in str(e) for e in failed)
        found = flow.statistics().nodes["digits"]
        assert found.failed == len(failed) == found.workers["digits 1"].pieces
        assert found.workers["digits 0"].pieces == len(outcomes) - len(failed) > 0
        assert failed


@pytest.mark.usefixtures("simnpu")
def test_what_a_plug_in_cannot_do_another_device_does() -> None:
    properties = {"simnpu": CHIP["simnpu"] | {"fail": "run:2+"}}
    session = bn.compile(DIGITS, threads=1)
    with flow_of(PLACES, properties=properties) as flow:
        for x, task in filled(flow, "image", IMAGES):
            np.testing.assert_allclose(task.result(LONG)["p"], np.asarray(session(x)), rtol=0, atol=1e-4)


def product() -> Graph:
    graph = Graph("product")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 8)))
    b, rng = Builder(graph), np.random.default_rng(0)
    graph.add_output(b(Tanh(), b(Relu(), b(MatMul(), x, rng.standard_normal((8, 4)).astype(F32)))), "y")
    return graph


def test_a_simulated_gpu_works_beside_the_processor() -> None:
    pytest.importorskip("numba_cuda")
    session = bn.compile(product(), threads=1)
    flow = Flow(inputs="x", outputs="y", capacity=16)
    places = [Workers(1, threads=1), Workers(device="cuda-sim", threads=1)]
    flow.model(product(), "x", "y", name="product", workers=places)
    arrays = [np.random.default_rng(i).standard_normal((2, 8)).astype(F32) for i in range(12)]
    with flow:
        tasks = filled(flow, "x", arrays)
        for x, task in tasks:
            np.testing.assert_allclose(task.result(LONG)["y"], np.asarray(session(x)), rtol=1e-5, atol=1e-6)
        found = flow.statistics().nodes["product"].workers
        assert sum(w.pieces for w in found.values()) == len(tasks)
        assert {w.device for w in found.values()} == {None, "cuda-sim"}
