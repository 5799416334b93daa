"""IOBinding: inputs and outputs that are set once and used by many runs."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.types import Array
from bolt_numba.onnxruntime.errors import OrtOptionError
from bolt_numba.onnxruntime.values import MAX_BYTES, OrtValue, element_dtype, shape_of, want, want_cpu

if TYPE_CHECKING:
    from bolt_numba.onnxruntime.session import InferenceSession, Inner


class IOBinding:
    """Arrays for the inputs of runs, and places for their outputs.

    An output that is bound to memory is written there; one that is bound by name alone gets an array in each run.
    The methods raise OrtOptionError for a name that the model has not, or memory that does not fit.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._feeds: dict[str, Any] = {}
        self._places: dict[str, Array | None] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """The array is read when a run begins; who writes to it before changes what the run sees."""
        if not isinstance(arr_on_cpu, np.ndarray):
            raise OrtOptionError(f"input {name!r}: got a {type(arr_on_cpu).__name__}, wanted an array")
        self._feed(name, arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """As `bind_cpu_input`, for memory at an address, which must stay until the runs are over."""
        want_cpu(f"input {name!r}", device_type)
        self._feed(name, _array_at(buffer_ptr, element_type, shape))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        want(OrtValue, f"input {name!r}", ortvalue)
        self._feed(name, ortvalue._value)

    def _feed(self, name: str, value: Any) -> None:
        names = [arg.name for arg in self._session.get_inputs()]
        if name not in names:
            raise OrtOptionError(f"input: got {name!r}, wanted one of {names}")
        self._feeds[name] = value

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """With an address: memory of that type and shape, which must stay until the runs are over."""
        want_cpu(f"output {name!r}", device_type)
        if buffer_ptr is None:
            self._place(name, None)
        elif element_type is None or shape is None:
            raise OrtOptionError(f"output {name!r}: got an address alone, wanted element_type and shape, too")
        else:
            self._place(name, _array_at(buffer_ptr, element_type, shape))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        want(OrtValue, f"output {name!r}", ortvalue)
        self._place(name, ortvalue.numpy())

    def _place(self, name: str, array: Array | None) -> None:
        names = [arg.name for arg in self._session.get_outputs()]
        if name not in names:
            raise OrtOptionError(f"output: got {name!r}, wanted one of {names}")
        self._places[name] = array

    def _run(self) -> None:
        """Run the session on what is bound."""
        if not self._places:
            raise OrtOptionError("run_with_iobinding: got no output that is bound, wanted at least one")
        placed = {name: array for name, array in self._places.items() if array is not None}
        feeds = self._session._feeds(dict(self._feeds))
        if len(placed) == len(self._places):
            self._session._with_engine(feeds, lambda engine: engine.run_into(feeds, placed))
            self._results = [OrtValue(array) for array in placed.values()]
            return
        names = self._session._names(list(self._places))
        results = self._session._with_engine(feeds, lambda engine: engine.run(names, feeds))
        made = dict(zip(self._places, results, strict=True))
        for name, array in placed.items():
            self._fill(name, array, made[name])
        self._results = [OrtValue(placed.get(name, made[name])) for name in self._places]

    @staticmethod
    def _fill(name: str, place: Array, result: Array) -> None:
        if place.shape != result.shape or place.dtype != result.dtype:
            found, wanted = f"{place.dtype}{list(place.shape)}", f"{result.dtype}{list(result.shape)}"
            raise OrtOptionError(f"output {name!r}: got memory of {found}, wanted {wanted}")
        place[...] = result

    def get_outputs(self) -> list[OrtValue]:
        """Results of the last run, in the order in which outputs were bound."""
        return list(self._results)

    get_outputs_as_ortvaluevector = get_outputs

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Copies of the last run's results."""
        return [value.numpy().copy() if value.is_tensor() else value._value for value in self._results]

    def clear_binding_inputs(self) -> None:
        self._feeds.clear()

    def clear_binding_outputs(self) -> None:
        self._places.clear()
        self._results = []

    def synchronize_inputs(self) -> None:
        """Nothing: arrays of the host are there at once."""

    def synchronize_outputs(self) -> None:
        """Nothing: a run is over when it returns."""


def _array_at(address: int, element_type: Any, shape: Sequence[int]) -> Array:
    """An array over memory of the caller's."""
    dtype = element_dtype(element_type)
    sizes = shape_of(shape, dtype)
    want(Integral, "buffer_ptr", address)
    if not 0 <= address < MAX_BYTES:
        raise OrtOptionError(f"buffer_ptr: got {address!r:.80}, wanted an address")
    if not math.prod(sizes):
        return np.empty(sizes, dtype)
    if not address:
        raise OrtOptionError(f"buffer_ptr: got 0, wanted the address of {math.prod(sizes) * dtype.itemsize} bytes")
    memory: Any = (ctypes.c_char * (math.prod(sizes) * dtype.itemsize)).from_address(int(address))
    made: Array = np.frombuffer(memory, dtype, math.prod(sizes)).reshape(sizes)
    return made


class SessionIOBinding(IOBinding):
    """A binding of the compiled session that `InferenceSession` is around."""

    def __init__(self, session: Inner) -> None:
        super().__init__(session._session)
