"""The fault matrix over SimNPU: each failure in each situation gives right results, or the error that is wanted.

Each situation begins with a session that is well, where it needs one.  Faults come by the environment, so that what is
kept in the cache has one name with and without them.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import shutil
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.base.files.kept import cache_root
from bolt_numba.errors import DeviceError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.plugins import blobs, registry
from bolt_numba.types import F32, Array, Sym, TensorType
from tests.graphs import make
from tests.plugins.simnpu import SimDriver, computed, sdk

PARTS = 2
"""Of the network below: the device lacks what stands between them, by the property `supported`."""
PROPERTIES = {"supported": "Conv,Relu,MaxPool,Reshape,MatMul", "self_check": True}
SITUATIONS = ("first build", "cached", "new shape", "concurrent")
FAULTS = (
    "missing",
    "open",
    "supports",
    "convert",
    "compile",
    "version",
    "load",
    "restore",
    "oom",
    "run",
    "lost",
    "wrong",
)
ONCE = ("missing", "open", "supports")
"""What happens when a session is made, and never again."""
BUILDING = ("convert", "compile", "version")
"""What a blob of the cache spares."""
TOLD = {"wrong": "self-check", "version": "VersionError", "missing": "simnpu_sdk is not installed"}
"""What reports say of failures whose text is not ours."""


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of the cache without blobs, the plug-in; at the end the device has all back."""
    monkeypatch.setattr(blobs, "FOLDER", f"plugins-{tmp_path.name}-{os.getpid()}")
    registry.register_driver(SimDriver)
    before = sdk.live()
    yield
    registry.unregister_driver("simnpu")
    shutil.rmtree(cache_root() / blobs.FOLDER, ignore_errors=True)
    if sdk.live() != before:  # a session that was never made has nobody to close it
        gc.collect()
    assert sdk.live() == before


def network() -> Graph:
    """Images, tanh by the CPU, a matrix product."""
    graph, rng = Graph("parts"), np.random.default_rng(0)
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 2, 4, 4)))
    b = Builder(graph)
    y = b(make("Conv", pads=(1, 1, 1, 1)), x, rng.standard_normal((3, 2, 3, 3)).astype(F32))
    y = b(make("Tanh"), b(make("MaxPool", kernel_shape=(2, 2), strides=(2, 2)), b(make("Relu"), y)))
    y = b(make("MatMul"), b(make("Reshape"), y, np.array([-1, 12])), rng.standard_normal((12, 3)).astype(F32))
    graph.add_output(b(make("Relu"), y), "y")
    return graph


GRAPH = network()


def image(n: int, seed: int = 0) -> Array:
    return np.random.default_rng((n, seed)).standard_normal((n, 2, 4, 4)).astype(F32)


def session_of(**options: Any) -> bn.Session:
    properties = {"simnpu": PROPERTIES | options.pop("properties", {})}
    return bn.compile(GRAPH, device=["simnpu", "cpu"], properties=properties, threads=1, **options)


def expect(session: bn.Session, n: int, seed: int = 0) -> None:
    x = image(n, seed)
    np.testing.assert_allclose(session(x=x)["y"], interpret(GRAPH, {"x": x})["y"], rtol=1e-4, atol=1e-5)


def reasons(session: bn.Session) -> str:
    """All that went wrong, as the report tells it."""
    report = session.report()
    parts = [str(row.get(what)) for row in report for what in ("state", "fallbacks", "notes")]
    return "\n".join([*parts, *(str(row) for row in report.devices)])


def fault_of(fault: str, situation: str) -> str:
    """What strikes in a situation: all from the first on, or from the first behind those that have to be well."""
    well = PARTS if situation == "new shape" else 5 if situation == "concurrent" and fault in ("run", "lost") else 0
    return f"{fault}:{well + 1}+" if fault not in ONCE else fault


def strikes(fault: str, situation: str) -> bool:
    """Whether the fault is met at all: nothing is built twice, and nothing restored that is not kept."""
    return fault not in BUILDING if situation == "cached" else fault != "restore"


def play(situation: str, fault: str, monkeypatch: pytest.MonkeyPatch, fallback: str) -> bn.Session:
    """Bring a session into a situation in which a fault strikes, and run it there."""
    if situation == "cached":
        with session_of() as first:
            expect(first, 1)
    monkeypatch.setenv("SIMNPU_FAIL", fault_of(fault, situation))
    session = session_of(fallback=fallback)
    try:
        if situation == "new shape":
            expect(session, 1)
            expect(session, 3)
        elif situation == "concurrent":
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda i: expect(session, 1 + i % 2, i), range(12)))
        for seed in range(4):
            expect(session, 3 if situation == "new shape" else 1, seed)
    except BaseException:
        session.close()
        raise
    return session


