"""Packed panels and filters: every kind of source, any number of threads, on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bolt_numba.kernels.cpu.language.lang import LANES
from bolt_numba.kernels.cpu.products import pack
from bolt_numba.kernels.cpu.products.pack import PANEL, pack_panels, pack_taps, pack_winograd, panel_columns
from bolt_numba.types import Array
from tests.near import assert_near

RNG = np.random.default_rng(8)


def values(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype("f4")


def panels_by_definition(b: Array) -> Array:
    """[K, N] to panels, column after column."""
    k, n = b.shape
    parts = []
    for j in range(0, n, PANEL):
        width = panel_columns(min(n - j, PANEL))
        part = np.zeros((k, width), "f4")
        part[:, : min(n - j, width)] = b[:, j : j + PANEL]
        parts.append(part.reshape(-1))
    return np.concatenate(parts) if parts else np.zeros(0, "f4")


def filters_by_definition(w: Array, groups: int) -> Array:
    k, depth = w.shape[:2]
    parts = w.reshape(groups, k // groups, depth, -1).transpose(0, 3, 2, 1)
    return np.stack([panels_by_definition(part.reshape(-1, k // groups)) for part in parts])


SIZES = [(1, 1), (100, 37), (37, 100), (LANES, PANEL), (3, 4 * PANEL + LANES), (65, LANES + 1), (5, 0), (0, 5)]


@pytest.mark.parametrize("shape", SIZES)
def test_panels_of_any_strides(shape: tuple[int, int]) -> None:
    b = values(*shape)
    one = np.float32(0.75)
    for source in (b, b.T, b[:, ::2], b[::2], b[::-1], b.T[::-1], np.asfortranarray(b), np.broadcast_to(one, shape)):
        np.testing.assert_array_equal(pack_panels(source), panels_by_definition(source))
    for source in (np.broadcast_to(b[:1], shape), np.broadcast_to(b[:, :1], shape)) if b.size else ():
        np.testing.assert_array_equal(pack_panels(source), panels_by_definition(source))


def test_panels_of_batches_and_a_factor() -> None:
    b = values(2, 3, 21, 35)
    for source in (b, b.swapaxes(2, 3), b.swapaxes(0, 1), np.broadcast_to(b[:1], b.shape)):
        wanted = [[panels_by_definition(m * np.float32(-2.5)) for m in row] for row in source]
        np.testing.assert_array_equal(pack_panels(source, alpha=-2.5), np.array(wanted))


@pytest.mark.parametrize(
    ("groups", "shape"), [(1, (40, 19, 3, 3)), (4, (20, 7, 1, 1)), (2, (96, 17, 5)), (1, (7, 3, 7, 7))]
)
def test_filters_by_tap(groups: int, shape: tuple[int, ...]) -> None:
    w = values(*shape)
    for source in (w, w.swapaxes(0, 1).copy().swapaxes(0, 1), w[..., ::-1], np.broadcast_to(np.float32(2), shape)):
        np.testing.assert_array_equal(pack_taps(source, groups), filters_by_definition(source, groups))


P4 = (0, 11 / 16, -11 / 16, 23 / 16, -23 / 16)
"""Points of tiles of 4, in the order of the planes."""
G = {
    4: np.array([*([1, x, x * x] / np.prod([x - p for p in P4 if p != x]) for x in P4), [0, 0, 1]]),
    2: np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]]) / 2,
}


def winograd_by_definition(w: Array, size: int) -> Array:
    k, c = w.shape[:2]
    made = np.einsum("ar,kcrs,bs->abck", G[size], w.astype("f8"), G[size]).reshape(-1, c, k)
    out = np.zeros((-(-k // PANEL), len(made), c, PANEL))
    for j in range(len(out)):
        part = made[:, :, j * PANEL : (j + 1) * PANEL]
        out[j, :, :, : part.shape[2]] = part
    return out


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("k", "c"), [(PANEL, LANES), (PANEL + 5, 2 * LANES + 3), (3, 1)])
def test_winograd_filters(size: int, k: int, c: int) -> None:
    w = values(k, c, 3, 3)
    if size == 2:  # whose transforms halve and quarter
        exact = (RNG.integers(-3, 4, w.shape) * 4).astype("f4")
        np.testing.assert_array_equal(pack_winograd(exact, size), winograd_by_definition(exact, size))
    for source in (w, w.transpose(1, 0, 2, 3).copy().transpose(1, 0, 2, 3), np.broadcast_to(np.float32(0.3), w.shape)):
        assert_near(pack_winograd(source, size), winograd_by_definition(source, size), 3e-7)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_change_nothing(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "SHARED_BYTES", 1)
    b, w = values(70, 5 * PANEL + 3), values(3 * PANEL, 20, 3, 3)
    alone: list[Any] = [pack_panels(b), pack_panels(b.T), pack_taps(w, 2), pack_winograd(w, 4)]
    shared = [pack_panels(b, threads=threads), pack_panels(b.T, threads=threads), pack_taps(w, 2, threads)]
    for x, y in zip(alone, [*shared, pack_winograd(w, 4, threads)], strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("nbytes", [0, 4, (1 << 16) - 4, 1 << 16, 3 << 20, (1 << 22) - 64, 1 << 22, 5 << 20])
def test_memory_for_weights_is_aligned_and_nobody_elses(nbytes: int) -> None:
    from bolt_numba.base.huge_pages import line_aligned

    made = [line_aligned(nbytes) for _ in range(12)]
    for i, array in enumerate(made):
        assert array.nbytes == nbytes
        assert nbytes == 0 or array.ctypes.data % 64 == 0
        array.fill(i)
    assert all((array == i).all() for i, array in enumerate(made))
