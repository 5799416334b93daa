"""Tensors of ONNX files: every element type in both storages, sizes that lie, data in other files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bolt_numba.base.files.mapped import map_of
from bolt_numba.converters.formats import load
from bolt_numba.converters.onnx.reading.tensor import array_of, dense_of
from bolt_numba.converters.onnx.types import DTYPES
from bolt_numba.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.types import STRING, Array

NUMBERS = [code for code, dtype in DTYPES.items() if dtype != STRING]
SHAPES = [(), (0,), (1,), (7,), (2, 3), (3, 0, 2)]


def values(code: int, shape: tuple[int, ...]) -> Array:
    dtype = DTYPES[code]
    count = int(np.prod(shape))
    if dtype.kind == "c":
        return (np.arange(count) + 1j * np.arange(count)[::-1]).astype(dtype).reshape(shape)
    least = int(dtype.name == "float8_e8m0fnu")  # a power of two, never 0
    return (np.arange(count) % 2 + least).astype(np.float32).astype(dtype).reshape(shape)


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "field"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("code", NUMBERS, ids=TensorProto.DataType.Name)
def test_every_element_type(code: int, shape: tuple[int, ...], raw: bool) -> None:
    wanted = values(code, shape)
    if raw:
        tensor = numpy_helper.from_array(wanted, "t")
        assert tensor.HasField("raw_data")
    else:
        tensor = helper.make_tensor(
            "t", code, shape, wanted.reshape(-1).tolist() if wanted.dtype.kind in "fiubc" else wanted.reshape(-1)
        )
    got = array_of(tensor, None, "t")
    assert got.dtype == DTYPES[code]
    assert got.shape == shape
    np.testing.assert_array_equal(got, wanted)


def test_signed_nibbles() -> None:
    tensor = helper.make_tensor("t", TensorProto.INT4, [3], [-8, 7, -1])
    assert array_of(tensor, None, "t").astype(int).tolist() == [-8, 7, -1]
    raw = TensorProto(name="t", data_type=TensorProto.INT4, dims=[3], raw_data=bytes([0x78, 0x0F]))
    assert array_of(raw, None, "t").astype(int).tolist() == [-8, 7, -1]


def test_strings() -> None:
    tensor = helper.make_tensor("t", TensorProto.STRING, [2], ["a", "ü"])
    assert array_of(tensor, None, "t").tolist() == ["a", "ü"]


@pytest.mark.parametrize(
    ("tensor", "match"),
    [
        (TensorProto(data_type=1, dims=[3], raw_data=b"1234"), "got 4 bytes, wanted 12"),
        (TensorProto(data_type=1, dims=[1 << 62, 1 << 62], raw_data=b"1234"), "got 4 bytes"),
        (TensorProto(data_type=1, dims=[1 << 40], float_data=[1.0]), "float_data: got 1 elements"),
        (TensorProto(data_type=7, dims=[2], float_data=[1.0, 2.0]), "int64_data: got 0 elements"),
        (TensorProto(data_type=1, dims=[-1], raw_data=b""), "wanted none negative"),
        (TensorProto(data_type=0, dims=[1], raw_data=b"1234"), "element type: got 0"),
        (TensorProto(data_type=77, dims=[1], raw_data=b"1234"), "element type: got 77"),
        (TensorProto(data_type=8, dims=[1], raw_data=b"abc"), "strings as bytes"),
        (TensorProto(data_type=21, dims=[3], raw_data=b"1"), "got 1 bytes, wanted 2"),
        (TensorProto(data_type=1, dims=[1], data_location=1), "wanted a model that is read from a file"),
    ],
)
def test_sizes_that_lie(tensor: TensorProto, match: str) -> None:
    with pytest.raises(InvalidModelError, match=match):
        array_of(tensor, None, "t")


def test_sparse_tensors() -> None:
    values = helper.make_tensor("v", TensorProto.FLOAT, [2], [5.0, 6.0])
    flat = helper.make_sparse_tensor(values, helper.make_tensor("i", TensorProto.INT64, [2], [1, 5]), [2, 3])
    assert dense_of(flat, None, "t").tolist() == [[0, 5, 0], [0, 0, 6]]
    pairs = helper.make_sparse_tensor(values, helper.make_tensor("i", TensorProto.INT64, [2, 2], [0, 1, 1, 2]), [2, 3])
    assert dense_of(pairs, None, "t").tolist() == [[0, 5, 0], [0, 0, 6]]
    for dims, indices in (([2, 2], [1, 5]), ([1 << 40, 1 << 40], [0, 1]), ([2, 3], [-1, 2])):
        bad = helper.make_sparse_tensor(values, helper.make_tensor("i", TensorProto.INT64, [2], indices), dims)
        with pytest.raises(InvalidModelError, match=r"t: (indices|dims): got"):
            dense_of(bad, None, "t")


# --- external data ---------------------------------------------------------------------------------------------------

WEIGHT = np.arange(6, dtype=np.float32)


def write(folder: Path, location: str, *, offset: object = 0, length: object = 24, count: int = 6) -> Path:
    """A model whose weight is said to lie elsewhere."""
    tensor = TensorProto(name="w", data_type=1, dims=[count], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[1] x) => (float[n] y) { y = Add(x, w) }'
    )
    model.graph.initializer.append(tensor)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def weight(path: Path) -> Array:
    (value,) = load(path).constants()
    assert value.const is not None
    return value.const


def test_external_data(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"head" + WEIGHT.tobytes())
    np.testing.assert_array_equal(weight(write(tmp_path, "sub/w.bin", offset=4)), WEIGHT)
    with write(tmp_path, "sub/w.bin", offset=4, length=None).open("rb") as file:
        assert len(load(file).constants()) == 1


def test_large_external_data_is_mapped(tmp_path: Path) -> None:
    big = np.arange(1 << 19, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(big.tobytes())
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[1] x) => (float[n] y) { y = Add(x, w) }'
    )
    tensor = model.graph.initializer.add(name="w", data_type=1, dims=[1 << 19], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    mapped = weight(tmp_path / "m.onnx")
    assert map_of(mapped) is not None
    np.testing.assert_array_equal(mapped, big)


@pytest.mark.parametrize(
    "location", ["../w.bin", "/etc/passwd", "sub/../../w.bin", "sub/../w.bin", "", "nul\0byte", "linked/../w.bin"]
)
def test_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    for place in (tmp_path, folder):
        (place / "w.bin").write_bytes(WEIGHT.tobytes())
    (folder / "linked").symlink_to(folder / "sub")
    match = r"^m\.onnx: tensor 'w': external data: got .*inside the model's folder"
    with pytest.raises(InvalidModelError, match=match):
        load(write(folder, location))


def test_an_absolute_name_is_refused_inside_the_folder_too(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    with pytest.raises(InvalidModelError, match="wanted a path inside the model's folder"):
        load(write(tmp_path, str(tmp_path / "w.bin")))


def linked(folder: Path, size: int = 6) -> Path:
    """A model and its data as caches of model hubs lay them out: links of a snapshot to files named by their hashes."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "abc" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    write(blobs, "sub/w.bin", count=size, length=4 * size).rename(blobs / "1f")
    (blobs / "2e").write_bytes(np.arange(size, dtype=np.float32).tobytes())
    (snapshot / "m.onnx").symlink_to("../../../blobs/1f")
    (snapshot / "sub").mkdir()
    (snapshot / "sub" / "w.bin").symlink_to("../../../../blobs/2e")
    return snapshot / "m.onnx"


