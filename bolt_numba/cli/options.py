"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import itertools
import json
import math
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import typer

import bolt_numba as bn
from bolt_numba.base.errors import BoltError, InvalidModelError, ShapeError
from bolt_numba.base.files.regular import open_regular, replaced
from bolt_numba.base.options import OPTIONS, Options, not_among, plain_kind
from bolt_numba.base.types import STRING, Array, TensorSpec
from bolt_numba.cli import console
from bolt_numba.devices import names as device_names
from bolt_numba.ir.graph import Graph
from bolt_numba.sessions.guesses import Shapes as AllShapes
from bolt_numba.sessions.guesses import complete_shapes, guessed, model_feeds
from bolt_numba.sessions.inputs import plain_array, spec_of
from bolt_numba.sessions.session import Session


def one_of(names: Iterable[str], text: str) -> str:
    """A value of an option that is one of a few; raises BadParameter, which is wrong usage."""
    known = list(names)
    if text not in known:
        raise typer.BadParameter(f"got {text!r}, wanted one of {', '.join(known)}")
    return text


def ending_in(path: Path, known: Sequence[str], hint: str | None = None) -> Path:
    """A file to write, whose suffix tells its format; raises BadParameter for another one."""
    if path.suffix.lower() not in known:
        ends = " or ".join(filter(None, [", ".join(known[:-1]), known[-1]]))
        raise typer.BadParameter(f"got {path.name!r}, wanted a name that ends in {ends}", param_hint=hint)
    return path


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _by_device(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """``["openvino.device=GPU"]`` as properties by the device's name."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        of, dot, key = name.strip().partition(".")
        if not equals or not dot or not of or not key:
            raise typer.BadParameter(f"got {text!r}, wanted DEVICE.NAME=VALUE", param_hint="--property")
        found.setdefault(of, {})[key] = value.strip()
    return found


_SPELLED: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "device": (str, "cpu", _split),
    "properties": (list[str], [], _by_device),
    "placement": (Path | None, None, lambda path: path),
}
"""Options that are more than a text, a number or a flag: type and default of the flag, and what reads it."""


def _flag(name: str) -> Any:
    """What typer is told of an option of sessions."""
    option = OPTIONS[name]

    def checked(given: Any) -> Any:
        try:
            return given if given is None or name in _SPELLED else option.check(name, given)
        except BoltError as error:
            raise typer.BadParameter(str(error).removeprefix(f"{name}: ")) from error

    more: dict[str, Any] = {"metavar": option.metavar, "help": option.help, "callback": checked}
    if option.choices or name == "device":
        more["autocompletion"] = device_names if name == "device" else lambda: list(option.choices)
    elif plain_kind(name) is int:
        more["min"] = 1
    return typer.Option(f"--{option.flag or name.replace('_', '-')}", **more)


def _parameter(name: str) -> Parameter:
    kind: Any
    default: Any
    kind, default, _ = _SPELLED.get(name, (plain_kind(name), getattr(Options, name), None))
    kind = kind | None if default is None and name not in _SPELLED else kind
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, _flag(name)])


def flag(name: str, kind: Any, default: Any, told: str, **more: Any) -> Parameter:
    """A flag for `takes_options`."""
    option = typer.Option(f"--{name.replace('_', '-')}", help=told, **more)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def takes_options(
    *only: str, without: Sequence[str] = (), **groups: Sequence[Parameter]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each option of sessions, in the place of its parameter ``options``.

    only: those that it takes; none: all that have a flag, but ``without``.  The command gets them as keywords of
    `bolt_numba.compile`.  groups: flags in the place of other parameters, each of which gets their values by name.
    """
    names = only or tuple(name for name, option in OPTIONS.items() if option.help and name not in without)
    flags: dict[str, Sequence[Parameter]] = {"options": [*map(_parameter, names)], **groups}

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: Any) -> None:
            made = {name: {one.name: given.pop(one.name) for one in group} for name, group in flags.items()}
            options = {n: _SPELLED[n][2](v) if n in _SPELLED else v for n, v in made.pop("options").items()}
            command(**given, **made, options=options)

        own = signature(command)
        made: list[Parameter] = []
        for each in own.parameters.values():
            if each.name in flags:
                made += flags[each.name]
            else:
                kind = eval(each.annotation, command.__globals__)
                made.append(each.replace(kind=Parameter.KEYWORD_ONLY, annotation=kind))
        called.__signature__ = own.replace(parameters=made)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in made}
        return called

    return wrap


MOST_SETS = 1 << 16
"""Sets of shapes that ranges may stand for."""
MOST_DIGITS = 18
"""Digits of a size, which fits into 64 bits."""
_SHAPE = "--shape"

