"""The driver: opens a chip, says what it takes, compiles, runs.  What `bolt_numba.plugins.interface` asks for."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from bolt_numba.ir.graph import Graph, Node
from bolt_numba.plugins.interface import (
    Accelerator,
    CompileContext,
    Compiled,
    DeviceDriver,
    DeviceFullError,
    DeviceLostError,
    Property,
    Request,
    Setting,
)
from bolt_numba.plugins.lowering import ACTIVATIONS, FUSED, NORMS, SUMS
from bolt_numba.types import I8, U8, Array
from simnpu_driver.faults import Faults

FAIL = "SIMNPU_FAIL"
"""Environment variable: more calls that shall fail.  Other than the property it has no part in the name of a blob."""
SHAPES = {"none": "fixed", "ranges": "ranges", "free": "free"}


class SimDriver(DeviceDriver):
    """SimNPU: a neural processor that does not exist, for learning and for tests."""

    name = "simnpu"
    vendor = "the bolt-numba authors"
    interface = 1
    properties: ClassVar[Mapping[str, Property]] = {
        "chip": Property("which chip: sim100 (bf16, few operators), sim200 (f32), sim300 (bytes)", "sim200",
                         ("sim100", "sim200", "sim300")),
        "sdk_version": Property("which release of the SDK compiles and runs", "1.4", ("1.4", "2.0")),
        "memory": Property("bytes of the device's memory", 1 << 28),
        "dynamic": Property("what a compiled graph serves: one set of shapes, ranges, any", "none", tuple(SHAPES)),
        "supported": Property("the only operators to take, as 'Conv,Relu'; empty: all that the chip has", ""),
        "fail": Property("calls that shall fail, as 'compile', 'run:3' or 'run:3+' (see faults.py)", ""),
    }  # fmt: skip

    def missing(self) -> str:
        try:
            import simnpu_sdk  # noqa: F401
        except ImportError:
            return "the package simnpu_sdk is not installed"
        return ""

    def open(self, properties: Mapping[str, Setting]) -> SimNpu:
        return SimNpu(properties)


@contextmanager
def in_our_words() -> Iterator[None]:
    """A full memory and a lost device are errors that a session knows."""
    import simnpu_sdk as sdk

    try:
        yield
    except sdk.MemoryFullError as error:
        raise DeviceFullError(f"simnpu: {error}") from error
    except sdk.LostError as error:
        raise DeviceLostError(f"simnpu: {error}") from error


class SimNpu(Accelerator):
    """An opened chip.  What it lacks is taken apart by rules that come with bolt-numba."""

    lowerings = (*FUSED, *ACTIVATIONS, *NORMS, *SUMS)

    def __init__(self, properties: Mapping[str, Setting]) -> None:
        self.faults = Faults(f"{properties['fail']},{os.environ.get(FAIL, '')}")
        if self.faults.strikes("missing"):
            raise ImportError("simnpu: the package simnpu_sdk is not installed")
        import simnpu_sdk as sdk

        self.fail("open")
        chip, self.sdk_version = str(properties["chip"]), str(properties["sdk_version"])
        self.runtime = sdk.Runtime(chip, self.sdk_version, int(properties["memory"]))
        self.version = f"{self.sdk_version} {chip} format {sdk.FORMAT}"
        self.shapes: Any = SHAPES[str(properties["dynamic"])]
        self.only = frozenset(filter(None, str(properties["supported"]).replace(" ", "").split(",")))

    def fail(self, kind: str) -> None:
        """Raise what the property `fail` wants of this call."""
        from simnpu_sdk import LostError, MemoryFullError, SimError

        if self.faults.strikes(kind):
            if kind == "lost":
                self.runtime.lose()
            raise {"oom": MemoryFullError, "lost": LostError}.get(kind, SimError)(f"{kind} fails on request")

    def supports(self, node: Node) -> bool | str:
        from simnpu_sdk import UnsupportedError

        from simnpu_driver.operators import conversion_for

        self.fail("supports")
        if self.only and node.op.name not in self.only:
            return f"{node.op.name} is not in the property supported"
        try:
            conversion_for(self.runtime.chip, self.shapes == "fixed").node(node)
        except UnsupportedError as error:
            return str(error)
        return True

    def compile(self, graph: Graph, context: CompileContext) -> SimCompiled:
        from simnpu_sdk import Compiler

        from simnpu_driver.operators import conversion_for

        self.fail("convert")
        conversion = conversion_for(self.runtime.chip)
        places = conversion.whole(graph)
        self.fail("compile")
        version = "0.9" if self.faults.strikes("version") else self.sdk_version
        blob = Compiler(self.runtime.chip.name, version).build(conversion.graph)
        return SimCompiled(self, graph, struct.pack(f"<H{len(places)}H", len(places), *places) + blob)

    def restore(self, blob: bytes, graph: Graph, context: CompileContext) -> SimCompiled:
        self.fail("restore")
        return SimCompiled(self, graph, blob)

    def seconds(self, node: Node) -> float:
        return 1e-6

    def copy_seconds(self, nbytes: int) -> float:
        return 1e-6 + nbytes / 16e9

    def close(self) -> None:
        self.runtime.close()


class SimCompiled(Compiled):
    """A loaded graph.  Its blob begins with the positions of the inputs that the device gets."""

    def __init__(self, owner: SimNpu, graph: Graph, blob: bytes) -> None:
        self.owner, self.blob = owner, blob
        (count,) = struct.unpack_from("<H", blob)
        self.places = struct.unpack_from(f"<{count}H", blob, 2)
        self.types = [graph.inputs[i].type for i in self.places], [value.type for value in graph.outputs]
        with in_our_words():
            owner.fail("load")
            self.loaded = owner.runtime.load(blob[2 + 2 * count :])

    def request(self) -> SimRequest:
        return SimRequest(self)

    def serialise(self) -> bytes:
        return self.blob

    @property
    def nbytes(self) -> int:
        return self.loaded.nbytes

    def close(self) -> None:
        self.loaded.close()


class SimRequest(Request):
    """Buffers on the device for one run at a time; they grow where shapes do."""

    def __init__(self, compiled: SimCompiled) -> None:
        self.compiled, self.owner = compiled, compiled.owner
        self.buffers: list[Any] = []
        self.counted = {"copies": 0, "bytes": 0}
        with in_our_words():
            self.owner.fail("oom")
            if self.owner.shapes == "fixed":
                ins, outs = compiled.types
                self._reserve([t.nbytes for t in (*ins, *outs)])

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        with in_our_words():
            self.owner.fail("lost")
            self.owner.fail("run")
            given = [inputs[i] for i in self.compiled.places]
            both = [*given, *outputs]
            if not self.buffers or any(b.nbytes < a.nbytes for b, a in zip(self.buffers, both, strict=True)):
                self._reserve([a.nbytes for a in both])
            ins, outs = self.buffers[: len(given)], self.buffers[len(given) :]
            for buffer, array in zip(ins, given, strict=True):
                buffer.write(array.view(U8) ^ U8.type(0x80) if array.dtype == I8 else array)
            self.compiled.loaded.run(
                [(b, a.shape) for b, a in zip(ins, given, strict=True)],
                [(b, a.shape) for b, a in zip(outs, outputs, strict=True)],
            )
            for buffer, array in zip(outs, outputs, strict=True):
                buffer.read(array)
                if array.dtype == I8:
                    np.bitwise_xor(array.view(U8), U8.type(0x80), out=array.view(U8))
        if self.owner.faults.strikes("wrong"):
            outputs[0][...] = outputs[0] * 2 + 1
        self.counted = {"copies": len(both), "bytes": sum(a.nbytes for a in both)}

    def _reserve(self, nbytes: Sequence[int]) -> None:
        self.close()
        try:
            for n in nbytes:
                self.buffers.append(self.owner.runtime.alloc(max(n, 1)))
        except Exception:
            self.close()
            raise

    def counts(self) -> Mapping[str, int]:
        return self.counted

    def close(self) -> None:
        for buffer in self.buffers:
            buffer.close()
        self.buffers = []
