"""Rows of unequal lengths in one run, one after another: the three parts of a region that `passes.ragged` finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.errors import BoltError
from bolt_numba.base.types import Array, Sym
from bolt_numba.passes.ragged import Along, RaggedForm, ragged_form
from bolt_numba.runtime.region import Region

if TYPE_CHECKING:
    from bolt_numba.runtime.runner import Runner

MOST_POSITIONS = 512
"""Of rows that run together: enough for kernels to be at their best, and what they compute stays in the cache."""

HIDDEN = -1e30
"""What is added to scores that nothing shall remain of: exp of it is 0."""


def packing_of(runner: Runner) -> Packing | None:
    """What runs rows of a runner's region together; None where it is not shown that they may."""
    with runner.lock:
        runner._complete()  # after a session was closed
        region = runner.region
        if not region.packing:
            is_plain = not (runner.far or runner.nested or region.alias or region.known)
            form = ragged_form(region.inputs, region.nodes, region.outputs) if is_plain else None
            region.packing = (None if form is None else Packing(runner, form),)
        return region.packing[0]


class Packing:
    """Runs rows, each a batch of one: inputs in the region's order, contiguous; results likewise."""

    def __init__(self, runner: Runner, form: RaggedForm) -> None:
        region = runner.region
        self.form, self.outputs, self.places = form, region.outputs, {id(v): i for i, v in enumerate(region.inputs)}
        self.read = [v for v, _ in form.results]
        ends = {id(v) for v in self.read}
        self.left = [v for v in region.outputs if id(v) not in ends]
        self.made = list({id(v): v for v in (*form.early, *form.masks) if v.node is not None}.values())
        self.runners = {
            "head": runner.like(Region(list(region.inputs), form.head, self.made)),
            "tail": runner.like(Region([*region.inputs, *self.read], form.tail, self.left)),
        }
        given = [*[v for v, _ in form.inputs], form.lengths]
        for name, (nodes, alias) in zip(("body", "causal body"), form.bodies, strict=False):
            self.runners[name] = runner.like(Region(list(given), nodes, self.read, alias))
        shapes = [enumerate(v.type.shape or ()) for v in region.inputs]
        self.sized = [(i, axis) for i, dims in enumerate(shapes) for axis, d in dims if axis and isinstance(d, Sym)]

    def positions(self, arrays: Sequence[Array]) -> int:
        """Of a row; 0 where its inputs have other numbers of them."""
        sizes = {arrays[i].shape[axis] for i, axis in self.sized}
        return int(sizes.pop()) if len(sizes) == 1 else 0

    def run(self, rows: Mapping[int, Sequence[Array]]) -> Iterator[tuple[int, list[Array]]]:
        """Results by the numbers of rows; those that are missing have to be run by themselves."""
        sizes = {number: self.positions(row) for number, row in rows.items()}
        pack: dict[int, Sequence[Array]] = {}
        total = 0
        for number in sorted(filter(sizes.get, sizes), key=sizes.__getitem__):
            if total + sizes[number] > MOST_POSITIONS:
                yield from self._run(pack)
                pack, total = {}, 0
            pack[number] = rows[number]
            total += sizes[number]
        yield from self._run(pack)

    def _run(self, pack: Mapping[int, Sequence[Array]]) -> Iterator[tuple[int, list[Array]]]:
        try:
            groups: dict[str, dict[int, dict[int, Array]]] = {}
            for number, row in pack.items():
                name, found = self._early(row)
                groups.setdefault(name, {})[number] = found
            for name, there in groups.items():
                if name and len(there) > 1:  # alone it gains nothing, and its heads may be shared by more threads
                    yield from self._together(name, pack, there)
        except BoltError:  # the row at fault says what is wrong when it runs by itself
            return

    def _together(
        self, body: str, pack: Mapping[int, Sequence[Array]], there: Mapping[int, dict[int, Array]]
    ) -> Iterator[tuple[int, list[Array]]]:
        lengths = np.array([self.positions(pack[number]) for number in there])
        joined = [np.concatenate([found[id(v)] for found in there.values()], axis) for v, axis in self.form.inputs]
        results = self.runners[body].run([*joined, lengths])
        for number, end, n in zip(there, np.cumsum(lengths), lengths, strict=True):
            yield number, self._behind(pack[number], [*zip(self.form.results, results, strict=True)], end - n, end)

    def _early(self, row: Sequence[Array]) -> tuple[str, dict[int, Array]]:
        """The body that a row goes through and what that reads of it; "" where it does not go together with others."""
        found = {key: row[place] for key, place in self.places.items()}
        if self.made:
            found |= zip(map(id, self.made), self.runners["head"].run(row), strict=True)
        n, masks = self.positions(row), [found[id(v)] for v in self.form.masks]
        if any(found[id(v)].shape[axis] != n for v, axis in self.form.inputs):
            return "", found
        if any(not {*mask.shape[-2:]} <= {1, n} for mask in masks):  # the row is refused by itself
            return "", found
        if any(mask.any() for mask in masks):
            return "causal body" if all(_hides_later(mask, n) for mask in masks) else "", found
        return "body", found

    def _behind(
        self, row: Sequence[Array], results: Sequence[tuple[Along, Array]], begin: int, end: int
    ) -> list[Array]:
        """The results of a row."""
        cut: list[Any] = []
        for (_, axis), whole in results:
            part = whole[(slice(None),) * (axis + whole.ndim) + (slice(begin, end),)]
            cut.append(np.ascontiguousarray(part))
        made = dict(zip(map(id, self.read), cut, strict=True))
        if self.left:
            made |= zip(map(id, self.left), self.runners["tail"].run([*row, *cut]), strict=True)
        return [made[id(v)] for v in self.outputs]


def _hides_later(mask: Array, n: int) -> bool:
    """Whether a mask is 0 for positions up to each one's own, and leaves nothing of later ones."""
    seen = np.tri(n, dtype=bool)
    return mask.shape[-2:] == (n, n) and not mask[..., seen].any() and bool((mask[..., ~seen] <= HIDDEN).all())
