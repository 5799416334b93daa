"""Score of the readers of TFLite, Caffe and Paddle on cases whose results came from the originals.

    python -m tests.formats tflite|caffe|paddle|all [-k REGEX] [--engine session|interpreter|both] [--require N] [-v]

A case is a model, its inputs and the results of LiteRT, BVLC Caffe or Paddle; they stand in ``tests/golden/<format>``.
A case passes when every result has the shape, the dtype and, within the tolerance of its class, the values wanted.
Pytest runs some cases of each operator (`tests/converters/test_golden.py`); this module runs all of them.
"""

from __future__ import annotations

import argparse
import collections
import functools
import io
import json
import lzma
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import bolt_numba as bn
from bolt_numba.errors import UnsupportedOpError
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import Array

GOLDEN = Path(__file__).parent / "golden"
FORMATS = ("tflite", "caffe", "paddle")
ENGINES = ("session", "interpreter")


@dataclass
class Run:
    """Inputs and wanted results of one run: by name, or by place where the format counts them."""

    inputs: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, Array] = field(default_factory=dict)


@dataclass
class Case:
    """A model's files by role, and its runs one after the other in one session."""

    format: str
    group: str
    name: str
    files: dict[str, bytes]
    runs: list[Run]
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.format}/{self.group}/{self.name}"


class WrongResultError(Exception):
    """A result that is not the one wanted."""


# --- the cases -------------------------------------------------------------------------------------------------------


def cases(format: str, pattern: str = "") -> Iterator[Case]:
    """All cases of a format in a fixed order, or those whose ``group/name`` the pattern finds."""
    for file in sorted((GOLDEN / format).glob("*.npz")):
        stored: dict[str, dict[str, Array]] = {}
        with np.load(file) as archive:
            for key in archive.files:
                case, rest = key.split("/", 1)
                if re.search(pattern, f"{file.stem}/{case}"):
                    stored.setdefault(case, {})[rest] = archive[key]
        for name, arrays in stored.items():
            yield _case(format, file.stem, name, arrays)


def _case(format: str, group: str, name: str, arrays: Mapping[str, Array]) -> Case:
    runs: dict[int, Run] = {}
    files: dict[str, bytes] = {}
    for key, array in arrays.items():
        found = re.fullmatch(r"(?:step(\d+)/)?(in|out)(2?)/(.*)", key, re.DOTALL)
        if found is None:
            if key not in ("kind", "ops"):
                files[key] = array.tobytes()
            continue
        step, way, second, place = found.groups()
        run = runs.setdefault(int(step or 0) + len(second), Run())
        (run.inputs if way == "in" else run.outputs)[place] = array
    kind = str(arrays["kind"]) if "kind" in arrays else _classes().get(group, {}).get(name, "")
    return Case(format, group, name, files, [runs[k] for k in sorted(runs)], kind)


@functools.cache
def _classes() -> dict[str, dict[str, str]]:
    """The class of each TFLite case, which says how near a result must be."""
    found: dict[str, dict[str, str]] = json.loads((GOLDEN / "tflite" / "classes.json").read_text())
    return found


def packed(name: str) -> Mapping[str, Array]:
    """Arrays of a file below ``golden``, whose small entries take a fifth of the room packed as one."""
    made: Mapping[str, Array] = np.load(io.BytesIO(lzma.decompress((GOLDEN / name).read_bytes())))
    return made


# --- one case --------------------------------------------------------------------------------------------------------


def load(case: Case, folder: Path) -> Any:
    """The graph of a case, read from files as a user has them."""
    if case.format == "tflite":
        return bn.load(case.files["model"])
    if case.format == "caffe":
        (folder / "net.prototxt").write_bytes(case.files["prototxt"])
        (folder / "net.caffemodel").write_bytes(case.files["caffemodel"])
        return bn.load(folder / "net.prototxt", weights=folder / "net.caffemodel")
    if case.kind == "folder":
        (folder / "__model__").write_bytes(case.files["model"])
        for name, data in case.files.items():
            if name.startswith("param/"):
                (folder / name.removeprefix("param/")).write_bytes(data)
        return bn.load(folder)
    path = folder / ("m.json" if case.kind == "pir" else "m.pdmodel")
    path.write_bytes(case.files["model"])
    if case.files.get("params"):
        path.with_suffix(".pdiparams").write_bytes(case.files["params"])
    return bn.load(path)


def check(case: Case, engine: str = "session") -> None:
    """Run a case; raises WrongResultError, or what loading and running raise."""
    with tempfile.TemporaryDirectory() as folder:
        graph = load(case, Path(folder))
        session = bn.compile(graph) if engine == "session" else None
        names = [spec.name for spec in session.inputs] if session else [value.name for value in graph.inputs]
        for number, run in enumerate(case.runs):
            feeds = _by_name(run.inputs, names) if case.format == "tflite" else run.inputs
            if session is not None:
                found = dict(zip([spec.name for spec in session.outputs], session.run(None, feeds), strict=True))
            elif number and case.format == "tflite":
                break  # state is the session's
            else:
                found = interpret(graph, feeds)
            _compare(case, run.outputs, found, f"run {number}, " if len(case.runs) > 1 else "")


