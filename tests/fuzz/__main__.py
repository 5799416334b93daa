"""Fuzz what reads files of others, by coverage: atheris for Python, libFuzzer for the library in C.

    python -m tests.fuzz seeds FOLDER [TARGET ...]           write good files, a folder for each target
    python -m tests.fuzz run TARGET [--seconds N] [FILE ...]  fuzz, or read these files again
    python -m tests.fuzz build FILE                           the fuzzer of exported programs, by clang

An input is good when it is refused by a BoltError or read.  What is found lies in ``build/fuzz/findings``, the corpus
beside it; both stay for the next run.  `oss_fuzz` has what OSS-Fuzz wants to do the same.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "fuzz"
SECONDS = 600
LIMITS = ("-rss_limit_mb=4096", "-max_len=131072")
"""What one input may take, in MiB, and its length."""
MEMORY = "256M"
"""What bolt-numba may ask for at once."""
UNCOUNTED = ["bolt_numba.kernels"]
"""Numba compiles the functions of these modules, and knows no counters."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="what", required=True)
    seeds = kinds.add_parser("seeds")
    seeds.add_argument("folder", type=Path)
    seeds.add_argument("targets", nargs="*")
    run = kinds.add_parser("run")
    run.add_argument("target")
    run.add_argument("files", nargs="*")
    run.add_argument("--seconds", type=int, default=SECONDS)
    kinds.add_parser("build").add_argument("file", type=Path)
    options = parser.parse_args()
    if options.what == "build":
        build_program(options.file)
    elif options.what == "seeds":
        write_seeds(options.folder, options.targets)
    else:
        return fuzz(options.target, options.seconds, options.files)
    return 0


def write_seeds(folder: Path, names: Sequence[str] = ()) -> None:
    """Write the good files of some targets, or of all."""
    from tests.fuzz.targets import LARGEST, TARGETS

    for name in names or TARGETS:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for data in TARGETS[name].seeds():
            if len(data) <= LARGEST:
                (folder / name / blake2b(data, digest_size=16).hexdigest()).write_bytes(data)


def fuzz(name: str, seconds: int, again: Sequence[str]) -> int:
    """Fuzz a target in a process of its own; the exit code is 0 where nothing is found."""
    from tests.fuzz.targets import TARGETS

    corpus, findings = BUILD / name, BUILD / "findings"
    if not corpus.is_dir():
        write_seeds(BUILD, [name])
    findings.mkdir(parents=True, exist_ok=True)
    where = [*again] or [str(corpus), f"-max_total_time={seconds}", f"-artifact_prefix={findings}/{name}-"]
    if name == "program":
        build_program(BUILD / "fuzz_program")
        command = [str(BUILD / "fuzz_program")]
    else:
        command = [sys.executable, "-c", f"from tests.fuzz.__main__ import start; start({name!r})"]
    limits = *LIMITS, f"-timeout={TARGETS[name].seconds}"
    sanitizer = {"ASAN_OPTIONS": "allocator_may_return_null=1:max_allocation_size_mb=1024"}  # what a program wants
    return subprocess.run([*command, *limits, *where], env=os.environ | sanitizer, check=False).returncode


def start(name: str) -> None:
    """Fuzz a target in this process, with the arguments of libFuzzer that it was started with."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    os.environ.setdefault("BOLT_NUMBA_MEMORY", MEMORY)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["BOLT_NUMBA_CACHE_DIR"] = f"{scratch}/cache"  # what counts coverage is nothing to be kept
        atheris.instrument_imports(include=["bolt_numba"], exclude=UNCOUNTED).__enter__()  # not left: imports come late
        from tests.fuzz.targets import TARGETS

        target, folder = TARGETS[name], Path(scratch) / "files"
        folder.mkdir()
        change = _mutator(target, lambda part, most: atheris.Mutate(part, most))  # another function once it runs
        atheris.Setup(sys.argv, lambda data: target.attempt(data, folder), custom_mutator=change)
        atheris.Fuzz()


def _mutator(target: Any, plain: Callable[[bytes, int], bytes]) -> Callable[[bytes, int, int], bytes]:
    """As libFuzzer calls one: the input, the most bytes, and a number that decides."""
    import numpy as np

    def change(data: bytes, most: int, seed: int) -> bytes:
        made: bytes = target.changed(data, np.random.default_rng(seed), lambda part, _: plain(part, most))
        return made[:most]

    return change


def build_program(to: Path) -> None:
    """Compile the fuzzer of exported programs; raises CalledProcessError where clang cannot."""
    from bolt_numba.export.c_library import SOURCES
    from tests.native.c_programs import STRESS

    to.parent.mkdir(parents=True, exist_ok=True)
    engine = os.environ.get("LIB_FUZZING_ENGINE", "-fsanitize=fuzzer")
    flags = os.environ.get("CFLAGS", "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined").split()
    command = [os.environ.get("CC", "clang"), "-std=c11", "-pthread", "-DFUZZ", *flags, engine, f"-I{SOURCES}"]
    subprocess.run([*command, *map(str, sorted(SOURCES.glob("*.c"))), str(STRESS), "-o", str(to), "-lm"], check=True)


if __name__ == "__main__":
    sys.exit(main())
