"""Descriptions of memory that onnxruntime's functions take and give: the host's is the only one here."""

from __future__ import annotations

from typing import Any

from bolt_numba.onnxruntime.enums import OrtAllocatorType, OrtDeviceMemoryType, OrtMemoryInfoDeviceType, OrtMemType
from bolt_numba.onnxruntime.errors import OrtOptionError


class OrtMemoryInfo:
    """The memory of the CPU.  Raises OrtOptionError for that of another device."""

    device_mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT
    device_vendor_id: int = 0

    def __init__(self, name: str, allocator_type: OrtAllocatorType, device_id: int, mem_type: OrtMemType) -> None:
        if name != "Cpu":
            raise OrtOptionError(f"OrtMemoryInfo: device: got {name!r}, wanted 'Cpu'")
        self.name, self.allocator_type, self.device_id, self.mem_type = name, allocator_type, device_id, mem_type

    @staticmethod
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        """A description under a name of the caller's; the alignment has no meaning here."""
        if device_type != OrtMemoryInfoDeviceType.CPU:
            raise OrtOptionError(f"OrtMemoryInfo: device: got {device_type!r}, wanted OrtMemoryInfoDeviceType.CPU")
        made = OrtMemoryInfo("Cpu", allocator_type, device_id, OrtMemType.DEFAULT)
        made.name, made.device_vendor_id, made.device_mem_type = name, vendor_id, device_mem_type
        return made


HOST = OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, OrtMemType.DEFAULT)


class OrtArenaCfg:
    """Sizes of an arena.  Accepted and without meaning here: each plan has an arena of exactly its size.

    Raises OrtOptionError for others than its fields.
    """

    _FIELDS = (
        "max_mem", "arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk",
        "initial_growth_chunk_size_bytes", "max_power_of_two_extend_bytes",
    )  # fmt: skip

    def __init__(self, *given: Any) -> None:
        found = given[0] if len(given) == 1 else dict(zip(self._FIELDS, given, strict=False))
        if not isinstance(found, dict) or set(found) - set(self._FIELDS) or len(given) not in (1, 4):
            raise OrtOptionError(f"OrtArenaCfg: got {given!r:.80}, wanted four numbers or {self._FIELDS}")
        for name in self._FIELDS:
            setattr(self, name, found.get(name, -1))
