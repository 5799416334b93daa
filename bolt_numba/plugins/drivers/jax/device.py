"""JAX as a device: a graph as one function that XLA compiles, for the processor or for what else JAX has.

Operands of the host's memory are read where they lie if they begin at a cache line, as buffers of sessions do.
Results are copied once, out of memory of XLA's own.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

import numpy as np

from bolt_numba.base.digest import sha256
from bolt_numba.base.errors import BoltError, DataError, DeviceError
from bolt_numba.base.types import Array, TensorType, dtype_from_name, dtype_name
from bolt_numba.ir.graph import Graph, Node, Value
from bolt_numba.plugins.drivers.alone import MOST_CONSTANT, kind_of
from bolt_numba.plugins.drivers.jax.table import TABLE, NotThereError, results_of
from bolt_numba.plugins.drivers.shared import borrowed, lacking, processor_digest, version_of
from bolt_numba.plugins.interface import (
    Accelerator,
    CompileContext,
    Compiled,
    DeviceDriver,
    DeviceFullError,
    Property,
    Request,
    Setting,
)

if TYPE_CHECKING:
    from bolt_numba.passes.rewrite import Rule

LINE = 64
"""Bytes of which the address of what XLA reads where it lies is a multiple."""
PRECISIONS = {"f32": "float32", "tf32": "tensorfloat32", "bf16": "bfloat16"}
"""Of products, as JAX names them."""


class JaxDriver(DeviceDriver):
    """Graphs compiled by XLA, for the processor, GPUs or TPUs."""

    name = "jax"
    vendor = "Google"
    properties: ClassVar[Mapping[str, Property]] = {
        "platform": Property("what runs the graph, as JAX names it: cpu, cuda, tpu; auto: what JAX prefers", "auto"),
        "index": Property("which of the devices of the platform", 0, least=0),
        "precision": Property("of products where the platform has several", "f32", tuple(PRECISIONS)),
    }

    used_by = 0
    """The process that first opened it."""

    def missing(self) -> str:
        if self.used_by not in (0, os.getpid()):
            return "this process was forked from one that uses JAX, whose threads a child has not"
        return lacking("jax") or lacking("jaxlib")

    def open(self, properties: Mapping[str, Setting]) -> JaxAccelerator:
        self.used_by = os.getpid()
        return JaxAccelerator(properties)


class JaxAccelerator(Accelerator):
    """Makes compiled functions of JAX with the properties of ours."""

    def __init__(self, properties: Mapping[str, Setting]) -> None:
        import jax

        self.jax = jax
        platform, index = str(properties["platform"]), int(properties["index"])
        try:
            found = jax.devices() if platform == "auto" else jax.devices(platform)
        except RuntimeError as error:
            known = ", ".join(sorted({"auto", *(d.platform for d in jax.devices())}))
            raise DeviceError(f"jax: platform: got {platform!r:.80}, wanted one of {known}") from error
        if index >= len(found):
            raise DeviceError(f"jax: index: got {index}, wanted 0 to {len(found) - 1}")
        self.device, self.precision = found[index], PRECISIONS[str(properties["precision"])]
        self.in_place = self.device.platform == "cpu"
        flags = sha256(os.environ.get("XLA_FLAGS", "").encode()).hexdigest()[:8]
        packages = f"jax {version_of('jax')}, jaxlib {version_of('jaxlib')}"
        where = " ".join(dict.fromkeys((self.device.platform, self.device.device_kind)))
        self.version = f"{packages} on {where} of {processor_digest()} with flags {flags}"
        self._answers: dict[Any, bool | str] = {}

    @cached_property
    def lowerings(self) -> Sequence[Rule]:  # type: ignore[override]  # nobody sets it
        from bolt_numba.plugins import lowering as l  # what starts from a blob needs none

        return (*l.CHANNELS_FIRST, *l.FUSED, *l.BYTES, *l.NORMS)

    def scope(self) -> AbstractContextManager[object]:
        """In which functions are traced: JAX would make numbers of 32 bits of those of 64 otherwise."""
        stack = ExitStack()
        stack.enter_context(self.jax.enable_x64(True))
        stack.enter_context(self.jax.default_matmul_precision(self.precision))
        return stack

    def supports(self, node: Node) -> bool | str:
        translation = TABLE.load().get(node.op.name)
        key = kind_of(node, translation is not None and translation.by_rank)
        if key not in self._answers:
            self._answers[key] = self._asked(node)
        return self._answers[key]

    def _asked(self, node: Node) -> bool | str:
        """Traces the node by itself, with a size for each symbol."""
        try:
            TABLE.of(node)
            one = _with_sizes(node)
            given = [v for v in one.inputs if v is not None and v.const is None]

            def run(*arrays: Any) -> Any:
                terms = dict(zip(map(id, given), arrays, strict=True))
                operands = [None if v is None else terms.get(id(v), v.const) for v in one.inputs]
                return results_of(self.jax, one, operands, self.in_place)

            with self.scope():
                self.jax.eval_shape(run, *(self.jax.ShapeDtypeStruct(v.type.dims, v.type.dtype) for v in given))
        except NotThereError as error:
            return str(error)
        except Exception as error:  # what JAX refuses, it refuses by errors of several kinds
            return " ".join(str(error).split())[:300] or type(error).__name__
        return True

    def compile(self, graph: Graph, context: CompileContext) -> JaxCompiled:
        function = _ArrayFunction(self.jax, graph, self.in_place)
        place = self.jax.sharding.SingleDeviceSharding(self.device)
        operands = [v.type for v in (*graph.inputs, *function.weights)]
        with self.scope():
            wanted = [self.jax.ShapeDtypeStruct(t.dims, t.dtype, sharding=place) for t in operands]
            try:
                lowered = self.jax.jit(function, keep_unused=True).lower(*wanted)
                compiled = lowered.compile(self._options(context))
            except Exception as error:
                raise _error(error) from error
        arrays = [v.const for v in function.weights if v.const is not None]
        return JaxCompiled(self, compiled, len(graph.inputs), arrays, function.has_checks)

    def _options(self, context: CompileContext) -> dict[str, Any]:
        """What XLA is told: a session of one thread computes in one."""
        return {"xla_cpu_multi_thread_eigen": False} if self.in_place and context.threads == 1 else {}

    def restore(self, blob: bytes, graph: Graph, context: CompileContext) -> JaxCompiled:
        return self.start(memoryview(blob), context)

    def start(self, blob: memoryview, context: CompileContext) -> JaxCompiled:
        from jax.experimental import serialize_executable

        code, counts, has_checks, weights = _unpacked(blob)
        operands = self.jax.tree.structure(((0,) * counts[0], {}))
        results = self.jax.tree.structure([0] * counts[1])
        try:
            compiled = serialize_executable.deserialize_and_load(
                code, operands, results, backend=self.device.client, execution_devices=[self.device]
            )
        except Exception as error:
            raise _error(error) from error
        return JaxCompiled(self, compiled, counts[0] - len(weights), weights, has_checks, blob)

    def on_device(self, array: Array, address: int = 0) -> Any:
        """An array of JAX: the same memory where the device reads that, else a copy.

        address: where it lies if the result must not keep it alive; it is read there in each run, whatever it holds.
        """
        given = borrowed(array, address) if address else array
        with self.jax.enable_x64(True):
            return self.jax.device_put(given, self.device, may_alias=True)


class _ArrayFunction:
    """A graph as a function of arrays of JAX: its inputs, then its weights, the constants that are large."""

    def __init__(self, jax: Any, graph: Graph, on_cpu: bool) -> None:
        self._jax, self._graph, self._on_cpu = jax, graph, on_cpu
        operands = [v for node in graph.nodes for v in node.inputs] + list(graph.outputs)
        large = [v for v in operands if v is not None and v.const is not None and v.const.size > MOST_CONSTANT]
        self.weights = list({id(v): v for v in large}.values())
        self.has_checks = False

    def __call__(self, *arrays: Any) -> list[Any]:
        """The graph's outputs, and whether the content of operands is as it has to be, if anything depends on it."""
        terms = dict(zip(map(id, (*self._graph.inputs, *self.weights)), arrays, strict=True))
        checks: list[Any] = []
        for node in self._graph.nodes:
            operands = [None if v is None else terms.get(id(v), v.const) for v in node.inputs]
            made, wanted = results_of(self._jax, node, operands, self._on_cpu)
            terms.update(zip(map(id, node.outputs), made, strict=True))
            checks += wanted
        self.has_checks = bool(checks)
        results = [terms[id(v)] if id(v) in terms else self._jax.numpy.asarray(v.const) for v in self._graph.outputs]
        return [*results, self._jax.numpy.stack(checks).all()] if checks else results


