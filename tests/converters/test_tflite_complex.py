"""TFLite's complex numbers: what moves, joins, converts and multiplies them, as NumPy has it; and spectrograms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import BoltError, UnsupportedOpError
from bolt_numba.types import Array
from tests.tflite_files import TfliteFile

X = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)
Z = np.fft.rfft2(X, (4, 8))
"""[2, 4, 5]"""
CONSTANT = (np.arange(40).reshape(2, 4, 5) * (1 + 2j)).astype(np.complex64)


def i32(*values: Any) -> Array:
    return np.array(values[0] if len(values) == 1 else values, np.int32)


def file_of(
    op: str,
    operands: Sequence[Array | None],
    results: Sequence[Sequence[int]],
    kind: str = "COMPLEX64",
    options: tuple[str, dict[str, Any]] | None = None,
) -> bytes:
    """A file whose operator takes the transform of x where None stands, and of whose results both parts leave."""
    file = TfliteFile()
    file.subgraph()
    x, length = file.tensor("x", X.shape), file.constant("length", i32(4, 8))
    made = file.tensor("made", Z.shape, "COMPLEX64")
    file.operator("RFFT2D", [x, length], [made])
    taken = [made if v is None else file.constant(f"c{i}", v) for i, v in enumerate(operands)]
    given = [file.tensor(f"r{i}", shape, kind) for i, shape in enumerate(results)]
    file.operator(op, taken, given, options)
    ends = given
    if kind == "COMPLEX64":
        ends = []
        for i, (y, shape) in enumerate(zip(given, results, strict=True)):
            for part in ("REAL", "IMAG"):
                ends.append(file.tensor(f"{part}{i}", shape))
                file.operator(part, [y], [ends[-1]])
    file.ends([x], ends)
    return file.to_bytes()


Case = tuple[str, Sequence[Array | None], Callable[[Any], Any], Any]
PAD = i32([[0, 0], [1, 2], [0, 0]])
CASES: list[Case] = [
    ("RESHAPE", [None, i32(8, 5)], lambda z: z.reshape(8, 5), None),
    ("SQUEEZE", [None], lambda z: z, ("SqueezeOptions", {"squeeze_dims": []})),
    ("EXPAND_DIMS", [None, i32(1)], lambda z: z[:, None], None),
    ("TRANSPOSE", [None, i32(1, 0, 2)], lambda z: z.transpose(1, 0, 2), None),
    ("CONCATENATION", [None, None], lambda z: np.concatenate([z, z], 2), ("ConcatenationOptions", {"axis": -1})),
    ("CONCATENATION", [None, CONSTANT], lambda z: np.concatenate([z, CONSTANT]), ("ConcatenationOptions", {"axis": 0})),
    ("PACK", [None, None], lambda z: np.stack([z, z], -1), ("PackOptions", {"values_count": 2, "axis": -1})),
    ("UNPACK", [None], lambda z: [z[0], z[1]], ("UnpackOptions", {"num": 2, "axis": 0})),
    ("SPLIT", [i32(1), None], lambda z: np.split(z, 2, 1), ("SplitOptions", {"num_splits": 2})),
    ("SPLIT_V", [None, i32(1, 4), i32(-1)], lambda z: np.split(z, [1], 2), ("SplitVOptions", {"num_splits": 2})),
    ("TILE", [None, i32(1, 2, 1)], lambda z: np.tile(z, (1, 2, 1)), None),
    ("BROADCAST_TO", [None, i32(3, 2, 4, 5)], lambda z: np.broadcast_to(z, (3, 2, 4, 5)), None),
    ("SLICE", [None, i32(0, 1, 0), i32(2, 2, 3)], lambda z: z[:, 1:3, :3], None),
    (
        "STRIDED_SLICE",
        [None, i32(0, 3, 1), i32(2, 0, 2), i32(1, -2, 1)],
        lambda z: z[:, 3:0:-2, 1],
        ("StridedSliceOptions", {"shrink_axis_mask": 4}),
    ),
    ("GATHER", [None, i32(3, 1)], lambda z: z[..., [3, 1]], ("GatherOptions", {"axis": -1})),
    ("GATHER_ND", [None, i32([[1, 2], [0, 3]])], lambda z: z[[1, 0], [2, 3]], None),
    ("PAD", [None, PAD], lambda z: np.pad(z, PAD), None),
    ("MIRROR_PAD", [None, PAD], lambda z: np.pad(z, PAD, "reflect"), ("MirrorPadOptions", {"mode": "REFLECT"})),
    ("REVERSE_V2", [None, i32([2])], lambda z: z[..., ::-1], None),
    (
        "REVERSE_SEQUENCE",
        [None, i32(2, 4)],
        lambda z: np.stack([np.concatenate([z[0, 1::-1], z[0, 2:]]), z[1, ::-1]]),
        ("ReverseSequenceOptions", {"seq_dim": 1, "batch_dim": 0}),
    ),
    ("DYNAMIC_UPDATE_SLICE", [None, CONSTANT[:1], i32(1, 0, 0)], lambda z: np.concatenate([z[:1], CONSTANT[:1]]), None),
    ("MATRIX_DIAG", [None], lambda z: z[..., None] * np.eye(5), None),
    ("SELECT_V2", [np.eye(4, 5, dtype=bool), None, CONSTANT], lambda z: np.where(np.eye(4, 5), z, CONSTANT), None),
    ("MUL", [None, None], lambda z: z * z, ("MulOptions", {})),
    ("MUL", [CONSTANT[:, :1], None], lambda z: CONSTANT[:, :1] * z, ("MulOptions", {})),
    ("CAST", [None], lambda z: z, ("CastOptions", {"in_data_type": "COMPLEX64", "out_data_type": "COMPLEX64"})),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_complex_numbers_go_through_what_moves(case: Case) -> None:
    """Axes and shapes are those of the file, counted from either end."""
    op, operands, formula, options = case
    made = formula(Z)
    wanted = [np.asarray(part) for z in (made if isinstance(made, list) else [made]) for part in (z.real, z.imag)]
    got = bn.compile(file_of(op, operands, [part.shape for part in wanted[::2]], options=options)).run(None, {"x": X})
    assert len(got) == len(wanted)
    for part, right in zip(got, wanted, strict=True):
        assert part.dtype == np.float32
        np.testing.assert_allclose(part, right, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("kind", "dtype"), [("FLOAT32", np.float32), ("INT32", np.int32), ("BOOL", np.bool_)])
def test_a_real_type_takes_the_real_part(kind: str, dtype: Any) -> None:
    (got,) = bn.compile(file_of("CAST", [None], [Z.shape], kind)).run(None, {"x": X})
    assert got.dtype == dtype
    np.testing.assert_allclose(got, Z.real.astype(dtype), rtol=1e-5, atol=1e-4)


def test_real_numbers_become_complex_ones() -> None:
    options = ("CastOptions", {"in_data_type": "FLOAT32", "out_data_type": "COMPLEX64"})
    real, imag = bn.compile(file_of("CAST", [X], [X.shape], options=options)).run(None, {"x": X})
    np.testing.assert_array_equal(real, X)
    assert not imag.any()


def test_shapes_have_no_hidden_axis() -> None:
    (sizes,) = bn.compile(file_of("SHAPE", [None], [(3,)], "INT32", ("ShapeOptions", {"out_type": "INT32"}))).run(
        None, {"x": X}
    )
    assert sizes.tolist() == [2, 4, 5]
    (rank,) = bn.compile(file_of("RANK", [None], [()], "INT32")).run(None, {"x": X})
    assert rank == 3


@pytest.mark.parametrize(("op", "operands", "results", "message"), [
    ("RESHAPE", [None, i32(7, 5)], [(7, 5)], r"got \[7, 5\], wanted 40 elements, as in f32\[2, 4, 5\]"),
    ("TRANSPOSE", [None, i32(0, 1)], [(2, 4)], "length of perm: got 2, wanted 3"),
])  # fmt: skip
def test_messages_count_the_axes_of_the_file(op: str, operands: Any, results: Any, message: str) -> None:
    with pytest.raises(BoltError, match=message):
        bn.compile(file_of(op, operands, results))


@pytest.mark.parametrize("op", ["EXP", "RELU", "UNIQUE"])
def test_what_has_no_meaning_for_complex_numbers_is_said(op: str) -> None:
    with pytest.raises(UnsupportedOpError, match=f"{op} .* of complex numbers"):
        bn.compile(file_of(op, [None], [Z.shape]))


def test_magnitudes_do_not_leave_their_range() -> None:
    for scale in (1e-30, 1e30):
        z = (Z * scale).astype(np.complex64)
        (got,) = bn.compile(file_of("COMPLEX_ABS", [z], [Z.shape], "FLOAT32")).run(None, {"x": X})
        np.testing.assert_allclose(got, np.abs(z), rtol=1e-6)


def spectrogram(end: str) -> bytes:
    """Frames of 400 every 160 of 4000 samples, a window, 512 numbers each: what ``tf.signal.stft`` becomes."""
    file = TfliteFile()
    file.subgraph()
    x = file.tensor("x", (1, 4000))
    places = file.constant("places", (np.arange(23)[:, None] * 160 + np.arange(400)).astype(np.int32))
    frames, framed = file.tensor("frames", (1, 23, 400)), file.tensor("framed", (1, 23, 400))
    window = file.constant("window", np.hanning(400).astype(np.float32))
    wide, deep = file.tensor("wide", (1, 23, 512)), file.tensor("deep", (1, 23, 1, 512))
    made, flat = file.tensor("made", (1, 23, 1, 257), "COMPLEX64"), file.tensor("flat", (1, 23, 257), "COMPLEX64")
    y = file.tensor("y", (1, 23, 257))
    file.operator("GATHER", [x, places], [frames], ("GatherOptions", {"axis": 1}))
    file.operator("MUL", [frames, window], [framed], ("MulOptions", {}))
    file.operator("PAD", [framed, file.constant("sides", i32([[0, 0], [0, 0], [0, 112]]))], [wide])
    file.operator("RESHAPE", [wide, file.constant("four", i32(1, 23, 1, 512))], [deep])
    file.operator("RFFT2D", [deep, file.constant("length", i32(1, 512))], [made])
    file.operator("SQUEEZE", [made], [flat], ("SqueezeOptions", {"squeeze_dims": [2]}))
    file.operator(end, [flat], [y])
    file.ends([x], [y])
    return file.to_bytes()


@pytest.mark.parametrize("end", ["COMPLEX_ABS", "REAL", "IMAG", "CAST"])
@pytest.mark.parametrize("sound", ["noise", "chirp"])
def test_spectrograms_of_tensorflow(end: str, sound: str) -> None:
    """Each number to f32's precision, on a chirp as on noise: its logarithm is as exact, then."""
    t = np.arange(4000) / 4000
    x = np.random.default_rng(0).standard_normal(4000) if sound == "noise" else np.cos(np.pi * t * t * 2000)
    x = x.astype(np.float32)[None]
    frames = np.lib.stride_tricks.sliding_window_view(x[0], 400)[::160] * np.hanning(400).astype(np.float32)
    z = np.fft.rfft(frames.astype(np.float64), 512)
    wanted = {"COMPLEX_ABS": np.abs(z), "REAL": z.real, "IMAG": z.imag, "CAST": z.real}[end]
    session = bn.compile(spectrogram(end))
    (got,) = session.run(None, {"x": x})
    np.testing.assert_allclose(got[0], wanted, rtol=4e-7, atol=1e-12)
    assert "reference" not in [row["runner"] for row in session.report()]
