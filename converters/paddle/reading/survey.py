"""Everything that is unsupported in a Paddle program; see `converters.survey`."""

from __future__ import annotations

from bolt_numba.converters.paddle.reading.graph import PaddleReader
from bolt_numba.converters.scope import Scope
from bolt_numba.converters.survey import Survey
from bolt_numba.types import TensorType


class PaddleSurvey(Survey[Scope], PaddleReader):
    """Reads on with the types that the program declares."""

    def declared(self, name: str, scope: Scope) -> TensorType:
        found = self.program.variable(name)
        return super().declared(name, scope) if found is None or found.type is None else found.type
