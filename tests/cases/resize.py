"""Cases of resampling.  Scales and coordinates are such that rounding never decides between two elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.ops.layers.resize import GridSample, Resize
from bolt_numba.types import F32, U8
from tests.cases import Case, cases
from tests.cases.draw import Draw, as_layout, flags, ints, layouts, pick, real, shape, small, whole

PLAIN = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")


@cases(Resize)
def resize(draw: Draw, op: type[Resize]) -> Case:
    layout, spatial = draw(layouts), pick(draw, 2, 2, 2, 1, 3)
    dims = (pick(draw, 1, 2), pick(draw, 1, 3, 8, 17), *shape(draw, spatial, 400))
    mode = pick(draw, "nearest", "nearest", "linear", "linear", "cubic")
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": pick(draw, *PLAIN), "layout": layout}
    if mode == "nearest":
        attributes["nearest_mode"] = pick(draw, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        attributes["coordinate_transformation_mode"] = pick(draw, "asymmetric", "half_pixel")
    else:
        attributes["antialias"] = pick(draw, False, False, True)
        attributes["exclude_outside"] = mode == "cubic" and draw(flags)
    x = whole(draw, dims, 0, 200, dtype=U8) if pick(draw, False, False, False, mode == "nearest") else whole(draw, dims)
    factors = [pick(draw, 0.5, 1.0, 2.0, 2.0, 3.0, 1.5) for _ in range(spatial)]
    outs = [max(int(d * f), 1) for d, f in zip(dims[2:], factors, strict=True)]
    exact = mode == "nearest"
    aligned = attributes["coordinate_transformation_mode"] == "align_corners"  # fractional lengths are disputed
    if aligned or draw(flags) or min(int(d * f) for d, f in zip(dims[2:], factors, strict=True)) < 1:
        if draw(flags):
            attributes["axes"] = tuple(range(2, spatial + 2))
            return Case(op(**attributes), (as_layout(x, layout), None, None, ints(outs)), exact, 1e-4)
        return Case(op(**attributes), (as_layout(x, layout), None, None, ints([*dims[:2], *outs])), exact, 1e-4)
    scales = np.array([1, 1, *factors], dtype=F32)
    return Case(op(**attributes), (as_layout(x, layout), None, scales), exact, 1e-4)


@cases(GridSample)
def grid_sample(draw: Draw, op: type[GridSample]) -> Case:
    spatial = pick(draw, 2, 2, 3)
    dims = (pick(draw, 1, 2), pick(draw, 1, 3), *shape(draw, spatial, 200))
    grid = real(draw, (dims[0], *(draw(small) for _ in range(spatial)), spatial), -1.4, 1.4)
    mode = pick(draw, "linear", "nearest", *(["cubic"] if spatial == 2 else []))
    made = op(mode, pick(draw, "zeros", "border", "reflection"), draw(flags))
    return Case(made, (whole(draw, dims), grid), exact=False, rtol=1e-4)