@pytest.mark.parametrize("size", [6, 1 << 19], ids=["read", "mapped"])
def test_links_are_followed(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = linked(tmp_path, size)
    wanted = np.arange(size, dtype=np.float32)
    np.testing.assert_array_equal(weight(path), wanted)
    monkeypatch.chdir(path.parent)
    np.testing.assert_array_equal(weight(Path("m.onnx")), wanted)
    (path.parent / "sub").rename(tmp_path / "blobs" / "sub")
    (tmp_path / "blobs" / "sub" / "w.bin").unlink()
    (tmp_path / "blobs" / "2e").rename(tmp_path / "blobs" / "sub" / "w.bin")
    np.testing.assert_array_equal(weight(path), wanted)  # beside the file that the model is a link to


@pytest.mark.parametrize("kind", ["nothing", "itself", "a folder", "a device"])
def test_links_lead_to_files(tmp_path: Path, kind: str) -> None:
    path = linked(tmp_path)
    link = path.parent / "sub" / "w.bin"
    link.unlink()
    link.symlink_to({"nothing": "absent", "itself": "w.bin", "a folder": tmp_path, "a device": "/dev/zero"}[kind])
    with pytest.raises(InvalidModelError, match="wanted an existing file"):
        load(path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"offset": 4}, "got 24 bytes from 4 of 24"),
        ({"length": 20}, "got 20 bytes from 0 of 24, wanted 24"),
        ({"offset": -4}, "offset of external data: got '-4'"),
        ({"length": "1e9"}, "length of external data: got '1e9'"),
        ({"count": 1 << 40, "length": None}, "of 24, wanted"),
        ({"offset": 1 << 63}, "from 9223372036854775808 of 24"),
    ],
)
def test_external_data_that_is_too_short(tmp_path: Path, change: dict[str, object], match: str) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    with pytest.raises(InvalidModelError, match=match):
        load(write(tmp_path, "w.bin", **change))  # type: ignore[arg-type]


def test_external_data_that_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path, "w.bin")
    with pytest.raises(InvalidModelError, match="wanted an existing file"):
        load(path)
    with pytest.raises(InvalidModelError, match="wanted a model that is read from a file"):
        load(path.read_bytes())
    os.mkdir(tmp_path / "w.bin")
    with pytest.raises(InvalidModelError, match="wanted an existing file"):
        load(path)


def test_types_without_a_dtype_are_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(DTYPES, TensorProto.INT4)
    with pytest.raises(UnsupportedOpError, match="element type INT4"):
        array_of(TensorProto(data_type=TensorProto.INT4, dims=[0], raw_data=b""), None, "t")
