"""Text or bytes of a net, and its weights, to a `Graph`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.base.files.mapped import map_file
from bolt_numba.base.files.regular import read_regular
from bolt_numba.converters.bounded import HEAD, refuse_no_model
from bolt_numba.converters.caffe.binary import Blob, read_net, read_weights
from bolt_numba.converters.caffe.format import is_text
from bolt_numba.converters.caffe.net import Net, net_of
from bolt_numba.converters.caffe.reading.graph import CaffeReader
from bolt_numba.converters.caffe.text import parse
from bolt_numba.converters.scope import Scope
from bolt_numba.converters.survey import Survey, read_or_list
from bolt_numba.ir.graph import Graph

Bytes = bytes | memoryview


class CaffeSurvey(Survey[Scope], CaffeReader):
    """Reads on behind what is unsupported."""


def read_caffe(data: Bytes, name: str, path: Path | None, weights: tuple[Bytes, str] | None) -> Graph:
    """The graph of a net.

    data: a prototxt, or a caffemodel that is read alone.  path: of the file, beside which weights are looked for.
    weights: the second file and its name; the two may be given in either order.
    Raises InvalidModelError for what is no net and where layers lack weights, UnsupportedOpError listing all layers
    without a meaning here, ShapeError for layers whose bottoms do not fit.
    """
    if weights is not None and is_text(weights[0]) and not is_text(data):
        (data, name), weights = weights, (data, name)
    if not is_text(data) and not name.lower().endswith(".prototxt"):
        net, blobs, where = read_net(data, name), read_weights(data, name), ", wanted their blobs"
        if weights is not None:
            raise InvalidModelError(f"{name}: weights: got {weights[1]} beside a caffemodel, wanted a prototxt")
    else:
        net, (blobs, where) = parse(data, name), _weights_for(name, path, weights)
    return _graph_of(net_of(net, name), name, blobs, where)


def _graph_of(net: Net, name: str, blobs: dict[str, list[Blob]], where: str) -> Graph:
    """The graph, which can be read anew for other sizes of inputs: a net of Caffe is not made for one of them."""
    reader, survey = CaffeReader(name, blobs, where), CaffeSurvey(name, blobs, where)
    unknown = reader.unknown(net)
    survey.found += unknown
    if unknown:
        raise UnsupportedOpError(name, survey.lines(lambda: survey.read(net)))
    graph: Graph = read_or_list(reader, survey, lambda either: either.read(net))
    graph.metadata["format"] = "caffe"

    def anew(sizes: Mapping[str, Sequence[int]]) -> Graph:
        inputs = net.inputs | {n: tuple(shape) for n, shape in sizes.items()}
        return _graph_of(Net(net.name, inputs, net.layers, net.outputs), name, blobs, where)

    graph.anew = anew
    return graph


def _weights_for(name: str, path: Path | None, weights: tuple[Bytes, str] | None) -> tuple[dict[str, list[Blob]], str]:
    """Blobs by layer, and what a message says where some are missing."""
    if weights is not None:
        return read_weights(*weights), f" in {weights[1]}, wanted their blobs"
    found = None if path is None else beside(path)
    if found is not None:
        view: Bytes = memoryview(map_file(found)) if found.stat().st_size else b""
        refuse_no_model(bytes(view[:HEAD]), found.name)
        return read_weights(view, found.name), f" in {found.name}, wanted their blobs"
    return {}, ", wanted a caffemodel: name it as the second file (weights), or give it the name of the prototxt"


def files_of(data: Bytes, path: Path | None, weights: Bytes | None) -> tuple[Bytes, Bytes]:
    """The text and the weights of a net, which may be given in either order; those beside it where none are given.

    Empty for what there is not.
    """
    if weights is None and is_text(data) and path is not None:
        found = beside(path)
        weights = None if found is None else read_regular(found)
    given = [data, b"" if weights is None else weights]
    text, model = given if is_text(data) else reversed(given)
    return text, model


def beside(path: Path) -> Path | None:
    """The caffemodel that belongs to a prototxt by its name, or as the only one that belongs to no other prototxt."""
    own = {path.stem, *(path.stem.replace(f"{a}{word}{b}", "") for word in _WORDS for a, b in _JOINTS)}
    models = sorted(p for p in path.parent.glob("*.caffemodel") if p.is_file())
    for chosen in ([p for p in models if p.stem == path.stem], [p for p in models if p.stem in own]):
        if len(chosen) == 1:
            return chosen[0]
    others = {p.stem for p in path.parent.glob("*.prototxt")} - own
    free = [p for p in models if p.stem not in others]
    return free[0] if len(free) == 1 else None


_WORDS = ("deploy", "test", "train_val", "inference")
_JOINTS = (("_", ""), ("-", ""), (".", ""), ("", "_"), ("", "-"), ("", "."))
