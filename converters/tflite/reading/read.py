"""TFLite bytes to a `Model`: a graph for each signature, or one of the first subgraph."""

from __future__ import annotations

from bolt_numba.base.errors import UnsupportedOpError
from bolt_numba.base.types import F32, TensorType
from bolt_numba.converters.bounded import Folders
from bolt_numba.converters.flat import Table
from bolt_numba.converters.survey import Survey
from bolt_numba.converters.tflite.container import DTYPES, Container
from bolt_numba.converters.tflite.metadata import metadata_of
from bolt_numba.converters.tflite.reading.graph import TfliteReader, described
from bolt_numba.converters.tflite.reading.registry import TFLITE
from bolt_numba.converters.tflite.reading.scope import SubgraphScope
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.model import Model


class TfliteSurvey(Survey[SubgraphScope], TfliteReader):
    """Reads on behind what is unsupported, with the types that the file declares.

    Operators without a reader are listed wherever they stand, also where reading cannot come.
    """

    def __init__(self, container: Container) -> None:
        super().__init__(container)
        for number, subgraph in enumerate(container.subgraphs):
            for i, operator in enumerate(subgraph["operators"] or ()):
                code = container.code_of(operator)
                if TFLITE.find(*code) is None:
                    self.found.append(described(*code, i, number))

    def declared(self, name: str, scope: SubgraphScope) -> TensorType:
        kind = scope.tensors[scope.number[name]]["type"]
        return self.type_of(scope, name) if kind in DTYPES else TensorType(F32, None)


def read_tflite(data: bytes | memoryview, name: str, folders: Folders = ()) -> Model:
    """The graphs of a TFLite file, whose large constants stay views of ``data``.

    name: what messages call the model.  folders: where files lie that it names.  Raises InvalidModelError for what is
    no valid model, UnsupportedOpError listing all that has no meaning here.
    """
    container = Container(data, name, folders)
    try:
        return _model(container, TfliteReader(container))
    except UnsupportedOpError:
        survey = TfliteSurvey(container)
        raise UnsupportedOpError(name, survey.lines(lambda: _model(container, survey))) from None


def _model(container: Container, reader: TfliteReader) -> Model:
    """A graph for each signature, in the order of the file; without signatures, that of the first subgraph.

    Inputs and outputs have the names that the signature gives them, else those of their tensors.
    """
    graphs: dict[str, Graph] = {}
    for row in container.model["signature_defs"] or ():
        key = row["signature_key"] or "main"
        inputs, outputs = (_named(row[kind]) for kind in ("inputs", "outputs"))
        if key in graphs or any(not name for _, name in (*inputs, *outputs)):
            raise container.invalid(f"signature '{key}'", "a name twice or none", "names of its own")
        graphs[key] = reader.read(row["subgraph_index"], key, dict(inputs), outputs)
    if not graphs:
        graphs["main"] = reader.read(0, container.subgraphs[0]["name"] or "main", {}, ())
    found = metadata_of(container)
    for graph in graphs.values():
        graph.metadata.update(found)
    return Model(graphs)


def _named(rows: list[Table] | None) -> list[tuple[int, str]]:
    """Numbers of tensors and the names that a signature gives them."""
    return [(row["tensor_index"], row["name"] or "") for row in rows or ()]
