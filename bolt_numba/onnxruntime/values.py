"""Values that a caller holds apart from runs: OrtValue, the device that it is on, which is the CPU, and its memory."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.errors import BudgetError
from bolt_numba.base.types import F32, STRING, AnyDType, Array
from bolt_numba.onnxruntime.enums import OrtAllocatorType, OrtDeviceMemoryType, OrtMemoryInfoDeviceType, OrtMemType
from bolt_numba.onnxruntime.errors import OrtDataError, OrtDTypeError, OrtOptionError, OrtRefusedError, leave_as_theirs
from bolt_numba.onnxruntime.kinds import CODES, DTYPES, dtype_of, spelled, tensor_kind


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


DEVICES = {"cpu": 0, "cuda": 1, "gpu": 1, "dml": 1, "webgpu": 1, "npu": 2, "cann": 3}
"""Names of devices that onnxruntime knows, and its numbers for them."""
VENDORS = {"cuda": 0x10DE, "dml": 0x1414, "cann": 0x19E5}
"""Who makes devices of a name, where that is one, by the number on the PCI bus."""
MAX_RANK, MAX_BYTES = 64, sys.maxsize
"""Of an array of NumPy's."""


def want_cpu(what: str, device: Any) -> None:
    """Raise where memory of another device is asked for, by a name or as an `OrtDevice`."""
    if isinstance(device, OrtDevice):
        device = "cpu" if device.device_type() == OrtDevice.cpu() else f"kind {device.device_type()}"
    if not isinstance(device, str) or device not in DEVICES:
        raise OrtOptionError(f"{what}: device: got {device!r}, wanted 'cpu'")
    if device != "cpu":
        raise OrtRefusedError(f"{what}: device: got {device!r}, wanted 'cpu': arrays are in the memory of the host")


def want(kind: Any, what: str, given: Any) -> None:
    """Raise where a value is not of a kind."""
    if not isinstance(given, kind):
        raise OrtDTypeError(f"{what}: got a {type(given).__name__}, wanted a {kind.__name__}")


class OrtDevice:
    """Where a value is: the CPU."""

    def __init__(self, device_type: int = 0, mem_type: int = 0, *vendor_and_id: int) -> None:
        """Numbers of a device's kind and memory, its vendor's if four are given, and its own."""
        self._type, self._memory = device_type, mem_type
        self._vendor, self._id = (0, 0, *vendor_and_id)[-2:] if len(vendor_and_id) != 1 else (0, *vendor_and_id)

    @staticmethod
    def cpu() -> int:
        """The number of the kind of devices; what others there are has a number and nothing more."""
        return 0

    @staticmethod
    def cuda() -> int:
        return 1

    @staticmethod
    def default_memory() -> int:
        return 0

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """A device by name; others than the CPU can be named, and nothing can be placed there.

        Raises OrtOptionError for a name that nobody knows.
        """
        if ort_device_name not in DEVICES:
            raise OrtOptionError(f"OrtDevice: got {ort_device_name!r}, wanted one of {sorted(DEVICES)}")
        vendor = vendor_id if vendor_id >= 0 else VENDORS.get(ort_device_name, 0)
        return OrtDevice(DEVICES[ort_device_name], 0, vendor, device_id)

    def device_type(self) -> int:
        return self._type

    def device_id(self) -> int:
        return self._id

    def device_mem_type(self) -> int:
        return self._memory

    def device_vendor_id(self) -> int:
        return self._vendor


