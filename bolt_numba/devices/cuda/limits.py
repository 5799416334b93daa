"""What a launch may ask of a GPU; the simulated one refuses what a real one would.

Source: CUDA programming guide, "Compute capabilities": technical specifications and shared memory.
"""

from __future__ import annotations

import re

from bolt_numba.base.errors import DeviceError

MOST_BLOCKS = 2**31 - 1, 65535, 65535
MOST_THREADS = 1024
_SHARED_KIB = {80: 163, 86: 99, 87: 163, 89: 99, 120: 99, 121: 99}


def most_shared(arch: str) -> int:
    """Bytes of shared memory that a block may have at most, for an architecture such as ``sm_90a``."""
    return _SHARED_KIB.get(int(re.sub(r"\D", "", arch)), 227) << 10


def check_launch(who: str, grid: tuple[int, int, int], threads: int, shared: int, most: int) -> None:
    """Refuse a launch that no GPU with so much shared memory takes by a DeviceError.  who: GPU and kernel."""
    if any(n > limit for n, limit in zip(grid, MOST_BLOCKS, strict=True)):
        raise DeviceError(f"{who}: blocks of a launch: got {grid}, wanted at most {MOST_BLOCKS}")
    if threads > MOST_THREADS:
        raise DeviceError(f"{who}: threads of a block: got {threads}, wanted at most {MOST_THREADS}")
    if shared > most:
        raise DeviceError(f"{who}: shared memory of a block: got {shared} bytes, wanted at most {most}")
