"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import typer

from bolt_numba.base.regular import open_regular
from bolt_numba.base.replaced import replaced
from bolt_numba.cli import console
from bolt_numba.devices import names as device_names
from bolt_numba.errors import BoltError, InvalidModelError
from bolt_numba.feeds import random_feeds
from bolt_numba.guesses import Shapes as AllShapes
from bolt_numba.guesses import complete_shapes, guessed
from bolt_numba.inputs import plain_array
from bolt_numba.ir.graph import Graph
from bolt_numba.session import Session
from bolt_numba.types import FALLBACKS, NUMERICS, PRECISIONS, Array, TensorSpec, precision_of


def one_of(names: Iterable[str], text: str) -> str:
    """A value of an option that is one of a few; raises BadParameter, which is wrong usage."""
    known = list(names)
    if text not in known:
        raise typer.BadParameter(f"got {text!r}, wanted one of {', '.join(known)}")
    return text


def _precision(text: str) -> str:
    return one_of(PRECISIONS, precision_of(text))


def _numerics(text: str) -> str:
    return one_of(NUMERICS, text)


def _fallback(text: str) -> str:
    return one_of(FALLBACKS, text)


ModelPath: TypeAlias = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A file of ONNX, TFLite, Caffe, Paddle (or its folder) or bolt-numba.")
]
Weights: TypeAlias = Annotated[
    Path | None, typer.Option("--weights", metavar="FILE", help="The second file of a format that keeps weights apart.")
]
Signature: TypeAlias = Annotated[
    str | None, typer.Option("--signature", metavar="NAME", help="Which graph of a model that has several.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]
Threads: TypeAlias = Annotated[int | None, typer.Option("--threads", min=1, help="Threads of one run.")]
Precision: TypeAlias = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="|".join(PRECISIONS),
        help="Of weights and their products.",
        callback=_precision,
        autocompletion=lambda: list(PRECISIONS),
    ),
]
Numerics: TypeAlias = Annotated[
    str,
    typer.Option(
        "--numerics",
        metavar="|".join(NUMERICS),
        help="How exact algorithms are: docs/numerics.md.",
        callback=_numerics,
        autocompletion=lambda: list(NUMERICS),
    ),
]
Devices: TypeAlias = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME[,NAME]",
        help="Where nodes run, in order of preference (`devices` lists them); what is left runs on the CPU.",
        autocompletion=device_names,
    ),
]
PropertyTexts: TypeAlias = Annotated[
    list[str],
    typer.Option("--property", metavar="DEVICE.NAME=VALUE", help="Of a plug-in, as openvino.device=GPU (`devices`)."),
]
Fallback: TypeAlias = Annotated[
    str,
    typer.Option(
        "--fallback",
        metavar="|".join(FALLBACKS),
        help="Where a plug-in fails: run elsewhere, warn of it too, or fail.",
        callback=_fallback,
        autocompletion=lambda: list(FALLBACKS),
    ),
]
PlacementFile: TypeAlias = Annotated[
    Path | None, typer.Option("--placement", metavar="FILE", help="Which nodes plug-ins get, or not: docs/hardware.")
]
Tune: TypeAlias = Annotated[
    bool, typer.Option("--tune", help="Measure which algorithm is fastest where several can run a node (kept).")
]
Seed: TypeAlias = Annotated[int, typer.Option("--seed", help="Seed of random inputs.")]
Shapes: TypeAlias = Annotated[
    list[str],
    typer.Option("--shape", metavar="NAME=D,D", help="Shape of an input, or size of a symbol; others are guessed."),
]
FixedShapes: TypeAlias = Annotated[
    list[str], typer.Option("--shapes", "--shape", metavar="NAME=D,D", help="Fix the shape of an input.")
]
Inputs: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--input",
        metavar="NAME=FILE",
        help="x=a.npy, n=3 (a JSON value), or an .npz file with several inputs.",
    ),
]


