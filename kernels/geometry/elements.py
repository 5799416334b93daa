"""Kernels that are written once for every device: what is done for one index, and over which indices it is done.

A body is an `inline` helper.  Its parameters are, by name, some of the indices that `Elements.over` names, the fields,
the sizes, and these:

- ``t``: the number of the index, counted along all axes in order; ``s`` and the other letters of ``strides``: the sum
  of all indices but the last times their strides, fields ``s0``, ``s1``, ...
- ``c``, in kernels that move rows of ``run`` bytes: where in a row it begins.  The body calls ``on.move(to, source,
  run)``, or ``on.keep(to, source, c, low, high, run)`` of whole rows, of which only the bytes low to high come along
  and the others are 0.  A CPU moves whole rows (c = 0), on a GPU several threads share one.

A body with a ``fault`` calls ``on.report`` where content asks for what is not there, and then gives a negative number.

The CPU makes loops of it, whose innermost one has no division and shares its work by threads; a GPU a thread for each
index.  `DeviceParts` is what either gives to bodies and makers.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from bolt_numba.base.errors import KernelError
from bolt_numba.base.records import record
from bolt_numba.base.types import Array
from bolt_numba.kernels.declare import I64, Field, Inline
from bolt_numba.kernels.extents import Reach
from bolt_numba.kernels.geometry.transfers import Transfer
from bolt_numba.kernels.registry import Accepts, Argument, Kernel, Step

FAULT = Field("fault", "i8")
"""Address of the record of a fault, which is no operand's; see `registry.Fault`."""
OWN = ("t", "c", "p", "tid", "nthreads", "split", "min", "range", "element", "quiet", "threads", "cuda", "np")
"""Names of the loops around a body: they would go before a field that is called so."""
MOST_LAUNCHED = (1 << 31) - (1 << 16)
"""Indices of a launch on a GPU, whose threads beyond the last one count on in 31 bits."""


@record(frozen=True, eq=False)
class Elements:
    """A kernel for every device.

    over: by name of an index, the field that has its size, the first axis first.  strides: letters.  reach: extents,
    of the arguments and the settings.  make: the body for a device's parts and some settings.  several: indices of a
    thread of a GPU.
    """

    name: str
    over: Mapping[str, str]
    strides: str
    fields: Mapping[str, Field]
    reach: Callable[..., dict[str, Reach]]
    make: Callable[..., Inline]
    several: int = 1

    @property
    def all_fields(self) -> dict[str, Field]:
        sizes = [*self.over.values(), *(f"{letter}{k}" for letter in self.strides for k in range(len(self.over) - 1))]
        return {**self.fields, **dict.fromkeys(sizes, I64)}

    def wanted(self, body: Inline) -> tuple[str, ...]:
        """Parameters of a body; raises KernelError for one that names nothing."""
        found, known = parameters(body), {"t", "c", "run", *self.over, *self.strides, *self.all_fields}
        if unknown := [name for name in found if name not in known]:
            code = body.function.__code__
            where = f"{Path(code.co_filename).name}:{code.co_firstlineno}: body of kernel {self.name!r}"
            raise KernelError(f"{where}: parameters: got {unknown}, wanted some of {sorted(known)}")
        return found

    def count(self, args: Mapping[str, Any]) -> int:
        """Indices of a step's arguments."""
        return math.prod(args[size] for size in self.over.values())


def elements(
    *, over: Mapping[str, str], extents: Callable[..., dict[str, Reach]], strides: str = "", **fields: Field
) -> Callable[[Callable[..., Inline]], Elements]:
    """Declare a kernel of every device by a function ``(on, *settings)`` that gives its body; see `Elements`.

    Raises KernelError for a field whose name an index or the loops around the body have.
    """

    def declare(make: Callable[..., Inline]) -> Elements:
        own = {*OWN, *strides, *over}
        if taken := sorted(own & fields.keys()):
            wanted = f"other names than {sorted(own)}"
            raise KernelError(f"kernel {make.__name__!r}: fields: got {taken}, wanted {wanted}")
        return Elements(make.__name__, over, strides, fields, extents, make)

    return declare


def parameters(body: Inline) -> tuple[str, ...]:
    """Names that a body wants."""
    code = body.function.__code__
    return code.co_varnames[: code.co_argcount]


def own_of(beside: str, path: str) -> Any:
    """A function by its path below the package in which the module ``beside`` is."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"{beside.rpartition('.')[0]}.{module}"), name)


class DeviceParts(Protocol):
    """What a device gives to bodies and makers.

    in_order: whether a step that is not parallel goes through its indices in order.  rint, floor, divide: of f32,
    rounded to nearest; rint of an f64, too.  own: a function of the device, by its path below its
    folder (``reductions.arg.step``), for work that each device does in its own way.
    """

    in_order: bool
    move: Any
    keep: Any
    report: Any
    rint: Any
    floor: Any
    divide: Any
    own: Any

    def limited(self, accepts: Accepts, few: bool, computes: Accepts) -> Accepts:
        """Where the device has what a common maker needs; see `registry.everywhere`."""
        ...

    def load(self, dtype: str) -> Any:
        """Word that loads a number from an address."""
        ...

    def store(self, dtype: str) -> Any: ...

    def word(self, name: str) -> Any:
        """Word of the device's language."""
        ...

    def extremes(self, dtype: str) -> tuple[Any, Any]:
        """The greater and the lesser of two floats; NaN where one is, and 0 is more than -0."""
        ...

    def pays(self, nbytes: int, count: int = 0) -> Any:
        """Whether a second thread pays for moving as many bytes, or as many elements one by one."""
        ...

    def step(
        self, made: Elements, settings: tuple[Any, ...], args: Mapping[str, Argument], parallel: Any = True,
        unit: int = 0,
    ) -> Step:  # fmt: skip
        """A step of the kernel for some settings.

        parallel: whether a second thread of a CPU pays.  unit: bytes of a row that a thread of a GPU takes; 0: as many
        as it moves at once.
        """
        ...

    def kernel(self, made: Elements, *settings: Any, run: int = 0) -> Kernel:
        """The kernel itself, for tests and tools; run: bytes of a row, where it moves rows."""
        ...

    def carried(self, transfers: Iterable[Transfer]) -> list[Step]:
        """Steps of strided moves."""
        ...

    def table_gather_steps(self, shape: Sequence[int], indices: Sequence[Array], unit: int) -> list[Step]:
        """Steps of ``y[i, j, ...] = x[indices[0][i], indices[1][j], ...]``: dense In(0) of ``shape`` to Out(0)."""
        ...
