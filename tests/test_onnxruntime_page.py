"""docs/onnxruntime.md says of every name of onnxruntime what it does here, and nothing of names that there are not."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime as theirs
import pytest

import bolt_numba.onnxruntime as ours
import bolt_numba.onnxruntime.capi.onnxruntime_pybind11_state as our_state
from tests.test_onnxruntime import X, adding

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "onnxruntime.md").read_text()
ROWS = dict(re.findall(r"^\| `([\w.]+)` \| (.+) \|$", PAGE, re.MULTILINE))
CLASSES = (
    "InferenceSession", "SessionOptions", "RunOptions", "OrtValue", "IOBinding", "OrtDevice", "NodeArg",
    "ModelMetadata",
)  # fmt: skip
LEFT_OUT = {"contextlib", "onnxruntime_validation", "import_capi_exception", "annotations"}
"""What stands in onnxruntime's module without being meant for its users."""
COMPILED = {"OrtDevice.cpu", "OrtDevice.cuda", "OrtDevice.default_memory", "OrtValue.to_dlpack"}
"""What classes of onnxruntime's compiled part have that its Python classes lack; here they are one."""
same_release = pytest.mark.skipif(
    theirs.__version__.split(".")[:2] != ours.__version__.split(".")[:2], reason="the table is of another release"
)


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def found(path: str) -> bool:
    thing: Any = ours
    for name in path.split("."):
        if not hasattr(thing, name):
            return False
        thing = getattr(thing, name)
    return True


@pytest.mark.parametrize("name", ROWS)
def test_the_table_tells_the_truth(name: str) -> None:
    assert found(name) is not ROWS[name].startswith("not provided"), f"{name}: {ROWS[name]}"


def test_the_table_has_every_name_of_ours() -> None:
    names = set(ours.__all__) - {"install", "__version__"}
    names |= {f"{cls}.{name}" for cls in CLASSES for name in public(getattr(ours, cls))}
    assert names - ROWS.keys() - COMPILED == set()


@same_release
def test_the_table_has_every_name_of_onnxruntime() -> None:
    names = {n for n in public(theirs) if not isinstance(getattr(theirs, n), ModuleType) or n == "capi"} - LEFT_OUT
    names |= {f"{cls}.{name}" for cls in CLASSES for name in public(getattr(theirs, cls))}
    assert names - ROWS.keys() == set()
    assert ROWS.keys() - names == set(), "names that onnxruntime has not"


def test_every_error_of_onnxruntime_is_there() -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = [n for n, v in vars(state).items() if isinstance(v, type) and issubclass(v, Exception)]
    assert len(names) > 10
    for name in names:
        assert issubclass(getattr(our_state, name), Exception), name


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(adding())
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {"x": X}
    for block in blocks:
        exec(compile(block, "docs/onnxruntime.md", "exec"), names)
    np.testing.assert_array_equal(names["outputs"][0], X + np.arange(4, dtype=np.float32))
    assert names["sess"]._session.numerics == "fast"
