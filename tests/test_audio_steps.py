"""Spectrograms against formulas of librosa and Whisper over NumPy's transform, in sessions and before models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import BoltError
from bolt_numba.export.program import native_program
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cpu.signal.fourier import factors
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.ops.arrays.signal import DFT, STFT
from bolt_numba.preprocessing import Audio, with_preprocessing
from bolt_numba.types import F32, Array, Sym, TensorType
from tests.native_programs import Interpreter
from tests.test_preprocessing import network

SOUND = np.random.default_rng(0).standard_normal(16000 * 2).astype(F32) * np.float32(0.1)


def spectrum(x: Array, n: int, frame: int, hop: int, center: bool, pad: Any, power: int) -> Array:
    """[bins, frames] as librosa.stft of f64."""
    window = np.zeros(n)
    first = (n - frame) // 2
    window[first : first + frame] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame)
    y = np.pad(x.astype(float), n // 2, mode=pad) if center else x.astype(float)
    frames = np.lib.stride_tricks.sliding_window_view(y, n)[::hop] * window
    return np.abs(np.fft.rfft(frames, axis=1)).T ** power


def mel_slaney(rate: int, n: int, bands: int) -> Array:
    """[bands, bins] by loops, as librosa.filters.mel with its defaults has it."""

    def hertz(m: float) -> float:
        return 200 / 3 * m if m < 15 else 1000 * np.exp(np.log(6.4) / 27 * (m - 15))

    top = 15 + np.log(rate / 2 / 1000) / (np.log(6.4) / 27)
    edges = [hertz(top * i / (bands + 1)) for i in range(bands + 2)]
    made = np.zeros((bands, n // 2 + 1))
    for i in range(bands):
        left, middle, right = edges[i : i + 3]
        for k in range(n // 2 + 1):
            f = k * rate / n
            made[i, k] = max(0, min((f - left) / (middle - left), (right - f) / (right - middle))) * 2 / (right - left)
    return made


def run(steps: Audio, x: Array) -> Array:
    return np.asarray(bn.compile(steps.graph(), threads=2)(x))


@pytest.mark.parametrize(("frame", "fft", "hop"), [(400, None, 160), (400, 512, 160), (512, None, 128), (64, 64, 37)])
@pytest.mark.parametrize("power", [1, 2])
def test_spectrograms(frame: int, fft: int | None, hop: int, power: int) -> None:
    for center, pad in ((True, "reflect"), (True, "constant"), (False, "reflect")):
        steps = Audio(frame=frame, fft=fft, hop=hop, center=center, pad=pad, power=power, bands=None, log=None)
        wanted = spectrum(SOUND, fft or frame, frame, hop, center, pad, power)
        np.testing.assert_allclose(run(steps, SOUND)[0], wanted, rtol=1e-5, atol=1e-5 * wanted.max())


def test_mel_bands_of_librosa() -> None:
    steps = Audio(rate=22050, frame=1024, hop=256, bands=64, log="db", pad="constant", span=80)
    wanted = mel_slaney(22050, 1024, 64) @ spectrum(SOUND, 1024, 1024, 256, True, "constant", 2)
    wanted = 10 * np.log10(np.maximum(wanted, 1e-10))
    wanted = np.maximum(wanted, wanted.max() - 80)
    np.testing.assert_allclose(run(steps, SOUND)[0], wanted, rtol=1e-5, atol=1e-4)


def test_whisper() -> None:
    steps = Audio(log="log10", span=8, mean=-4, std=4, drop_last=True)
    wanted = mel_slaney(16000, 400, 80) @ spectrum(SOUND, 400, 400, 160, True, "reflect", 2)[:, :-1]
    wanted = np.log10(np.maximum(wanted, 1e-10))
    wanted = (np.maximum(wanted, wanted.max() - 8) + 4) / 4
    got = run(steps, SOUND)
    assert got.shape == (1, 80, 200)
    np.testing.assert_allclose(got[0], wanted, rtol=1e-5, atol=1e-5)
    silence = run(steps, np.zeros(16000, F32))
    np.testing.assert_allclose(silence, -1.5)


def test_htk_bands() -> None:
    """Triangles meet at frequencies that are even on HTK's scale, and are 1 high."""
    steps = Audio(rate=8000, frame=4096, bands=10, low=100, high=3000, scale="htk", norm=None)
    made = steps.filters()
    mel = 2595 * np.log10(1 + np.array([100, 3000]) / 700)
    centres = 700 * (10 ** (np.linspace(*mel, 12)[1:-1] / 2595) - 1)
    np.testing.assert_allclose(made.argmax(axis=0) * 8000 / 4096, centres, atol=1.0)
    np.testing.assert_allclose(made.max(axis=0), 1, atol=0.02)


