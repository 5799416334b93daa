"""Rules that take operators apart for devices that lack them: a driver lists those that it wants.

Each is tried on what the device refuses, and on nothing else.  docs/hardware/operators.md has all of them.
"""

from bolt_numba.hardware.lowering.activations import RULES as ACTIVATIONS
from bolt_numba.hardware.lowering.bytes import RULES as BYTES
from bolt_numba.hardware.lowering.bytes import SIGNED
from bolt_numba.hardware.lowering.fused import RULES as FUSED
from bolt_numba.hardware.lowering.layouts import CHANNELS_FIRST, CHANNELS_LAST, with_channels_last
from bolt_numba.hardware.lowering.norms import RULES as NORMS
from bolt_numba.hardware.lowering.sums import RULES as SUMS

__all__ = [
    "ACTIVATIONS", "BYTES", "CHANNELS_FIRST", "CHANNELS_LAST", "FUSED", "NORMS", "SIGNED", "SUMS", "with_channels_last",
]  # fmt: skip
