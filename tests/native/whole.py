"""All that the C library is put through, at length: ``python -m tests.native.whole``, or ``make native``."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bolt_numba.export.c_library import SOURCES
from tests.native.c_programs import program_bytes, scratch, stress
from tests.native.nets import counter, dense, digits, doubling, lookup, ranged, selector

_CHECKED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
_ENVIRONMENT = {"ASAN_OPTIONS": "allocator_may_return_null=1"}
_VALGRIND = ("valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=all")
SHAPES = [{"x": (64, 256)}, {"x": (1, 256)}]
ROWS = [{"x": (n, 24)} for n in range(1, 200)]


def models(target: str) -> dict[str, Path]:
    """Files of programs."""
    made = {
        "digits": program_bytes(digits(), target=target, threads=2),
        "dense": program_bytes(dense(), shapes=SHAPES, target=target, threads=3),
        "counter": program_bytes(counter(), target=target),
        "lookup": program_bytes(lookup(), target=target),
        "selector": program_bytes(selector(), target=target),
        "doubling": program_bytes(doubling(), target=target),
        "ranged": program_bytes(ranged(), shapes=ROWS, target=target, threads=2),
    }
    paths = {name: scratch() / f"{name}.{target}" for name in made}
    for name, data in made.items():
        paths[name].write_bytes(data)
    return paths


def run(*command: Any, **more: Any) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **more)
    if done.returncode:
        raise SystemExit(f"{command}: ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-6000:]}")
    return done.stdout.strip()


def cycles(native: dict[str, Path]) -> str:
    grown = int(run(stress(), "cycles", native["digits"], 100_000))
    assert grown < 1024, f"grown by {grown} KiB"
    return f"grown by {grown} KiB"


def shapes(native: dict[str, Path]) -> str:
    grown = int(run(stress(), "shapes", native["ranged"], len(ROWS)))
    assert grown < 1024, f"grown by {grown} KiB"
    run(stress(*_CHECKED), "shapes", native["ranged"], len(ROWS), env=_ENVIRONMENT)
    return f"grown by {grown} KiB"


def mutants(native: dict[str, Path]) -> str:
    return "; ".join(
        run(stress(*_CHECKED), "mutants", path, 2000, seed, env=_ENVIRONMENT)
        for path in native.values()
        for seed in (1, 2)
    )


def clones(native: dict[str, Path]) -> str:
    for flags, runs in (((), 5000), (_CHECKED, 500), (("-fsanitize=thread",), 300)):
        run(stress(*flags), "clones", native["dense"], 8, runs)
        run(stress(*flags), "clones", native["counter"], 8, 1)
    return "the same bits"


def valgrind(native: dict[str, Path]) -> str:
    older = models("x86-64-v3")  # valgrind knows no AVX-512
    for name in ("digits", "counter", "selector", "doubling"):
        run(*_VALGRIND, stress(), "cycles", older[name], 20)
    run(*_VALGRIND, stress(), "shapes", older["ranged"], len(ROWS))
    run(*_VALGRIND, stress(), "clones", older["dense"], 2, 2)
    return "no error and no leak"


def cmake(native: dict[str, Path]) -> str:
    folder = scratch() / "cmake"
    run("cmake", "-S", SOURCES, "-B", folder)
    run("cmake", "--build", folder)
    return str(next(folder.glob("libbolt_numba.*")).name)


def main() -> None:
    checks: tuple[Callable[[dict[str, Path]], str], ...] = (cycles, shapes, mutants, clones, valgrind, cmake)
    native = models("native")
    for check in checks:
        start = time.perf_counter()
        found = check(native)
        sys.stdout.write(f"{check.__name__}: {found} ({time.perf_counter() - start:.0f} s)\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
