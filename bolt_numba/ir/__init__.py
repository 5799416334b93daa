"""The typed graph: data, builder, verifier, interpreter, file."""

from __future__ import annotations

MAGIC = b"\x89BOLT\r\n\x1a"
"""First bytes of a ``.bolt`` file."""
