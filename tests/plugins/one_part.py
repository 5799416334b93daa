"""What tests of known files share: a model that a device runs as one part, a driver that starts from blobs alone."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import bolt_numba as bn
from bolt_numba.base.files import stamps
from bolt_numba.ir import store
from bolt_numba.plugins import interface, registry
from bolt_numba.plugins.interface import CompileContext, Compiled
from bolt_numba.sessions.known import KnownSession
from bolt_numba.sessions.session import Session
from tests.plugins.plain_driver import PlainAccelerator, PlainCompiled, PlainDriver

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


class StartingAccelerator(PlainAccelerator):
    def start(self, blob: memoryview, context: CompileContext) -> Compiled:
        self.driver.called("start")
        return PlainCompiled(self.driver, store.load_bolt(pickle.loads(blob)["graph"]))


class StartingDriver(PlainDriver):
    name = "starting"

    def open(self, properties: Any) -> interface.Accelerator:
        self.opened_with = dict(properties)
        self.called("open")
        return StartingAccelerator(self)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartingDriver]:
    made = StartingDriver()
    registry.register_driver(lambda: made)
    monkeypatch.setattr(stamps, "SETTLED", -60.0)  # files are as new as the tests
    yield made
    registry.unregister_driver("starting")


def write_model(path: Path, weight: float = 2.0, op: str = "Relu", folder: str = "", n: Any = "n") -> Path:
    """y = op(x * weight) + 1, and z = x * weight; folder: the file beside it that has the weight."""
    w = numpy_helper.from_array(np.full((3,), weight, np.float32), "w")
    one = numpy_helper.from_array(np.ones((3,), np.float32), "one")
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["z"]),
        helper.make_node(op, ["z"], ["a"]),
        helper.make_node("Add", ["a", "one"], ["y"]),
    ]
    x, y, z = (helper.make_tensor_value_info(k, TensorProto.FLOAT, (n, 3)) for k in "xyz")
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y, z], [w, one]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    external = {"save_as_external_data": True, "location": folder, "size_threshold": 0} if folder else {}
    onnx.save(model, path, **external)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.onnx")


def session_of(model: Path, **options: Any) -> bn.Session:
    return bn.compile(model, **({"device": ["starting", "cpu"], "threads": 1} | options))


def expect(session: bn.Session, x: Any = X, weight: float = 2.0, op: str = "Relu") -> None:
    z = x * np.float32(weight)
    y = (np.maximum(z, 0) if op == "Relu" else np.tanh(z)) + 1
    got = session(x=x)
    np.testing.assert_allclose(got["y"], y, rtol=1e-6)
    np.testing.assert_allclose(got["z"], z, rtol=1e-6)


def primed(model: Path, **options: Any) -> None:
    session = session_of(model, **options)
    assert type(session) is Session, "nothing is known yet"
    expect(session)
    session.close()


def is_known(session: bn.Session) -> bool:
    return type(session) is KnownSession
