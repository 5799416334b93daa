"""What the driver of real GPUs hands to `cuda.bindings` arrives: checked by a driver in C, in a process of its own."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.devices import device as named
from bolt_numba.devices.cuda.library import found
from bolt_numba.kernels.cuda.declare import MappedTensor
from tests.cuda.fake_driver import FakeDriver, Result
from tests.cuda.test_driver import chain, whole

SOURCE = Path(__file__).parent / "driver.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")


@pytest.mark.skipif(COMPILER is None or not sys.platform.startswith("linux"), reason="needs a compiler of C, and Linux")
def test_every_call_arrives(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(library), "-ldl"], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    code = f"from tests.cuda.test_bindings import work; work({str(library)!r})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def work(path: str) -> None:
    """All that a session asks of a GPU; kernels do nothing there."""
    fake = ctypes.CDLL(path)
    launched, attribute = (ctypes.c_int64 * 8).in_dll(fake, "launched"), (ctypes.c_int64 * 2).in_dll(fake, "attribute")
    mapped, count = (ctypes.c_int64 * 12).in_dll(fake, "mapped"), lambda name: ctypes.c_int64.in_dll(fake, name).value
    assert found() == ["driver of CUDA 13.0", "cuda:0: Host (sm_90a, 16 GiB)"]
    session = bn.compile(chain(), device="cuda", threads=1, stages=())
    for _ in range(4):
        session(x=whole(6, 4))
    assert count("replays") == 3
    blocks, threads, shared, reads, writes = list(launched[:3]), *launched[3:7]
    assert (blocks, shared) == ([1, 1, 1], 0)
    assert threads % 32 == 0
    assert 0 < abs(writes - reads) < 4096  # both in the arena
    assert session.memory()["pinned"] > 0
    relu, *_ = [row for row in session.profile(whole(6, 4), runs=1).rows if row.op == "Relu"]
    assert relu.seconds == pytest.approx(2e-3)
    array = bn.device_array(whole(6, 4))
    np.testing.assert_array_equal(array.numpy(), whole(6, 4))
    session(x=type("Foreign", (), {"__cuda_array_interface__": array.__cuda_array_interface__ | {"stream": 1}})())
    assert count("waited") > 0
    _large_launch(named("cuda"), attribute, launched)
    _tensor_map(named("cuda"), mapped)


def _large_launch(gpu: Any, attribute: Any, launched: Any) -> None:
    from bench.gpu.launches import nothing

    driver, stream = gpu.driver, gpu.driver.stream()
    values = [ctypes.c_int64(11), ctypes.c_int64(12)]
    driver.run([driver.call(driver.function(nothing), (5, 6, 7), 256, 200_000, values, stream)])
    assert list(attribute) == [8, 200_000]
    assert list(launched[:7]) == [5, 6, 7, 256, 200_000, 11, 12]


def _tensor_map(gpu: Any, mapped: Any) -> None:
    address = gpu.memory.buffer(1 << 16).address
    made = gpu.driver.tensor_map(MappedTensor(address, 2, (64, 100), (256,), (64, 32)))
    assert (made == 7).all()
    assert list(mapped) == [1, 2, address, 64, 100, 256, 64, 32, 1, 3, 3, 0]  # u16, swizzled by 128 bytes, L2 by 256


def test_doctor_tells_what_the_driver_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.bindings

    from bolt_numba.cli.machine import _gpus

    for function in ("cuDeviceTotalMem", "cuDeviceGetCount", "cuDeviceGetAttribute"):
        fake = FakeDriver()
        fake.failing[function] = Result.CUDA_ERROR_SYSTEM_NOT_READY
        monkeypatch.setattr(cuda.bindings, "driver", fake)
        assert _gpus().startswith("cuda: driver: got CUDA_ERROR_SYSTEM_NOT_READY"), function
