"""The Java API, by a program that wants things of it and by the example."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.export.c_library import build_c_library
from bolt_numba.types import F32
from tests.native.c_programs import needs_cc, on_this_machine, program_bytes
from tests.native.nets import dense, digits, lookup, selector

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
pytestmark = [
    needs_cc,
    on_this_machine,
    pytest.mark.skipif(shutil.which("javac") is None, reason="there is no JDK"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("java")
    build_c_library(folder, java=True)
    return folder


def java(library: Path, source: Path, *args: object) -> str:
    command = [
        "java",
        "-Xcheck:jni",
        "-cp",
        library / "bolt_numba.jar",
        f"-Djava.library.path={library}",
        source,
        *args,
    ]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_models_run_and_refuse(library: Path) -> None:
    (library / "dense").write_bytes(program_bytes(dense(), shapes=[{"x": (64, 256)}, {"x": (1, 256)}], threads=3))
    (library / "lookup").write_bytes(program_bytes(lookup()))
    (library / "selector").write_bytes(program_bytes(selector()))
    files = [library / name for name in ("dense", "lookup", "selector")]
    made = java(library, Path(__file__).parent / "JavaApi.java", *files)
    assert made.splitlines()[-1] == "done"
    assert "WARNING" not in made


def test_the_example_reads_digits(library: Path) -> None:
    images = np.load(EXAMPLES / "digits" / "digits.npz")["image"][:20].astype(F32) / 16
    (library / "images").write_bytes(images.tobytes())
    (library / "digits").write_bytes(program_bytes(digits(), shapes=[{"image": (1, 1, 8, 8)}]))
    made = java(library, EXAMPLES / "java" / "Classify.java", library / "digits", library / "images")
    (scores,) = bn.compile(digits())(image=images).values()
    assert made.split() == [str(label) for label in np.argmax(scores, -1)]
