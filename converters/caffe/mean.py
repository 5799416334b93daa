"""Mean files: the one image that training subtracted from all others."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.types import Array
from bolt_numba.converters.bounded import reading
from bolt_numba.converters.caffe.binary import read_blob
from bolt_numba.converters.wire import IrregularError, what_is_wrong
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph


@border("read_mean", OSError)
def read_mean(source: str | os.PathLike[str] | bytes) -> Array:
    """The image of a mean file (``mean.binaryproto``) of Caffe, [channels, height, width] f32.

    source: a path or the bytes.  Raises InvalidModelError for what is no such file, OSError where it cannot be opened.
    """
    data, name = (source, "mean") if isinstance(source, bytes) else (Path(source).read_bytes(), Path(source).name)
    with reading(name):
        return mean_of(data, name)


def mean_of(data: bytes | memoryview, name: str) -> Array:
    """`read_mean` of bytes; name: of the file, for messages."""
    try:
        blob = read_blob(memoryview(data), 0, len(data), name)
    except IrregularError:
        raise InvalidModelError(f"{name}: got {what_is_wrong(data)}, wanted a mean file") from None
    if not blob.data.size:
        raise InvalidModelError(f"{name}: got {len(data)} bytes without numbers, wanted a mean file")
    shape = blob.shape[1:] if len(blob.shape) == 4 and blob.shape[0] == 1 else blob.shape
    return np.ascontiguousarray(blob.data.reshape(shape))


def mean_graph(data: bytes | memoryview, name: str) -> Graph:
    """A graph without inputs whose only output is the image, ``mean``."""
    graph = Graph(name)
    graph.add_output(Builder(graph).const(mean_of(data, name), "mean"), "mean")
    graph.metadata["format"] = "caffe mean"
    return graph