def test_integers_batches_and_lengths() -> None:
    """Sounds of any length, several at once, as stored samples; frames first."""
    steps = Audio(batch=True, source="i16", layout="frames")
    session = bn.compile(steps.graph(), threads=1)
    for length in (800, 3200, 5000, 7001, 8000, 9000):
        x = (SOUND[: 2 * length].reshape(2, length) * 32768).astype(np.int16)
        got = np.asarray(session(x))
        for each, one in zip(got, x, strict=True):
            wanted = run(Audio(), one.astype(F32) / np.float32(32768))[0].T
            np.testing.assert_allclose(each, wanted, rtol=1e-5, atol=1e-5)


def test_before_a_model() -> None:
    graph = with_preprocessing(network(1, 80, Sym("frames"), rank=3), {"input": Audio()})
    np.testing.assert_allclose(
        np.asarray(bn.compile(graph)(SOUND))[0], run(Audio(), SOUND)[0].max(axis=1), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": "kaiser"}, "window: got kaiser, wanted hann, hamming, ones"),
        ({"pad": "edge"}, "pad: got edge"), ({"power": 3}, "power: got 3"), ({"scale": "bark"}, "scale: got bark"),
        ({"norm": "l1"}, "norm: got l1"), ({"log": "log2"}, "log: got log2"), ({"layout": "NCHW"}, "layout: got NCHW"),
        ({"hop": 0}, "hop: got 0"), ({"frame": 0}, "frame: got 0"), ({"fft": 100}, "fft: got 100, wanted 400 to"),
        ({"low": 9000}, "low and high"), ({"std": 0}, "std, floor and span"), ({"floor": 0}, "std, floor and span"),
        ({"dtype": np.dtype("i4")}, "dtype: got i32, wanted a float"), ({"source": "u8"}, "source: got u8"),
        ({"bands": 0}, "bands: got 0"), ({"hop": 2.5}, "hop: got 2.5, wanted a whole number from 1 to 16384"),
        ({"frame": float("nan")}, "frame: got nan"), ({"fft": 512.5}, "fft: got 512.5"),
        *(
            ({name: value}, f"{name}: got {value}, wanted a finite number")
            for name in ("rate", "low", "high", "floor", "mean", "std", "span")
            for value in (float("nan"), float("inf"), "1")
        ),
        ({"mean": 1e39}, "mean: got 1e.39"), ({"std": 1e-50}, "std, floor and span"), ({"floor": 1e-50}, "std, floor"),
        ({"span": -1.0}, "std, floor and span"), ({"center": "no"}, "center: got no, wanted True, False"),
        ({"batch": []}, r"batch: got \[\], wanted True"), ({"dtype": "f99"}, "dtype: got f99, wanted a float"),
        ({"dtype": 3}, "dtype: got 3, wanted a float"), ({"dtype": np.dtype("O")}, "dtype: got object, wanted"),
    ],
)  # fmt: skip
def test_mistakes_are_told(options: Any, message: str) -> None:
    with pytest.raises(BoltError, match=f"sound steps: {message}"):
        Audio(**options).graph()


