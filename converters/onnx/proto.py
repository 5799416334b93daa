"""The messages of ONNX files, without the rest of the onnx package, whose import takes five times as long.

``onnx`` of this module has the message classes of the package `onnx`, the same ones also when that is imported later:
protobuf keeps one class for each message of its pool.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from bolt_numba.base.errors import BoltError

_FILE = "onnx_ml_pb2.py"


def _messages() -> ModuleType:
    """The generated module of onnx's messages."""
    if "onnx" not in sys.modules:
        package = importlib.util.find_spec("onnx")
        file = Path(package.origin).with_name(_FILE) if package is not None and package.origin else None
        spec = importlib.util.spec_from_file_location(f"{__name__}_messages", file) if file and file.is_file() else None
        if spec is not None and spec.loader is not None:
            made = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(made)
            return made
    try:
        import onnx as package_itself
    except ModuleNotFoundError as error:
        wanted = "wanted onnx and protobuf: pip install onnx, or convert the model to .bolt where they are"
        raise BoltError(f"onnx: packages that read ONNX files: got no {error.name}, {wanted}") from None
    return package_itself


if TYPE_CHECKING:
    import onnx
else:
    onnx = _messages()

__all__ = ["onnx"]
