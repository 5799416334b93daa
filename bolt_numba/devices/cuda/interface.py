"""What runs kernels: a GPU through its driver, or the simulator.  The device knows both by this alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from bolt_numba.types import Array

if TYPE_CHECKING:
    from bolt_numba.kernels.cuda.declare import CudaKernel


class Driver(Protocol):
    """A GPU: memory, streams and launches.  Work of one stream happens in order.

    name: of the memory, for people.  arch: code for which it runs, such as ``sm_90a``.
    """

    name: str
    arch: str

    def allocate(self, nbytes: int) -> int:
        """Address of ``nbytes`` bytes of any content, which begin at a multiple of 256; raises BudgetError."""
        ...

    def free(self, address: int) -> None: ...

    def stream(self) -> Any: ...

    def write(self, address: int, array: Array, stream: Any) -> None:
        """Copy the elements of an array to the GPU; the array may change afterwards."""
        ...

    def read(self, address: int, array: Array, stream: Any) -> None:
        """Fill an array, once the stream has done what it was asked before."""
        ...

    def function(self, kernel: CudaKernel) -> Any:
        """A kernel's code, loaded."""
        ...

    def launch(
        self, function: Any, grid: tuple[int, int, int], threads: int, shared: int, values: Sequence[Any], stream: Any
    ) -> None:
        """Have blocks run.  values: what `ctypes` makes of the kernel's parameters, in order."""
        ...

    def synchronise(self, stream: Any) -> None: ...

    def describe(self) -> str: ...
