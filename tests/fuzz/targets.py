"""The targets: what reads the bytes, which good files to begin with, and how they change besides libFuzzer's own ways.

A model that is two files is one input: the length of the first in four bytes, the first, the second.
"""

from __future__ import annotations

import functools
import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import bolt_numba as bn
from bolt_numba import flow
from bolt_numba.errors import BoltError
from bolt_numba.flow.named import FileNames
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.store import is_bolt, load_model, to_bytes
from bolt_numba.sessions.guesses import random_feeds
from bolt_numba.sessions.inputs import spec_of
from bolt_numba.surgery import packed
from tests import formats
from tests.attack import documents, files
from tests.attack.child import GOOD, refusal
from tests.attack.formats import BINARY, TEXT
from tests.gguf_files import BY_SCORES, BYTEWISE, EXPERTS, Tiny
from tests.pipeline_graphs import graph as network

Change = Callable[[bytes, np.random.Generator], bytes]
LARGEST = 1 << 16
"""Bytes of a good file: small ones are run through more often."""
NETWORKS = ("transformer", "control_flow", "squeeze_excite", "dense_block")
DIGITS = files.DIGITS.read_bytes()


@dataclass(frozen=True)
class Target:
    """What is fuzzed.

    read: takes the parts of an input, and a folder for files; raises a BoltError for what is no good.  None: a program
    in C does.  seeds: good inputs.  changes: for each part how it may change.  seconds: what one input may take.
    """

    read: Callable[[list[bytes], Path], object] | None
    seeds: Callable[[], Iterator[bytes]]
    changes: tuple[tuple[Change, ...], ...]
    seconds: int = 60

    def attempt(self, data: bytes, folder: Path) -> None:
        """Read an input; raises what is neither a result nor a refusal."""
        assert self.read is not None, "a program in C reads it"
        try:
            self.read(self.parts(data), folder)
        except Exception as error:
            if refusal(error)[0] not in GOOD:
                raise

    def parts(self, data: bytes) -> list[bytes]:
        if len(self.changes) == 1:
            return [data]
        size = int.from_bytes(data[:4], "little")
        return [data[4 : 4 + size], data[4 + size :]]

    def changed(self, data: bytes, rng: np.random.Generator, plain: Change) -> bytes:
        """The input with one of its parts changed.  plain: the way of the fuzzer itself, which is every second one."""
        parts = self.parts(data)
        filled = [place for place, part in enumerate(parts) if part] or [0]
        which = filled[rng.integers(len(filled))]
        own = self.changes[which]
        change = plain if rng.random() < 0.5 or not own else own[rng.integers(len(own))]
        with suppress(Exception):  # it is no longer what can be changed so
            parts[which] = change(parts[which], rng)
        return joined(*parts)


def joined(*parts: bytes) -> bytes:
    """One input of the parts of a model."""
    return parts[0] if len(parts) == 1 else len(parts[0]).to_bytes(4, "little") + b"".join(parts)


# --- readers ---------------------------------------------------------------------------------------------------------


def _as_file(name: str) -> Callable[[list[bytes], Path], object]:
    def read(parts: list[bytes], folder: Path) -> object:
        (folder / name).write_bytes(parts[0])
        return bn.load(folder / name)

    return read


def _gguf(parts: list[bytes], folder: Path) -> object:
    """Loaded, and run without a past where no more is asked for than small decoders have."""
    (folder / "m.gguf").write_bytes(parts[0])
    graph = bn.load(folder / "m.gguf")
    given = {"past_lengths": np.zeros(1, np.int32), "rows": np.zeros(1, np.int64)}
    return interpret(graph, random_feeds([spec_of(v.name, v.type) for v in graph.inputs], given=given))


def _caffe(parts: list[bytes], folder: Path) -> object:
    net, weights = folder / "net.prototxt", folder / "net.caffemodel"
    net.write_bytes(parts[0])
    weights.write_bytes(parts[1])
    return bn.load(net, weights=weights)


def _paddle(parts: list[bytes], folder: Path) -> object:
    model, weights = folder / ("m.json" if parts[0][:1] == b"{" else "m.pdmodel"), folder / "m.pdiparams"
    model.write_bytes(parts[0])
    weights.write_bytes(parts[1])
    return bn.load(model)


def _bolt(parts: list[bytes], folder: Path) -> object:
    return load_model(parts[0])


def _packed(parts: list[bytes], folder: Path) -> object:
    """Loaded and run, as the packs are looked at by the plans."""
    session = bn.compile(io.BytesIO(parts[0]), threads=1)
    return session(files.random_feeds(session.inputs)) if all(map(files._is_small, session.inputs)) else None


