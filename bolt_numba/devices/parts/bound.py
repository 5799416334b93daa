"""One part in the memory of one run: its operands as arrays, and the request that computes it.

A run that is looked at closely has buffers of its own, between guards, so that what it does wrong spoils nothing.  The
self-check asks whether what a device computed is what we compute, but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from bolt_numba.base.files.mapped import for_runs
from bolt_numba.base.types import Array, dtype_name
from bolt_numba.devices.parts.opened import Loaded
from bolt_numba.devices.parts.part import Part
from bolt_numba.plugins import blobs
from bolt_numba.plugins.buckets import has_rows
from bolt_numba.plugins.interface import Request
from bolt_numba.plugins.preparing import Wanted
from bolt_numba.runtime.slots import CONST, INPUT, Job, Slot, view

GUARD = 4096
"""Bytes in front of a buffer, and behind it."""
FILL = 0xA5


class WrongError(Exception):
    """What a device computed is not what we compute."""


class Guarded(Request):
    """A request whose operands are copies.  Raises WrongError where it writes to anything but its outputs."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        (around_ins, ins), (around_outs, outs) = _copies(inputs), _copies(outputs)
        for array in outs:
            _poison(array)
        self.request.run(ins, outs)
        if any(map(_is_broken, around_ins + around_outs)):
            raise WrongError("it wrote beyond its operands, wanted to the outputs alone")
        spoiled = [i for i, (mine, a) in enumerate(zip(ins, inputs, strict=True)) if mine.tobytes() != a.tobytes()]
        if spoiled:
            raise WrongError(f"it wrote to inputs {spoiled}, wanted to the outputs alone")
        for mine, wanted in zip(outs, outputs, strict=True):
            wanted[...] = mine


