"""Files of models all of which a device runs as one part, remembered between processes: operands, and the blob's name.

A process that finds its file here reads no model, runs no passes, and imports neither (`sessions.known`).  What is
remembered holds as long as nothing has changed that it depends on: the file and those that it names, options, the
sources of this package, installed packages, and the driver's file.  Files are told by device, inode, size and times,
which the system gives anew when somebody writes.  What is remembered is trusted as the blobs beside it are.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.base.config import CHECK, MEMORY
from bolt_numba.base.digest import sha256
from bolt_numba.base.files.folder_index import state_of
from bolt_numba.base.files.kept import contents, keep
from bolt_numba.base.files.stamps import are_settled, is_unchanged, stamp_at
from bolt_numba.base.records import record
from bolt_numba.base.swallowed import swallowing
from bolt_numba.base.types import STRING, Array, TensorSpec, dtype_from_name, dtype_name, spec_from_json
from bolt_numba.plugins import blobs, registry
from bolt_numba.plugins.interface import INTERFACE, Accelerator, DeviceDriver

MAX_PLANS = 32
"""Sets of input shapes that are remembered of a file."""
FORMATS = (".onnx", ".tflite", ".bolt")
"""Models that are one file, or name the others that they have."""
SOURCES = ("converters", "devices/parts", "plugins", "ir", "ops", "passes")
"""Folders of this package on which it depends what a device gets."""
DAMAGED = (LookupError, ValueError, TypeError, OSError, RecursionError)
"""What reading a damaged file, or an option that is none, ends in; all else is a fault of ours or of a driver."""
_ANNOUNCED = (".dist-info", ".egg-info")
Shapes = tuple[tuple[int, ...], ...]


@record(frozen=True)
class Opening:
    """What a caller asks for, as far as files and options say it.

    path: of the model.  device: the only plug-in.  options: all others, by name.  stamp: of the file before it is read.
    """

    path: str
    device: str
    options: Mapping[str, Any]
    stamp: list[Any]

    @property
    def name(self) -> str:
        """Of the file that tells how it starts."""
        text = json.dumps([self.path, self.device, sorted(self.options.items())])
        return f"{blobs.FOLDER}/{registry.kind_of(self.device)}-{sha256(text.encode()).hexdigest()}.start"


@record(frozen=True)
class Hookup:
    """How operands of a session are those of its only part, for one set of shapes.

    blob: its name.  stamp: of its file, whose checksum was right.  part, nodes: names.  ins, outs: by operand of the
    part, which of the session's it is; behind these inputs come the constants.  shapes: of the session's results.
    constants: what follows from the shapes of the inputs, and is an operand.
    """

    blob: str
    stamp: blobs.Stamp
    part: str
    nodes: tuple[str, ...]
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    shapes: Shapes
    constants: tuple[Array, ...]


@record(frozen=True)
class Start:
    """How a session begins.

    version: of the accelerator.  name: of the graph.  files: stamps of the model and of the files that it names.
    hookups: by shapes of the inputs.
    """

    driver: DeviceDriver
    version: str
    name: str
    files: Sequence[Sequence[Any]]
    signatures: tuple[str, ...]
    threads: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    hookups: Mapping[Shapes, Hookup]


def find(asked: Opening) -> Start | None:
    """How a session began that was asked for the same; None where nothing is known, or anything has changed."""
    # whatever a driver's package does, a file holds, or an option is: the session begins from the model
    with swallowing("start", *DAMAGED):
        document = _document(asked)
        if (
            document is not None
            and document["facts"] == _facts()
            and document["files"][0] == asked.stamp
            and all(map(is_unchanged, document["files"]))
        ):
            return _start(asked, document)
    return None


def write(
    asked: Opening, files: Iterable[Sequence[Any]], start: Mapping[str, Any], shapes: Shapes, hookup: Hookup
) -> None:
    """Remember one more set of shapes of a session.

    files: stamps of those that the model names.  start: fields of a `Start` as JSON has them.
    """
    stamps = [asked.stamp, *map(list, files)]
    if not are_settled(stamps):
        return
    driver = registry.driver(asked.device)
    same = {"facts": _facts(), "files": stamps, "made_by": [*registry.source_of(asked.device), _file_of(driver)]}
    same |= start
    old = _document(asked)
    rows = [] if old is None or any(old.get(key) != value for key, value in same.items()) else old["hookups"]
    constants = [[dtype_name(c.dtype), c.shape, c.tobytes().hex()] for c in hookup.constants]
    names = (shapes, hookup.blob, hookup.stamp, hookup.part, hookup.nodes)
    row = [*names, hookup.ins, hookup.outs, hookup.shapes, constants]
    rest: list[Any] = []
    with swallowing("start", *DAMAGED):  # nothing of what is damaged is kept
        rest = [each for each in rows if _tuples(each[0]) != shapes][1 - MAX_PLANS :]
    text = json.dumps(same | {"hookups": [*rest, row]}).encode()
    keep(asked.name, sha256(text).hexdigest().encode() + text)


def asked_for(path: str, device: str, options: Mapping[str, Any]) -> Opening | None:
    """What a caller asks for; None where it is no file."""
    try:
        return Opening(os.path.abspath(path), device, options, stamp_at(path))
    except (OSError, ValueError):
        return None


def can_start(accelerator: Accelerator) -> bool:
    """Whether an accelerator starts from a blob alone."""
    return type(accelerator).start is not Accelerator.start


def _document(asked: Opening) -> dict[str, Any] | None:
    for _, data in contents(asked.name):
        mark, text = data[:64], data[64:]
        with suppress(ValueError, RecursionError):
            if sha256(text).hexdigest().encode() == mark:
                found = json.loads(text)
                return found if isinstance(found, dict) else None
    return None


def _start(asked: Opening, document: Mapping[str, Any]) -> Start | None:
    value, is_announced, file = document["made_by"]
    driver = registry.known_driver(asked.device, value, is_announced)
    if driver is None or file is None or _file_of(driver) != file:
        return None
    inputs, outputs = (tuple(map(_spec, document[key])) for key in ("inputs", "outputs"))
    hookups: dict[Shapes, Hookup] = {}
    for row in document["hookups"]:
        with swallowing("start", *DAMAGED):  # what is damaged is not there; it goes when others are remembered
            shapes, made = _hookup(row)
            _want_sound(made, shapes, inputs, outputs)
            hookups[shapes] = made
    if not hookups:
        return None
    return Start(
        driver, document["version"], str(document["name"]), document["files"], tuple(document["signatures"]),
        document["threads"], inputs, outputs, hookups,
    )  # fmt: skip


def _hookup(row: Sequence[Any]) -> tuple[Shapes, Hookup]:
    shapes, blob, stamp, part, nodes, ins, outs, results, constants = row
    made = Hookup(
        blob, stamp, part, tuple(nodes), tuple(ins), tuple(outs), _tuples(results), tuple(map(_constant, constants))
    )
    return _tuples(shapes), made


def _want_sound(hookup: Hookup, shapes: Shapes, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raises ValueError where shapes are not those of the operands, or a number is none of an operand."""
    count = len(inputs) + len(hookup.constants)
    places = ((hookup.ins, count), (hookup.outs, len(outputs)))
    is_placed = all(type(i) is int and 0 <= i < most for given, most in places for i in given)
    operands = [*zip(shapes, inputs, strict=True), *zip(hookup.shapes, outputs, strict=True)]
    is_shaped = all(
        (spec.shape is None or len(dims) == len(spec.shape)) and all(type(d) is int and d >= 0 for d in dims)
        for dims, spec in operands
    )
    if not is_placed or not is_shaped:
        raise ValueError("hookup: got other operands, wanted those of the session")


