"""From graphs to blobs: every operator is held against the chip, and what is alive at once against its SRAM."""

from __future__ import annotations

from simnpu_sdk import blob
from simnpu_sdk.chips import CHIPS, Chip
from simnpu_sdk.errors import SimError, UnsupportedError
from simnpu_sdk.graph import Graph


class Compiler:
    """The compiler of one chip and one version of the SDK."""

    def __init__(self, chip: str, sdk_version: str) -> None:
        if chip not in CHIPS:
            raise SimError(f"chip: got {chip!r}, wanted one of {', '.join(CHIPS)}")
        self.chip: Chip = CHIPS[chip]
        self.sdk_version = sdk_version

    def build(self, graph: Graph) -> bytes:
        """A blob of the graph.  Raises UnsupportedError where the chip cannot run it."""
        made = {*graph.inputs, *(i for i, t in enumerate(graph.tensors) if t.data is not None)}
        for op in graph.ops:
            if not made.issuperset(op.inputs):
                raise SimError(f"{op.kind}: got operands {op.inputs} that nothing makes before it")
            reason = self.chip.refuses(
                op, [graph.tensors[i] for i in op.inputs], [graph.tensors[i] for i in op.outputs]
            )
            if reason:
                raise UnsupportedError(reason)
            made.update(op.outputs)
        if not made.issuperset(graph.outputs):
            raise SimError(f"graph: got outputs {graph.outputs} that nothing makes")
        if (peak := peak_of(graph)) > self.chip.sram:
            raise UnsupportedError(f"{self.chip.name}: got {peak:,} bytes alive at once, wanted {self.chip.sram:,}")
        return blob.pack(graph, self.chip.name, self.sdk_version)


def peak_of(graph: Graph) -> int:
    """The most bytes of inputs, results and what lies between that are alive at once; unknown sizes count as one."""
    last = {i: at for at, op in enumerate(graph.ops) for i in (*op.inputs, *op.outputs)}
    last.update(dict.fromkeys(graph.outputs, len(graph.ops)))
    alive = {i: graph.tensors[i].nbytes for i in graph.inputs}
    peak = sum(alive.values())
    for at, op in enumerate(graph.ops):
        alive.update({i: graph.tensors[i].nbytes for i in op.outputs})
        peak = max(peak, sum(alive.values()))
        alive = {i: nbytes for i, nbytes in alive.items() if last.get(i, -1) > at}
    return peak
