"""Enumerations of onnxruntime.  Their members are integers and print as there."""

from enum import Enum, IntEnum


class _NamedEnum(IntEnum):
    __str__ = Enum.__str__


class GraphOptimizationLevel(_NamedEnum):
    """How much a graph is rewritten.  Accepted and without meaning here: all rewrites always run."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_NamedEnum):
    """Whether nodes run beside each other.  Accepted and without meaning here: threads share each node."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_NamedEnum):
    """In which order nodes run.  Accepted and without meaning here: the planner chooses."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtMemType(_NamedEnum):
    """Which memory of a device is meant; the CPU has one."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtAllocatorType(_NamedEnum):
    """How a device gives memory; NumPy's is the only one here."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtDeviceVendorId(IntEnum):
    """Who made a device, by its number on the PCI bus."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


class OrtMemoryInfoDeviceType(_NamedEnum):
    """Of which kind a device is."""

    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtDeviceMemoryType(_NamedEnum):
    """Which memory of a device is meant; the CPU has one."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5
