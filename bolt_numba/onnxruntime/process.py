"""What concerns the process and no session: logging, seeds, versions."""

from __future__ import annotations

import bisect
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from bolt_numba.onnxruntime.errors import OrtDTypeError, OrtOptionError
from bolt_numba.onnxruntime.settings import count
from bolt_numba.onnxruntime.values import OrtValue

VERSION = "1.32.0"
"""The release of onnxruntime whose interface this is."""

SEVERITIES = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""Levels of Python's logging, by onnxruntime's numbers."""


def set_default_logger_severity(severity: int) -> None:
    """The least that the logger ``bolt_numba`` says: 0 all, 1 information, 2 warnings, 3 errors, 4 what is fatal.

    Raises OrtOptionError for others.
    """
    if not 0 <= count("severity", severity) < len(SEVERITIES):
        raise OrtOptionError(f"severity: got {severity}, wanted 0 to {len(SEVERITIES) - 1}")
    logging.getLogger("bolt_numba").setLevel(SEVERITIES[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted and without meaning: there is one kind of detailed message."""
    count("verbosity", verbosity)


class _ToCallback(logging.Handler):
    """Gives what is logged to a function of onnxruntime's form."""

    def __init__(self, callback: Callable[[int, str, str, str, str], None]) -> None:
        super().__init__()
        self._callback = callback

    def emit(self, record: logging.LogRecord) -> None:
        severity = bisect.bisect_right(SEVERITIES, record.levelno) - 1
        place = f"{record.pathname}:{record.lineno}"
        try:
            self._callback(max(severity, 0), record.name, "", place, record.getMessage())
        except Exception:
            self.handleError(record)


def set_default_logger_callback(callback: Callable[[int, str, str, str, str], None] | None, severity: int = 2) -> None:
    """Give what the logger ``bolt_numba`` says to a function, None: to none any more.

    It gets the severity, the logger's name, "", the place in the code and the message.
    Raises OrtDTypeError for what is no function, OrtOptionError for a severity.
    """
    if callback is not None and not callable(callback):
        raise OrtDTypeError(f"callback: got {callback!r:.80}, wanted a function or None")
    logger = logging.getLogger("bolt_numba")
    for handler in [h for h in logger.handlers if isinstance(h, _ToCallback)]:
        logger.removeHandler(handler)
    if callback is not None:
        set_default_logger_severity(severity)
        logger.addHandler(_ToCallback(callback))


_pool = {"threads": 0}


def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    """Threads of runs of sessions with ``use_per_session_threads = False``; 0: as many as the process may use."""
    count("inter_op_num_threads", inter_op_num_threads)
    _pool["threads"] = count("intra_op_num_threads", intra_op_num_threads)


def pool_threads() -> int:
    """What `set_global_thread_pool_sizes` was told."""
    return _pool["threads"]


def set_seed(seed: int) -> None:
    """Seed the random operators of all sessions that have no seed of their own."""
    from bolt_numba.ops.arrays.random import seed_process  # few models draw numbers

    seed_process(count("seed", seed))


def disable_telemetry_events() -> None:
    """Nothing: no events are sent."""


def enable_telemetry_events() -> None:
    """Nothing: no events are sent."""


def create_and_register_allocator(memory_info: Any, arena: Any) -> None:
    """Nothing: memory comes from NumPy and from each plan's arena."""


def create_and_register_allocator_v2(provider: str, memory_info: Any, options: Any, arena: Any) -> None:
    """Nothing: memory comes from NumPy and from each plan's arena."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Nothing: there are no libraries to load."""


def copy_tensors(source: Sequence[OrtValue], destination: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy values into the memory of others, one by one.  Raises OrtOptionError where they do not fit."""
    if len(source) != len(destination):
        raise OrtOptionError(f"copy_tensors: got {len(source)} values and {len(destination)} places, wanted as many")
    for value, place in zip(source, destination, strict=True):
        place.update_inplace(value)


def get_ep_devices() -> list[Any]:
    """None: the CPU is not chosen as a device."""
    return []


def get_version_string() -> str:
    return VERSION


def get_build_info() -> str:
    from bolt_numba import __version__ as own

    return f"Build Info: bolt-numba {own}, Python {sys.version.split()[0]}"


def print_debug_info() -> None:
    """Write what runs, and where, to the standard output."""
    import numpy as np

    sys.stdout.write(f"onnxruntime {VERSION} by {get_build_info()}, NumPy {np.__version__}, {sys.platform}\n")


def has_collective_ops() -> bool:
    return False
