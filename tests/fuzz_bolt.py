"""Change what ``.bolt`` files say, with checksums that are right, and see what happens: a BoltError or a graph.

    python -m tests.fuzz_bolt [--count 2000] [--seed 0] [--run]

One file for every operator, a few larger ones, and one with packed weights; each mutation edits one to three values of
the JSON document (another type, an extreme number, a value from elsewhere in the document, one key more or less).
With ``--run`` what loads is planned and run on random inputs, too.  Every file has a child process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

import bolt_numba as bn
from bolt_numba.errors import BoltError
from bolt_numba.feeds import random_feeds
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.store import load_bolt, to_bytes
from bolt_numba.packing import packed
from bolt_numba.types import TensorType
from tests.fuzz import MAX_INPUT
from tests.test_store import with_document

SECONDS = 20
"""Of the processor, as compiling a kernel takes some."""
MEMORY = 6 << 30
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


def mutated(data: bytes, number: int) -> bytes:
    """The mutation of this number: the same every time."""
    rng = np.random.default_rng(number)

    def change(document: dict[str, Any]) -> None:
        for _ in range(1 if rng.random() < 0.7 else rng.integers(2, 4)):
            places = list(_places(document))
            path = places[rng.integers(len(places))]
            holder: Any = document
            for key in path[:-1]:
                holder = holder[key]
            match rng.integers(6):
                case 0:
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

    return with_document(data, change)


def outcome(data: bytes, is_run: bool, check: bool) -> tuple[str, str]:
    """What loading does, and running: ``refused``, ``loaded``, ``ran`` or ``unclean``, and what was raised."""
    try:
        graph = load_bolt(data, check_weights=check)
        if not is_run or any(_is_large(v.type) for v in graph.inputs):
            return "loaded", ""
        session = bn.compile(graph, threads=1)
        session(random_feeds(session.inputs))
    except BoltError as error:
        return "refused", type(error).__name__
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "unclean", f"{type(error).__name__}: {str(error)[:100]} ({Path(where.filename).name}:{where.lineno})"
    return "ran", ""


def _is_large(kind: Any) -> bool:
    size = 1
    for d in kind.shape or ():
        size *= d if isinstance(d, int) else 1
    return kind.dtype == object or kind.shape is None or size > MAX_INPUT


def _expired(*_: Any) -> None:
    raise TimeoutError


def work(data: bytes, numbers: list[int], is_run: bool, answer: Any) -> None:
    """The child: one line for each mutation."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _expired)
    for number in numbers:
        answer.write(json.dumps([number, "dead", ""]) + "\n")
        answer.flush()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        found = outcome(mutated(data, number), is_run, check=number % 4 > 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answer.write(json.dumps([number, *found]) + "\n")
    answer.flush()


def fuzz(count: int, start: int = 0, is_run: bool = False) -> Iterator[tuple[str, int, str, str]]:
    """File, number of the mutation, state and detail of each of ``count`` mutations, spread evenly over the files."""
    files = seeds()
    for index, (name, data) in enumerate(files.items()):
        left = list(range(start + index, start + count, len(files)))
        while left:
            rows = _in_child(data, left, is_run)
            found = {number: (state, detail) for number, state, detail in rows}
            for number, (state, detail) in found.items():
                yield name, number, state, detail
            left = [n for n in left if n not in found]


def _in_child(data: bytes, numbers: list[int], is_run: bool) -> list[tuple[int, str, str]]:
    source, end = os.pipe()
    child = os.fork()
    if not child:
        os.close(source)
        try:
            with os.fdopen(end, "w") as answer:
                work(data, numbers, is_run, answer)
        finally:
            os._exit(0)
    os.close(end)
    with os.fdopen(source) as answers:
        rows = [json.loads(line) for line in answers]
    os.waitpid(child, 0)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", action="store_true")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    unclean: Counter[str] = Counter()
    for name, number, state, detail in fuzz(options.count, options.seed, options.run):
        counts[state] += 1
        if state in ("unclean", "dead"):
            unclean[detail] += 1
            sys.stdout.write(f"{state}: {name} {number}: {detail}\n")
    for detail, times in unclean.most_common():
        sys.stdout.write(f"{times:6} {detail}\n")
    sys.stdout.write(f"{dict(counts)}\n")
    return int(bool(unclean))


if __name__ == "__main__":
    sys.exit(main())
