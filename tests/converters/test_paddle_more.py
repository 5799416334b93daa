"""More programs that Paddle itself judged: other attributes, ranks and dtypes than those of the golden set."""

from __future__ import annotations

import pytest

from bolt_numba.types import Array
from tests import formats

SLICES = 12
SHARE = {"interpreter": 1, "session": 4}
"""An engine runs every case, or each fourth."""


def stored(part: int, engine: str) -> dict[str, dict[str, Array]]:
    """The cases of one slice, which takes every 12th name."""
    archive = formats.packed("more/paddle.npz.xz")
    names = sorted({key.partition("/")[0] for key in archive})[part :: SLICES * SHARE[engine]]
    found: dict[str, dict[str, Array]] = {name: {} for name in names}
    for key in archive:
        name, _, rest = key.partition("/")
        if name in found:
            found[name][rest] = archive[key]
    return found


@pytest.mark.parametrize("engine", formats.ENGINES)
@pytest.mark.parametrize("part", range(SLICES))
def test_programs_of_paddle_give_what_it_gives(part: int, engine: str) -> None:
    cases = stored(part, engine)
    assert len(cases) > 50 // SHARE[engine]
    failed = []
    for name, arrays in cases.items():
        try:
            formats.check(formats._case("paddle", "more", name, arrays), engine)
        except Exception as error:  # all are told of
            failed.append(f"{name}: {error}")
    assert not failed, "\n".join(failed)
