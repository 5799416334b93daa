"""Plug-ins: devices whose makers give a compiler for graphs.  A driver brings one in.

`interface` says what a driver owes, `registry` finds drivers; docs/hardware tells the way from nothing to a device.
"""

from bolt_numba.hardware.interface import (
    COMMON,
    INTERFACE,
    Accelerator,
    CompileContext,
    Compiled,
    DeviceDriver,
    DeviceFullError,
    DeviceLostError,
    FallbackWarning,
    Property,
    Request,
)
from bolt_numba.hardware.registry import register, unregister

__all__ = [
    "COMMON", "INTERFACE", "Accelerator", "CompileContext", "Compiled", "DeviceDriver", "DeviceFullError",
    "DeviceLostError", "FallbackWarning", "Property", "Request", "register", "unregister",
]  # fmt: skip
