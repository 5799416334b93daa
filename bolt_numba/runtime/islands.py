"""What is not worth a copy: small work between nodes of the host stays there, too.

A *region* is what jobs of one far memory compute from each other, with the copies into it and out of it.  Where that
takes longer than the same on the host, it is an island, and its nodes are planned for the host.  The region with the
most work stays where it is, as the caller asked for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bolt_numba.runtime.device import HOST, Device
from bolt_numba.runtime.slots import Job, Slot

NOT_WORTH_IT = " (not worth a copy)"
"""Behind the name of what runs a node that a device could have run, too."""


class _Regions:
    """Sums by region; a region is a tree of the buffers that its jobs share."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}
        self._sums: dict[int, tuple[float, float]] = {}

    def of(self, slot: Slot) -> int:
        found = id(slot.root()[0])
        while found != (parent := self._parents.setdefault(found, found)):
            self._parents[found] = self._parents[parent]
            found = parent
        return found

    def add(self, slots: Sequence[Slot], far: float, near: float) -> None:
        """A job over these buffers: seconds that it takes there, and on the host."""
        first = self.of(slots[0])
        sums = self._sums.get(first, (0.0, 0.0))
        for other in map(self.of, slots[1:]):
            if other != first:
                self._parents[other] = first
                others = self._sums.pop(other, (0.0, 0.0))
                sums = sums[0] + others[0], sums[1] + others[1]
        self._sums[first] = sums[0] + far, sums[1] + near

    def islands(self) -> set[int]:
        """Regions that the host runs as fast, but for that with the most work."""
        most = max(self._sums, key=lambda region: self._sums[region][1], default=None)
        return {region for region, (far, near) in self._sums.items() if far >= near and region != most}


def islands(
    jobs: Sequence[Job], slots: Mapping[int, Slot], devices: Sequence[Device], threads: int
) -> frozenset[int]:
    """By ``id``: values that nodes of islands compute.  slots: of values, by ``id``."""
    home = next(device for device in devices if device.memory is HOST and device.aliases)
    weighing = {device.memory: device for device in devices if device.weighs}
    if not weighing:
        return frozenset()
    regions, made = _Regions(), set()
    for job in jobs:
        slot = job.ins[0] if job.ins else None
        if job.device.weighs:
            own = [s for s in (*job.outs, *job.ins) if s is not None and s.memory is job.device.memory]
            types = [None if s is None else s.type for s in job.ins], [s.type for s in job.outs]
            far, near = (device.seconds(job.op, *types, threads) for device in (job.device, home))
            regions.add(own, far, near)
            made |= {id(s) for s in job.outs}
        elif slot is not None and slot.memory is not job.outs[0].memory:
            there = job.outs[0] if slot.memory is HOST else slot
            device = weighing.get(there.memory)
            if device is not None:
                regions.add([there], device.copy_seconds(there.type.nbytes), 0.0)
    small = regions.islands()
    if not small:
        return frozenset()
    return frozenset(value for value, s in slots.items() if id(s) in made and regions.of(s) in small)
