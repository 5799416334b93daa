"""What runs kernels: a GPU through its driver, or the simulator.  The device knows both by this alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from bolt_numba.base.types import Array

if TYPE_CHECKING:
    from bolt_numba.kernels.cuda.declare import CudaKernel, MappedTensor

Call: TypeAlias = Callable[[], None]
"""A launch with all its arguments: asks the GPU, and waits for nothing."""


class Driver(Protocol):
    """A GPU: memory, streams and launches.  Work of one stream happens in order.

    A stream belongs to one run at a time; all else may be called from many threads.  Every method raises DeviceError
    when the GPU failed, in this call or before.

    name: of the memory, for people.  arch: code for which it runs, such as ``sm_90a``.  kind: of code, one of
    those of `kernels.cuda.code`.  processors: how many multiprocessors it has.
    """

    name: str
    arch: str
    kind: str
    processors: int
    number: int | None
    """Which GPU, as other packages count them; None for one that they cannot reach."""

    @property
    def pinned(self) -> int:
        """Bytes of the host's memory that all copies go through."""
        ...

    def allocate(self, nbytes: int) -> int:
        """Address of ``nbytes`` bytes of any content, which begin at a multiple of 256; raises BudgetError."""
        ...

    def free(self, address: int) -> None:
        """Give memory back, once the GPU is done with it.  Called by whoever lets go last, at any moment."""
        ...

    def stream(self) -> Any:
        """A new stream; the last reference to it ends it."""
        ...

    def write(self, address: int, array: Array, stream: Any) -> None:
        """Copy the elements of a dense array to the GPU; the array may change afterwards."""
        ...

    def read(self, address: int, array: Array, stream: Any) -> None:
        """Fill a dense array, once the stream has done what it was asked before."""
        ...

    def move(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy from one place of its memory to another."""
        ...

    def after(self, stream: Any, handle: Any) -> None:
        """Have a stream wait for what a stream of others was asked; handle: theirs, None: for nothing."""
        ...

    def owns(self, address: int) -> bool:
        """Whether an address is one of this GPU's."""
        ...

    def function(self, kernel: CudaKernel) -> Any:
        """A kernel's code, loaded."""
        ...

    def tensor_map(self, tensor: MappedTensor) -> Array:
        """The 128 bytes by which kernels find a tensor, for memory of the GPU."""
        ...

    def call(
        self, function: Any, grid: tuple[int, int, int], threads: int, shared: int, values: Sequence[Any], stream: Any
    ) -> Call:
        """A launch of blocks.  values: what `ctypes` makes of the kernel's parameters, in order."""
        ...

    def run(self, calls: Sequence[Call]) -> None:
        """Do these calls in order."""
        ...

    def repeated(self, calls: Sequence[Call], stream: Any) -> Call:
        """All these calls of one stream as a single one, which costs the host less."""
        ...

    def timed(
        self, groups: Sequence[Sequence[Call]], stream: Any, counts: list[dict[str, int]] | None = None
    ) -> list[float]:
        """Do calls of one stream group by group; seconds that each group took.

        counts: gets those of each group by name, for people, from a driver that counts what kernels do.
        """
        ...

    def synchronise(self, stream: Any) -> None:
        """Wait until a stream has done all that it was asked."""
        ...

    def describe(self) -> str: ...
