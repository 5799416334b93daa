"""Arrays on a GPU as inputs and as places for results, of our own and of other packages."""

from __future__ import annotations

import copy
import ctypes
import gc
import itertools
import pickle
import re
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import devices
from bolt_numba.devices.cuda import dlpack
from bolt_numba.devices.cuda.arrays import DeviceArray, imported
from bolt_numba.devices.cuda.device import Cuda
from bolt_numba.devices.cuda.driver import Gpu
from bolt_numba.errors import DeviceError, DTypeError, ShapeError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cuda.code import PTX
from bolt_numba.ops.arrays.accumulate import LogCumSumExp
from bolt_numba.ops.pointwise import Neg, Relu
from bolt_numba.types import BF16, F32, Array, Sym, TensorType
from tests.cuda.fake_driver import FakeDriver

_numbers = itertools.count()
X = np.arange(-6, 6, dtype=F32).reshape(3, 4)


class Foreign:
    """A tensor of another package, in memory of the fake; made by work in the default stream that is not done yet."""

    def __init__(self, fake: FakeDriver, gpu: Gpu, content: Array) -> None:
        self.address, self.content = gpu.allocate(content.nbytes), content
        fake.legacy.work.append(lambda: fake.memory.write(self.address, content))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        kind = self.content.dtype.str
        return {"shape": self.content.shape, "typestr": kind, "data": (self.address, False), "version": 2}


class ByDLPack(Foreign):
    """The same for packages that have only DLPack; takes note of what is given back."""

    __cuda_array_interface__ = property()  # type: ignore[assignment]

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: Any = None) -> Any:
        assert stream == 1
        return dlpack.exported(self.address, self.content.shape, self.content.dtype, 0, self)


@pytest.fixture
def gpu() -> tuple[FakeDriver, Cuda, str]:
    fake, name = FakeDriver(), f"fake-arrays{next(_numbers)}"
    device = Cuda(name, Gpu(0, fake, PTX), weighs=False)
    devices.register(name, lambda: device)
    return fake, device, name


Given = tuple[FakeDriver, Cuda, str]


def graph_of(*kinds: str) -> Graph:
    """Inputs x and z: "gpu" gives -x on the GPU, "host" what the host's reference makes of z, "both" of x."""
    graph = Graph("arrays")
    x, z = (graph.add_input(name, TensorType(F32, (Sym("n"), 4))) for name in "xz")
    b = Builder(graph)
    for kind in kinds:
        y = b(Neg(), x) if kind == "gpu" else b(LogCumSumExp(), z if kind == "host" else x)
        graph.add_output(y, kind)
    graph.add_output(b(Relu(), z), "z")
    return graph


def session_of(name: str, *kinds: str) -> bn.Session:
    return bn.compile(graph_of(*kinds), device=name, threads=1, stages=())


@pytest.mark.parametrize("kind", [Foreign, ByDLPack])
def test_a_foreign_tensor_is_read_where_it_is_when_its_stream_has_made_it(gpu: Given, kind: Any) -> None:
    fake, device, name = gpu
    session = session_of(name, "gpu")
    for turn in range(3):
        x = X + turn
        before = fake.counts.get("cuMemcpyHtoDAsync", 0)
        np.testing.assert_array_equal(session(x=kind(fake, device.driver, x), z=X)["gpu"], -x)
        assert fake.counts["cuMemcpyHtoDAsync"] == before + 1  # z
    assert fake.counts["cuMemcpyDtoDAsync"] == 3
    gc.collect()
    assert not dlpack._lent


def test_what_the_host_reads_comes_to_the_host(gpu: Given) -> None:
    _, _, name = gpu
    session = session_of(name, "both", "gpu")
    x = bn.device_array(X, device=name)
    wanted = session(x=X, z=X)
    got = session(x=x, z=x)
    for key in ("both", "gpu", "z"):
        np.testing.assert_array_equal(got[key], wanted[key])


def test_results_go_to_arrays_on_the_gpu(gpu: Given) -> None:
    fake, device, name = gpu
    session = session_of(name, "gpu", "host")
    places = {key: bn.device_array((3, 4), device=name) for key in ("gpu", "host")}
    foreign = Foreign(fake, device.driver, np.zeros((3, 4), F32))
    for turn in range(3):
        before = fake.counts.get("cuMemcpyDtoHAsync", 0)
        session.run_into({"x": bn.device_array(X + turn, device=name), "z": X}, {**places, "z": foreign})
        assert fake.counts.get("cuMemcpyDtoHAsync", 0) == before
        np.testing.assert_array_equal(places["gpu"].numpy(), -X - turn)
        np.testing.assert_array_equal(places["host"].numpy(), session(x=X, z=X)["host"])
        there = DeviceArray(device.memory, foreign.address, (3, 4), np.dtype(F32), foreign)
        np.testing.assert_array_equal(there.numpy(), np.maximum(X, 0))


