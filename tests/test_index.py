"""Modules of kernels are imported as operators need them, with the same choices as when all are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import json, sys
from bolt_numba import ops
from bolt_numba.kernels import registry
from bolt_numba.ops.registry import OPS
from bolt_numba.types import F32, TensorType

ops.load_all()
count = lambda: sum(m.startswith("bolt_numba.kernels.cpu.") for m in sys.modules)
rows = lambda n: registry.KERNELS[OPS[n], "cpu"]
f32_makers = lambda: {n: [(e.make.__module__, e.name) for e in rows(n) if e.precision == "f32"] for n in names}
names = sys.argv[1].split(",") if sys.argv[1] else []
for name in names:
    registry.select(OPS[name](), [TensorType(F32, (8, 8))] * (1 + (name == "MatMul")))
few = count()
kept = f32_makers()
registry.load("cpu")
after = f32_makers()
assert kept == after, (kept, after)
print(json.dumps([few, count(), after]))
"""


def _ask(folder: Path, names: str) -> tuple[int, int, dict[str, list[list[str]]]]:
    env = os.environ | {"BOLT_NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", _CODE, names], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    few, every, makers = json.loads(done.stdout)
    return few, every, makers


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"MatMul": [["os", "system"]]}'])
def test_few_modules_and_the_same_order(tmp_path: Path, damage: str) -> None:
    first, every, full = _ask(tmp_path, "MatMul,Relu")
    assert first == every, "nothing is known yet"
    (file,) = (tmp_path / "makers").glob("*.json")
    if damage:
        file.write_text(damage)
        again, _, makers = _ask(tmp_path, "MatMul,Relu")
        assert again == every
        assert makers == full
    for names in ("MatMul,Relu", "Relu,MatMul"):
        few, _, makers = _ask(tmp_path, names)
        assert few < every - 10
        assert makers == full


_FIND = """
import json, sys
from bolt_numba import ops

found = ops.find(sys.argv[1])
print(json.dumps([found and found.__module__, sum(m.startswith("bolt_numba.ops.") for m in sys.modules)]))
"""


def _find(folder: Path, name: str) -> tuple[str | None, int]:
    env = os.environ | {"BOLT_NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", _FIND, name], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    module, count = json.loads(done.stdout)
    return module, count


@pytest.mark.parametrize(
    "damage", ["[]", "{", '{"MatMul": "os"}', '{"MatMul": "bolt_numba.ops.registry"}', '{"MatMul": 3}']
)
def test_an_operator_is_found_without_the_others(tmp_path: Path, damage: str) -> None:
    module, every = _find(tmp_path, "MatMul")
    assert module == "bolt_numba.ops.layers.products.matmul"
    again, few = _find(tmp_path, "MatMul")
    assert again == module
    assert few < every - 15
    assert _find(tmp_path, "Mat Mul") == (None, every)
    (file,) = (tmp_path / "operators").glob("*.json")
    file.write_text(damage)
    assert _find(tmp_path, "MatMul") == (module, every)
