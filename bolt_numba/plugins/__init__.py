"""Plug-ins: devices whose makers give a compiler for graphs.  A driver brings one in.

`interface` says what a driver owes, `registry` finds drivers; docs/plugins tells the way from nothing to a device.
"""

from bolt_numba.plugins.interface import (
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
from bolt_numba.plugins.registry import register_driver, unregister_driver

__all__ = [
    "COMMON", "INTERFACE", "Accelerator", "CompileContext", "Compiled", "DeviceDriver", "DeviceFullError",
    "DeviceLostError", "FallbackWarning", "Property", "Request", "register_driver", "unregister_driver",
]  # fmt: skip
