"""`export_model`: from a model in any form to what runs without Python, a ``.bolt`` file, a library or one C source."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.config import default_threads
from bolt_numba.base.errors import BoltError, ShapeError
from bolt_numba.base.files.regular import replaced
from bolt_numba.base.records import record
from bolt_numba.base.types import Array, TensorType
from bolt_numba.export.building import build, compiler_for
from bolt_numba.export.layout import PAGE
from bolt_numba.export.library import Library, c_name, program_flags, sources_of_runtime, write_library
from bolt_numba.export.onefile import write_one_file
from bolt_numba.export.plans import Shapes
from bolt_numba.export.program import NativeProgram, native_program
from bolt_numba.export.targets import NATIVE
from bolt_numba.export.texts import objects
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.sizes import inferred
from bolt_numba.ir.store import chunks
from bolt_numba.ir.trailer import PROGRAMS, trailer
from bolt_numba.passes.pipeline import deep_clone
from bolt_numba.sessions.inputs import plain_array
from bolt_numba.sessions.loading import File, Source, read_model

LINKED, BESIDE = "linked", "file"
"""Where the weights of a library are."""
BOLT = ".bolt"
"""Suffix of a file that has the model's graph and, behind it, native programs."""
BARE = ".bnprog"
"""Suffix of a file that is a native program."""
FILES = (".onnx", ".tflite", ".so", ".a", ".o", ".c", ".h", ".txt")
"""Suffixes of which nobody means a folder."""


@record(eq=False)
class Exported:
    """What was written.  built: libraries that a C compiler made, none where there is no compiler."""

    path: Path
    files: list[Path]
    built: list[Path]
    plans: int
    sets: int
    """Of shapes, which the plans serve."""
    nbytes: int
    """Of the file, or of what holds code, weights and tables in a folder."""
    level: str


@border("export_model", OSError)
def export_model(
    model: Source,
    output: str | os.PathLike[str],
    *,
    weights: File | None = None,
    signature: str | None = None,
    name: str | None = None,
    target: str = NATIVE,
    threads: int | None = None,
    shapes: Sequence[Shapes] = (),
    fixed: Mapping[str, Any] | None = None,
    keep: Sequence[str] = (),
    precision: str = "f32",
    numerics: str = "default",
    weights_in: str = LINKED,
    one_file: bool = False,
    cc: str | None = None,
) -> Exported:
    """Write a model as something that runs without Python; see docs/export.md.

    output: a ``.bolt`` file, which has the graph and behind it the native program; a ``.bnprog`` file, the program
    alone; or a folder, which gets a library.
    weights, signature: as `compile`.  name: of a library, its files and functions; None: the folder's.
    target: a level of instructions; of a ``.bolt`` file up to three, with commas.  threads: that may share a run.
    shapes: sets of input shapes, a plan for each; the shape that `guesses` finds where none is given.
    fixed: values of inputs, which are none any more.  keep: names of values that sessions can look at.
    weights_in: of a library: ``"linked"`` into it, or in a ``"file"`` beside it.  one_file: a folder with one C source.
    cc: a C compiler for the target; None: one is looked for.

    Raises BoltError, which lists them, where nodes of the model need Python.
    """
    if weights_in not in (LINKED, BESIDE):
        raise BoltError(f"weights_in: got {weights_in!r}, wanted {LINKED!r} or {BESIDE!r}")
    path = Path(output)
    graph = with_kept(with_fixed(read_model(model, None, weights).graph(signature), fixed or {}), keep)
    is_file, threads = path.suffix.lower() in (BOLT, BARE), default_threads() if threads is None else threads
    asked = {"name": name is not None, "weights_in": weights_in != LINKED, "one_file": one_file, "cc": cc is not None}
    _check_asked(path, [option for option, is_asked in asked.items() if is_asked], is_file, one_file)
    options: dict[str, Any] = {"shapes": shapes, "threads": threads, "kept": keep, "precision": precision}
    options |= {"numerics": numerics, "flags": program_flags(not is_file)}
    programs = [native_program(graph, target=one, **options) for one in _targets(path, target)]
    if is_file:
        write_file(graph if path.suffix.lower() == BOLT else None, programs, path)
        return _told(programs, path, [path], [])
    library = Library(programs[0], c_name(path.resolve().name if name is None else name), weights_in == BESIDE)
    if one_file:
        return _told(programs, path, write_one_file(library, path), [])
    files, compiler = write_library(library, path), compiler_for(library.is_x86, cc)
    built = [] if compiler is None else build(compiler, path, library.name, sources_of_runtime(), objects(library))
    return _told(programs, path, files, built)


