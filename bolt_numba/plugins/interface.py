"""What a plug-in owes bolt-numba: a `DeviceDriver` opens an `Accelerator`, which compiles graphs to `Compiled`s.

The methods are those of the systems we know: say what is supported, compile, keep what was compiled, run.  A driver may
raise any exception from any of them: the session then computes the graph by itself (docs/plugins).  Threads may call
all methods at once, but for those of one `Request`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from bolt_numba.base.errors import DeviceError
from bolt_numba.base.records import record
from bolt_numba.base.types import Array

if TYPE_CHECKING:
    from bolt_numba.ir.graph import Graph, Node
    from bolt_numba.passes.rewrite import Rule

INTERFACE = 1
"""Version of this file.  A driver states the one that it was written for, and is refused where it differs."""

Setting: TypeAlias = "str | int | float | bool"
"""What a property may hold."""
Shapes: TypeAlias = 'Literal["fixed", "ranges", "free"]'
"""What a `Compiled` serves: the shapes that it was compiled for, sizes between two bounds, or any sizes."""


class DeviceFullError(DeviceError):
    """A device has no memory for what was asked.  What others no longer need is let go, and it is asked once more.

    What to do: docs/troubleshooting.md#deviceerror
    """


class DeviceLostError(DeviceError):
    """A device does not answer any more: nothing that it had is there.  Sessions do without it from then on.

    What to do: docs/troubleshooting.md#deviceerror
    """


class FallbackWarning(UserWarning):
    """A plug-in failed, and the session computes what the device should have."""


@record(frozen=True)
class Property:
    """A setting of a device: what it means, what holds unless it is given, and what it may be (empty: all).

    least: the smallest number that it may be; None: any.
    """

    what: str
    default: Setting
    choices: tuple[Setting, ...] = ()
    least: float | None = None


@record(frozen=True)
class CompileContext:
    """What an accelerator is told beside the graph.

    threads: of the host that the session has.  precision: of the session, "f32", "f16" or "bf16".  ranges: for
    accelerators with ranges, by name of an input: least and greatest size of each axis.
    """

    threads: int = 1
    precision: str = "f32"
    ranges: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)


class Request(ABC):
    """Runs a compiled graph, one run at a time; each concurrent run of a session has its own."""

    @abstractmethod
    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the outputs, and return when they are written.

        inputs: C-contiguous arrays of the host, not to be written.  outputs: such arrays to be filled; a driver writes
        to their memory, and keeps none of them.  Arrays of a session's own buffers come at the same address each time.
        """

    def counts(self) -> Mapping[str, int]:
        """What the last run did, for profiles: "copies", "bytes", and what else the device counts."""
        return {}

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what this request holds."""


class Compiled(ABC):
    """A graph as the device runs it."""

    @abstractmethod
    def request(self) -> Request:
        """What runs it; a session asks for one for each concurrent run."""

    def serialise(self) -> bytes | None:
        """Bytes from which `Accelerator.restore` makes the same; None where the device cannot."""
        return None

    @property
    def nbytes(self) -> int:
        """Bytes of the device's memory that it holds, as far as known."""
        return 0

    def close(self) -> None:  # noqa: B027
        """Give back what it holds; called once, when no request runs."""


class Accelerator(ABC):
    """An opened device, with its properties.

    version: of the SDK and of the device, all that compiled code depends on.  shapes: what its `Compiled`s serve.
    lowerings: rules that take apart operators that it lacks (`bolt_numba.plugins.lowering`), in the order of trying;
    they see the part of the graph that it gets, and nothing else.
    """

    version: str
    shapes: Shapes = "fixed"
    lowerings: Sequence[Rule] = ()

    @abstractmethod
    def supports(self, node: Node) -> bool | str:
        """True where it takes a node with these types and constants, else the reason why not."""

    @abstractmethod
    def compile(self, graph: Graph, context: CompileContext) -> Compiled:
        """Make a graph ready to run.  Types of its inputs are static unless `shapes` says that they need not be."""

    def restore(self, blob: bytes, graph: Graph, context: CompileContext) -> Compiled:
        """The same from what `Compiled.serialise` gave, for an equal graph, context and `version`."""
        raise NotImplementedError(f"{type(self).__name__} restores nothing")

    def start(self, blob: memoryview, context: CompileContext) -> Compiled:
        """The same where the blob is all that it takes, for an equal context and `version`.

        blob: the cache's file in memory, from a cache line on, which may be used where it is, but not written to.
        A driver that has this says that what `supports` answers depends on nothing but its own file, its properties and
        `version`.  Sessions of a file that an earlier process ran as one part then start without reading it.
        """
        raise NotImplementedError(f"{type(self).__name__} starts nothing from a blob alone")

    def seconds(self, node: Node) -> float | None:
        """Roughly what a node takes there; None: unknown, and it is taken to be fast."""
        return None

    def copy_seconds(self, nbytes: int) -> float:
        """Roughly what it takes to bring so much there or back."""
        return 0.0

    def close(self) -> None:  # noqa: B027
        """Give the device back; called once, when nothing of it is in use."""


class DeviceDriver(ABC):
    """What a plug-in registers: one object for a kind of device.  Making it, and importing its module, need no SDK.

    name: what sessions call the device.  vendor: who makes it.  interface: the version of this file that it was written
    for.  properties: what a session may set; all devices have those of `COMMON` besides.
    """

    name: str
    vendor: str = ""
    interface: int = INTERFACE
    properties: ClassVar[Mapping[str, Property]] = {}

    @abstractmethod
    def missing(self) -> str:
        """Why the device cannot be used here ("the package openvino is not installed"); empty where it can."""

    @abstractmethod
    def open(self, properties: Mapping[str, Setting]) -> Accelerator:
        """Open the device.  All of `properties` are there, with their kinds checked."""


COMMON: Mapping[str, Property] = {
    "min_nodes": Property("fewest nodes of a part of the graph that is worth sending there", 1, least=0),
    "self_check": Property("compare the first run of each compiled graph with our own", False),
    "tolerance": Property("largest error that the self-check accepts, over an output's largest value", 0.05, least=0),
    "max_compiled": Property("compiled graphs kept for each part, one for each set of shapes", 8, least=1),
    "buckets": Property("sizes to which the first axis is padded where rows stay apart, as 'batch:1,8,32'", ""),
    "cache": Property("keep what is compiled in the cache folder", True),
}
"""Properties of all devices, which the runtime obeys."""

MakeDriver: TypeAlias = "Callable[[], DeviceDriver]"
"""What an entry point of the group `bolt_numba.plugins` names: a class of drivers, or a function that makes one."""
