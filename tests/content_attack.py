"""Drives operands with content that no model should hold: ``python -m tests.content_attack --examples 3``.

For each operator's cases, one operand gets an extreme value in one place or everywhere; the node runs as a whole
session between guard pages.  A finding is a line of the report: an exception that is no BoltError, or a result that is
not the reference's.  A crash ends the process, whose last line of output names what ran.
"""

from __future__ import annotations

import argparse
import resource
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings

from bolt_numba.errors import BoltError, DataError
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.types import Array
from tests.cases import CASES, Case
from tests.guarded_sessions import install, run_guarded

MEMORY = 6 << 30
"""Bytes of addresses that the process may take."""


def extremes(operand: Array, sizes: Sequence[int]) -> list[object]:
    """Values for one operand; sizes: of any axes, as an index is wrong first at those."""
    kind = operand.dtype.kind
    if kind == "b":
        return [2, 255]
    if kind in "iu":
        info = np.iinfo(operand.dtype)
        near = {-1, *sizes, *(s + 1 for s in sizes), *(-s - 1 for s in sizes)}
        far = {info.min, info.max, 2**31, 2**61}
        return sorted(v for v in near | far if info.min <= v <= info.max)
    if kind == "f":
        return [np.nan, np.inf, -np.inf, -0.0, 1e38, -1e38]
    return []


def altered(case: Case, rng: np.random.Generator) -> Iterator[tuple[int, list[Array | None]]]:
    """The case with one operand changed, by the operand's position; not what decides shapes: planning looks at that."""
    sizes = sorted({d for a in case.inputs if a is not None for d in a.shape})
    for i, a in enumerate(case.inputs):
        values = [] if a is None or not a.size or i in case.op.value_inputs else extremes(a, sizes)
        if a is None or not values:
            continue
        changed = a.copy()
        value = values[rng.integers(len(values))]
        where = slice(None) if rng.integers(3) == 0 else rng.integers(a.size)
        with np.errstate(all="ignore"):
            if a.dtype.kind == "b":
                changed.reshape(-1).view(np.uint8)[where] = value
            else:
                changed.reshape(-1)[where] = np.asarray(value).astype(a.dtype)
        yield i, [changed if j == i else other for j, other in enumerate(case.inputs)]


def reference(op: Op, inputs: Sequence[Array | None]) -> tuple[Array, ...] | None:
    """What the operator means by this, or None where it refuses."""
    plain = [a.view(np.uint8) != 0 if a is not None and a.dtype.kind == "b" else a for a in inputs]
    try:
        with np.errstate(all="ignore"):
            return tuple(map(np.asarray, result_tuple(op.reference(*plain))))
    except Exception:  # what it raises is for the tests of references
        return None


def finding(case: Case, at: int, inputs: Sequence[Array | None], constant: Sequence[bool]) -> str | None:
    """What is wrong with the answer of a session, None when nothing is."""
    changed = inputs[at]
    discrete = changed is not None and changed.dtype.kind in "iub"  # what floats overflow to is not compared
    try:
        found = run_guarded(case.op, inputs, constant)
    except DataError as error:
        wanted = reference(case.op, inputs)
        return None if wanted is None else f"refused what the reference computes: {error}"
    except BoltError:
        return None
    except Exception as error:  # any other is what is looked for
        return f"{type(error).__name__}: {error}"
    wanted = reference(case.op, inputs)
    if wanted is None:
        return "computed what the reference refuses" if discrete else None
    if discrete and case.exact and not case.op.has_side_state:
        for y, w in zip(found, wanted, strict=True):
            if y.dtype != object and not np.array_equal(y, w, equal_nan=y.dtype.kind == "f"):
                return "another result than the reference's"
    return None


def tried(case: Case, rng: np.random.Generator) -> Iterator[str]:
    """What is run, as lines that begin with >, each followed by a line with ! where something is wrong."""
    for at, inputs in altered(case, rng):
        constant = [i > 0 and bool(rng.integers(2)) for i in range(len(inputs))]
        changed = inputs[at]
        told = None if changed is None else changed.reshape(-1)[:8].tolist()
        yield f"> {case} operand {at}: {told} constant {constant}"
        wrong = finding(case, at, inputs, constant)
        if wrong is not None:
            yield f"! {case} operand {at}: {told} constant {constant}: {wrong}"


def attack(op: type[Op], examples: int, report: Callable[[str], object]) -> None:
    """Drive the cases of one operator."""
    rng = np.random.default_rng(len(op.name))

    @settings(max_examples=examples, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(case=CASES[op]())
    def run(case: Case) -> None:
        for line in tried(case, rng):
            report(line)

    run()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=3)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    install()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    for op in sorted(CASES, key=lambda o: o.name):
        if not args.names or op.name in args.names:
            attack(op, args.examples, report)
    return int(any(line.startswith("!") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