class OrtValue:
    """An array, a list of arrays or nothing, with onnxruntime's ways to ask about it.

    An array is not copied: who writes to it writes to the value.
    Methods raise OrtOptionError where a value, dtype or shape is not what they need, OrtDTypeError for a wrong class.
    """

    def __init__(self, value: Any) -> None:
        if value is not None and not isinstance(value, (np.ndarray, list, dict)):
            raise OrtOptionError(f"OrtValue: got a {type(value).__name__}, wanted an array; see ortvalue_from_numpy")
        self._value = value

    # --- making ------------------------------------------------------------------------------------------------------

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Array, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """The value of an array, which is copied only where its elements do not lie in order.

        Raises OrtRefusedError for a device that is not the CPU.
        """
        want_cpu("OrtValue", device_type)
        found: Any = numpy_obj
        if not isinstance(found, np.ndarray) or found.dtype not in CODES or found.dtype == STRING:
            found = getattr(found, "dtype", type(found).__name__)
            raise OrtOptionError(f"OrtValue: got {found}, wanted an array of numbers that a tensor may have")
        return cls(np.ascontiguousarray(numpy_obj).reshape(numpy_obj.shape))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, /, onnx_element_type: int) -> OrtValue:
        """The bytes of an array as elements of another type, which ONNX's number names."""
        dtype = element_dtype(onnx_element_type)
        want(np.ndarray, "OrtValue", data)
        if data.dtype.hasobject or not data.dtype.isnative:
            raise OrtOptionError(f"OrtValue: got {data.dtype}, wanted numbers in the byte order of this machine")
        if data.dtype.itemsize != dtype.itemsize:
            raise OrtOptionError(f"OrtValue: elements: got {data.dtype.itemsize} bytes, wanted {dtype.itemsize}")
        return cls(np.ascontiguousarray(data).view(dtype).reshape(data.shape))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: Any = None,
    ) -> OrtValue:
        """A value of zeros; element_type: a dtype of NumPy's, or ONNX's number.

        Raises as `ortvalue_from_numpy`: OrtRefusedError.
        """
        want_cpu("OrtValue", device_type)
        dtype = element_dtype(element_type)
        sizes = shape_of(shape, dtype)
        try:
            ask(math.prod(sizes) * dtype.itemsize, "OrtValue")
        except BudgetError as error:
            leave_as_theirs(error, "OrtValue")
        return cls(np.zeros(sizes, dtype))

    @classmethod
    def from_dlpack(cls, data: Any, is_bool_tensor: bool = False, /) -> OrtValue:
        """The value of an object with ``__dlpack__``, or of what that gives, in its memory.

        is_bool_tensor: bytes that it holds are flags.
        """
        try:
            found = np.from_dlpack(data if hasattr(data, "__dlpack__") else _Capsule(data))
        except (TypeError, ValueError, BufferError) as error:
            raise OrtDTypeError(f"from_dlpack: got a {type(data).__name__}, wanted DLPack: {error}") from error
        found = found if found.flags.c_contiguous else np.ascontiguousarray(found)
        return cls(found.view(bool) if is_bool_tensor and found.dtype == np.uint8 else found)

    # --- asking ------------------------------------------------------------------------------------------------------

    def numpy(self) -> Array:
        """The array itself."""
        if not isinstance(self._value, np.ndarray):
            raise OrtOptionError(f"OrtValue: got {self.data_type()}, wanted a tensor")
        return self._value

    def data_ptr(self) -> int:
        if self.numpy().dtype == STRING:
            raise OrtOptionError("OrtValue: got texts, wanted numbers, which have an address")
        return self.numpy().ctypes.data

    def data_type(self) -> str:
        """``tensor(float)`` for example; of a list or dictionary as its first element says."""
        return _kind_of_value(self._value)

    def element_type(self) -> int:
        """ONNX's number of the elements' type."""
        found = self._value[0] if isinstance(self._value, list) and self._value else self._value
        if not isinstance(found, np.ndarray) or found.dtype not in CODES:
            raise OrtOptionError(f"OrtValue: got {self.data_type()}, wanted a tensor, or a list of some")
        return CODES[found.dtype]

    def shape(self) -> list[int]:
        return list(self.numpy().shape)

    def tensor_size_in_bytes(self) -> int:
        return self.numpy().nbytes

    def device_name(self) -> str:
        return "cpu"

    def has_value(self) -> bool:
        return self._value is not None

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list) and all(isinstance(v, np.ndarray) for v in self._value)

    def is_sparse_tensor(self) -> bool:
        return False

    def as_sparse_tensor(self) -> NoReturn:
        """Refused, as there for what is not sparse: values here are dense."""
        raise OrtOptionError(f"OrtValue: got {self.data_type()}, wanted a sparse tensor")

    # --- using -------------------------------------------------------------------------------------------------------

    def update_inplace(self, data: Array | OrtValue) -> None:
        """Copy elements, as many, into the value's memory."""
        found = data.numpy() if isinstance(data, OrtValue) else np.asarray(data)
        own = self.numpy()
        if found.size != own.size:
            raise OrtOptionError(f"OrtValue: got {found.size} elements, wanted {own.size}")
        try:
            own[...] = found.reshape(own.shape)
        except (TypeError, ValueError) as error:
            raise OrtOptionError(f"OrtValue: cannot be updated: got {found.dtype}: {error}") from error

    def __array__(self, dtype: AnyDType | None = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype, copy=copy)

    def __dlpack__(self, *, stream: Any = None, **how: Any) -> Any:
        return self.numpy().__dlpack__(**how)

    to_dlpack = __dlpack__

    @property
    def _ortvalue(self) -> OrtValue:
        """The value as onnxruntime's compiled part has it: itself."""
        return self

    def _get_c_value(self) -> OrtValue:
        return self

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class OrtValueVector(list[OrtValue]):
    """Values in a row, as onnxruntime's compiled part takes and gives them."""

    def push_back(self, value: Any) -> None:
        """Add a value, or what ``__dlpack__`` gave."""
        self.append(value if isinstance(value, OrtValue) else OrtValue.from_dlpack(value))

    def reserve(self, count: int) -> None:
        """Nothing: lists grow by themselves."""

    def shrink_to_fit(self) -> None:
        """Nothing: lists shrink by themselves."""

    def element_type_at(self, index: int) -> int:
        """Number of ONNX's for the dtype of a value."""
        return self[index].element_type()

    def dlpack_at(self, index: int) -> Any:
        return self[index].to_dlpack()

    def to_dlpacks(self, convert: Callable[[Any], Any] | None = None) -> list[Any]:
        """DLPack of all values, each put through a function if there is one."""
        made = [value.to_dlpack() for value in self]
        return made if convert is None else list(map(convert, made))


