"""Flows from files: TOML of our own, and the ``flow.prototxt`` of Bolt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.files.regular import read_text, replaced
from bolt_numba.flow.errors import FlowError
from bolt_numba.flow.flow import Flow
from bolt_numba.flow.named import FileNames
from bolt_numba.flow.parts import Workers

MOST_BYTES = 1 << 24
"""Bytes of a file."""


@border("flow", OSError)
def load(
    path: str | PathLike[str],
    *,
    functions: Mapping[str, Callable[..., Any] | str] | None = None,
    models: Mapping[str, Any] | None = None,
    workers: int | Workers | Sequence[Workers] | None = None,
    copies: int | Workers | Sequence[Workers] | None = None,
    capacity: int | None = None,
    order: str | None = None,
) -> Flow:
    """Read a flow from a file: ``.toml`` as docs/flow.md describes it, or ``.prototxt``, a graph of Bolt's Flow.

    Functions that a TOML file names are imported, so it is trusted as a program is.

    functions, models: what the file names, by the text that it has for it; models also by the name of their file.
    A function may be a text ``module:function``, too.  A model is what `Flow.model` takes.  A graph of Bolt need not
    name all of them.
    workers, copies, capacity, order: as of `Flow`; None: as the file says.
    Raises FlowError with the file, and the node where there is one.
    """
    source = Path(path)
    named = FileNames(source, functions or {}, models or {})
    chosen = {"workers": workers, "copies": copies, "capacity": capacity, "order": order}
    given = {key: value for key, value in chosen.items() if value is not None}
    reader = source.suffix.lower()
    if reader not in (".toml", ".prototxt"):
        raise FlowError(f"{source}: got the suffix {source.suffix!r}, wanted .toml or .prototxt")
    text = read_text(source, MOST_BYTES, "the text of a flow", FlowError)
    try:
        if reader == ".toml":
            from bolt_numba.flow.toml import read
        else:
            from bolt_numba.flow.prototxt import read
        flow = read(text, named, given)
        if reader == ".toml":  # a program of Bolt registers functions once, for all its graphs
            named.want_all_asked()
        flow.ordered()
    except Exception as error:
        raise FlowError(f"{named.file}: {named.said(error, 'flow')}") from error
    return flow


@border("flow", OSError)
def save(flow: Flow, path: str | PathLike[str]) -> None:
    """Write a flow as a ``.toml`` file that `load` reads; arrays of ``fixed`` and ``states`` lie beside it.

    Functions must be those of modules, and models files.  Raises FlowError with all that are not.
    """
    from bolt_numba.flow.toml import FlowText

    target = Path(path)
    if target.suffix.lower() != ".toml":
        raise FlowError(f"{target}: got the suffix {target.suffix!r}, wanted .toml")
    made = FlowText(flow, target)
    for name, array in made.arrays.items():
        with replaced(target.with_name(name)) as file:
            np.save(file, array, allow_pickle=False)
    with replaced(target) as file:
        file.write(made.text.encode())
