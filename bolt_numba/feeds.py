"""Arrays to feed a model with: random ones for its declared inputs.  Reads no files; the command line does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bolt_numba.errors import DTypeError, ShapeError
from bolt_numba.types import BOOL, STRING, Array, TensorSpec

RATES = ("sr", "sample_rate", "sampling_rate", "samplerate")
"""Names of inputs that tell the samples of a second; models know few, and this one of nearly all of them."""
RATE = 16000


def random_feeds(
    inputs: Sequence[TensorSpec],
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    given: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """An array for every input: the given one, else random values of its dtype.

    shapes: for inputs with symbolic dimensions; a symbol that no shape tells is 1.  Floats are standard normal,
    integers 0 or 1 (valid as ids, masks and lengths of nearly every model), rates of sampling 16000, bools even odds.
    """
    for what in (shapes, given):
        if what is not None and not isinstance(what, Mapping):
            raise DTypeError(f"inputs: got a {type(what).__name__}, wanted arrays or shapes by name")
    shapes, given = dict(shapes or {}), dict(given or {})
    names = [spec.name for spec in inputs]
    for name in (*shapes, *given):
        if name not in names:
            raise ShapeError(f"input: got {name!r}, wanted one of {', '.join(names)}")
    sizes = _symbol_sizes(inputs, {**shapes, **{k: np.shape(v) for k, v in given.items()}})
    rng = np.random.default_rng(seed)
    return {spec.name: given[spec.name] if spec.name in given else _random(spec, shapes, sizes, rng) for spec in inputs}


def _symbol_sizes(inputs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """What the symbols stand for, as far as the shapes given tell."""
    sizes: dict[str, int] = {}
    for spec in inputs:
        for dim, size in zip(spec.shape or (), shapes.get(spec.name, ()), strict=False):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
    return sizes


def _random(
    spec: TensorSpec, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int], rng: np.random.Generator
) -> Array:
    if spec.shape is None and spec.name not in shapes:
        raise ShapeError(f"input {spec.name!r}: its rank is unknown: give its shape")
    shape = shapes.get(spec.name) or tuple(sizes.get(d, 1) if isinstance(d, str) else d for d in spec.shape or ())
    if spec.dtype == STRING:
        raise DTypeError(f"input {spec.name!r}: holds strings: give an array")
    if spec.name.lower() in RATES:
        return np.full(tuple(shape), RATE, spec.dtype)
    if spec.dtype == BOOL or spec.dtype.kind in "iu":
        return rng.integers(0, 2, tuple(shape)).astype(spec.dtype)
    return rng.standard_normal(tuple(shape), dtype=np.float32).astype(spec.dtype)
