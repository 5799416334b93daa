"""What may stand behind the tensors of a ``.bolt`` file: native programs, which C runs (`export.layout`).

They are for other readers.  The file ends with 64 bytes that say where they are: eight int64, a magic number, how many
programs there are, then offset and size of each.
"""

from __future__ import annotations

import struct

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.types import Array

MAGIC = int.from_bytes(b"BNTRAIL1", "little")
WORDS, PROGRAMS = 8, 3
PAGE = 4096
_TRAILER = struct.Struct(f"<{WORDS}q")


def trailer(programs: list[tuple[int, int]]) -> bytes:
    """The end of a file with programs: offset and size of each."""
    words = [MAGIC, len(programs), *(number for place in programs for number in place)]
    return _TRAILER.pack(*words, *[0] * (WORDS - len(words)))


def programs_behind(data: Array, end: int) -> list[tuple[int, int]]:
    """Offset and size of each program behind the model, which is over at ``end``.

    Raises InvalidModelError where the bytes there are anything else.
    """
    words = _TRAILER.unpack(data[-_TRAILER.size :].tobytes()) if len(data) >= end + _TRAILER.size else (0,) * WORDS
    count = words[1] if words[0] == MAGIC and 0 < words[1] <= PROGRAMS else 0
    found = [(words[2 + 2 * i], words[3 + 2 * i]) for i in range(count)]
    last = end
    for at, nbytes in found:
        if at % PAGE or at < last or nbytes < 0 or at + nbytes > len(data) - _TRAILER.size:
            raise InvalidModelError(f"native programs: got {found} in a file of {len(data)} bytes")
        last = at + nbytes
    if not found or last + _TRAILER.size != len(data):
        raise InvalidModelError(f"header: sections do not fit: got {len(data) - end} bytes more than it tells")
    return found