def _flow(parts: list[bytes], folder: Path) -> object:
    """Read, not run.  A flow may name any function that Python finds: here all of them are one that does nothing."""
    is_toml = b" = " in parts[0]
    path = folder / ("flow.toml" if is_toml else "flow.prototxt")
    path.write_bytes(parts[0])
    for name, data in _beside().items():
        (folder / name).write_bytes(data)
    imports = mock.patch.object(FileNames, "_imported", return_value=_nothing)
    with imports, mock.patch.object(FileNames, "given", _given), flow.load(path):
        return None


def _given(names: FileNames, kind: str, text: str) -> Any:
    """The function of any plain name."""
    return _nothing if kind == "functions" and ":" not in text else None


def _nothing(*values: Any) -> Any:
    return values


@functools.cache
def _beside() -> dict[str, bytes]:
    """Files that flows name."""
    made = {"digits.onnx": DIGITS}
    for name, array in {"by.npy": np.full(2, 10, np.float32), "five.npy": np.array(5)}.items():
        file = io.BytesIO()
        np.save(file, array)
        made[name] = file.getvalue()
    return made


# --- good files ------------------------------------------------------------------------------------------------------


def _golden(format: str, *roles: str) -> Callable[[], Iterator[bytes]]:
    def seeds() -> Iterator[bytes]:
        for case in formats.cases(format):
            if case.kind != "folder":  # has a file for each weight
                yield joined(*[case.files.get(role, b"") for role in roles])

    return seeds


def _onnx_seeds() -> Iterator[bytes]:
    """Of each operator the model of a test of onnx's, and the networks that other tests have."""
    from onnx.backend.test.loader import load_model_tests

    with np.errstate(all="ignore"):
        for case in load_model_tests(kind="node"):
            yield case.model.SerializeToString()
    with tempfile.TemporaryDirectory() as folder:
        for name in NETWORKS:
            with suppress(BoltError):  # has what ONNX lacks
                bn.save(network(name), Path(folder) / "m.onnx")
                yield (Path(folder) / "m.onnx").read_bytes()
    yield DIGITS


def _gguf_seeds() -> Iterator[bytes]:
    bytewise, by_scores = Tiny("llama", "Q4_1", width=32), Tiny("gemma3", layers=2, attention__sliding_window=3)
    bytewise.extra, by_scores.extra = BYTEWISE, BY_SCORES
    scaled = Tiny("phi3", rope__scaling__type="yarn", rope__scaling__factor=4.0)
    chosen = Tiny("qwen2moe", "IQ4_NL", width=32, **EXPERTS, expert_shared_feed_forward_length=32)
    parallel = Tiny("phi2", "MXFP4", width=32)
    yield from (tiny.data() for tiny in (bytewise, by_scores, scaled, chosen, parallel))


def _bolt_seeds() -> Iterator[bytes]:
    yield from documents.seeds().values()


def _packed_seeds() -> Iterator[bytes]:
    for name in NETWORKS:
        yield to_bytes(packed(network(name), threads=[1]))


def _program_seeds() -> Iterator[bytes]:
    from tests.native.whole import models

    for target in ("x86-64", "native"):
        yield from (path.read_bytes() for path in models(target).values())


def _flow_seeds() -> Iterator[bytes]:
    from tests.flow import test_commands, test_files
    from tests.flow.test_bolt_graphs import graph_of

    of_bolt = test_files.BOLT.replace("/data/local/tmp/digits_f32.bolt", "digits.onnx")
    yield from (text.encode() for text in (test_files.FLOW, test_commands.FLOW, test_commands.BYTES, of_bolt))
    inputs = {"x": ("FLOAT32", "NCHW", (1, 1, 8, 8)), "y": ("UINT8", "NORMAL", (2, 3))}
    yield graph_of("g", inputs, ["p"], type="Inference", inference_parameter=["digits.onnx", ""]).encode()


# --- changes ---------------------------------------------------------------------------------------------------------


def _document(data: bytes, rng: np.random.Generator) -> bytes:
    """What a .bolt file says changed, with checksums that are right."""
    return documents.mutated(data, int(rng.integers(1 << 62))) if is_bolt(data) else files.spliced(data, rng)


_DOCUMENT = (_document, _document, files.resealed, files.truncated)
TARGETS = {
    "tflite": Target(_as_file("m.tflite"), _golden("tflite", "model"), (BINARY,)),
    "gguf": Target(_gguf, _gguf_seeds, (BINARY,)),
    "onnx": Target(_as_file("m.onnx"), _onnx_seeds, (BINARY,)),
    "caffe": Target(_caffe, _golden("caffe", "prototxt", "caffemodel"), (TEXT, BINARY)),
    "paddle": Target(_paddle, _golden("paddle", "model", "params"), (BINARY + TEXT, BINARY)),
    "bolt": Target(_bolt, _bolt_seeds, (_DOCUMENT,)),
    "packed": Target(_packed, _packed_seeds, (_DOCUMENT,), 300),  # it may compile kernels
    "flow": Target(_flow, _flow_seeds, (TEXT,)),
    "program": Target(None, _program_seeds, ((),)),
}
