"""What plug-ins compile is kept: named by all that it depends on, checked when it is read, bounded."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.registry import fresh_dim
from bolt_numba.plugins import blobs
from bolt_numba.plugins.preparing import digest
from bolt_numba.types import F32, Sym, TensorType
from tests.graphs import make
from tests.plugins.plain_driver import PlainDriver, throw
from tests.plugins.two_parts import BROKEN, GRAPH, cache, driver, expect, session_of

__all__ = ["cache", "driver"]
pytestmark = pytest.mark.usefixtures("cache")


def blobs_in(cache: Path) -> list[Path]:
    return sorted((cache / "plugins").glob("*.blob"))


def test_what_is_compiled_is_kept_for_the_next_session(driver: PlainDriver, cache: Path) -> None:
    expect(session_of())
    assert (driver.calls["compile"], len(blobs_in(cache))) == (2, 2)
    session = session_of()
    expect(session)
    assert (driver.calls["compile"], driver.calls["restore"]) == (2, 2)
    assert {row["state"] for row in session.report() if row["op"] == "Foreign"} == {"cached"}


def test_nothing_is_kept_before_it_has_run(driver: PlainDriver, cache: Path) -> None:
    session = session_of()
    session.warmup(x=(3, 8))
    assert driver.calls["compile"] == 2
    driver.fails["run"] = BROKEN
    expect(session)
    assert blobs_in(cache) == []


@pytest.mark.parametrize("change", ["version", "chip", "weights", "shape", "threads", "precision"])
def test_the_name_of_a_blob_tells_all_that_it_depends_on(driver: PlainDriver, cache: Path, change: str) -> None:
    expect(session_of())
    graph, options, n = GRAPH, {}, 3
    if change == "version":
        driver.version = "1.1"
    elif change == "chip":
        options["properties"] = {"plain": {"chip": "two"}}
    elif change == "threads":
        options["threads"] = 2
    elif change == "precision":
        options["precision"] = "bf16"
    elif change == "shape":
        n = 4
    else:
        graph = GRAPH.clone()
        weights = [v for v in graph.constants() if v.const is not None and v.const.size == 64]
        for value in weights:
            assert value.const is not None
            value.const = value.const + 1
    session = bn.compile(graph, **({"threads": 1} | options), device=["plain", "cpu"])
    session(x=np.zeros((n, 8), F32))
    assert driver.calls["restore"] == 0
    assert driver.calls["compile"] == 4


def test_common_properties_change_no_name(driver: PlainDriver) -> None:
    expect(session_of())
    expect(session_of(properties={"plain": {"max_compiled": 2, "self_check": True, "min_nodes": 2}}))
    assert (driver.calls["compile"], driver.calls["restore"]) == (2, 2)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other magic", "swapped", "refused"])
def test_a_damaged_blob_is_compiled_anew_and_told(driver: PlainDriver, cache: Path, damage: str) -> None:
    expect(session_of())
    all_of_them = [path.read_bytes() for path in blobs_in(cache)]
    for path, other in zip(blobs_in(cache), reversed(all_of_them), strict=True):
        data = bytearray(other if damage == "swapped" else path.read_bytes())
        if damage == "flipped":
            data[-3] ^= 1
        elif damage == "other magic":
            data[:4] = b"XXXX"
        path.write_bytes({"cut": data[:-5], "empty": b""}.get(damage, data))
    if damage == "refused":
        driver.fails["restore"] = BROKEN
    session = session_of(fallback="forbid")
    expect(session)
    rows = [row for row in session.report() if row["op"] == "Foreign"]
    assert {row["state"] for row in rows} == {"compiled"}
    assert all(any(note.startswith("restore: ") for note in row["notes"]) for row in rows)
    driver.fails.clear()
    expect(session_of())
    assert driver.calls["compile"] == 4, "it was kept again"


def test_the_cache_may_be_left_alone(driver: PlainDriver, cache: Path) -> None:
    expect(session_of(properties={"plain": {"cache": False}}))
    assert blobs_in(cache) == []


def test_the_cache_keeps_to_its_limit(driver: PlainDriver, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLT_NUMBA_CACHE_MIB", "1")
    names = [f"plain-{i}.blob" for i in range(5)]
    for age, name in enumerate(names):
        blobs.write(name, bytes(300_000))
        os.utime(cache / "plugins" / name, (1000 + age, 1000 + age))
    assert blobs.read(names[0]) is None
    assert blobs.read(names[2]) == bytes(300_000)  # used now
    blobs.write("plain-5.blob", bytes(300_000))
    assert [path.name for path in blobs_in(cache)] == ["plain-2.blob", "plain-4.blob", "plain-5.blob"]
    blobs.write("plain-6.blob", bytes(2_000_000))
    assert len(blobs_in(cache)) == 3
    assert blobs.clear() == 3


@pytest.mark.filterwarnings("ignore::bolt_numba.base.files.trusted.UntrustedCacheWarning")
def test_a_blob_that_others_could_have_written_is_not_read(driver: PlainDriver, cache: Path) -> None:
    expect(session_of())
    for path in blobs_in(cache):
        path.chmod(0o666)
    expect(session_of())
    assert (driver.calls["compile"], driver.calls["restore"]) == (4, 0)


def test_what_has_no_name_is_not_kept(driver: PlainDriver, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "name_of", lambda *args: throw(BROKEN))
    session = session_of(fallback="forbid")
    expect(session)
    assert blobs_in(cache) == []
    rows = [row for row in session.report() if row["op"] == "Foreign"]
    assert all(row["notes"] == {"cache: RuntimeError: no answer": 1} for row in rows)


def test_symbols_that_inference_made_up_leave_the_key_as_it_is() -> None:
    def made(same: bool = False) -> Graph:
        graph, rows = Graph("g"), fresh_dim()
        build = Builder(graph)
        x = graph.add_input("x", TensorType(F32, (rows, Sym("n"))))
        y = graph.add_input("y", TensorType(F32, (rows if same else fresh_dim(), Sym("n"))))
        graph.add_output(build(make("Concat", axis=0), x, y), "z")
        return graph

    first = made()
    assert digest(first) == digest(made())
    assert digest(first) != digest(made(same=True)), "which sizes are equal matters"
    assert str(first.inputs[0].type).startswith("f32[d_"), "the graph itself stays as it is"
