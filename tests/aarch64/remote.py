"""Runs kernels for AArch64 under an emulator: their machine code, records and arrays go to a small C program and back.

Memory of the other side has pages behind each array that nobody may touch, so that a kernel that reaches too far dies.
"""

from __future__ import annotations

import functools
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bolt_numba.ir.build import infer_types
from bolt_numba.kernels.cpu.faults import COUNTER, FAULT
from bolt_numba.kernels.extents import made_steps
from bolt_numba.kernels.machine_code import blob_parts
from bolt_numba.kernels.registry import Entry, Fault, In, Out, Pitch, Record, Scratch, Step
from bolt_numba.kernels.targets import target_code
from bolt_numba.ops.registry import Op
from bolt_numba.types import Array, TensorType
from tests.harness import PlainContext, Planned, types_of

EMULATOR, COMPILER = "qemu-aarch64", "aarch64-linux-gnu-gcc"
at_length = pytest.mark.skipif("BOLT_NUMBA_AARCH64" not in os.environ, reason="`make aarch64` runs it")
"""Marks tests that compile too much for the suite."""
RUNNER = Path(__file__).parent / "runner.c"
LACKING = ", ".join(name for name in (EMULATOR, COMPILER) if shutil.which(name) is None)
"""What is not installed of what the tests here need."""


@functools.cache
def runner() -> Path:
    """The C program, compiled for this process."""
    folder = tempfile.TemporaryDirectory(prefix="bolt-aarch64-")
    made = Path(folder.name) / "runner"
    subprocess.run([COMPILER, "-O1", "-Wall", "-Werror", "-static", "-o", made, RUNNER, "-lm", "-pthread"], check=True)
    _kept.append(folder)
    return made


_kept: list[Any] = []


class Call:
    """Calls to make in one process of the other side, on arrays of this one, which are then written back."""

    def __init__(self) -> None:
        self.arrays: list[tuple[bytes, int, Array | None]] = []
        self.codes: list[bytes] = []
        self.patches: list[tuple[int, ...]] = []
        self.calls: list[tuple[int, ...]] = []
        self._seen: dict[Any, tuple[int, Any]] = {}

    def array(self, array: Array, is_written: bool = False, align: int = 1) -> int:
        """Number of an array; the same one for the same array."""
        key = id(array)
        if key not in self._seen:
            self.arrays.append((np.ascontiguousarray(array).tobytes(), align, array if is_written else None))
            self._seen[key] = len(self.arrays) - 1, array
        return self._seen[key][0]

    def code(self, kernel: Any) -> int:
        """Number of a kernel."""
        if id(kernel) not in self._seen:
            parts = blob_parts(target_code(kernel))
            assert parts is not None
            imports = b"".join(struct.pack("<q32s", at, name.encode()) for at, name in parts.calls)
            self.codes.append(
                struct.pack("<qqq", len(parts.code), parts.entry, len(parts.calls)) + parts.code + imports
            )
            self._seen[id(kernel)] = len(self.codes) - 1, kernel
        return self._seen[id(kernel)][0]

    def record(self, kernel: Any, values: Mapping[str, Any]) -> int:
        """Number of a parameter record; a value may be a number, an array, (array, offset), a kernel or a record."""
        params, found = np.zeros(1, kernel.params), []
        for name in kernel.fields:
            value, offset = values[name], 0
            if isinstance(value, tuple):
                value, offset = value
            if isinstance(value, _Made):
                found.append((name, 0, value.number, 0))
            elif isinstance(value, np.ndarray):
                found.append((name, 0, self.array(value), offset))
            elif hasattr(type(value), "address"):
                found.append((name, 1, self.code(value), 0))
            else:
                params[name] = 0 if value is None else value
        number = self.array(params.view(np.uint8), align=64)
        for name, is_code, which, offset in found:
            self.patches.append((number, kernel.params.fields[name][1], is_code, which, offset))
        return number

    def add(self, kernel: Any, values: Mapping[str, Any], shares: Iterable[int] = (0,), count: int = 1) -> None:
        number, which = self.record(kernel, values), self.code(kernel)
        self.calls += [(which, number, share, count, -1) for share in shares]

    def run(self) -> None:
        """Make the calls; raises AssertionError with what the other side says where it fails."""
        heads = (len(self.arrays), len(self.codes), len(self.patches), len(self.calls))
        data = struct.pack("<4q", *heads)
        for content, align, back in self.arrays:
            data += struct.pack("<qqq", len(content), align, back is not None) + content
        data += b"".join(self.codes)
        data += b"".join(struct.pack("<5q", *row) for row in (*self.patches, *self.calls))
        with tempfile.TemporaryDirectory(prefix="bolt-aarch64-") as folder:
            given, made = Path(folder) / "in", Path(folder) / "out"
            given.write_bytes(data)
            done = subprocess.run([EMULATOR, "-cpu", "max", runner(), given, made], capture_output=True, check=False)
            assert done.returncode == 0, f"{EMULATOR} ended with {done.returncode}: {done.stderr.decode()}"
            found, at = made.read_bytes(), 0
        for content, _, back in self.arrays:
            if back is not None:
                back.reshape(-1).view(np.uint8)[:] = np.frombuffer(found, np.uint8, len(content), at)
                at += len(content)


