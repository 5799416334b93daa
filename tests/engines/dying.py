"""What kills its own worker once in a job: a module that workers can import."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from bolt_numba import batch

AT = 500
"""The row at which a worker dies, in the middle of a job."""


def die_once(flag: str, rows: Any) -> None:
    """End this process as a machine that fails does, the first time that the row comes by."""
    if AT in [int(i) for i in rows] and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)


class DyingPredictor(batch.Predictor):
    """A predictor that keeps column ``i``; its first worker to meet the row dies."""

    def __init__(self, model: Any, *, flag: str, **options: Any) -> None:
        super().__init__(model, **options)
        self.flag = flag

    def __call__(self, given: Any) -> Any:
        die_once(self.flag, given["i"])
        return super().__call__(given)


def dying_predict(given: Any, model: Any, flag: str, **options: Any) -> Any:
    die_once(flag, given["i"])
    return batch.predict(given, model, **options)
