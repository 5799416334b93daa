"""What callers give: data that is wrong, arrays without elements, rows that are padded.  No device is to blame."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import DataError, DeviceError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.plugins import registry
from bolt_numba.types import F32, I64, Sym, TensorType
from tests.graphs import integers, make
from tests.plugins.plain_driver import PlainDriver
from tests.plugins.two_parts import BROKEN, cache, driver

__all__ = ["cache", "driver"]
pytestmark = pytest.mark.usefixtures("cache")
SDKS = [name for name in ("jax", "onnxruntime", "openvino") if not registry.obstacle(name)]
OTHERS = [name for name in SDKS if name != "jax"]
"""Those that have properties of shapes and threads."""
RNG = np.random.default_rng(0)


def lookup() -> Graph:
    """Rows of a table of three, by numbers that are five too large."""
    graph = Graph("lookup")
    b = Builder(graph)
    at = graph.add_input("at", TensorType(I64, (Sym("n"), 2)))
    graph.add_output(b(make("Relu"), b(make("Gather", axis=0), np.eye(3, dtype=F32), b(make("Sub"), at, np.array(5)))))
    return graph


def test_wrong_data_is_not_held_against_the_device(driver: PlainDriver) -> None:
    driver.only = None
    graph, good, bad = lookup(), np.array([[5, 7]]), np.array([[5, 9]])
    with bn.compile(graph, device="plain", threads=1) as session:
        for _ in range(5):
            with pytest.raises(DataError, match=r"indices\[0, 1\]: got 4, wanted -3 to 2"):
                session(at=bad)
        np.testing.assert_array_equal(session(at=good)[0], np.eye(3)[[[0, 2]]])
        (row,) = session.report()
        assert row["runs"] == 1
        assert row["state"] == "compiled"


def test_the_device_sees_no_row_that_nobody_gave(driver: PlainDriver) -> None:
    """Zeros behind the rows would be an error here, and a division by zero elsewhere."""
    driver.only = None
    properties = {"plain": {"buckets": "n:4"}}
    session = bn.compile(lookup(), device="plain", properties=properties, fallback="forbid", threads=1)
    for rows in ([[5, 7]], [[6, 6], [7, 5], [5, 5]], [[7, 7], [6, 5]]):
        np.testing.assert_array_equal(session(at=np.array(rows))[0], np.eye(3)[np.array(rows) - 5])
    assert driver.calls["compile"] == 1


def test_layers_with_a_bias_are_padded(driver: PlainDriver) -> None:
    driver.only = None
    graph = Graph("gemm")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 4)))
    graph.add_output(Builder(graph)(make("MatMul"), x, integers(RNG, 4, 3), integers(RNG, 3)), "y")
    session = bn.compile(graph, device="plain", properties={"plain": {"buckets": "n:4"}}, fallback="forbid", threads=1)
    for n in (1, 2, 3):
        rows = integers(RNG, n, 4)
        np.testing.assert_array_equal(session(x=rows)[0], interpret(graph, {"x": rows})["y"])
    assert driver.calls["compile"] == 1


def sums() -> Graph:
    """Of rows, of which there may be none."""
    graph = Graph("nothing")
    b = Builder(graph)
    x = b(make("Relu"), graph.add_input("x", TensorType(F32, (Sym("n"), 4))))
    for name in ("ReduceMean", "ReduceMax", "ReduceSum"):
        graph.add_output(b(make(name), x), name)
    return graph


def test_what_has_no_elements_is_computed_here(driver: PlainDriver) -> None:
    driver.only = None
    driver.fails = {"compile": BROKEN}
    session = bn.compile(sums(), device="plain", threads=1, fallback="forbid")
    np.testing.assert_array_equal(session(x=np.ones((0, 4), F32))["ReduceSum"], [[0]])
    (row,) = session.report()
    assert row["state"] == "fallback: operands without elements are left to us"
    assert not session.report().devices[0]["failures"]
    with pytest.raises(DeviceError):
        session(x=np.ones((1, 4), F32))


@pytest.mark.parametrize(
    ("device", "shapes"), [(d, s) for d in SDKS for s in (("fixed", "free") if d in OTHERS else ("",))]
)
def test_the_mean_of_nothing_is_the_same_everywhere(device: str, shapes: str) -> None:
    """SDKs say 0, or the greatest number that there is."""
    graph, properties = sums(), {device: {"shapes": shapes} if shapes else {}}
    with bn.compile(graph, device=[device, "cpu"], properties=properties, threads=1, fallback="forbid") as session:
        for n in (0, 2, 0):
            rows = np.ones((n, 4), F32)
            for got, wanted in zip(session(x=rows), bn.compile(graph, threads=1)(x=rows), strict=True):
                np.testing.assert_array_equal(got, wanted)
        (row,) = session.report()
        assert row["runs"] == 1


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"])
@pytest.mark.parametrize("device", SDKS)
def test_narrow_numbers_cross_the_border(device: str, name: str) -> None:
    """As NumPy has them, a byte each or two; where an SDK packs them, they stay here."""
    kind = np.dtype(getattr(ml_dtypes, name, name))
    graph = Graph("narrow")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(kind, (3, 4)))
    graph.add_output(b(make("Reshape"), b(make("Transpose", perm=(1, 0)), x), np.array([2, 6])), "y")
    rows = np.arange(12).reshape(3, 4).astype(kind) if "u" in name else np.arange(-6, 6).reshape(3, 4).astype(kind)
    with bn.compile(graph, device=[device, "cpu"], fallback="forbid", threads=1) as session:
        np.testing.assert_array_equal(session(x=rows)[0].astype(F32), rows.astype(F32).T.reshape(2, 6))


@pytest.mark.parametrize("threads", [-1, 1_000_000])
@pytest.mark.parametrize("device", OTHERS)
def test_no_sdk_is_asked_for_a_million_threads(device: str, threads: int) -> None:
    with pytest.raises(DeviceError, match=f"{device}: threads: got {threads}, wanted 0 to 1024"):
        bn.compile(lookup(), device=[device, "cpu"], properties={device: {"threads": threads}}, fallback="forbid")