def sounds(n: int, lines: int) -> Array:
    """[lines, n]: a chirp, a tone between two frequencies, an impulse, a constant with a little noise, noise."""
    t = np.arange(n) / n
    noise = np.random.default_rng(n).standard_normal(n)
    rows = [
        np.cos(np.pi * t * t * n / 2),
        np.cos(2 * np.pi * t * n * 0.2371),
        1.0 * (t == t[n // 3]),
        1000 + noise,
        noise,
    ]
    return np.stack(rows[:lines]).astype(F32)


def close(got: Array, wanted: Array) -> None:
    """Every number is the nearest f32, or one beside it: none suffers from larger ones in its line."""
    np.testing.assert_allclose(got, wanted, rtol=1.2e-7, atol=1e-13 * np.abs(wanted).max())


@pytest.mark.parametrize(("n", "lines"), [
    (1, 5), (2, 5), (3, 5), (60, 5), (61, 5), (67, 5), (134, 5), (400, 5), (1021, 5), (1024, 5), (3721, 5), (4096, 5),
    (16381, 5), (1040, 1), (2025, 2), (3721, 1), (16000, 1), (32768, 1), (105625, 2),
])  # fmt: skip
@pytest.mark.parametrize("op", [DFT(), DFT(onesided=True), DFT(inverse=True), DFT(inverse=True, onesided=True)])
def test_transforms_of_all_lengths_leave_python(op: DFT, n: int, lines: int) -> None:
    """Powers of two, other small factors, and primes; the program of a library gives the session's bits."""
    parts = 1 if op.onesided and not op.inverse else 2
    x = sounds(n, lines)[..., None]
    if op.inverse and op.onesided:
        x = DFT(onesided=True).reference(x, None, np.array(1)) / np.float32(n)
    elif parts == 2:
        x = np.concatenate([x, x[::-1]], axis=-1)
    graph = Graph("transform")
    y = Builder(graph)(op, graph.add_input("x", TensorType(F32, x.shape)), np.array(n), np.array(1))
    graph.add_output(y, "y")
    session = bn.compile(graph, threads=2)
    got = session(x)["y"]
    assert [row["runner"] for row in session.report()] == [
        "long_dft" if lines < 5 else "real_dft" if parts == 1 and n > 1 and max(factors(n)) <= 61 else "dft"
    ]
    close(got, op.reference(x.astype(np.float64), np.array(n), np.array(1)))
    if parts == 1:  # the mean, and what changes sign from number to number, have no imaginary part
        assert not got[:, [0, n // 2] if n % 2 == 0 else [0], 1].any()
    if target().is_x86:  # others' code has to be linked
        made = native_program(graph, shapes=[{"x": x.shape}], threads=2)
        np.testing.assert_array_equal(Interpreter(made.block.tobytes()).run({"x": x})["y"], got)


@pytest.mark.parametrize("op", [DFT(), DFT(onesided=True), DFT(inverse=True), DFT(inverse=True, onesided=True)])
def test_the_reference_of_transforms_is_as_exact(op: DFT) -> None:
    """By the definition; longer primes and more numbers than a kernel takes run by it."""
    n, one = 67, np.array(1)
    x = sounds(n, 5)[..., None] if op.onesided else np.stack([sounds(n, 5), sounds(n, 5)[::-1]], -1)
    turns = np.exp((2j if op.inverse else -2j) * np.pi * (np.outer(np.arange(n), np.arange(n)) % n) / n)
    if op.inverse and op.onesided:
        x = DFT(onesided=True).reference(x, None, one)
        z = x[..., 0] + 1j * x[..., 1].astype(np.float64)
        wanted = (np.concatenate([z, z[:, :0:-1].conj()], 1) @ turns / n).real[..., None]
        np.testing.assert_allclose(op.reference(x, np.array(n), one), wanted, rtol=1e-7, atol=1e-12)
        return
    z = x[..., 0] if op.onesided else x[..., 0] + 1j * x[..., 1].astype(np.float64)
    y = (z @ turns)[:, : n // 2 + 1 if op.onesided else n] / (n if op.inverse else 1)
    np.testing.assert_allclose(op.reference(x, None, one), np.stack([y.real, y.imag], -1), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("n", [16, 15, 61, 400, 1022, 2048])
@pytest.mark.parametrize("onesided", [True, False])
def test_frames_are_as_exact_as_lines(n: int, onesided: bool) -> None:
    """So the logarithm of a chirp's spectrum is as exact as that of noise."""
    x, window = sounds(16 * n, 2)[..., None], np.hanning(n).astype(F32)
    graph = Graph("frames")
    b = Builder(graph)
    y = b(STFT(onesided), graph.add_input("x", TensorType(F32, x.shape)), np.array(n // 2), b.const(window), None)
    graph.add_output(y, "y")
    session = bn.compile(graph, threads=2)
    got = session(x)["y"]
    assert [row["runner"] for row in session.report()] == ["stft" if n != 1022 else "reference"]
    close(got, STFT(onesided).reference(x.astype(np.float64), np.array(n // 2), window))
    if target().is_x86 and n != 1022:
        made = native_program(graph, shapes=[{"x": x.shape}], threads=2)
        np.testing.assert_array_equal(Interpreter(made.block.tobytes()).run({"x": x})["y"], got)


@pytest.mark.parametrize("n", [8, 9, 134, 1040])
@pytest.mark.parametrize("op", [
    DFT(), DFT(onesided=True), DFT(inverse=True), DFT(inverse=True, onesided=True), STFT(), STFT(False),
])  # fmt: skip
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_line_with_a_number_that_is_not_finite_has_none_that_is(op: DFT | STFT, n: int, bad: float) -> None:
    parts = 2 if op in (DFT(), DFT(inverse=True), DFT(inverse=True, onesided=True)) else 1
    for lines, part, place in ((1, parts - 1, 0), (5, 0, n // 2), (5, parts - 1, 3)):
        x = np.random.default_rng(n).standard_normal((lines, n, parts)).astype(F32)
        x[lines // 2, place, part] = bad
        operands: tuple[Any, ...] = (
            (np.array(n), np.array(1)) if isinstance(op, DFT) else (np.array(1), None, np.array(n))
        )
        graph = Graph("bad")
        graph.add_output(Builder(graph)(op, graph.add_input("x", TensorType(F32, x.shape)), *operands), "y")
        got, wanted = bn.compile(graph, threads=2)(x)["y"], op.reference(x, *operands)
        assert np.isnan(wanted[lines // 2]).all()
        assert np.isfinite(np.delete(wanted, lines // 2, 0)).all()
        np.testing.assert_allclose(got, wanted, atol=1e-6 * n, rtol=0)


@pytest.mark.parametrize(("dims", "runner"), [
    ((1, 1024, 2), "dft"), ((1, 1025, 2), "long_dft"), ((4, 1025, 2), "dft"), ((4, 16400, 2), "long_dft"),
    ((3, 2048, 1, 2), "long_dft"), ((1, 2 * 1021, 2), "reference"), ((1, 1 << 19, 1), "reference"),
])  # fmt: skip
def test_few_long_lines_are_matrices(dims: tuple[int, ...], runner: str) -> None:
    graph = Graph("transform")
    y = Builder(graph)(DFT(), graph.add_input("x", TensorType(F32, dims)), None, np.array(1))
    graph.add_output(y, "y")
    session = bn.compile(graph, threads=2)
    x = np.empty(dims, F32)
    x[...] = sounds(dims[1], 1).reshape(-1, *[1] * (len(dims) - 2))
    got, wanted = session(x)["y"], DFT().reference(x.astype(np.float64), None, np.array(1))
    assert [row["runner"] for row in session.report()] == [runner]
    close(got, wanted)


@pytest.mark.parametrize("inner", [3, 8, 11, 16])
@pytest.mark.parametrize("op", [DFT(), DFT(onesided=True), DFT(inverse=True), DFT(inverse=True, onesided=True)])
def test_lines_beside_one_another_are_as_exact(op: DFT, inner: int) -> None:
    """Those that fill a vector move as one; a vector may also hold lines of two rows, or the rest."""
    n, parts = 60, 1 if op.onesided and not op.inverse else 2
    x = np.random.default_rng(inner).standard_normal((2, n // 2 + 1 if op.inverse and op.onesided else n, inner, parts))
    x = (x * 10.0 ** np.arange(inner)[:, None]).astype(F32)
    graph = Graph("beside")
    y = Builder(graph)(op, graph.add_input("x", TensorType(F32, x.shape)), np.array(n), np.array(1))
    graph.add_output(y, "y")
    session = bn.compile(graph, threads=2)
    got, wanted = session(x)["y"], op.reference(x.astype(np.float64), np.array(n), np.array(1))
    assert [row["runner"] for row in session.report()] == ["dft"]
    for i in range(inner):
        close(got[:, :, i], wanted[:, :, i])
