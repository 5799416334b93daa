"""How a model is served, of the command line or of a ``model.toml`` beside it, and how the server is reached."""

from __future__ import annotations

import ssl
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from bolt_numba.base.errors import BoltError
from bolt_numba.base.files.regular import read_text
from bolt_numba.base.options import OPTIONS, not_among
from bolt_numba.flow.parts import want_count, want_seconds
from bolt_numba.serve.errors import RequestError

FILE = "model.toml"
LATEST, ALL = "latest", "all"
US = 1e-6
MIB = 1 << 20
EMBEDDINGS = frozenset(("tokenizer", "pooling", "normalize", "max_tokens", "truncate"))


class SettingsError(RequestError):
    """A setting of a served model that does not fit: file, key, what was found and what was wanted."""


@dataclass(frozen=True)
class ModelSettings:
    """How one model is served.

    max_batch, max_wait_us: requests that run as one, and microseconds that the first waits for others.
    pad: numbers that inputs of different lengths are filled up with, by the input's name; others are batched by shape.
    ragged: inputs of any lengths run together, each row as if alone.
    embeddings: a table of options of `bolt_numba.text.Encoder`, and ``truncate``: whether texts that are too long are
    cut off; None: the usual ones, where a tokenizer.json lies beside the model and it is an encoder.
    queue: requests that may be under way; those beyond are refused (429).
    instances: runs at once; None: as many as there are threads, of which each has one where all are at work.
    deadline_ms: of requests that name none; None: no limit.  max_rows: of a request; None: no limit.
    versions: "latest", "all", or a list of numbers.  warmup: shapes by input, a table for each plan to make first.
    weights: a second file of the model's.  functions, modules of a flow are its own.
    sequences: texts that a decoder makes at once.  context: tokens of a text, as `bolt_numba.text.Generator` has it.
    is_of_texts: whether the model's own file says one of them, so that it has to be a decoder.
    compile: options of `bn.compile`, such as device, threads and precision.
    """

    max_batch: int = 1
    max_wait_us: int = 0
    pad: Mapping[str, float] = field(default_factory=dict)
    queue: int = 256
    instances: int | None = None
    deadline_ms: float | None = None
    max_rows: int | None = None
    versions: Any = LATEST
    warmup: tuple[Mapping[str, Any], ...] = ()
    weights: str | None = None
    ragged: bool = False
    embeddings: Mapping[str, Any] | None = None
    sequences: int = 8
    context: int | None = None
    is_of_texts: bool = False
    compile: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        optional = {"instances": self.instances, "max_rows": self.max_rows, "context": self.context}
        for key in ("max_batch", "queue", "sequences", *(key for key, given in optional.items() if given is not None)):
            want_count(key, getattr(self, key))
        want_seconds("max_wait_us", self.max_wait_us)
        if self.deadline_ms is not None:
            want_seconds("deadline_ms", self.deadline_ms)
        named = isinstance(self.versions, list) and all(type(v) is int and v > 0 for v in self.versions)
        if not named and self.versions not in (LATEST, ALL):
            raise SettingsError(f"versions: got {self.versions!r:.80}, wanted 'latest', 'all' or a list of numbers")
        pad, warmup = cast("Any", self.pad), cast("Any", self.warmup)
        if not isinstance(pad, Mapping) or not all(type(x) in (int, float) for x in pad.values()):
            raise SettingsError(f"pad: got {pad!r:.80}, wanted a table of numbers by input")
        for key in ("max_wait_us", "pad", "ragged"):
            if getattr(self, key) and self.max_batch == 1:
                raise SettingsError(f"{key}: got it with max_batch 1, wanted a larger max_batch")
        if self.embeddings is not None and not isinstance(cast("Any", self.embeddings), Mapping):
            raise SettingsError(f"embeddings: got {self.embeddings!r:.80}, wanted a table")
        if unknown := sorted((self.embeddings or {}).keys() - EMBEDDINGS):
            raise SettingsError(f"embeddings: got {unknown}, wanted some of {sorted(EMBEDDINGS)}")
        for shapes in warmup:
            if not isinstance(shapes, Mapping) or not all(map(_is_shape, shapes.values())):
                raise SettingsError(f"warmup: got {shapes!r:.80}, wanted tables of shapes by input")


@dataclass(frozen=True)
class Doors:
    """How a server is reached, and what requests are held to.

    http_port, grpc_port: None: not at all; 0: any that is free.  max_body: MiB of a request.
    body_seconds: that headers, and a body, may take to arrive.  grace_seconds: for requests when the server ends.
    max_tensors: inputs, or outputs, that a request may name.
    max_connections: beyond these HTTP answers 503, but to who asks whether it is live.
    token: that requests bring as 'authorization: Bearer TOKEN'.
    certificate, key: files of TLS.  poll_seconds: between looks at the folder of models; None: none.
    """

    host: str = "127.0.0.1"
    http_port: int | None = 8000
    grpc_port: int | None = 8001
    max_body: float = 64
    body_seconds: float = 30
    grace_seconds: float = 30
    max_tensors: int = 1000
    max_connections: int = 1000
    token: str | None = None
    certificate: Path | None = None
    key: Path | None = None
    poll_seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise RequestError("tls: got a certificate or a key, wanted both")
        if self.certificate is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
            except OSError as error:  # one of ssl, too
                raise RequestError(f"--tls-certificate, --tls-key: {error}, wanted two files in PEM") from None
        if self.http_port is None and self.grpc_port is None:
            raise RequestError("ports: got none, wanted --http-port or --grpc-port")


def _is_shape(given: Any) -> bool:
    return isinstance(given, (list, tuple)) and all(type(d) is int and d >= 0 for d in given)


OWN = frozenset(f.name for f in fields(ModelSettings)) - {"compile", "is_of_texts"}
TEXTS = {"sequences", "context"}
COMPILED = frozenset(OPTIONS) - {"stages"}


def settings_of(folder: Path, usual: ModelSettings) -> ModelSettings:
    """What a folder's ``model.toml`` says; the rest is as usual.  Raises SettingsError, with all unknown keys."""
    path = folder / FILE
    if not path.is_file():
        return usual
    try:
        data = tomllib.loads(read_text(path, MIB, "settings of a model", SettingsError))
    except ValueError as error:
        raise SettingsError(f"{path}: got what is no TOML: {error}") from error
    known = OWN | COMPILED
    if unknown := sorted(data.keys() - known):
        raise SettingsError(f"{path}: {not_among('keys', unknown, sorted(known))}")
    own = {key: data[key] for key in data.keys() & OWN}
    if "warmup" in own:
        own["warmup"] = tuple(own["warmup"]) if isinstance(own["warmup"], list) else (own["warmup"],)
    own["is_of_texts"] = bool(TEXTS & data.keys())
    own["compile"] = {**usual.compile, **{key: data[key] for key in data.keys() & COMPILED}}
    try:
        return replace(usual, **own)
    except BoltError as error:
        raise SettingsError(f"{path}: {error}") from error
