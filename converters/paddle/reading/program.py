"""What the two kinds of program have in common once they are parsed: blocks of operations over names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

from bolt_numba.base.records import record
from bolt_numba.base.types import TensorType

Slots = list[tuple[str, tuple[str, ...]]]
"""Names by slot, in the file's order; "" among the names is what is omitted.  PIR's slots have no names: their order
tells."""

LEGACY, PIR = "legacy", "pir"


class Operation:
    """One operation of a block.

    type: without its dialect.  attributes: as the file has them; tuples for lists.  version: of the operator, 0 where
    the file tells none.  blocks: of the operation's own.  changed: operands of PIR that it, or its blocks, write into.
    """

    __slots__ = ("attributes", "blocks", "changed", "inputs", "outputs", "type", "version")

    def __init__(
        self,
        type: str,
        inputs: Slots,
        outputs: Slots,
        attributes: dict[str, Any],
        *,
        version: int = 0,
        blocks: tuple[PaddleBlock, ...] = (),
        changed: tuple[str, ...] = (),
    ) -> None:
        self.type, self.inputs, self.outputs, self.attributes = type, inputs, outputs, attributes
        self.version, self.blocks, self.changed = version, blocks, changed

    @property
    def reads(self) -> Iterator[str]:
        """Names that the operation itself reads."""
        return (name for _, names in self.inputs for name in names if name)

    @property
    def writes(self) -> Iterator[str]:
        """Names of its results."""
        return (name for _, names in self.outputs for name in names if name)


@record(frozen=False)
class Variable:
    """What a file declares of a name.

    type: of its tensor; None for what is no tensor.  is_kept: whether its content stands in the file of weights.
    array: whether it is an array of tensors, of the type.  lod: levels of its ragged structure.
    """

    type: TensorType | None
    is_kept: bool = False
    is_array: bool = False
    lod: int = 0


@record(frozen=False)
class PaddleBlock:
    """Operations in order.  arguments, results: names that PIR's regions take and give.

    variables: what is declared of names.
    """

    operations: list[Operation]
    results: list[str] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)


@record(frozen=False)
class PaddleProgram:
    """A parsed file.

    dialect: `LEGACY` or `PIR`.  blocks: the first is the program's; PIR nests the others in operations.
    feeds: inputs as the user names them, and the names they have inside.  fetches: outputs likewise.
    weights: names in the file of weights, and inside.  version: of the writer.
    empty: weights that no file has, as a run does not read them.
    declared: what blocks declare, by name, once somebody asked.
    """

    dialect: str
    blocks: list[PaddleBlock]
    feeds: list[tuple[str, str]]
    fetches: list[tuple[str, str]]
    weights: list[tuple[str, str]]
    version: int = 0
    empty: list[str] = field(default_factory=list)
    declared: dict[str, Variable] = field(default_factory=dict)

    def all_blocks(self) -> Iterator[PaddleBlock]:
        """Every block, those nested in operations included."""
        if self.dialect == LEGACY:
            yield from self.blocks
            return
        waiting = list(self.blocks)
        while waiting:
            block = waiting.pop()
            yield block
            waiting += [inner for operation in block.operations for inner in operation.blocks]

    def variable(self, name: str) -> Variable | None:
        """What the outermost block that knows a name declares of it."""
        if not self.declared:
            for block in reversed(list(self.all_blocks())):
                self.declared.update(block.variables)
        return self.declared.get(name)
