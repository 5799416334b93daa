"""The chips: what each of them can do."""

from __future__ import annotations

from dataclasses import dataclass

import simnpu_sdk.graph as graphs

LITTLE = frozenset(
    ("Conv2D", "MaxPool2D", "AvgPool2D", "FullyConnected", "Add", "Relu", "Clip", "Reshape", "Transpose")
)  # fmt: skip
FLOATS = LITTLE | {
    "Sub", "Mul", "Div", "Max", "Min", "Sigmoid", "Tanh", "Exp", "Neg", "Sqrt", "MatMul", "Softmax", "Concat", "Mean",
}  # fmt: skip
BYTES = frozenset(("Quantize", "Dequantize", "QConv2D", "QFullyConnected"))
SPATIAL = frozenset(("Conv2D", "QConv2D", "MaxPool2D", "AvgPool2D"))


@dataclass(frozen=True)
class Chip:
    """A chip.

    arithmetic: "f32"; "bf16", in which operands of products and all results are rounded to; "u8", in which operands of
    products are.  channels: the most of an image.  multiple: filters of a convolution come in such groups.  sram: bytes
    for all that is alive between two operators.
    """

    name: str
    operators: frozenset[str]
    arithmetic: str
    channels: int
    multiple: int
    sram: int
    max_rank: int = 4

    def refuses(self, op: graphs.Op, ins: list[graphs.Tensor], outs: list[graphs.Tensor]) -> str:
        """Why the chip cannot run an operator on such tensors; empty where it can."""
        if op.kind not in self.operators:
            return f"{self.name} has no {op.kind}"
        deepest = max(len(t.shape) for t in (*ins, *outs))
        if deepest > self.max_rank:
            return f"{self.name} has tensors of rank {self.max_rank} at most: got {deepest}"
        if op.kind in SPATIAL:
            widest = max(t.shape[3] or 0 for t in (ins[0], outs[0]))
            if widest > self.channels:
                return f"{self.name} has images of {self.channels} channels at most: got {widest}"
        if op.kind in ("Conv2D", "QConv2D") and (ins[1].shape[0] or 0) % self.multiple:
            return f"{self.name} wants a multiple of {self.multiple} filters: got {ins[1].shape[0]}"
        return ""


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("sim100", LITTLE, "bf16", channels=256, multiple=16, sram=1 << 20),
        Chip("sim200", FLOATS, "f32", channels=4096, multiple=1, sram=1 << 26),
        Chip("sim300", FLOATS | BYTES, "u8", channels=4096, multiple=1, sram=1 << 24),
    )
}
