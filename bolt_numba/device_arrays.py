"""Arrays that a caller has in the memory of a device: `device_array`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.errors import DeviceError, DTypeError
from bolt_numba.base.types import dtype_name
from bolt_numba.devices import device as device_by_name

if TYPE_CHECKING:
    from bolt_numba.devices.cuda.arrays import DeviceArray


@border("device_array")
def device_array(content: Any, dtype: Any = np.float32, *, device: Any = "cuda") -> DeviceArray:
    """An array on a GPU: a copy of an array of the host, or one of any content for a shape, which is a tuple.

    A session on this device takes it as an input, and writes results to it with `Session.run_into`, without a way
    through the host.  Other packages take it by ``from_dlpack`` or ``__cuda_array_interface__``.  dtype: for a shape.
    Raises DeviceError for a device without a memory of its own, DTypeError for what are no numbers.
    """
    from bolt_numba.devices.cuda.arrays import empty
    from bolt_numba.devices.cuda.device import Cuda

    found = device_by_name(device) if isinstance(device, str) else None
    if not isinstance(found, Cuda):
        raise DeviceError(f"device_array: device: got {device!r}, wanted one of a GPU such as 'cuda'")
    given = None if isinstance(content, tuple) else np.asarray(content)
    kind = np.dtype(dtype) if given is None else given.dtype
    if kind.kind in "OUSTcmM" or kind.type is np.void or not kind.isnative:
        raise DTypeError(f"device_array: dtype: got {dtype_name(kind)}, wanted real numbers or bools")
    if given is None:
        return empty(found.memory, _sizes(content), kind)
    made = empty(found.memory, given.shape, given.dtype)
    made.write(given)
    return made


def _sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in shape):
        raise DeviceError(f"device_array: shape: got {shape!r}, wanted sizes")
    return tuple(map(int, shape))
