"""Operators of other packages: what docs/own-operators.md does in one process, in files and processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bolt_numba.converters.readers import Readers
from tests.pages import blocks
from tests.tflite_files import TfliteFile

flexbuffers = pytest.importorskip("flatbuffers.flexbuffers")
ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "own-operators.md").read_text()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with the module of the page and a model that has its operator."""
    (module,) = [block.text for block in blocks(PAGE) if block.title]
    (tmp_path / "acme.py").write_text(module)
    file = TfliteFile()
    file.subgraph()
    x, y = file.tensor("x", (2, 5), "FLOAT32"), file.tensor("y", ())
    file.operator("AcmeRoll", [x], [y], custom=bytes(flexbuffers.Dumps({"shift": 2})))
    file.ends([x], [y])
    (tmp_path / "roll.tflite").write_bytes(file.to_bytes())
    return tmp_path


def told(folder: Path, program: str) -> str:
    """What a process that starts in a folder prints, or how it ends."""
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"], str(ROOT)])
    env = os.environ | {"PYTHONPATH": path, "BOLT_NUMBA_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


RUN = """
import numpy as np
import bolt_numba as bn
session = bn.compile("roll.tflite")
results = session.run(None, {"x": np.arange(10, dtype=np.float32).reshape(2, 5)})
print(results[0].tolist(), session.report()[0]["runner"])
"""
ROLLED = f"{np.roll(np.arange(10.0).reshape(2, 5), 2, 1).tolist()} roll"


def test_custom_operators_of_tflite(package: Path) -> None:
    assert told(package, "import acme" + RUN) == ROLLED
    unknown = "import bolt_numba as bn\ntry: bn.compile('roll.tflite')\nexcept bn.UnsupportedOpError as e: print(e)"
    assert re.search(r"\n  custom operator AcmeRoll .*\ndocs/own-operators\.md says how", told(package, unknown))


def announce(package: Path) -> None:
    info = package / "acme-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[bolt_numba.operators]\nacme = acme\n")


def test_an_entry_point_announces_the_module(package: Path) -> None:
    announce(package)
    assert told(package, RUN) == ROLLED
    unknown = 'import sys, bolt_numba as bn; bn.compile(bn.load("roll.tflite")); print("acme" in sys.modules)'
    assert told(package, unknown) == "True"
    (package / "acme.py").write_text("import nothing_such\n")
    assert re.search(r"operators of 'acme': got ModuleNotFoundError: .*wanted a module", told(package, RUN))


def test_commands_know_what_is_announced(package: Path) -> None:
    announce(package)
    described = "from bolt_numba.cli.machine import _described; print(_described('AcmeRoll'))"
    assert "shift: int = 1" in told(package, described)
    listed = "from bolt_numba.cli.machine import ops; ops(as_json=True)"
    assert '"op": "AcmeRoll"' in told(package, listed)
    assert "AcmeRoll" not in told(package, listed.replace("as_json", "markdown"))


def test_the_operator_comes_back_from_an_onnx_file(package: Path) -> None:
    announce(package)
    write = (
        "import sys, bolt_numba as bn; graph = bn.load('roll.tflite')\n"
        "assert 'acme' in sys.modules and 'onnx' not in sys.modules\n"
        "from bolt_numba import surgery; surgery.save_onnx(graph, 'roll.onnx')\n"
    )
    assert told(package, write + RUN.replace("roll.tflite", "roll.onnx")) == ROLLED


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("line, i, c", "line, i, q, c", r"acme\.py:\d+: body of kernel 'rolled': parameters: got \['q'\], wanted "),
        ("x.dims[-1]", "x.dimz[-1]", r"'dimz' \(this is a fault of module acme, function roll, line \d+\)"),
        ("ins[0].rank > 0", "ins[0].rankk > 0", r"'rankk' \(this is a fault of module acme, function <lambda>, "),
        ("x.with_value(None)", "x.with_valuee(None)", r"'with_valuee' \(module acme, function infer, line \d+\)"),
        ("return x.with_value(None)", "pass", r"AcmeRoll: got a NoneType, wanted a TensorType .* infer of module acme"),
        ("b(AcmeRoll(shift), x)", "b(AcmeRol(shift), x)", r"'AcmeRol' .*\(module acme, function roll_of_tflite"),
        ("return [on.step(rolled, (), args, on.pays(x.nbytes, x.size))]", "pass",
         r"maker roll: got None, wanted a list of steps \(this is a fault of module acme\)"),
        ("shift: int = 1", "shift = 1", r"AcmeRoll: fields: got \(2,\), .* wanted none, as nothing in the class "),
        ("y=PTR, shift=I64", "y=PTR, t=I64", r"kernel 'rolled': fields: got \['t'\], wanted other names than "),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_module_is_told_as_its_fault(package: Path, right: str, wrong: str, said: str) -> None:
    announce(package)
    text = (package / "acme.py").read_text()
    assert right in text
    (package / "acme.py").write_text(text.replace(right, wrong))
    assert re.search(said, told(package, RUN))


def test_what_is_known_of_makers_names_no_module_of_others(package: Path) -> None:
    """A process in which another package has a kernel for Relu is the first one of a machine."""
    (package / "mine.py").write_text(
        "from bolt_numba.kernels.registry import kernel\nfrom bolt_numba.ops.pointwise import Relu\n"
        "@kernel(Relu, rank=-9)\ndef mine(op, ins, outs, context): return []\n"
    )
    run = (
        "import numpy as np, bolt_numba as bn\nfrom bolt_numba.ir.build import Builder\n"
        "from bolt_numba.ir.graph import Graph\nfrom bolt_numba.ops.pointwise import Relu\n"
        "from bolt_numba.types import F32, TensorType\n"
        "graph = Graph('g')\nx = graph.add_input('x', TensorType(F32, (3,)))\n"
        "graph.add_output(Builder(graph)(Relu(), x))\n"
        "print(bn.compile(graph).run(None, {'x': np.array([-1, 0, 1], np.float32)})[0].tolist())"
    )
    assert told(package, "import mine\n" + run) == "[0.0, 0.0, 1.0]"
    (package / "mine.py").unlink()
    assert told(package, run) == "[0.0, 0.0, 1.0]"


def test_a_reader_whose_attributes_are_no_keywords_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reader of Roll: got operand 1, wanted attributes after \*"):
        Readers("tiny").add("Roll", lambda b, x, shift=1: x)
