"""Changed documents of ``.bolt`` files, with checksums that are right: a BoltError or a right run, and nothing else.

One file for every operator, a few larger ones, and one with packed weights.  A case edits one to three values of the
JSON document: another type, an extreme number, a value from elsewhere in it, one key more or less.  All are loaded,
every tenth is run if it loads.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.errors import BoltError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.store import load_bolt, to_bytes
from bolt_numba.surgery import packed
from bolt_numba.types import TensorType
from tests.attack import files
from tests.attack.child import Result, drive, refusal
from tests.test_store import with_document

RUN = 10
"""One of how many is run."""
NASTY: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 64, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 10**40, 0.5, -0.0, 1e308,
    float("nan"), float("inf"), "", "x", "n", "\ud800", "a" * 5000, "float32", "object", "string", "int4", "SAME_UPPER",
    [], [None], [0], [[]], [-1, -1], ["a"], [1] * 70, {}, {"a": 1}, {"dtype": "float32"}, {"scalar": 0}, {"scalar": -1},
    {"float": "nan"}, {"op": "Relu"}, {"op": "Relu", "attributes": {}}, {"graph": {}}, {"terms": [], "const": 0},
    {"terms": [["n", 2]], "const": -(10**30)}, {"terms": [["n", 0.5]], "const": 0}, {"kind": "sequence"},
    {"kind": "map", "key": "float32", "element": {"dtype": "float32", "shape": []}}, {"terms": 3, "const": True},
)  # fmt: skip


def seeds() -> dict[str, bytes]:
    """Files to change, by name."""
    from hypothesis import HealthCheck, given, seed, settings

    from tests.cases import CASES
    from tests.graphs import choice
    from tests.pipeline_graphs import graph as network

    made: dict[str, bytes] = {}

    def keep(case: Any) -> None:
        graph = Graph(case.op.name)
        ins = [
            graph.add_input("x", TensorType(a.dtype, a.shape)) if a is not None and i == 0 else a
            for i, a in enumerate(case.inputs)
        ]
        found = Builder(graph)(case.op, *ins)
        for i, value in enumerate(found if isinstance(found, tuple) else (found,)):
            graph.add_output(value, f"y{i}")
        made[case.op.name] = to_bytes(graph)

    quiet = settings(max_examples=3, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    for _, strategy in sorted(CASES.items(), key=lambda row: row[0].name):
        with suppress(BoltError):
            seed(0)(quiet(given(case=strategy())(keep)))()
    for name in ("transformer", "control_flow", "squeeze_excite"):
        made[name] = to_bytes(network(name))
    made["packed"] = to_bytes(packed(network("squeeze_excite"), threads=[1]))
    branches = Graph("branches")
    x = branches.add_input("x", TensorType(np.dtype("f4"), (2,)))
    branches.add_output(choice(Builder(branches), x, True), "y")
    made["branches"] = to_bytes(branches)
    return made


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in rows:
        yield from _places(inner, (*path, key))


def altered(document: Any, rng: np.random.Generator) -> None:
    """Edit one to three values of a document of JSON, which has at least one."""
    for _ in range(1 if rng.random() < 0.7 else rng.integers(2, 4)):
        places = list(_places(document))
        path = places[rng.integers(len(places))]
        holder: Any = document
        for key in path[:-1]:
            holder = holder[key]
        match rng.integers(6):
            case 0 if len(places) > 1:
                del holder[path[-1]]
            case 1:
                other: Any = document
                for key in places[rng.integers(len(places))]:
                    other = other[key]
                holder[path[-1]] = json.loads(json.dumps(other))
            case 2 if isinstance(holder, list):
                holder.append(holder[path[-1]])
            case 2:
                holder["more"] = 1
            case 3 if type(holder[path[-1]]) in (int, float):
                holder[path[-1]] += int(rng.integers(-3, 4))
            case _:
                holder[path[-1]] = deepcopy(NASTY[rng.integers(len(NASTY))])


def mutated(data: bytes, number: int) -> bytes:
    """The mutation of this number: the same every time."""
    return with_document(data, functools.partial(altered, rng=np.random.default_rng(number)))


def outcome(data: bytes, number: int) -> tuple[str, str]:
    """What loading does, with the weights checked or not, and running."""
    if number % RUN == 0:
        return files.outcome(data)
    try:
        load_bolt(io.BytesIO(data), check_weights=number % 4 > 0)
    except Exception as error:
        return refusal(error)
    return "loaded", ""


def attack(sources: list[bytes], number: int) -> tuple[str, str, str]:
    """Kind, state and detail of one changed document."""
    return "document", *outcome(mutated(sources[number % len(sources)], number), number)


def prepare(folder: str) -> tuple[Callable[[int], tuple[str, str, str]], tuple[str, str]]:
    """What serves numbers for the files of a folder."""
    sources = [file.read_bytes() for file in sorted(Path(folder).glob("*.bolt"))]
    return functools.partial(attack, sources), files.outcome(sources[0])


def attack_documents(folder: Path, count: int, seed: int = 0) -> Iterator[Result]:
    """Run ``count`` mutations, spread evenly over files that are written to ``folder``."""
    for name, data in seeds().items():
        (folder / f"{name}.bolt").write_bytes(data)
    yield from drive("documents", ["-m", "tests.attack", "documents", "--work", str(folder)], range(seed, seed + count))
