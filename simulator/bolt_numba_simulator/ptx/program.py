"""A module of PTX: read once, decoded for a number of blocks, launched many times."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.errors import SimulationError, UnsupportedOpError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.records import record
from bolt_numba_simulator.ptx.instructions import arithmetic, bits, convert, copies, groups, tensor, transfer, warps
from bolt_numba_simulator.ptx.machine import Machine
from bolt_numba_simulator.ptx.report import SimulationReport
from bolt_numba_simulator.ptx.state.memory import GlobalMemory
from bolt_numba_simulator.ptx.state.registers import shared_places
from bolt_numba_simulator.ptx.state.spaces import RESERVED
from bolt_numba_simulator.ptx.state.text import MemoryVariable, PtxSource, Routine, inlined
from bolt_numba_simulator.ptx.state.types import ALL_CHECKS, DTYPES, U8, U64, Checks, RefusedError

OPCODE_FILES = arithmetic, bits, convert, copies, groups, tensor, transfer, warps
"""Files that fill the table of opcodes."""
LANES = 4096
"""Threads that run at once, where a launch has so many: more cost no less each."""
_KEPT_BYTES, _KEPT_MACHINES = 192 << 20, 64
_KEPT: OrderedDict[tuple[int, tuple[int, ...], int], Machine] = OrderedDict()
"""Machines that were used last, of all modules."""
_kept_lock = threading.RLock()
renew_after_fork(sys.modules[__name__], "_kept_lock", threading.RLock)


@record(eq=False)
class Launch:
    """What one launch tells its machine."""

    memory: GlobalMemory
    grid: tuple[int, int, int]
    shared: int
    params: Any
    checks: Checks
    report: SimulationReport | None


class Module:
    """A kernel of a PTX text.

    Raises `UnsupportedOpError`, which lists every instruction that is not modelled.

    Parameters
    ----------
    ptx: the text.
    entry: name of the kernel; None: the first.
    """

    def __init__(self, ptx: str, entry: str | None = None) -> None:
        try:
            self._read(PtxSource(ptx), entry)
            Machine(self, (32, 1, 1), 1)
        except RefusedError as e:
            raise UnsupportedOpError("simulated GPU", str(e).split("\n  ")) from None
        weakref.finalize(self, _forget, id(self))

    def _read(self, source: PtxSource, entry: str | None) -> None:
        if not source.kernels:
            raise RefusedError("no kernel in this text")
        kernel = source.kernels[entry or next(iter(source.kernels))]
        self.name, self.params = kernel.name, kernel.params
        self.routine = inlined(source, kernel)
        self._lay_out(source, self.routine)
        self.places = shared_places(self.routine)
        code = self.routine.code
        shared = [
            ins for ins in code if "shared" in " ".join(ins.modifiers) or ins.op in ("ldmatrix", "stmatrix", "wgmma")
        ]
        self.shared_used = bool(shared) or bool(self.shared_symbols)
        self.bulk = any("bulk" in ins.modifiers for ins in code)
        sizes = [
            DTYPES[ins.modifiers[-1]].itemsize
            for ins in code
            if ins.op in ("ld", "st") and "param" not in ins.modifiers
        ]
        self.granule = {1: 0, 2: 1}.get(min([4, *sizes]), 2)

    def _lay_out(self, source: PtxSource, kernel: Routine) -> None:
        """Offsets of parameters and of variables in shared and local memory."""
        self.param_offsets: dict[str, int] = {}
        end = 0
        for name, variable in kernel.params.items():
            end = -(-end // variable.align) * variable.align
            self.param_offsets[name] = end
            end += variable.nbytes or 0
        self.param_bytes = end
        self.shared_symbols: dict[str, Any] = {}
        self.local_symbols: dict[str, Any] = {}
        self.global_symbols: dict[str, Any] = {}
        self.variables = {
            name: variable for name, variable in source.variables.items() if variable.space in ("global", "const")
        }
        self.uploaded: weakref.WeakKeyDictionary[GlobalMemory, dict[str, int]] = weakref.WeakKeyDictionary()
        own = {name: variable for name, variable in kernel.locals.items() if variable.space == "shared"}
        shared = {name: variable for name, variable in source.variables.items() if variable.space == "shared"} | own
        local = {name: variable for name, variable in kernel.locals.items() if variable.space == "local"}
        self.static_end = _place(shared, RESERVED, self.shared_symbols)
        self.local_bytes = _place(local, 0, self.local_symbols)
        self.dynamic_base = -(-self.static_end // 16) * 16
        for name, variable in shared.items():
            if variable.nbytes is None:
                align = max(variable.align, 16)
                self.dynamic_base = -(-self.dynamic_base // align) * align
                self.shared_symbols[name] = self.dynamic_base
        self.global_symbols = {name: np.zeros((), U64) for name in self.variables}

    def shared_bytes(self, dynamic: int) -> int:
        """What a block has of shared memory, with so much that is dynamic."""
        return (self.dynamic_base + dynamic if dynamic else self.static_end) - RESERVED

    def symbol(self, name: str) -> Any:
        """Address of a variable, as u64; None where there is none of this name."""
        if name in self.global_symbols:
            return self.global_symbols[name]
        found = self.shared_symbols.get(name, self.local_symbols.get(name))
        return None if found is None else np.uint64(found)

    def launch(
        self, memory: GlobalMemory, grid: Sequence[int], threads: int | Sequence[int], args: Sequence[Any],
        shared: int = 0, *, checks: Checks = ALL_CHECKS, report: SimulationReport | None = None, lanes: int = LANES,
    ) -> None:  # fmt: skip
        """Run all blocks, in order, as many at once as there are threads in ``lanes``.

        args: a number for each parameter, or its bytes as an array.  shared: bytes of dynamic shared memory.
        Raises `SimulationError` at the first thing that a kernel must not do.
        """
        dims = _three(threads if isinstance(threads, Sequence) else (threads,))
        given = _three(grid)
        launch = Launch(memory, given, shared, self._parameters(args), checks, report)
        self._upload(memory)
        count = given[0] * given[1] * given[2]
        size = dims[0] * dims[1] * dims[2]
        if not 0 < size <= 1024:
            raise SimulationError(f"{self.name}: threads of a block: got {size}, wanted 1 to 1024")
        blocks = 1
        while blocks < count and 2 * blocks * size <= lanes:
            blocks *= 2
        machine = self._machine(dims, blocks)
        with np.errstate(all="ignore"):
            for start in range(0, count, blocks):
                machine.run(launch, np.arange(start, min(start + blocks, count)))
        memory.settle()

    def _machine(self, threads: tuple[int, int, int], blocks: int) -> Machine:
        key = id(self), threads, blocks
        with _kept_lock:
            found = _KEPT.pop(key, None)
        if found is None:
            found = Machine(self, threads, blocks)
        with _kept_lock:
            _KEPT[key] = found
            total = sum(machine.registers.nbytes for machine in _KEPT.values())
            while len(_KEPT) > _KEPT_MACHINES or (total > _KEPT_BYTES and len(_KEPT) > 1):
                total -= _KEPT.popitem(last=False)[1].registers.nbytes
        return found

    def _parameters(self, args: Sequence[Any]) -> Any:
        if len(args) != len(self.params):
            raise SimulationError(f"{self.name}: parameters: got {len(args)}, wanted {len(self.params)}")
        made = np.zeros(self.param_bytes, U8)
        for (name, variable), value in zip(self.params.items(), args, strict=True):
            start, size = self.param_offsets[name], variable.nbytes or 0
            made[start : start + size] = _bytes_of(value, size)
        return made

    def _upload(self, memory: GlobalMemory) -> None:
        """Variables of the module, once into each memory."""
        if memory not in self.uploaded:
            placed = self.uploaded[memory] = {}
            for name, variable in self.variables.items():
                data = np.frombuffer(variable.data or b"", U8)
                whole = np.zeros(max(variable.nbytes or 0, 1), U8)
                whole[: data.size] = data
                placed[name] = memory.allocate(whole.nbytes)
                memory.write(placed[name], whole)
        for name, address in self.uploaded[memory].items():
            self.global_symbols[name][...] = address


def _forget(module: int) -> None:
    with _kept_lock:
        for key in [key for key in _KEPT if key[0] == module]:
            del _KEPT[key]


def _place(variables: dict[str, MemoryVariable], start: int, offsets: dict[str, Any]) -> int:
    for name, variable in variables.items():
        if variable.nbytes is not None:
            start = -(-start // variable.align) * variable.align
            offsets[name] = start
            start += variable.nbytes
    return start


def _three(sizes: Sequence[int]) -> tuple[int, int, int]:
    x, y, z, *_ = (*sizes, 1, 1)
    return int(x), int(y), int(z)


def _bytes_of(value: Any, size: int) -> Any:
    """A parameter: the bytes of an array, or a number in ``size`` bytes; a Python float is f32 or f64 by its size."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).reshape(-1).view(U8)
    if isinstance(value, (float, np.floating)):
        return np.array([value], {2: np.float16, 4: np.float32, 8: np.float64}[size]).view(U8)
    bits = np.array([int(value) & (2**64 - 1)], U64)
    return bits.view(U8)[:size]