class JaxCompiled(Compiled):
    """A compiled function.  arrays: its weights.  memory: what they lie in."""

    def __init__(
        self, device: JaxAccelerator, call: Any, inputs: int, arrays: Sequence[Array], has_checks: bool,
        memory: object = None,
    ) -> None:  # fmt: skip
        self.device, self.call, self.inputs, self.arrays, self.memory = device, call, inputs, arrays, memory
        self.has_checks = has_checks
        self.weights = [device.on_device(array) for array in arrays]

    def request(self) -> JaxRequest:
        return JaxRequest(self)

    def serialise(self) -> bytes | None:
        """The machine code and the weights; None of what was kept already."""
        if self.memory is not None:
            return None
        from jax.experimental import serialize_executable

        code, operands, results = serialize_executable.serialize(self.call)
        return _packed(code, (operands.num_leaves, results.num_leaves), self.has_checks, self.arrays)

    @property
    def nbytes(self) -> int:
        return 0 if self.device.in_place else sum(array.nbytes for array in self.arrays)

    def close(self) -> None:
        self.call = self.memory = None
        self.weights, self.arrays = [], []


class JaxRequest(Request):
    """Calls a compiled function.  An operand that comes again at its place is an array of JAX over that memory."""

    def __init__(self, compiled: JaxCompiled) -> None:
        self._device, self._call, self._has_checks = compiled.device, compiled.call, compiled.has_checks
        self._operands: list[Any] = [None] * compiled.inputs + list(compiled.weights)
        self._seen: list[Callable[[], Any]] = [lambda: None] * compiled.inputs
        self._lies: list[bool] = [False] * compiled.inputs

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        operands, lies, is_wide = self._operands, self._lies, False
        for i, array in enumerate(inputs):
            if lies[i] and self._seen[i]() is array:
                continue
            lies[i] = self._bound(i, array)
            is_wide = is_wide or (not lies[i] and array.itemsize == 8)
        try:
            if is_wide:
                with self._device.jax.enable_x64(True):
                    made = self._call(*operands)
            else:
                made = self._call(*operands)
            for result in made:
                result.block_until_ready()  # raises where memory lacked; a look at such a result ends the process
            if self._has_checks and not made.pop():
                raise DataError("jax: indices of a part: got one beyond its axis, wanted all inside")
            for output, result in zip(outputs, made, strict=True):
                np.copyto(output, result)
        except Exception as error:
            raise _error(error) from error
        finally:
            for i, stays in enumerate(lies):
                if not stays:
                    operands[i] = None

    def _bound(self, i: int, array: Array) -> bool:
        """Set an operand; whether it is read where it lies, in later runs, too."""
        address = array.ctypes.data
        if not self._device.in_place or address % LINE or not array.size:
            self._operands[i] = array
            return False
        placed = self._device.on_device(array, address)
        self._operands[i], self._seen[i] = placed, ref(array)
        return bool(placed.unsafe_buffer_pointer() == address)