def _copies(arrays: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Blocks with a guard at both ends, and in each a copy of an array."""
    blocks, made = [], []
    for array in arrays:
        block = np.full(2 * GUARD + 64 + array.nbytes, FILL, np.uint8)
        start = GUARD + -(block.ctypes.data + GUARD) % 64
        block = block[start - GUARD : start + array.nbytes + GUARD]
        made.append(block[GUARD:-GUARD].view(array.dtype).reshape(array.shape))
        made[-1][...] = array
        blocks.append(block)
    return blocks, made


def _is_broken(block: Array) -> bool:
    return bool((block[:GUARD] != FILL).any() or (block[-GUARD:] != FILL).any())


def _poison(array: Array) -> None:
    """Fill with what is no result, so that what is not written cannot be right by chance."""
    if array.dtype.kind in "iu":
        array[...] = np.iinfo(array.dtype).max
        return
    try:
        array[...] = np.nan
    except (ValueError, OverflowError):  # numbers of 4 bits have none
        array[...] = 1


def disagreement(got: Sequence[Array], wanted: Sequence[Array], tolerance: float) -> str:
    """Where outputs differ by more than rounding, or "".

    tolerance: the largest difference that is accepted, over the largest finite value wanted.  Integers may differ by
    one besides.  Whether they are finite has to be alike, and so have bools but for a part of them as large.
    """
    for place, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if b.dtype.kind == "b":
            share = float(np.mean(a != b)) if b.size else 0.0
            if share > tolerance:
                return f"output {place}: got {100 * share:.3g} % other truths, wanted at most {100 * tolerance:.3g} %"
        elif b.size:
            text = _numbers(np.asarray(a, np.float64), np.asarray(b, np.float64), tolerance, b.dtype.kind in "iu")
            if text:
                return f"output {place} of {dtype_name(b.dtype)}: {text}"
    return ""


def _numbers(a: Array, b: Array, tolerance: float, are_whole: bool) -> str:
    sound = np.isfinite(b)
    odd = ~sound
    if not np.array_equal(np.isfinite(a), sound) or not np.array_equal(a[odd], b[odd], equal_nan=True):
        return f"got {int(np.sum(~np.isfinite(a)))} numbers that are not finite, wanted {int(np.sum(odd))} of the same"
    if not sound.any():
        return ""
    worst, largest = float(np.abs(a[sound] - b[sound]).max()), float(np.abs(b[sound]).max())
    limit = tolerance * largest + (1.0 if are_whole else tolerance * 1e-3)
    return "" if worst <= limit else f"got a difference of {worst:.3g}, wanted at most {limit:.3g}"


class _PartOperands:
    """Inputs or outputs of a part.  Those in the arena, and constants, are the same arrays in every run."""

    __slots__ = ("fixed", "given")

    def __init__(self, slots: Sequence[Slot], arena: Any) -> None:
        self.fixed: list[Any] = [None] * len(slots)
        self.given: list[tuple[int, bool, int, Slot]] = []
        for place, slot in enumerate(slots):
            root, _ = slot.root()
            if root.kind == CONST:
                self.fixed[place] = np.ascontiguousarray(for_runs(root.const)).reshape(slot.type.dims)
            elif root.kind == INPUT or root.result >= 0:
                is_input = root.kind == INPUT
                self.given.append((place, is_input, root.index if is_input else root.result, slot))
            else:
                self.fixed[place] = view(slot, arena, (), ())

    def of(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Array]:
        """The arrays of a run, of the callers' what `runtime.device.Run` is given."""
        made = self.fixed.copy()
        for place, is_input, index, slot in self.given:
            array = inputs[index] if is_input else outputs[index]
            made[place] = array if array.shape == slot.type.shape else view(slot, None, inputs, outputs)
        return made


class _Padded:
    """Arrays with more rows than a plan has.

    Those behind repeat the last one: what the device makes of them nobody reads, and it fails at none that it does not
    fail at anyway.
    """

    def __init__(self, job: Job, part: Part, wanted: Wanted) -> None:
        assert wanted.rows is not None
        self.size, full = wanted.rows
        self.inputs = [np.zeros(t.dims, t.dtype) for t in wanted.types]
        self.with_rows = [has_rows(v.type, part.rows) for v in part.graph.outputs]
        self.outputs = []
        for slot, has in zip(job.outs, self.with_rows, strict=True):
            dims = (full, *slot.type.dims[1:]) if has else slot.type.dims
            self.outputs.append(np.empty(dims, slot.type.dtype))

    def run(self, request: Any, ins: Sequence[Array], outs: Sequence[Array]) -> None:
        for mine, given in zip(self.inputs, ins, strict=True):
            if mine.shape == given.shape:
                mine[...] = given
            else:
                mine[: self.size] = given
                mine[self.size :] = given[-1:]
        request.run(self.inputs, self.outputs)
        for mine, wanted, has in zip(self.outputs, outs, self.with_rows, strict=True):
            wanted[...] = mine[: self.size] if has else mine


def _hold(part: Part, ins: Sequence[Array], outs: Sequence[Array]) -> None:
    """The self-check: raise WrongError where a run computed what we do not."""
    own = [np.empty_like(array) for array in outs]
    part.own.run(ins, own)
    text = disagreement(outs, own, float(part.opened.settings["tolerance"]))
    if text:
        raise WrongError(text)


class BoundPart:
    """Runs a part, one run at a time."""

    __slots__ = ("_ins", "_job", "_loaded", "_outs", "_padded", "_part", "_request", "_wanted")

    def __init__(self, job: Job, part: Part, wanted: Wanted, arena: Any) -> None:
        self._loaded: Loaded | None = None
        self._request: Request | None = None
        self._job, self._part, self._wanted = job, part, wanted
        self._ins = _PartOperands([s for s in job.ins if s is not None], arena)
        self._outs = _PartOperands(job.outs, arena)
        self._padded: _Padded | None = None

    def __del__(self) -> None:
        self._give_back()

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute the part, by the device if it does.  Raises DeviceError where it must and does not."""
        ins, outs = self._ins.of(inputs, outputs), self._outs.of(inputs, outputs)
        part, loaded, failure = self._part, self._loaded, None
        if loaded is None or part.given_up or part.opened.lost or not loaded.begin():
            loaded = self._begun()
            if loaded is None:
                part.compute(part.why_not(self._wanted), ins, outs)
                return
        request: Any = self._request
        try:
            checks = not loaded.is_proven and part.opened.settings["self_check"]
            asked = Guarded(request) if checks else request
            part.with_room(lambda: self._ask(asked, ins, outs))
            if checks:
                _hold(part, ins, outs)
            if not loaded.is_proven:
                self._keep(loaded)
            part.succeeded(loaded.counted(request))
        except Exception as error:
            failure = error
        except BaseException:  # an interrupt: who knows what the request does
            self._request = self._loaded = None
            raise
        finally:
            loaded.end()
        if failure is not None:
            self._recover(failure, loaded, ins, outs)

    def _ask(self, request: Any, ins: list[Array], outs: list[Array]) -> None:
        if self._padded is None:
            request.run(ins, outs)
        else:
            self._padded.run(request, ins, outs)

    def _begun(self) -> Loaded | None:
        """What serves the part, with a request of it, kept open; None where the device does not compute it."""
        part = self._part
        self._give_back()
        while True:
            loaded = part.prepare(self._wanted)
            if loaded is None:
                return None
            if not loaded.begin():
                continue
            try:
                if self._wanted.rows is not None and self._padded is None:
                    self._padded = _Padded(self._job, part, self._wanted)
                self._request = part.with_room(loaded.request)
            except Exception as error:
                loaded.end()
                part.refuse(self._wanted, part.failed("load", error))
                return None
            except BaseException:
                loaded.end()
                raise
            self._loaded = loaded
            return loaded

    def _give_back(self) -> None:
        """Let others have the request."""
        loaded, request, self._loaded, self._request = self._loaded, self._request, None, None
        if loaded is not None and request is not None:
            loaded.idle.append(request)

    def _keep(self, loaded: Loaded) -> None:
        """Keep what ran well for the first time."""
        loaded.is_proven = True
        if loaded.blob and loaded.source == "compiled":
            try:
                blob = loaded.compiled.serialise()
                if blob is not None:
                    blobs.write(loaded.blob, blob)
            except Exception as error:  # the next process compiles it again
                self._part.note("serialise", error)
        with suppress(Exception):  # it has run, whatever becomes of what is told
            self._part.opened.proven(loaded)

    def _recover(self, error: Exception, loaded: Loaded, ins: list[Array], outs: list[Array]) -> None:
        """Compute what the device failed to."""
        part, request, self._loaded, self._request = self._part, self._request, None, None
        if request is not None:
            loaded.drop(request)
        if isinstance(error, WrongError):
            reason = part.failed("self-check", str(error))
            part.refuse(self._wanted, reason)
            part.compute(reason, ins, outs)
        else:
            reason = part.failed("run", error)
            part.compute(reason, ins, outs)  # where we fail, too, what we are given is wrong, and not the device
            part.failed_run(reason)
