"""The typed graph: data, builder, verifier, interpreter, file."""

MAGIC = b"\x89BOLT\r\n\x1a"
"""First bytes of a ``.bolt`` file."""