ModelPath: TypeAlias = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A file of ONNX, TFLite, Caffe, Paddle (or folder), GGUF or bolt-numba.")
]
Weights: TypeAlias = Annotated[
    Path | None,
    typer.Option("--weights", metavar="FILE", help="The weights, for a format that keeps them in a second file."),
]
Signature: TypeAlias = Annotated[
    str | None, typer.Option("--signature", metavar="NAME", help="The signature, if a model has several graphs.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]
Threads: TypeAlias = Annotated[int | None, _flag("threads")]
Tune: TypeAlias = Annotated[bool, _flag("tune")]
Seed: TypeAlias = Annotated[int, typer.Option("--seed", help="Seed of random inputs.")]


def _shapes(told: str) -> Any:
    return typer.Option("--shape", "--shapes", metavar="NAME=D,D", help=told)


Shapes: TypeAlias = Annotated[list[str], _shapes("Shape of an input, or size of a symbol; others are guessed.")]
FixedShapes: TypeAlias = Annotated[list[str], _shapes("Fix the shape of an input.")]
ShapeSets: TypeAlias = Annotated[
    list[str],
    _shapes(
        "Shape of an input, or size of a symbol; 1..4 stands for several sizes. Several shapes of one name go one "
        "after the other, the first with the first of other names, and so on."
    ),
]
Inputs: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--input",
        metavar="NAME=VALUE",
        help="x=a.npy, n=3 (a JSON value), city=Rome (of an input of texts), or an .npz file with several inputs.",
    ),
]


def read_shapes(texts: Sequence[str]) -> AllShapes:
    """``["x=1,3,224,224"]`` as a mapping."""
    sets = read_sets(texts)
    if len(sets) > 1:
        raise typer.BadParameter(f"got {len(sets)} sets of shapes, wanted one", param_hint=_SHAPE)
    return sets[0]


