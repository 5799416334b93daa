"""What a warm process does before its first result: few imports, the same meaning as with all of them."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pickle
import subprocess
import sys
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, defs, helper

from bolt_numba.base.files import folder_index as remembered
from bolt_numba.base.records import field_metadata, record
from bolt_numba.converters.onnx.proto import onnx as messages
from bolt_numba.converters.onnx.reading.registry import READERS, find_reader, load_readers

_LOAD = """
import json, sys
before = set(sys.modules)  # what packages that hook into the start of Python import
import bolt_numba as bn
sess = bn.compile(sys.argv[1], threads=1)
kinds = sorted(type(n.op).__name__ for n in sess.graph.nodes)
from bolt_numba.converters.onnx.reading import registry
loaded = [m for m in sys.modules if m.startswith(tuple(f"{p}." for p in registry.ONNX.packages))]
found = {n: [e.since for e in registry.READERS[("", n)]] for n in ("Conv", "Relu", "MaxPool")}
registry.load_readers()
full = {n: [e.since for e in registry.READERS[("", n)]] for n in ("Conv", "Relu", "MaxPool")}
assert found == full, (found, full)
late = ("onnx", "numba", "llvmlite", "hashlib", "tempfile", "google.protobuf.json_format")
print(json.dumps([len(loaded), [m for m in late if m in sys.modules.keys() - before], kinds]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("start") / "m.onnx"
    w = helper.make_tensor("w", TensorProto.FLOAT, (4, 3, 3, 3), np.ones(108, np.float32))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], strides=[1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 8, 8))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4, 5, 5))
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _start(model: Path, cache: Path) -> tuple[int, list[str], list[str]]:
    env = os.environ | {"BOLT_NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(model)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    tables, late, kinds = json.loads(done.stdout)
    return tables, late, kinds


@pytest.mark.parametrize("damage", ["", "[]", "{", '{" Conv": ["os"]}', "{}"])
def test_a_second_process_imports_what_the_model_needs(model: Path, tmp_path: Path, damage: str) -> None:
    first, _, kinds = _start(model, tmp_path)
    assert kinds == ["Conv", "MaxPool", "Relu"]
    assert first > 20, "nothing is known yet"
    (file,) = (tmp_path / "readers").glob("*.json")
    if damage:
        file.write_text(damage)
        assert _start(model, tmp_path)[::2] == (first, kinds)
    few, late, again = _start(model, tmp_path)
    assert again == kinds
    assert late == []
    assert few <= 3, "what was damaged was written anew"


_MAKERS = """
import sys
from bolt_numba.kernels.registry import KERNELS, QueryContext, select
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.types import F32, TensorType
import numpy as np
ins = [TensorType(F32, (4, 64)), TensorType(F32, (64, 64), value=np.ones((64, 64), np.float32))]
names = [select(MatMul(), ins, QueryContext(precision=p)).name for p in sys.argv[1].split(",")]
narrow = sorted(m.rsplit(".", 1)[1] for m in sys.modules if ".halves." in m)
print(*names, *narrow)
"""


def test_kernels_of_other_precisions_are_not_imported(tmp_path: Path) -> None:
    env = os.environ | {"BOLT_NUMBA_CACHE_DIR": str(tmp_path)}

    def started(precisions: str) -> str:
        command = [sys.executable, "-c", _MAKERS, precisions]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()

    assert started("f32") == "matmul bf16 f16", "nothing is known yet"
    assert started("f32") == "matmul"
    assert started("f16") == "matmul_f16 f16"
    assert started("f32,f16,f32,bf16") == "matmul matmul_f16 matmul matmul_bf16 bf16 f16"


def test_messages_are_those_of_onnx() -> None:
    code = (
        "from bolt_numba.converters.onnx.proto import onnx as ours; import sys; assert 'onnx' not in sys.modules; "
        "import onnx; assert onnx.ModelProto is ours.ModelProto and onnx.TensorProto.FLOAT == ours.TensorProto.FLOAT"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert messages.ModelProto is onnx.ModelProto


TOLD_OTHERWISE = {("Constant", "sparse_value"), ("LpPool", "p"), ("GlobalLpPool", "p")}
"""Attributes whose annotation is not the type of every opset: the schema is asked."""


def test_annotations_tell_the_types_of_attributes() -> None:
    load_readers()
    told = 0
    for schema in defs.get_all_schemas_with_history():
        reader = find_reader(schema.domain, schema.name, schema.since_version)
        for attribute in schema.attributes.values() if reader is not None else ():
            assert reader is not None
            kind = reader.kinds.get(attribute.name)
            told += kind is not None
            if (schema.name, attribute.name) not in TOLD_OTHERWISE:
                assert kind in (None, int(attribute.type.value)), (schema.name, attribute.name)
    assert told > 1000
    assert len(READERS) > 200


@record(frozen=True)
class Point:
    """A frozen record."""

    x: int
    y: int = 2


@record()
class Bag:
    """A record that changes."""

    name: str
    items: list[int] = field(default_factory=list)
    size: int = 0

    def __post_init__(self) -> None:
        self.size = len(self.items)


@record(frozen=True)
class Cube(Point):
    corners: ClassVar[int] = 8
    depth: int = 1


@record(eq=False)
class Node:
    """Equal only to itself."""

    name: str


@dataclasses.dataclass(frozen=True)
class Twin:
    x: int
    y: int = 2


@record(frozen=True)
class Told:
    """A record whose fields say something of themselves."""

    x: int
    y: int = field(default=2, metadata={"unit": "m"})


@record(frozen=True)
class Listed:
    """A record with a field of a common name."""

    values: int
    more: int = 2


def test_records_are_dataclasses() -> None:
    p = Point(1)
    assert (p.x, p.y) == (1, 2)
    assert p == Point(x=1, y=2) != Point(1, 3)
    assert p != Twin(1)
    assert len({p, Point(1), Point(2)}) == 2
    assert repr(p) == "Point(x=1, y=2)"
    assert dataclasses.replace(p, y=5) == Point(1, 5)
    assert dataclasses.asdict(p) == {"x": 1, "y": 2}
    assert [f.name for f in dataclasses.fields(Point)] == ["x", "y"]
    assert dataclasses.is_dataclass(Point)
    assert pickle.loads(pickle.dumps(p)) == p
    match p:
        case Point(x, y):
            assert (x, y) == (1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.x = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del p.x
    for bad in (lambda: Point(), lambda: Point(1, 2, 3), lambda: Point(z=1)):  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            bad()


def test_records_that_change() -> None:
    a, b = Bag("a"), Bag("a")
    a.items.append(1)
    assert b.items == []
    assert a != b
    b.items.append(1)
    assert a == b
    assert Bag("c", [1, 2]).size == 2
    with pytest.raises(TypeError):
        hash(a)
    made: Any = dataclasses.replace(a, name="z")
    assert (made.name, made.items, made.size) == ("z", [1], 1)
    assert Node("n") != Node("n")
    assert len({Node("n"), Node("n")}) == 2


def test_records_have_the_fields_of_their_bases_and_no_class_variables() -> None:
    assert Cube(1, depth=3) == Cube(x=1, y=2, depth=3) != Point(1)
    assert [f.name for f in dataclasses.fields(Cube)] == ["x", "y", "depth"]
    assert Cube.corners == Cube(1).corners == 8
    with pytest.raises(dataclasses.FrozenInstanceError):
        Cube(1).depth = 2  # type: ignore[misc]


def test_what_is_kept_beside_the_fields_is_refused() -> None:
    """Records are equal, and have one hash, by what their dictionaries hold."""

    class Base:
        @functools.cached_property
        def area(self) -> int:
            return 5

    for bases in ((Base,), (Point, Base)):
        with pytest.raises(TypeError, match="Square: area: got a cached property, wanted"):
            record(frozen=True)(type("Square", bases, {"__annotations__": {"side": int}}))


def test_fields_say_something_of_themselves() -> None:
    assert Told(1) == Told(1, 2) == Told(x=1, y=Told.y)
    assert field_metadata(Told) == {"y": {"unit": "m"}}
    assert dataclasses.fields(Told)[1].metadata == {"unit": "m"}
    assert dataclasses.replace(Told(1), x=3) == Told(3)


@pytest.mark.parametrize("kind", [Cube, Point, Bag, Node, Told, Listed])
def test_many_records_are_as_the_first(kind: Any) -> None:
    """The compiled ``__init__`` comes after so many objects, and refuses what the general one refuses."""
    first = kind(1)
    before = kind.__init__
    rest = [kind(1) for _ in range(70)]
    assert kind.__init__ is not before
    assert all(vars(one) == vars(first) for one in rest)
    for arguments, named in ((), {}), ((1,), {"other": 2}), ((1, 2, 3, 4), {}):
        with pytest.raises(TypeError):
            kind(*arguments, **named)


def test_what_is_remembered_is_of_the_sources_that_a_process_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that is replaced while a process runs: what that one knows is not kept for the new sources."""
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "old.py").write_text("x = 1")
    assert remembered.remembered("kind", folder) is None
    (folder / "old.py").rename(folder / "new.py")
    remembered.remember("kind", folder, ["old"])
    remembered.state_of.cache_clear()  # as in another process
    assert remembered.remembered("kind", folder) is None
    remembered.remember("kind", folder, ["new"])
    remembered.state_of.cache_clear()
    assert remembered.remembered("kind", folder) == ["new"]