@pytest.mark.filterwarnings("ignore:device 'simnpu'. open")
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("fault", FAULTS)
def test_results_are_right(fault: str, situation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with play(situation, fault, monkeypatch, "allow") as session:
        text = TOLD.get(fault, f"{fault} fails on request")
        assert (text in reasons(session)) == strikes(fault, situation), reasons(session)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("fault", FAULTS)
def test_or_the_error_that_is_wanted(fault: str, situation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not strikes(fault, situation) or fault == "restore":  # what is compiled anew is no fallback
        play(situation, fault, monkeypatch, "forbid").close()
        return
    with pytest.raises(DeviceError, match="device 'simnpu'"):
        play(situation, fault, monkeypatch, "forbid")


def test_a_warning_for_each_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMNPU_FAIL", "run:1,compile:2")
    with warnings.catch_warnings(record=True) as caught, session_of(fallback="warn") as session:
        warnings.simplefilter("always")
        for seed in range(3):
            expect(session, 1, seed)
    assert [c.category.__name__ for c in caught] == ["FallbackWarning"] * 2
    assert "run fails on request" in str(caught[-1].message) or "run fails on request" in str(caught[0].message)


def test_a_full_device_lets_go_what_is_idle() -> None:
    """Room for the compiled graphs of few shapes: those of older ones go, and no run is computed by ourselves."""
    with session_of(properties={"memory": 2600, "max_compiled": 8}) as session:
        for n in (1, 2, 3, 4, 1, 4, 2):
            expect(session, n)
        parts = [row for row in session.report() if row["op"] == "Foreign"]
        assert len(parts) == PARTS
        assert not any(row["fallbacks"] for row in parts)


def test_a_release_of_the_sdk_has_blobs_of_its_own() -> None:
    def states(**properties: Any) -> set[str]:
        with session_of(properties=properties) as session:
            expect(session, 1)
            return {row["state"] for row in session.report() if row["op"] == "Foreign"}

    assert states() == {"compiled"}
    assert states() == {"cached"}
    assert states(sdk_version="2.0") == {"compiled"}
    assert states(sdk_version="2.0") == {"cached"}


KINDS = [fault for fault in FAULTS if fault not in ("missing", "wrong")]


@pytest.mark.parametrize("seed", range(10))
def test_random_faults_in_random_sessions(seed: int) -> None:
    """Some calls fail, in threads and at many shapes, with little memory, buckets, ranges: all results are right."""
    draw = random.Random(seed)
    faults = draw.sample(KINDS, draw.randint(0, 3))
    properties = {
        "fail": ",".join(f"{fault}:{draw.randint(1, 12)}{draw.choice(['', '+'])}" for fault in faults),
        "dynamic": draw.choice(["none", "ranges", "free"]),
        "max_compiled": draw.choice([1, 2, 8]),
        "memory": draw.choice([1 << 28, 6000, 2500, 1500]),
        "buckets": draw.choice(["", "n:1,4,8", "n:2"]),
        "supported": draw.choice(["", PROPERTIES["supported"], "Conv,MatMul", "Tanh,Relu"]),
        "self_check": draw.random() < 0.5,
    }
    with session_of(properties=properties) as session, ThreadPoolExecutor(draw.choice([1, 4, 8])) as pool:
        list(pool.map(lambda i: expect(session, 1 + i * seed % 6, i % 3), range(24)))


def test_two_chips_in_one_session_and_one_after_another() -> None:
    """The first chip takes what it can, the second one more."""
    graph = network()
    registry.register_driver(Second)
    try:
        order, own = ["simnpu", "second", "cpu"], {"supported": "Conv,Relu,MaxPool"}
        with bn.compile(graph, device=order, properties={"simnpu": own}, threads=1) as session:
            expect(session, 2)
            devices = [row["device"] for row in session.report() if row["op"] == "Foreign"]
            assert devices[0] == "simnpu"
            assert "second" in devices
    finally:
        registry.unregister_driver("second")


class Second(SimDriver):
    name = "second"


def test_nothing_is_left_of_a_thousand_sessions() -> None:
    """Open, compile, run, fail or not, close; every tenth is a session, the others the device alone."""
    driver = SimDriver()
    defaults = {name: made.default for name, made in driver.properties.items()}
    part = static_part()
    x = image(1)

    def cycle(i: int) -> None:
        fault = ("", "run", "compile", "oom", "lost", "load")[i % 6]
        if i % 10 == 0:
            with session_of(properties={"fail": fault, "cache": False, "self_check": False}) as session:
                expect(session, 1, i)
            return
        accelerator = driver.open(defaults | {"fail": fault})
        with contextlib.suppress(sdk.SimError, DeviceError):
            computed(accelerator, part, x)
        accelerator.close()

    def state() -> tuple[int, int, int, int]:
        gc.collect()
        return len(gc.get_objects()), len(os.listdir("/proc/self/fd")), threading.active_count(), memory()

    for i in range(60):
        cycle(i)
    states = [state()]
    for i in range(1000):
        cycle(i)
        if i % 250 == 249:
            states.append(state())
    assert states[-1][0] - states[0][0] < 500
    assert states[-1][1] == states[0][1]
    assert states[-1][2] <= states[0][2], "a thread of an earlier test may have ended meanwhile"
    # What leaks does so in each quarter; the allocator grows behind thousands of other tests, too, but not in all.
    assert min(after[3] - before[3] for before, after in itertools.pairwise(states)) < 2 << 20


def static_part() -> Graph:
    graph = Graph("part")
    x = graph.add_input("x", TensorType(F32, (1, 2, 4, 4)))
    graph.add_output(Builder(graph)(make("Conv", pads=(1, 1, 1, 1)), x, np.ones((3, 2, 3, 3), F32)), "y")
    return graph


def memory() -> int:
    """Bytes that are resident."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