def test_an_array_may_be_input_and_output(gpu: Given) -> None:
    _, _, name = gpu
    session, x = session_of(name, "gpu"), bn.device_array(X, device=name)
    for turn in (-1, 1, -1):
        session.run_into({"x": x, "z": X}, {"gpu": x})
        np.testing.assert_array_equal(x.numpy(), turn * X)


def test_shapes_and_dtypes_are_checked(gpu: Given) -> None:
    fake, device, name = gpu
    session = session_of(name, "gpu")
    with pytest.raises(DTypeError, match="input 'x': got f64, wanted f32"):
        session(x=bn.device_array(X.astype(np.float64), device=name), z=X)
    with pytest.raises(ShapeError, match="buffer for output 'gpu': got shape"):
        session.run_into({"x": X, "z": X}, {"gpu": bn.device_array((4, 4), device=name)})
    same = bn.device_array((3, 4), device=name)
    with pytest.raises(ShapeError, match="got arrays that overlap"):
        session.run_into({"x": X, "z": X}, {"gpu": same, "z": same})
    strided = Foreign(fake, device.driver, X)
    strided.content = X.T.copy().T
    with pytest.raises(DTypeError, match="wanted a dense array"):
        imported(device.memory, _Strided(strided))


def test_streams_and_masks_of_others(gpu: Given) -> None:
    fake, device, name = gpu
    session = session_of(name, "gpu")
    for stream in (0, 1, None):
        x = _With(Foreign(fake, device.driver, X), stream=stream, mask=None)
        if stream is None:  # it says that nobody writes to it any more
            np.testing.assert_array_equal(DeviceArray(device.memory, x.address, (3, 4), X.dtype, x, 1).numpy(), X)
        np.testing.assert_array_equal(session(x=x, z=X)["gpu"], -X)
    with pytest.raises(DTypeError, match="got one with a mask"):
        session(x=_With(Foreign(fake, device.driver, X), mask=X), z=X)


class _With:
    def __init__(self, of: Foreign, **more: Any) -> None:
        self.address = of.address
        self.__cuda_array_interface__ = {**of.__cuda_array_interface__, **more}


class _Strided:
    def __init__(self, of: Foreign) -> None:
        self.__cuda_array_interface__ = {**of.__cuda_array_interface__, "strides": of.content.strides}


def test_a_session_of_the_host_takes_a_copy(gpu: Given) -> None:
    x = bn.device_array(X, device=gpu[2])
    session = bn.compile(graph_of("gpu"), device="host")
    np.testing.assert_array_equal(session(x=x, z=X)["gpu"], -X)


def test_simulated_arrays_stay_among_us() -> None:
    x = bn.device_array(X, device="cuda-sim")
    session = session_of("cuda-sim", "gpu")
    np.testing.assert_array_equal(session(x=x, z=X)["gpu"], -X)
    assert not hasattr(x, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="simulated GPU"):
        x.__dlpack_device__()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, np.bool_, BF16])
def test_dlpack_carries_every_dtype(gpu: Given, dtype: Any) -> None:
    _, device, name = gpu
    given = np.arange(6).reshape(2, 3).astype(dtype)
    array = bn.device_array(given, device=name)
    there = imported(device.memory, _Only(array))
    assert there is not None
    assert there.address == array.address
    assert there.dtype == given.dtype
    np.testing.assert_array_equal(there.numpy(), given)
    del array, there
    gc.collect()
    assert not dlpack._lent


class _Only:
    """Another package's name for our array."""

    def __init__(self, array: DeviceArray) -> None:
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


def test_what_others_do_not_let_us_write_is_not_written(gpu: Given) -> None:
    """By CUDA's interface, by the form of DLPack that says so, and the packages that know only the older one."""
    fake, device, name = gpu
    session = session_of(name, "gpu")
    constant = Foreign(fake, device.driver, X)
    told = {**constant.__cuda_array_interface__, "data": (constant.address, True)}
    by_interface = type("Told", (), {"__cuda_array_interface__": told})()
    for foreign in (by_interface, _Versioned(constant, is_read_only=True)):
        with pytest.raises(ShapeError, match="buffer for output 'gpu': got a strided or read-only array"):
            session.run_into({"x": X, "z": X}, {"gpu": foreign})
        np.testing.assert_array_equal(session(x=foreign, z=X)["gpu"], -X)
        there = imported(device.memory, foreign)
        assert there is not None
        with pytest.raises(ShapeError, match="got a read-only array"):
            there.write(X)
        with pytest.raises(BufferError, match="read-only"):
            there.__dlpack__()
    session.run_into({"x": X, "z": X}, {"gpu": _Versioned(constant, is_read_only=False)})
    del there
    gc.collect()
    assert not dlpack._lent