def _check_asked(path: Path, asked: Sequence[str], is_file: bool, one_file: bool) -> None:
    """Raises BoltError for an option that what is written has no use for."""
    if path.suffix.lower() in FILES and not path.is_dir():
        raise BoltError(f"{path.name}: output: got '{path.suffix}', wanted a folder, a {BOLT} or a {BARE} file")
    for option in asked:
        if is_file or (option == "cc" and one_file):
            what = "a file" if is_file else "one C source"
            raise BoltError(f"{path.name}: {option}: got a value for {what}, wanted it for a folder that is compiled")


def _targets(path: Path, target: str) -> list[str]:
    """Names of targets, which only a ``.bolt`` file may have several of."""
    found = list(dict.fromkeys(target.split(",")))
    if len(found) > (PROGRAMS if path.suffix.lower() == BOLT else 1):
        raise BoltError(f"{path.name}: targets: got {target!r}, wanted one, or up to {PROGRAMS} for a {BOLT} file")
    return found


def _told(made: list[NativeProgram], path: Path, files: list[Path], built: list[Path]) -> Exported:
    large = [file for file in files if file.suffix in (".o", ".weights")] or files[-1:]
    nbytes = path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in large)
    levels = ", ".join(program.planned.cpu.isa.level for program in made)
    chains = made[0].planned.chains
    return Exported(path, files, built, len(chains), sum(chain.sets for chain in chains), nbytes, levels)


def with_fixed(graph: Graph, fixed: Mapping[str, Any]) -> Graph:
    """A graph in which inputs are constants.  Raises BoltError for a name or a value that does not fit."""
    if not fixed:
        return graph
    made = deep_clone(graph)
    inputs = {value.name: value for value in made.caller_inputs}
    for name, given in fixed.items():
        if name not in inputs:
            raise BoltError(f"{graph.called}: input: got {name!r}, wanted one of {', '.join(inputs)}")
        value = inputs[name]
        array = _content(value, given)
        constant = Value(name, TensorType(value.type.dtype, array.shape).with_value(array), const=array)
        made.replace_uses(value, constant)
        made.inputs.remove(value)
    return inferred(made, [value.type for value in made.inputs])


def _content(value: Value, given: Any) -> Array:
    """What an input is to be, as an array: a number stands for an array of that one number, too."""
    try:
        array = plain_array(given, value.type.dtype)
    except (ValueError, TypeError) as error:
        raise BoltError(f"input {value.name!r}: got {given!r}, wanted {value.type}: {error}") from error
    declared = array.shape if value.type.shape is None else value.type.shape
    if array.ndim == 0:
        array = array.reshape((1,) * len(declared))
    fits = len(declared) == array.ndim
    if not fits or any(isinstance(d, int) and d != n for d, n in zip(declared, array.shape, strict=True)):
        raise ShapeError(f"input {value.name!r}: got shape {list(array.shape)}, wanted {value.type}")
    return np.ascontiguousarray(array).reshape(array.shape)


def with_kept(graph: Graph, names: Sequence[str]) -> Graph:
    """A graph that also gives these intermediate values."""
    if not names:
        return graph
    made = deep_clone(graph)
    values = {value.name: value for node in made.nodes for value in node.outputs}
    for name in names:
        if name not in values or name in made.output_names:
            raise BoltError(f"{graph.called}: --keep: got {name!r}, wanted the name of an intermediate value")
        made.add_output(values[name])
    return made


def write_file(graph: Graph | None, programs: Sequence[NativeProgram], path: Path) -> None:
    """A ``.bolt`` file with native programs, which its last 64 bytes name; without a graph, a bare program."""
    with replaced(path) as file:
        places = []
        for chunk in () if graph is None else chunks(graph):
            file.write(chunk)
        for program in programs:
            file.write(bytes(-file.tell() % PAGE))
            places.append((file.tell(), program.block.nbytes))
            file.writelines(program.block.parts)
        if graph is not None:
            file.write(trailer(places))
