"""What an engine has to offer to be measured."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar


class Peer:
    """An engine with one model.  model: its file, ONNX for most; converted: the folder with files of other formats."""

    distribution: ClassVar[str] = ""
    precisions: ClassVar[tuple[str, ...]] = ("f32",)
    suffix: ClassVar[str] = ""
    """Ending of the file in the engine's own format; empty where it reads ONNX."""
    native: ClassVar[tuple[str, ...]] = ()
    """Endings of models that are in the engine's own format already."""

    def __init__(
        self, model: Path, converted: Path | None, threads: int, feeds: Mapping[str, Any], precision: str = "f32"
    ) -> None:
        self.model, self.converted, self.threads, self.feeds = model, converted, threads, feeds
        self.precision = precision

    def imports(self) -> None:
        """Import the engine (timed apart from `load`)."""

    def load(self) -> None:
        """From the file to ready for the first run."""

    def run(self) -> Any:
        """One inference with fresh inputs given and results taken, as an application would."""
        raise NotImplementedError

    def arrays(self) -> list[Any]:
        """NumPy results of one run; a list of dictionaries is a matrix of their values."""
        import numpy as np

        return [np.asarray([list(row.values()) for row in a] if isinstance(a, list) else a) for a in self.run()]

    def file(self) -> Path:
        """The model in the engine's own format."""
        if self.model.suffix in self.native:
            return self.model
        if self.converted is None:
            raise FileNotFoundError(f"no folder of converted models, wanted {self.model.stem}{self.suffix} in it")
        path = self.converted / f"{self.model.stem}{self.suffix}"
        if not path.is_file():
            raise FileNotFoundError(f"{path.name}: not in the folder of converted models")
        return path

    def version(self) -> str:
        return importlib.metadata.version(self.distribution)
