"""Weights as kernels want them, packed once for all plans of a session."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from bolt_numba.types import Array


class Packs:
    """Prepacked weights, computed once and shared by every plan of a session (`kernels.registry.Context.packed`)."""

    def __init__(self, precision: str = "fp32") -> None:
        self.precision = precision
        self._made: dict[tuple[int, Hashable], tuple[Array, Array]] = {}

    def get(self, array: Array, key: Hashable, pack: Callable[[Array], Array]) -> Array:
        held = self._made.get((id(array), key))
        if held is None:
            # The source is kept beside the result, so that its id stays taken.
            held = self._made[(id(array), key)] = (array, pack(array))
        return held[1]

    @property
    def nbytes(self) -> int:
        return sum(packed.nbytes for _, packed in self._made.values())


class MakerContext:
    """What kernel makers see of the session (`kernels.registry.Context`)."""

    def __init__(self, threads: int, packs: Packs) -> None:
        self.threads = threads
        self.packs = packs

    def packed(self, array: Array, key: Hashable, pack: Callable[[Array], Array]) -> Array:
        return self.packs.get(array, key, pack)
