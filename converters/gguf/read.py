"""A GGUF file as a graph, with what a generator needs beside it in the metadata."""

from __future__ import annotations

from collections.abc import Callable

from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.converters.gguf.container import Data, read_parts
from bolt_numba.converters.gguf.decoder import EMBEDDING, GgufDecoder
from bolt_numba.converters.gguf.families import DecoderSizes
from bolt_numba.converters.gguf.tokenizer import read_tokenizer
from bolt_numba.ir.graph import Graph


def read_gguf(data: Data, file: str, open_part: Callable[[str, str], Data]) -> Graph:
    """The decoder of a file, or of several whose first it is (see `read_parts`): a graph by `GgufDecoder`.

    Raises InvalidModelError, and UnsupportedOpError with all that has no meaning here.

    Metadata beside that of `read_tokenizer`: ``architecture``, and ``context_length``, the most positions.
    """
    found = read_parts(data, file, open_part)
    sizes = DecoderSizes(found)
    tokens, table = found.values.get("tokenizer.ggml.tokens"), found.tensors.get(EMBEDDING)
    if isinstance(tokens, list) and table is not None and len(tokens) > table.shape[0]:
        wanted = f"wanted one for each of {len(tokens)} tokens"
        raise InvalidModelError(f"{file}: tensor '{EMBEDDING}': got {table.shape[0]} rows, {wanted}")
    facts, unsupported = read_tokenizer(found)
    kinds = [f"tensor '{t.name}' of kind {t.kind}" for t in found.tensors.values() if t.data is None]
    if unsupported := [*sizes.unsupported, *unsupported, *kinds]:
        raise UnsupportedOpError(file, unsupported)
    made = GgufDecoder(found, sizes)
    graph = made.build()
    left = [f"tensor '{name}' of {sizes.arch}" for name in found.tensors if name not in made.taken]
    if unsupported := sizes.unsupported + left:
        raise UnsupportedOpError(file, unsupported)
    graph.metadata = {"format": "gguf", "architecture": sizes.arch, "context_length": str(sizes.context), **facts}
    return graph
