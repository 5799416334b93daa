"""Models of other kinds that begin without being read; and the starts of onnxruntime, OpenVINO and JAX."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from bolt_numba.sessions import noted
from bolt_numba.sessions.known import KnownSession
from tests.plugins.one_part import StartingDriver, X, driver, session_of, write_model
from tests.plugins.two_parts import cache

__all__ = ["cache", "driver"]
pytestmark = pytest.mark.usefixtures("cache")


def write_sums(path: Path) -> Path:
    """y = x + the sum of x's sizes.  The part has an operand that is a constant of the plan: the shape of x."""
    x, y = (onnx.helper.make_tensor_value_info(k, onnx.TensorProto.FLOAT, ("n", 3)) for k in "xy")
    nodes = [("Shape", ["x"], "s", {}), ("Cast", ["s"], "f", {"to": 1}), ("ReduceSum", ["f"], "r", {})]
    nodes = [onnx.helper.make_node(op, ins, [out], **k) for op, ins, out, k in [*nodes, ("Add", ["x", "r"], "y", {})]]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y])), path)
    return path


def test_what_follows_from_shapes_is_remembered_with_them(tmp_path: Path, driver: StartingDriver) -> None:
    path = write_sums(tmp_path / "m.onnx")
    for known in (False, True):
        session = session_of(path)
        assert (type(session) is KnownSession) is known
        for rows in (2, 4):
            z = np.ones((rows, 3), np.float32)
            np.testing.assert_array_equal(session(z)["y"], z + rows + 3)
            assert (type(session) is KnownSession) is known
    assert isinstance(session, KnownSession)
    constants = [[c.tolist() for c in hookup.constants] for hookup in session._known.start.hookups.values()]
    assert constants == [[[2, 3]], [[4, 3]]]
    assert session.report()[-1]["state"] == "cached"
    np.testing.assert_array_equal(session(X)["y"], X + 5)
    assert driver.calls["compile"] == 2


def test_large_constants_are_not_remembered(
    tmp_path: Path, driver: StartingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noted, "MOST_BYTES", 15)
    path = write_sums(tmp_path / "m.onnx")
    for _ in range(2):
        session = session_of(path)
        np.testing.assert_array_equal(session(X)["y"], X + 5)
        assert type(session) is not KnownSession


_START = """
import json, sys
import numpy as np
import bolt_numba as bn
session = bn.compile(sys.argv[1], device=[sys.argv[2], "cpu"], threads=1, fallback="forbid")
y = session(x=np.ones((2, 3), np.float32))["y"]
assert np.allclose(y, 3), y
own = [m for m in sys.modules if m.startswith("bolt_numba.")]
print(json.dumps([type(session).__name__, own, "google.protobuf" in sys.modules, "numba" in sys.modules]))
"""


@pytest.mark.parametrize("device", ["jax", "onnxruntime", "openvino"])
def test_real_devices_start_with_few_modules(device: str, tmp_path: Path) -> None:
    pytest.importorskip(device, reason="the SDK of the device")
    model = write_model(tmp_path / "m.onnx", n=2)
    old = f"import bolt_numba.base.files.stamps as s\ns.SETTLED = -60\n{_START}"
    env = os.environ | {"BOLT_NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    kinds = []
    for code in (old, _START):
        done = subprocess.run(
            [sys.executable, "-c", code, str(model), device], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        kind, own, has_messages, has_numba = json.loads(done.stdout)
        kinds.append(kind)
    assert kinds == ["Session", "KnownSession"]
    heavy = ("passes", "converters", "kernels", "runtime.runner", "ir.store", "sessions.plugins", "devices.cpu")
    assert [m for m in own if m.startswith(tuple(f"bolt_numba.{name}" for name in heavy))] == []
    assert not has_numba
    assert not (has_messages and device == "onnxruntime")