def _spec(row: Sequence[Any]) -> TensorSpec:
    made = spec_from_json(row)
    if made.dtype == STRING:
        raise ValueError(f"operand {made.name}: got texts, wanted numbers")
    return made


def _constant(row: Sequence[Any]) -> Array:
    dtype, shape, content = row
    # a copy, as devices want aligned memory
    return np.frombuffer(bytes.fromhex(content), dtype_from_name(dtype)).reshape(shape).copy()


def _tuples(rows: Iterable[Iterable[int]]) -> Shapes:
    return tuple(map(tuple, rows))


def _facts() -> list[Any]:
    """What holds beside files and options."""
    root = Path(__file__).parent.parent
    sources = [state_of(root / name) for name in SOURCES]
    packages = sha256("\n".join(sorted(_packages())).encode()).hexdigest()
    return [INTERFACE, sources, packages, sys.version, np.__version__, CHECK.value, MEMORY.value]


def _packages() -> Iterator[str]:
    """A line for each package that is installed, and may announce a driver."""
    for place in dict.fromkeys(sys.path):
        with suppress(OSError), os.scandir(place or ".") as entries:
            for entry in entries:
                if entry.name.endswith(_ANNOUNCED):
                    yield f"{place} {entry.name} {entry.stat().st_mtime_ns}"


def _file_of(driver: DeviceDriver) -> list[Any] | None:
    """The stamp of the file that a driver is in; None where it has none."""
    with suppress(OSError, TypeError):
        return stamp_at(getattr(sys.modules.get(type(driver).__module__), "__file__", None) or "")
    return None