class _Capsule:
    """What ``__dlpack__`` gave, for those who ask for it again."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **how: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def texts_of(given: Any) -> Any:
    """An array of texts of bytes or of any objects, as onnxruntime reads them; other things as they are.

    A void has all of its bytes, zeros at its end included: ML.NET's encoders have such keys.
    """
    if not isinstance(given, np.ndarray) or given.dtype.kind not in "SVO":
        return given
    if given.dtype.kind == "V" and given.dtype.hasobject:
        raise OrtDTypeError(f"text: got {given.dtype}, wanted bytes or texts")
    found, flat = np.empty(given.shape, STRING), given.reshape(-1)
    elements = [each.tobytes() for each in flat] if given.dtype.kind == "V" else flat.tolist()
    found.reshape(-1)[:] = [str(each) if given.dtype == STRING else _text_of(each) for each in elements]
    return found


def _text_of(given: bytes) -> str:
    try:
        return given.decode()
    except UnicodeDecodeError as error:
        raise OrtDataError(f"text: got {given!r:.80}, wanted UTF-8: {error.reason}") from error


def _kind_of_value(value: Any) -> str:
    if isinstance(value, list):
        return f"seq({_kind_of_value(value[0])})" if value else "seq"
    if isinstance(value, dict):
        text = any(isinstance(key, str) for key in value)
        return f"map({'string' if text else 'int64'},tensor({spelled(F32)}))"
    return tensor_kind(value.dtype) if isinstance(value, np.ndarray) else "optional"


def element_dtype(given: Any) -> AnyDType:
    """The dtype of elements as a caller names it, one that a tensor here may have; no texts."""
    try:
        dtype = dtype_of(given)
    except (KeyError, TypeError) as error:
        raise OrtOptionError(f"OrtValue: element type: got {given!r}, wanted a dtype or a number of ONNX's") from error
    if dtype not in CODES or dtype == STRING:
        raise OrtOptionError(f"OrtValue: element type: got {dtype}, wanted one of {[str(d) for d in DTYPES.values()]}")
    return dtype


def shape_of(given: Any, dtype: AnyDType) -> tuple[int, ...]:
    """Sizes as a caller gives them, checked to be those of an array of elements of this dtype."""
    wanted = f"wanted at most {MAX_RANK} sizes, none negative, of fewer than {MAX_BYTES} bytes"
    try:
        shape = tuple(map(operator.index, given))
    except TypeError as error:
        raise OrtOptionError(f"shape: got {given!r:.80}, {wanted}") from error
    if len(shape) > MAX_RANK or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize >= MAX_BYTES:
        raise OrtOptionError(f"shape: got {given!r:.80}, {wanted}")
    return shape
