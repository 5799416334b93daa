"""The inputs that a model is calibrated with: arrays, feeds, an ``.npz`` file or a folder, as a list of feeds."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from bolt_numba.base.border import theirs
from bolt_numba.base.errors import BoltError, DataError, DTypeError, InvalidModelError, ShapeError
from bolt_numba.base.files.regular import open_regular
from bolt_numba.base.types import Array, TensorSpec
from bolt_numba.sessions.inputs import as_array, as_input

Feed: TypeAlias = dict[str, Array]
Data: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | Iterable[Mapping[str, Any]] | Array"

BATCH_BYTES = 4 << 20
"""Of one feed, where the model takes a batch of any size."""
MAX_BATCH = 64
_UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile)


def feeds_of(data: Data, inputs: Sequence[TensorSpec]) -> list[Feed]:
    """One feed for each run, checked against the model's inputs.

    data: arrays by input name, whose first axis is the sample (or one array, for a model of one input); a sequence of
    feeds; an ``.npz`` file of such arrays; a folder whose ``.npz`` or ``.npy`` files are such data each, in the order
    of their names.  Samples are batched as the model declares; where it takes any batch, as many as make 4 MiB.
    Raises ShapeError or DTypeError for names, shapes and dtypes that the model does not take, DataError for NaN,
    infinities and no data at all.
    """
    found = _read(Path(data), inputs) if isinstance(data, (str, os.PathLike)) else _batched(data, inputs)
    if not found:
        raise DataError("calibration data: got none, wanted at least one sample")
    for number, feed in enumerate(found):
        for name, array in feed.items():
            if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
                raise DataError(f"calibration data: sample {number}: input {name!r}: got NaN or infinity")
    return found


def _read(path: Path, inputs: Sequence[TensorSpec]) -> list[Feed]:
    if not path.is_dir():
        return _batched(_load(path), inputs)
    files = sorted(p for p in path.iterdir() if p.suffix in (".npz", ".npy"))
    if not files:
        raise DataError(f"{path}: got no .npz or .npy file, wanted calibration data")
    return [feed for file in files for feed in _batched(_load(file), inputs)]


def _load(path: Path) -> Any:
    """The content of an .npz file by name, or the array of an .npy file."""
    if path.suffix not in (".npz", ".npy"):
        path.stat()  # what is not there has no suffix to complain of
        raise BoltError(f"{path}: calibration data: got {path.suffix or 'no suffix'}, wanted .npz, .npy or a folder")
    with open_regular(path) as file:
        return _content(file, path)


def _content(file: BinaryIO, path: Path) -> Any:
    try:
        loaded = np.load(file, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except _UNREADABLE as error:
        raise InvalidModelError(f"{path}: is no {path.suffix} file: {error}") from error


def _batched(data: Any, inputs: Sequence[TensorSpec]) -> list[Feed]:
    """Feeds of one thing that holds samples."""
    if isinstance(data, np.ndarray):
        if len(inputs) != 1:
            names = ", ".join(s.name for s in inputs)
            raise DTypeError(f"calibration data: got one array, wanted arrays by name for {names}")
        data = {inputs[0].name: data}
    if isinstance(data, Mapping):
        return _split(_named(data, inputs), inputs)
    if not isinstance(data, Iterable) or isinstance(data, (str, bytes)):
        raise DTypeError(f"calibration data: got a {type(data).__name__}, wanted arrays by name or a list of them")
    made = []
    for feed in theirs("calibration data", list)(data):
        if isinstance(feed, np.ndarray) and len(inputs) == 1:
            feed = {inputs[0].name: feed}
        if not isinstance(feed, Mapping):
            raise DTypeError(f"calibration data: got a {type(feed).__name__} in a list, wanted arrays by name")
        given = _named(feed, inputs)
        made.append({spec.name: as_input(spec, given[spec.name]) for spec in inputs})
    return made


def _named(feed: Mapping[str, Any], inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    names = [spec.name for spec in inputs]
    if sorted(map(str, feed)) != sorted(names):
        raise ShapeError(f"calibration data: inputs: got {sorted(map(str, feed))}, wanted {sorted(names)}")
    return dict(feed)


def _split(arrays: dict[str, Any], inputs: Sequence[TensorSpec]) -> list[Feed]:
    """Batches along the first axis of all arrays."""
    whole = {s.name: as_array(s, arrays[s.name]) for s in inputs}
    counts = {name: a.shape[0] if a.ndim else None for name, a in whole.items()}
    if len(set(counts.values())) != 1 or None in counts.values():
        raise ShapeError(f"calibration data: samples of each input: got {counts}, wanted equally many")
    count = next(iter(counts.values())) or 0
    lifted = {s.name: s.shape is not None and whole[s.name].ndim == len(s.shape) + 1 for s in inputs}
    size = 1 if any(lifted.values()) else _batch_size(inputs, whole, count)  # a sample may be a whole feed
    made = []
    for start in range(0, count - size + 1, size):
        parts = {n: a[start] if lifted[n] else a[start : start + size] for n, a in whole.items()}
        made.append({s.name: as_input(s, np.ascontiguousarray(parts[s.name])) for s in inputs})
    if size > 1 and not made and count:
        raise ShapeError(f"calibration data: samples: got {count}, wanted at least a batch of {size}")
    rest = count - len(made) * size
    if rest and all(isinstance(s.shape[0], str) for s in inputs if s.shape):
        parts = {n: np.ascontiguousarray(a[count - rest :]) for n, a in whole.items()}
        made.append({s.name: as_input(s, parts[s.name]) for s in inputs})
    return made


def _batch_size(inputs: Sequence[TensorSpec], whole: Mapping[str, Array], count: int) -> int:
    declared = [s.shape[0] for s in inputs if s.shape]
    fixed = [d for d in declared if isinstance(d, int)]
    if fixed:
        return max(1, fixed[0])
    each = sum(a.nbytes for a in whole.values()) // max(count, 1)
    return max(1, min(count, MAX_BATCH, BATCH_BYTES // max(each, 1)))