def _by_name(inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    """Inputs that are counted, by the names of the model's inputs."""
    return {names[int(place)]: array for place, array in inputs.items()}


def _compare(case: Case, wanted: Mapping[str, Array], found: Mapping[str, Array], where: str) -> None:
    results = list(found.values())
    for place, want in wanted.items():
        got = found[place] if case.format == "caffe" else results[int(place)]
        got = np.asarray(got)
        if got.shape != want.shape or got.dtype != want.dtype:
            raise WrongResultError(
                f"{where}output {place}: got {got.dtype}{got.shape}, wanted {want.dtype}{want.shape}"
            )
        _near(case, got, want, f"{where}output {place}")


def _near(case: Case, got: Array, want: Array, what: str) -> None:
    if want.dtype.kind not in "fiuV" or not want.size:
        good = np.array_equal(got, want)
    elif want.dtype.kind in "iu" and (levels := _levels(case, want)) is not None:
        difference = np.abs(got.astype(np.int64) - want.astype(np.int64)).max()
        if difference > levels:
            raise WrongResultError(f"{what}: got {difference} levels off, wanted at most {levels}")
        return
    elif want.dtype.kind in "iu":
        good = np.array_equal(got, want)
    else:
        rtol, atol = _tolerance(case, want)
        good = np.allclose(got.astype(np.float64), want.astype(np.float64), rtol, atol, equal_nan=True)
    if not good:
        raise WrongResultError(f"{what}: got {_shown(got, want)}")


def _shown(got: Array, want: Array) -> str:
    bad = ~np.isclose(got.astype(np.float64), want.astype(np.float64), 1e-4, 1e-5, equal_nan=True)
    place = tuple(int(i[0]) for i in np.nonzero(bad)) if bad.any() else ()
    return f"{got[place]} at {place}, wanted {want[place]} ({int(bad.sum())} of {bad.size} differ)"


def _levels(case: Case, want: Array) -> int | None:
    """Greatest difference of a quantised result; None where integers are exact."""
    if case.format != "tflite" or case.kind not in ("int8", "int8_pc", "uint8", "int16", "int16x8"):
        return None
    if want.dtype.itemsize > 2:
        return None
    if case.group in ("nets", "format"):
        return 2
    if want.dtype == np.int16:
        return {"logistic": 10, "tanh": 10, "log": 20, "rsqrt": 20, "exp": 2, "resize_bilinear": 80}.get(case.group, 1)
    return 1


def _tolerance(case: Case, want: Array) -> tuple[float, float]:
    """Relative and absolute."""
    if case.format == "tflite":
        if case.kind == "hybrid":
            return 0.0, 0.015 * float(np.abs(want).max())
        if case.kind.startswith("int"):
            return 0.0, 0.08 * float(np.abs(want).max())
        return (1e-3, 1e-4) if case.group in ("nets",) or re.search("rnn|lstm|svdf", case.group) else (1e-4, 1e-5)
    if want.dtype.itemsize == 2 or want.dtype.kind == "V":
        return 1e-2, 1e-3
    loose = case.format == "paddle" and case.group in ("nets", "rnn", "attention", "unary", "act")
    return 1e-4, 1e-4 if loose else 1e-5


# --- the score -------------------------------------------------------------------------------------------------------


def score(format: str, pattern: str, engine: str, verbose: bool) -> int:
    """Run all cases of a format; prints failures by group, returns how many passed."""
    failed: dict[str, list[str]] = collections.defaultdict(list)
    causes: collections.Counter[str] = collections.Counter()
    passed = total = 0
    began = time.monotonic()
    for case in cases(format, pattern):
        total += 1
        try:
            check(case, engine)
            passed += 1
        except UnsupportedOpError as error:
            causes.update(error.items)
            failed[case.group].append(f"{case.name}: unsupported: {'; '.join(error.items)[:200]}")
        except Exception as error:  # of any kind: the case has failed
            failed[case.group].append(f"{case.name}: {type(error).__name__}: {str(error)[:300]}")
    for group, lines in sorted(failed.items()):
        _say(f"{group}: {len(lines)} failed")
        for line in lines if verbose else lines[:3]:
            _say(f"    {line}")
    _say(f"{format} ({engine}): {passed} of {total} in {time.monotonic() - began:.0f} s")
    return passed


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("format", choices=[*FORMATS, "all"])
    parser.add_argument("-k", dest="pattern", default="", help="a regular expression for group/case")
    parser.add_argument("--engine", choices=[*ENGINES, "both"], default="session")
    parser.add_argument("--require", type=int, default=0, help="exit with 1 when fewer pass")
    parser.add_argument("-v", dest="verbose", action="store_true", help="name every failure")
    args = parser.parse_args(arguments)
    found = [
        score(format, args.pattern, engine, args.verbose)
        for format in (FORMATS if args.format == "all" else [args.format])
        for engine in (ENGINES if args.engine == "both" else [args.engine])
    ]
    return int(min(found) < args.require)


if __name__ == "__main__":
    sys.exit(main())