def read_sets(texts: Sequence[str]) -> list[AllShapes]:
    """Sets of shapes: the first of every name, the second, and so on; a name that is told once holds for all.

    Texts are ``x=1,3,32,32``, or ``x:1x3x32x32,y:1``.  A size may be a range, ``1..4``; equal ones in a set are one.
    """
    told: dict[str, list[Sequence[int | range]]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        is_one = bool(equals) and not sizes.strip("0123456789x,. ")
        for part in [text] if is_one else text.split(","):
            name, mark, sizes = part.strip().rpartition("=" if is_one else ":")
            if not mark or not name:
                raise _no_shape(text)
            parts = sizes.replace("x", ",").split(",") if sizes else []
            told.setdefault(name, []).append([_size(text, part.strip()) for part in parts])
    count = max(map(len, told.values()), default=1)
    for name, shapes in told.items():
        if len(shapes) not in (1, count):
            wrong = f"got {len(shapes)} shapes of {name!r} and {count} of another, wanted as many, or one"
            raise typer.BadParameter(wrong, param_hint=_SHAPE)
    sets = ({n: shapes[min(i, len(shapes) - 1)] for n, shapes in told.items()} for i in range(count))
    return [each for entries in sets for each in _without_ranges(entries)]


def _no_shape(text: str) -> typer.BadParameter:
    return typer.BadParameter(f"got {text!r}, wanted NAME=1,3,224,224, or 1..4 for a size", param_hint=_SHAPE)


def _size(text: str, size: str) -> int | range:
    low, dots, high = size.partition("..")
    if not low.isdecimal() or (dots and not high.isdecimal()) or max(len(low), len(high)) > MOST_DIGITS:
        raise _no_shape(text)
    found = range(int(low), int(high) + 1) if dots else int(low)
    if isinstance(found, range) and not found:
        raise _no_shape(text)
    return found


def _without_ranges(entries: Mapping[str, Sequence[int | range]]) -> list[AllShapes]:
    ranges = list(dict.fromkeys(d for sizes in entries.values() for d in sizes if isinstance(d, range)))
    found, sets = [], math.prod(map(len, ranges))
    if sets > MOST_SETS:
        raise typer.BadParameter(f"got {sets} sets of shapes, wanted up to {MOST_SETS}", param_hint=_SHAPE)
    for chosen in itertools.product(*ranges):
        size = dict(zip(ranges, chosen, strict=True))
        found.append({k: tuple(size[d] if isinstance(d, range) else d for d in v) for k, v in entries.items()})
    return found


def read_inputs(texts: Sequence[str], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Arrays by input name, of the dtype that the model declares where a JSON value or a text is given."""
    kinds = {s.name: s for s in specs}
    found: dict[str, Array] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and text.endswith(".npz"):
            found.update(load_arrays(Path(text)))
            continue
        if not equals and text.endswith(".npy") and len(kinds) == 1:
            name, value = next(iter(kinds)), text
        elif not equals:
            also = f", as {next(iter(kinds))}={text}" if kinds else ""
            raise typer.BadParameter(f"got {text!r}, wanted NAME=VALUE{also}", param_hint="--input")
        if name not in kinds:
            raise ShapeError(not_among("inputs", [name], list(kinds)))
        found[name] = _array(value, kinds[name])
    return found


def load_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name."""
    found: dict[str, Array] = _loaded(path, ".npz")
    return found


def load_array(path: Path) -> Array:
    """The array of an .npy file."""
    found: Array = _loaded(path, ".npy")
    return found


def _loaded(path: Path, kind: str) -> Any:
    """The array of an .npy file, or the arrays of an .npz file by name; a file of the other kind is not unpacked."""
    try:
        with open_regular(path) as file:
            loaded = np.load(file, allow_pickle=False)
            is_one = isinstance(loaded, np.ndarray)
            if is_one != (kind == ".npy"):
                got = "one array" if is_one else "an archive of arrays"
                raise InvalidModelError(f"{path}: got {got}, wanted an {kind} file")
            return loaded if is_one else dict(loaded)
    except (FileNotFoundError, BoltError):
        raise
    except Exception as error:  # of any kind: heads are read as Python, and may claim any size
        if "Object arrays" in str(error):
            wanted = "numbers, or NumPy's own texts: array.astype(str) makes them"
            raise InvalidModelError(f"{path}: got an array of Python's objects, wanted {wanted}") from error
        raise InvalidModelError(f"{path}: is no {kind} file: {error}") from error


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an .npz file, whole or not at all; names may be those of parameters of `np.savez`, too."""
    with replaced(path) as whole, zipfile.ZipFile(whole, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


def _texts(text: str) -> Any:
    """A JSON list or text; what is none is a text as it stands."""
    if text[:1] in ("[", '"'):
        with suppress(ValueError):
            return json.loads(text)
    return text


def _array(text: str, spec: TensorSpec) -> Array:
    """The array of a file, or of a value, which gets axes of size 1 where it has fewer than the input."""
    if text.endswith(".npy"):
        return load_array(Path(text))
    if text.endswith(".npz"):
        archive = load_arrays(Path(text))
        if spec.name not in archive and len(archive) != 1:
            raise BoltError(f"{text}: arrays: got {sorted(archive)}, wanted {spec.name!r} or only one")
        return archive.get(spec.name, next(iter(archive.values())))
    try:
        array = np.asarray(_texts(text), STRING) if spec.dtype == STRING else plain_array(json.loads(text), spec.dtype)
        return array.reshape(array.shape + (1,) * (len(spec.shape or ()) - array.ndim))
    except (ValueError, TypeError) as error:
        wanted = "a .npy or .npz file or a JSON value"
        raise typer.BadParameter(f"got {text!r}, wanted {wanted}", param_hint="--input") from error


def session_and_feeds(
    model: Path,
    shape: Sequence[str],
    input_: Sequence[str],
    seed: int,
    options: Mapping[str, Any],
    weights: Path | None,
    signature: str | None,
) -> tuple[Session, dict[str, Array]]:
    """A session, and arrays for its inputs: those that are given, else random ones of shapes given or guessed.

    What is given is looked at before anything is compiled.
    """
    given: dict[str, Array] = {}
    if input_:
        found = bn.load_model(model, weights=weights)
        given = read_inputs(input_, [spec_of(v.name, v.type) for v in found.graph(signature).caller_inputs])
        session = bn.compile(found, signature=signature, **options)
        if drawn := [spec.name for spec in session.inputs if spec.name not in given]:
            console.note(f"random inputs: {', '.join(drawn)}")
    else:
        session = bn.compile(model, weights=weights, signature=signature, **options)
    return session, model_feeds(session.graph, told_shapes(session.graph, shape, given), seed, given)


def told_shapes(graph: Graph, texts: Sequence[str], given: Mapping[str, Array]) -> AllShapes:
    """Shapes of all inputs; says which sizes were guessed, and how to give others."""
    shapes = read_shapes(texts)
    found, free = complete_shapes(graph, shapes, given), guessed(graph, shapes, given)
    if free:
        rows = console.folded([(name, console.shape_text(shape)) for name, shape in found.items()])
        chosen = ", ".join(map(" ".join, rows))
        console.note(f"free sizes {', '.join(free)}: took {chosen}; --shape NAME=D,D gives others")
    return found