def on_devices(device: str, properties: Sequence[str], fallback: str, placement: Path | None) -> dict[str, Any]:
    """What `bolt_numba.compile` takes for these options."""
    found: dict[str, dict[str, str]] = {}
    for text in properties:
        name, equals, value = text.partition("=")
        of, dot, key = name.strip().partition(".")
        if not equals or not dot or not of or not key:
            raise typer.BadParameter(f"got {text!r}, wanted DEVICE.NAME=VALUE", param_hint="--property")
        found.setdefault(of, {})[key] = value.strip()
    names = [name.strip() for name in device.split(",")]
    return {"device": names, "properties": found, "fallback": fallback, "placement": placement}


def read_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``["x=1,3,224,224"]`` as a mapping."""
    found = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        parts = [p for p in sizes.replace("x", ",").split(",") if p]
        if not equals or not all(p.isdecimal() for p in parts):
            raise typer.BadParameter(f"got {text!r}, wanted NAME=1,3,224,224", param_hint="--shape")
        found[name] = tuple(map(int, parts))
    return found


def read_inputs(texts: Sequence[str], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Arrays by input name, of the dtype that the model declares where a JSON value is given."""
    kinds = {s.name: s for s in specs}
    found: dict[str, Array] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and text.endswith(".npz"):
            found.update(load_arrays(Path(text)))
            continue
        if not equals:
            raise typer.BadParameter(f"got {text!r}, wanted NAME=FILE", param_hint="--input")
        if name not in kinds:
            raise BoltError(f"input: got {name!r}, wanted one of {', '.join(kinds)}")
        found[name] = _array(value, kinds[name])
    return found


def load_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name."""
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    except (FileNotFoundError, BoltError):
        raise
    except Exception as error:  # of any kind: heads are read as Python, and may claim any size
        raise InvalidModelError(f"{path}: is no .npz file: {error}") from error


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an .npz file, whole or not at all; names may be those of parameters of `np.savez`, too."""
    with replaced(path) as whole, zipfile.ZipFile(whole, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


def load_array(path: Path) -> Array:
    """The array of an .npy file."""
    try:
        with open_regular(path) as file:
            loaded = np.load(file, allow_pickle=False)
    except (FileNotFoundError, BoltError):
        raise
    except Exception as error:  # of any kind: heads are read as Python, and may claim any size
        raise InvalidModelError(f"{path}: is no .npy file: {error}") from error
    if not isinstance(loaded, np.ndarray):
        raise InvalidModelError(f"{path}: got an archive of arrays, wanted an .npy file")
    return loaded


def _array(text: str, spec: TensorSpec) -> Array:
    if text.endswith(".npy"):
        return load_array(Path(text))
    if text.endswith(".npz"):
        archive = load_arrays(Path(text))
        if spec.name not in archive and len(archive) != 1:
            raise BoltError(f"{text}: arrays: got {sorted(archive)}, wanted {spec.name!r} or only one")
        return archive.get(spec.name, next(iter(archive.values())))
    try:
        return plain_array(json.loads(text), spec.dtype)
    except (ValueError, TypeError) as error:
        wanted = "a .npy or .npz file or a JSON value"
        raise typer.BadParameter(f"got {text!r}, wanted {wanted}", param_hint="--input") from error


def read_feeds(session: Session, shape: Sequence[str], input_: Sequence[str], seed: int) -> dict[str, Array]:
    """Arrays for all inputs: those that are given, else random ones of the shapes that are given or guessed."""
    given = read_inputs(input_, session.inputs)
    return random_feeds(session.inputs, told_shapes(session.graph, shape, given), seed, given)


def told_shapes(graph: Graph, texts: Sequence[str], given: Mapping[str, Array]) -> AllShapes:
    """Shapes of all inputs; says which sizes were guessed, and how to give others."""
    shapes = read_shapes(texts)
    found, free = complete_shapes(graph, shapes, given), guessed(graph, shapes, given)
    if free:
        chosen = ", ".join(f"{name} {console.shape_text(shape)}" for name, shape in found.items())
        console.note(f"free sizes {', '.join(free)}: took {chosen}; --shape NAME=D,D gives others")
    return found