class _Made:
    """A record of the other side."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Memory:
    """Operands, results and workspace of one planned kernel."""

    def __init__(self, planned: Planned, inputs: Sequence[Array | None], call: Call) -> None:
        self.planned, self.call = planned, call
        self.ins = [None if a is None else np.array(a, order="C").reshape(-1).view(np.uint8) for a in inputs]
        self.outs = [np.full(t.nbytes, 0xAB, np.uint8) for t in planned.outs]
        self.others: dict[int, Array] = {}
        for array in self.outs:
            call.array(array, is_written=True)

    def resolve(self, arg: Any) -> Any:
        match arg:
            case In(index, offset):
                array = self.ins[index]
                return 0 if array is None else (array, offset)
            case Out(index, offset):
                return self.outs[index], offset
            case Scratch():
                if id(arg) not in self.others:
                    self.others[id(arg)] = made = np.full(arg.nbytes, 0xFF, np.uint8)
                    self.call.array(made, align=64)
                return self.others[id(arg)]
            case Fault(operand):
                if -1 - operand not in self.others:
                    made = self.others[-1 - operand] = np.zeros(FAULT, np.int64)
                    number = self.call.array(made, is_written=True, align=64)
                    self.call.patches.append((number, 8 * COUNTER, 0, number, 8 * (FAULT - 1)))
                return self.others[-1 - operand]
            case Pitch(of):
                kind = (self.planned.ins if isinstance(of, In) else self.planned.outs)[of.index]
                assert kind is not None
                return kind.dims[-1] if kind.dims else 1
            case Record(kernel, args):
                return _Made(self.call.record(kernel, {name: self.resolve(value) for name, value in args.items()}))
            case _:
                return arg


def plan(op: Op, entry: Entry, inputs: Sequence[Array | None], constant: Sequence[bool]) -> Planned | None:
    """Steps of a maker of a twin; None where it does not accept the operator."""
    ins = types_of(inputs, constant)
    if not entry.accepts(op, ins):
        return None
    outs = [t.with_value(None) for t in infer_types(op, ins)]
    if not all(t.is_static for t in outs):
        return None
    return Planned(op, entry, ins, outs, made_steps(entry, op, ins, outs, PlainContext()))


def run_planned(planned: Planned, inputs: Sequence[Array | None], threads: int = 2) -> list[Array]:
    """Results of a planned kernel on the other side, its shares made one after the other."""
    call = Call()
    memory = _Memory(planned, inputs, call)
    for step in planned.steps:
        count = threads if step.parallel else 1
        call.add(step.kernel, {k: memory.resolve(v) for k, v in step.args.items()}, range(count), count)
    call.run()
    for number, found in memory.others.items():
        assert number >= 0 or not found[0], f"{planned.entry.name}: a fault was reported"
    return [a.view(t.dtype).reshape(t.dims) for a, t in zip(memory.outs, planned.outs, strict=True)]


def run_kernel(kernel: Any, threads: int = 1, **values: Any) -> None:
    """As a kernel's own ``run``: every array that is given may be written."""
    call = Call()
    for value in values.values():
        if isinstance(value, np.ndarray):
            call.array(value, is_written=True)
    call.add(kernel, values, range(threads), threads)
    call.run()


__all__ = [
    "COMPILER", "EMULATOR", "LACKING", "Call", "Step", "TensorType", "at_length", "plan", "run_kernel", "run_planned"
]  # fmt: skip