def _with_sizes(node: Node) -> Node:
    """The node with a number for each symbol of its types; raises NotThereError where they do not fit together."""
    types: list[TensorType | None] = [None if v is None else v.type for v in node.inputs]
    if all(t is None or t.is_static for t in (*types, *(v.type for v in node.outputs))):
        return node
    from bolt_numba.ir.build import infer_types
    from bolt_numba.passes.partition.marking import tried

    types = [None if t is None else tried(t) for t in types]
    try:
        results = infer_types(node.op, types)
    except BoltError as error:
        raise NotThereError("sizes that only the run tells") from error
    operands: list[Value | None] = []
    for i, (v, t) in enumerate(zip(node.inputs, types, strict=True)):
        if v is None or t is None:
            operands.append(None)
        else:
            decides = v.const is None and i in node.op.value_inputs
            operands.append(Value(v.name, t, const=t.known if decides else v.const))
    return Node(node.op, operands, results, node.name)


def _packed(code: bytes, counts: tuple[int, int], has_checks: bool, arrays: Sequence[Array]) -> bytes:
    """A blob: what it holds, machine code, weights from cache lines on."""
    rows = [(dtype_name(a.dtype), a.shape) for a in arrays]
    head = json.dumps([len(code), counts, has_checks, rows]).encode()
    made = [_whole_lines(len(head).to_bytes(8, "little") + head + code)]
    return b"".join(made + [_whole_lines(np.ascontiguousarray(a).tobytes()) for a in arrays])


def _whole_lines(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // LINE) * LINE, b"\0")


def _unpacked(blob: memoryview) -> tuple[bytes, list[int], bool, list[Array]]:
    """What `_packed` was given, the weights where they lie."""
    end = 8 + int.from_bytes(blob[:8], "little")
    size, counts, has_checks, rows = json.loads(bytes(blob[8:end]))
    place, weights = -(-(end + size) // LINE) * LINE, []
    for name, dims in rows:
        dtype = dtype_from_name(name)
        weights.append(np.frombuffer(blob, dtype, math.prod(dims), place).reshape(dims))
        place += -(-weights[-1].nbytes // LINE) * LINE
    return bytes(blob[end : end + size]), counts, has_checks, weights


def _error(error: Exception) -> Exception:
    """What JAX raised, where it lacked memory as the error that asks for some."""
    text = str(error)
    wants_memory = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "Out of memory" in text
    return DeviceFullError(f"jax: memory: {text}") if wants_memory else error
