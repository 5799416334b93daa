"""Attack the engine at length.

    python -m tests.attack operands [--count 100000] [--seed 0] [--only Gather ...]
    python -m tests.attack models [--count 100000] [--seed 0]

``operands`` spoils the operands of every operator, ``models`` alters the structure of models and compares what runs with
onnxruntime's; ``python -m tests.fuzz`` damages bytes of files.  A case is good when it is refused by a BoltError or
runs right: no signal, nothing over 10 s or 2 GiB, no other exception.  A number makes a case again: ``--seed N --count 1``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.attack import models, operands
from tests.attack.child import Result, drive, serve, summary


LIFE = 5000
"""Models that one child runs."""


def attack_operands(count: int, seed: int, only: list[str]) -> Iterator[Result]:
    """``count`` cases, the same number for every operator."""
    names = [n for n in operands.names() if not only or n in only]
    each = -(-count // len(names))
    for name in names:
        yield from drive(name, ["-m", "tests.attack", "operands", "--work", name], range(seed, seed + each))


def attack_models(count: int, seed: int) -> Iterator[Result]:
    """``count`` altered models; a child that has run many is replaced."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "models.pickle"
        models.collect(file)
        for first in range(seed, seed + count, LIFE):
            seeds = range(first, min(first + LIFE, seed + count))
            yield from drive("model", ["-m", "tests.attack", "models", "--work", str(file)], seeds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("operands", "models"))
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], metavar="OPERATOR", help="operators whose operands are spoilt")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        serve((operands if options.what == "operands" else models).prepare(options.work))
        return 0
    if options.what == "operands":
        results = attack_operands(options.count, options.seed, options.only)
    else:
        results = attack_models(options.count, options.seed)

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    return int(summary(results, write) > 0)


if __name__ == "__main__":
    sys.exit(main())
