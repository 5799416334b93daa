"""NVIDIA's driver by ``cuda.bindings``, and its errors as ours.  Nothing is imported before a GPU is asked for."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Sequence
from typing import Any

from bolt_numba.base.errors import DeviceError

EXTRA = "pip install 'bolt-numba[cuda]'"
SIMULATED = "device='cuda-sim' needs none"
FORKED = (
    "cuda: fork: got a child of a process that had used the GPU, which the driver forbids; "
    "wanted one by spawn: multiprocessing.get_context('spawn')"
)
OLDEST_SM = 80
"""The oldest architecture: products of bf16 and asynchronous copies came with it."""
_LOST = frozenset((
    "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_CONTEXT_IS_DESTROYED", "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_HARDWARE_STACK_ERROR", "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE", "CUDA_ERROR_INVALID_PC", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_UNKNOWN",
    "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_NVLINK_UNCORRECTABLE", "CUDA_ERROR_DEVICE_UNAVAILABLE",
    "CUDA_ERROR_CONTAINED", "CUDA_ERROR_DEINITIALIZED",
))  # fmt: skip
"""Errors after which the process can do nothing more with the GPU."""
REFUSED = frozenset((
    "CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    "CUDA_ERROR_INVALID_PTX", "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
))  # fmt: skip
"""Errors of code that the driver does not know."""


def library() -> Any:
    """The functions of the driver, which is started.  Raises DeviceError that says what is missing."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(f"cuda: package cuda-bindings: got none ({error}), wanted it: {EXTRA}") from error
    try:
        (status,) = driver.cuInit(0)
    except Exception as error:  # of the loader, which has several
        wanted = "wanted that of NVIDIA, which comes with the system and not by pip"
        raise DeviceError(f"cuda: driver: got none on this machine, {wanted}; {SIMULATED}") from error
    if status:
        raise DeviceError(f"cuda: driver: got {name_of(driver, status)} when it was started, {_wanted(int(status))}")
    return driver


def _wanted(status: int) -> str:
    """What to do about an error of the start."""
    if status == 3:
        return FORKED.partition("; ")[2]
    if status == 34:
        return "wanted the driver itself and not the stub that comes with compilers"
    if status == 100:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        return f"wanted a GPU that this process may see (CUDA_VISIBLE_DEVICES: {seen!r}); {SIMULATED}"
    return "wanted a driver and a GPU that work, as nvidia-smi shows them"


def found() -> list[str]:
    """The GPUs of this machine by the names that sessions give them.  Raises DeviceError as `library` does."""
    cu = library()
    version, count = _told(cu, cu.cuDriverGetVersion()), _told(cu, cu.cuDeviceGetCount())
    texts = [f"driver of CUDA {version_text(version)}"]
    for number in range(count):
        device = _told(cu, cu.cuDeviceGet(number))
        model, nbytes = _told(cu, cu.cuDeviceGetName(256, device)), _told(cu, cu.cuDeviceTotalMem(device))
        texts.append(f"cuda:{number}: {text_of(model)} ({arch_of(cu, device)}, {nbytes / 2**30:.0f} GiB)")
    return texts


def _told(cu: Any, result: Sequence[Any]) -> Any:
    """What the driver says besides the status of a question."""
    if result[0]:
        raise DeviceError(f"cuda: driver: got {name_of(cu, result[0])}, wanted it to tell which GPUs there are")
    return result[1]


def version_text(version: int) -> str:
    """13000 as 13.0."""
    return f"{version // 1000}.{version % 1000 // 10}"


def text_of(raw: bytes) -> str:
    """A text of the driver, which ends at the first zero."""
    return raw.split(b"\0")[0].decode()


def arch_of(cu: Any, device: Any) -> str:
    """Code for which a GPU runs best, such as ``sm_90a``."""
    kinds = cu.CUdevice_attribute
    major = _told(cu, cu.cuDeviceGetAttribute(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    minor = _told(cu, cu.cuDeviceGetAttribute(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def want_arch(arch: str, name: str) -> None:
    """Refuse a GPU that lacks instructions of our kernels; arch: its own, such as ``sm_75``."""
    if int(re.sub(r"\D", "", arch)) < OLDEST_SM:
        raise DeviceError(f"device: {name}: got a GPU of {arch}, wanted sm_{OLDEST_SM} or newer")


def name_of(cu: Any, status: Any) -> str:
    """Such as ``CUDA_ERROR_OUT_OF_MEMORY``."""
    try:
        return str(cu.CUresult(status).name)
    except ValueError:  # newer than the package
        return f"error {int(status)}"


class Health:
    """What keeps a GPU from being used: the error that it failed by, or that the process is a child of fork.

    name: of the GPU, for people.  trouble: the message of every later error, ``""`` while all is well.
    """

    def __init__(self, cu: Any, name: str) -> None:
        self.cu, self.name, self.trouble = cu, name, ""
        _all.add(self)

    def check(self) -> None:
        """Raise what every call raises once the GPU failed."""
        if self.trouble:
            raise DeviceError(self.trouble)

    def failure(self, status: Any, what: str) -> DeviceError:
        """The error for a status, which is kept when the GPU is lost by it."""
        found = name_of(self.cu, status)
        if found in _LOST:
            self.trouble = f"{self.name}: the GPU failed: got {found} ({what}), wanted a new process to use it again"
            return DeviceError(self.trouble)
        return DeviceError(f"{self.name}: {what}: got {found}, wanted the driver to do it")


_all: weakref.WeakSet[Health] = weakref.WeakSet()


def _in_child() -> None:
    for health in _all:
        health.trouble = FORKED


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
