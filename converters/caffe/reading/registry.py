"""The table of Caffe's readers: type of a layer -> function that adds its operators."""

from __future__ import annotations

from pathlib import Path

from bolt_numba.converters.readers import Readers

KINDS = {"int": 1, "float": 2, "bool": 3, "str": 4, "Ints": 5, "Floats": 6, "Dims": 7, "Message": 8, "Texts": 9}
"""What an attribute's annotation makes of a field's values; see `attributes.value_of`."""

_PACKAGE = __name__.rpartition(".")[0]
CAFFE = Readers("caffe", [f"{_PACKAGE}.tables"], Path(__file__).parents[1], KINDS)
reader = CAFFE.reader

NOT_READ = dict.fromkeys(("Repeat", "Jump"), "it moves Bolt's program counter, which a graph has not")
"""Types of layers that are left out on purpose, and why."""


def described(kind: str, label: str) -> str:
    """A layer without a meaning here, for messages."""
    why = NOT_READ.get(kind)
    return f"{kind} at layer '{label}'" + (f": {why}" if why else "")
