"""How files of Caffe are told: text of a net, or a caffemodel."""

from __future__ import annotations

import re
from pathlib import Path

_TEXT = re.compile(
    rb"\s*(?:#[^\n]*(?:\n\s*|$))*(?:$|(?:name|input|input_dim|input_shape|layer|layers|state|force_backward|debug_info)"
    rb"\s*(?:[:{]|$))"
)
_AFTER_NAME = (b"\x12", b"\x1a", b"\x22", b"\x28", b"\x32", b"\x38", b"\x42", b"\xa2\x06")
"""First bytes of the fields of a net that follow its name."""


def is_text(data: bytes | memoryview) -> bool:
    """Whether bytes begin as the text of a net does."""
    head = bytes(data[:4096]).removeprefix(b"\xef\xbb\xbf")
    found = _TEXT.match(head)
    return bool(head.strip()) and found is not None


def is_caffe(head: bytes, path: Path | None) -> bool:
    """By suffix, or by the first field of a net, in text or binary."""
    suffix = "" if path is None else path.suffix.lower()
    if suffix in (".prototxt", ".caffemodel"):
        return True
    return is_text(head) or (suffix not in (".onnx", ".bolt", ".tflite", ".pdmodel") and _is_net(head))


def _is_net(head: bytes) -> bool:
    """Whether bytes begin as a net does: with a printable name and a field behind it, or with a layer."""
    if head[:1] == b"\n" and len(head) > 2 and head[1] < 128:
        name, rest = head[2 : 2 + head[1]], head[2 + head[1] :]
        is_name = name.decode("utf-8", "replace").isprintable() and (bool(name) or bool(rest))
        return is_name and (not rest or rest.startswith(_AFTER_NAME))
    return head.startswith(b"\xa2\x06")
