"""Everything that is unsupported in a Paddle program; see `converters.survey`."""

from __future__ import annotations

from collections.abc import Callable

from bolt_numba.base.types import TensorType
from bolt_numba.converters.paddle.reading.graph import PaddleReader
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.converters.scope import Scope
from bolt_numba.converters.survey import Survey


class PaddleSurvey(Survey[Scope], PaddleReader):
    """Reads on with the types that the program declares.  Operators without a reader are all found beforehand."""

    def declared(self, name: str, scope: Scope) -> TensorType:
        found = self.program.variable(name)
        return super().declared(name, scope) if found is None or found.type is None else found.type

    def lines(self, read: Callable[[], object]) -> list[str]:
        for block in self.program.all_blocks():
            for operation in block.operations:
                if PADDLE.find(self.program.dialect, operation.type, operation.version) is None:
                    node = self.node(operation)
                    self.found.append(f"{node.op} at node '{node.label}'")
        return super().lines(read)