class _Versioned:
    """A package whose capsules have a version and flags."""

    major = 1

    def __init__(self, of: Foreign, is_read_only: bool) -> None:
        self.of, self.is_read_only = of, is_read_only

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        assert (stream, max_version) == (1, (1, 0))
        shape = (ctypes.c_int64 * 2)(*self.of.content.shape)
        made = dlpack._Versioned(self.major, 0, None, dlpack._given_back, int(self.is_read_only))
        made.tensor.data, made.tensor.device, made.tensor.ndim = self.of.address, dlpack._DLDevice(2, 0), 2
        made.tensor.kind = dlpack._Kind(2, 32, 1)
        made.tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        at = ctypes.addressof(made)
        dlpack._lent[at] = made, shape, self.of
        return dlpack._new(at, dlpack.VERSIONED, None)


def test_capsules_of_a_later_form_are_refused(gpu: Given) -> None:
    fake, device, name = gpu
    foreign = _Versioned(Foreign(fake, device.driver, X), is_read_only=False)
    foreign.major = 2
    with pytest.raises(DTypeError, match=r"got a capsule of version 2\.0, wanted 1\.x"):
        session_of(name, "gpu")(x=foreign, z=X)
    dlpack._lent.clear()


def test_dlpack_copies_where_it_is_asked_to(gpu: Given) -> None:
    _, device, name = gpu
    array = bn.device_array(X, device=name)
    taken = dlpack.imported(array.__dlpack__(copy=True))
    assert taken.address != array.address
    array.write(-X)
    copied = DeviceArray(device.memory, taken.address, taken.shape, taken.dtype, taken.owner)
    np.testing.assert_array_equal(copied.numpy(), X)
    assert dlpack.imported(array.__dlpack__(copy=False, dl_device=(2, 0))).address == array.address
    np.testing.assert_array_equal(np.from_dlpack(_OnHost(array)), -X)
    with pytest.raises(BufferError, match="wanted its own, or a copy on the host"):
        array.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="wanted its own, or a copy on the host"):
        array.__dlpack__(dl_device=(2, 1))
    del taken, copied
    gc.collect()
    assert not dlpack._lent


class _OnHost:
    """Asks for a copy on the host, as ``np.from_dlpack(x, device="cpu")`` does of arrays elsewhere."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.__dlpack__(dl_device=(1, 0), copy=True)


def test_a_capsule_that_nobody_takes_is_given_back(gpu: Given) -> None:
    capsule = bn.device_array(X, device=gpu[2]).__dlpack__()
    assert dlpack._lent
    del capsule
    gc.collect()
    assert not dlpack._lent


def test_an_array_is_copied_and_pickled() -> None:
    """A pickle is of the content and of the name of the GPU, so it may go to another process."""
    array = bn.device_array(X, device="cuda-sim")
    for made in (copy.copy(array), copy.deepcopy([array])[0], pickle.loads(pickle.dumps(array))):
        assert isinstance(made, DeviceArray)
        assert made.memory is array.memory
        assert made.address != array.address
        made.write(-X)
        np.testing.assert_array_equal(made.numpy(), -X)
        np.testing.assert_array_equal(array.numpy(), X)


def test_a_device_without_a_memory_is_refused() -> None:
    with pytest.raises(DeviceError, match="device_array: device: got 'cpu'"):
        bn.device_array(X, device="cpu")
    with pytest.raises(DeviceError, match=r"device_array: shape: got \(2, 'n'\)"):
        bn.device_array((2, "n"), device="cuda-sim")


@pytest.mark.parametrize("device", ["", "cuda-sim,cpu", "nothing", None, 3, ["cuda-sim"]])
def test_what_is_no_device_is_named(device: Any) -> None:
    with pytest.raises(DeviceError, match=f"device: got {re.escape(repr(device))}, wanted one of"):
        bn.device_array(X, device=device)


@pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]", ">f4", "V4", "S3", object])
def test_dtypes_that_no_model_has_are_refused(dtype: Any) -> None:
    with pytest.raises(DTypeError, match=r"device_array: dtype: got .*, wanted real numbers or bools"):
        bn.device_array((2, 3), dtype, device="cuda-sim")


def test_an_array_takes_what_is_like_it_alone() -> None:
    array = bn.device_array(X, device="cuda-sim")
    with pytest.raises(ShapeError, match=r"write: got shape \(40, 40\), wanted \(3, 4\)"):
        array.write(np.zeros((40, 40), F32))
    with pytest.raises(ShapeError, match=r"write: got shape \(1,\), wanted \(3, 4\)"):
        array.write(np.zeros(1, F32))
    with pytest.raises(DTypeError, match="write: got f64, wanted f32"):
        array.write(X.astype(np.float64))
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(array, copy=False)
    array.write(X.T.copy().T + 1)
    np.testing.assert_array_equal(array.numpy(), X + 1)
