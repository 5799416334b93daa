"""``.bolt`` files with packed weights: the same results, without passes, packing or reading the originals."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import bolt_numba as bn
from bolt_numba.cli.app import run
from bolt_numba.errors import InvalidModelError
from bolt_numba.ir import packed as stored
from bolt_numba.ir.store import load_bolt, to_bytes
from bolt_numba.mapped import map_of
from bolt_numba.packing import packed
from bolt_numba.runtime import packs
from bolt_numba.types import Array


def _onnx(folder: Path) -> Path:
    """Convolution with normalization, then a product: weights that the passes make anew, and weights as they are."""
    rng = np.random.default_rng(0)
    made = {"w": (64, 16, 3, 3), "m": (64, 512), **{f"n{i}": (64,) for i in range(4)}}
    weights = [numpy_helper.from_array((0.5 + rng.random(s)).astype("f4"), n) for n, s in made.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "n0", "n1", "n2", "n3"], ["b"]),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, ("n", 16, 20, 20))],
        [helper.make_tensor_value_info("y", 1, None)], weights,
    )  # fmt: skip
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model as ONNX, and packed."""
    folder = tmp_path_factory.mktemp("packed")
    source = _onnx(folder)
    target = folder / "model.bolt"
    bn.save(packed(bn.load(source)), target)
    return source, target


def _x(n: int = 1) -> Array:
    return np.random.default_rng(n).standard_normal((n, 16, 20, 20), np.float32)


def _refuse(graph: bn.Graph) -> bn.Graph:
    raise AssertionError("the passes ran")


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_packed_and_results_are_the_same(
    files: tuple[Path, Path], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = files
    plain = bn.compile(source, threads=threads)
    want, want_five = plain(_x())["y"], plain(_x(5))["y"]
    monkeypatch.setattr("bolt_numba.passes.pipeline.run_pipeline", _refuse)
    session = bn.compile(target, threads=threads)
    got = session(_x())["y"]
    np.testing.assert_array_equal(got, want)
    large = [a for a in session._packs._made.values() if a.nbytes > 1 << 12]
    assert len(large) >= 2
    assert all(map_of(a) is not None for a in large)
    np.testing.assert_array_equal(session(_x(5))["y"], want_five)


def test_elsewhere_it_is_packed_anew(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = files
    want = bn.compile(source, threads=1)(_x())["y"]
    for name, value in (("machine", lambda: "other"), ("_secret", lambda: b"s" * 32), ("_secret", lambda: b"")):
        with monkeypatch.context() as patch:
            if name == "machine":
                patch.setattr("bolt_numba.session.machine", value)
            else:
                patch.setattr(stored, name, value)
            session = bn.compile(target, threads=1)
            np.testing.assert_array_equal(session(_x())["y"], want)
            assert not any(map_of(a) is not None for a in session._packs._made.values())


def test_a_packed_file_does_all_that_others_do(files: tuple[Path, Path]) -> None:
    graph = bn.load(files[1])
    assert graph.packed is not None
    again = load_bolt(to_bytes(graph))
    assert again.packed is not None
    assert again.packed.rows.keys() == graph.packed.rows.keys()
    assert bn.verify(files[1], against="reference", feeds={"x": _x()}).ok
    assert graph.clone().packed is None


def _sections(data: bytes) -> tuple[int, int]:
    text_at, text_size, data_at, _ = struct.unpack_from("<QQQQ", data, 16)
    assert text_at + text_size <= data_at
    return text_size, data_at


def _with_document(data: bytes, change: object) -> bytes:
    """The file with another document, whose own checksums are right."""
    import hashlib
    import zlib

    size, start = _sections(data)
    document = json.loads(data[64 : 64 + size])
    change(document)  # type: ignore[operator]
    text = json.dumps(document).encode()
    text += b" " * (-(64 + len(text)) % 64)
    fields = (64, len(text), 64 + len(text), len(data) - start, hashlib.blake2b(text, digest_size=16).digest())
    pack = struct.Struct("<8sIIQQQQ16s").pack
    bare = pack(data[:8], 1, 0, *fields)
    return pack(data[:8], 1, zlib.crc32(bare), *fields) + text + data[start:]


def test_a_damaged_packed_weight_is_refused(files: tuple[Path, Path]) -> None:
    data = bytearray(files[1].read_bytes())
    graph = bn.load(files[1])
    assert graph.packed is not None
    row = max(graph.packed.rows.values(), key=lambda a: a.nbytes)
    at = bytes(data).index(row.tobytes())
    data[at + row.nbytes // 2] ^= 1
    with pytest.raises(InvalidModelError, match="checksum is wrong"):
        bn.load(bytes(data))


def test_a_damaged_original_is_refused_when_it_is_needed(files: tuple[Path, Path]) -> None:
    data = bytearray(files[1].read_bytes())
    graph = bn.load(files[1])
    weight = max((v.const for v in graph.constants() if v.const is not None), key=lambda a: a.nbytes)
    data[bytes(data).index(weight.tobytes())] ^= 1
    damaged = bn.load(bytes(data))
    assert damaged.packed is not None
    bn.compile(damaged, threads=1)(_x())
    damaged.packed.rows.clear()
    with pytest.raises(InvalidModelError, match="checksum is wrong"):
        bn.compile(damaged, threads=1)(_x())


@pytest.mark.parametrize("what", ["smaller", "key", "machine", "constant"])
def test_a_forged_row_is_not_used(files: tuple[Path, Path], what: str) -> None:
    def change(document: dict[str, object]) -> None:
        rows, tensors = document["packed"]["rows"], document["tensors"]  # type: ignore[index]
        largest = max(rows, key=lambda r: tensors[r[2]]["bytes"])
        if what == "smaller":
            tensors[largest[2]].update(shape=[16], bytes=64)
        elif what == "key":
            largest[1] = "'another'"
        elif what == "machine":
            document["packed"]["machine"] += "x"  # type: ignore[index]
        else:
            largest[0] = (largest[0] + 1) % len(document["graph"]["constants"])  # type: ignore[index]

    graph = load_bolt(_with_document(files[1].read_bytes(), change))
    assert graph.packed is not None
    assert not graph.packed.rows
    assert graph.packed.machine == ""
    assert packs.machine()
    bn.compile(graph, threads=1)(_x())


@pytest.mark.parametrize(
    "found", [[], 3, {"rows": 1}, {"rows": [[0, "k", 10**6, 0]], "machine": "", "seal": "x"}, {"rows": [[0, 1]]}]
)
def test_a_malformed_section_is_refused(files: tuple[Path, Path], found: object) -> None:
    with pytest.raises(InvalidModelError, match="packed"):
        load_bolt(_with_document(files[1].read_bytes(), lambda d: d.update(packed=found)))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 4096, (1 << 21) + 24, (1 << 21) + 4099])
def test_checksums_see_every_change(size: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    want = stored.checksum(data)
    assert stored.checksum(data.copy()) == want
    for place in {0, size // 3, size // 2, size - 1} if size else ():
        changed = data.copy()
        changed[place] ^= 16
        assert stored.checksum(changed) != want
    if size > 4096:
        swapped = data.copy()
        swapped[:2048], swapped[2048:4096] = data[2048:4096].copy(), data[:2048].copy()
        assert stored.checksum(swapped) != want


def test_command(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "m.bolt"
    assert run(["convert", str(files[0]), "--pack", "-o", str(target)]) == 0
    graph = bn.load(target)
    assert graph.packed is not None
    assert graph.packed.rows
    assert run(["convert", str(files[0]), "--pack", "-o", str(tmp_path / "m.onnx")]) == 2
    capsys.readouterr()
