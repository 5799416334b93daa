"""Parts of a picture seen straight on: lines of text, faces, plates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bolt_numba.base.errors import BoltError
from bolt_numba.base.records import record
from bolt_numba.base.types import F64, Array, Sym, TensorType
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.data.camera import WarpImage
from bolt_numba.preprocessing.image import DEPTH, Image


@record(frozen=True)
class Warp:
    """Views of one picture, each by a matrix, then what ``image`` says: its size is that of the views.

    Besides the picture, u8 [h, w, channels], there is an input ``<name>_matrix``, f64 [k, 3, 3]: the pixel at (row i,
    column j) of a view is what lies at matrix @ (j, i, 1), see `matrix_of`.  edge: what lies outside of the picture,
    "fill" (levels of the image's ``fill``) or "repeat".
    """

    image: Image
    edge: str = "fill"

    def graph(self, name: str = "image", output: str = "tensor") -> Graph:
        """These steps alone; the result is [k, ...].  Raises BoltError for an unfit image."""
        graph = Graph("views")
        given = [graph.add_input(key, t) for key, t in self.takes(name).items()]
        graph.add_output(self.build(Builder(graph), *given), output)
        return graph

    def takes(self, name: str) -> dict[str, TensorType]:
        """Types of the picture and of the matrices.

        Raises BoltError for an image that is not one picture of pixels.
        """
        if not isinstance(self.image, Image):
            raise BoltError(f"warp: image: got {self.image!r:.80}, wanted Image(...)")
        if self.image.batch or self.image.mode != "stretch" or self.image.source not in DEPTH:
            raise BoltError(
                f"warp: image: got batch={self.image.batch}, mode={self.image.mode!r}, source={self.image.source!r}, "
                "wanted one picture of pixels that is stretched"
            )
        matrix = TensorType(F64, (Sym(f"{name}_views"), 3, 3))
        return {**self.image.takes(name), f"{name}_matrix": matrix}

    def fitted(self, wanted: TensorType) -> Warp:
        """The same with the size and dtype of a model's input, where the image leaves them open."""
        return replace(self, image=self.image.fitted(wanted))

    def build(self, b: Builder, x: Value, matrix: Value) -> Value:
        """Add the steps to a graph."""
        views = b(WarpImage(self.image.wanted_size, self.edge, self.image.fill), x, matrix)
        return self.image.build(b, views)


def matrix_of(corners: Sequence[Sequence[float]] | Array, size: tuple[int, int]) -> Array:
    """The matrix [3, 3] of a view of ``size`` (h, w) whose corners show those of a four-sided figure.

    corners: (column, row) of the figure's upper left, upper right, lower right and lower left corner, at middles of
    pixels.  Raises BoltError where three of them lie on one line.
    """
    high, wide = size
    given = np.asarray(corners, F64)
    if given.shape != (4, 2) or not np.isfinite(given).all() or high < 2 or wide < 2:
        raise BoltError(f"matrix: corners and size: got {given.tolist()} and {size}, wanted 4 points, 2 x 2 or more")
    rows, wanted = [], []
    for (j, i), (u, v) in zip(((0, 0), (wide - 1, 0), (wide - 1, high - 1), (0, high - 1)), given, strict=True):
        rows += [[j, i, 1, 0, 0, 0, -u * j, -u * i], [0, 0, 0, j, i, 1, -v * j, -v * i]]
        wanted += [u, v]
    try:
        made = np.append(np.linalg.solve(np.array(rows, F64), np.array(wanted)), 1).reshape(3, 3)
    except np.linalg.LinAlgError:
        made = np.zeros((3, 3))
    if abs(np.linalg.det(made)) < 1e-12:
        raise BoltError(f"matrix: corners: got {given.tolist()}, wanted no three on a line")
    return np.asarray(made)
