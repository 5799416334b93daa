"""Estimators of scikit-learn, fitted to its handwritten digits and written by skl2onnx as it does by default.

Family ``ml`` of `bench.run`: each with one row, as a service asks, and with all 797 rows that were not learnt from.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.zoo import REVISION
from bolt_numba.types import Array
from tests.models import folder

LEARNT = 1000
"""Rows to learn from."""
ESTIMATORS: dict[str, Callable[[], Any]] = {
    "svc": lambda: _of("svm").SVC(probability=True, random_state=0),
    "knn": lambda: _of("neighbors").KNeighborsClassifier(),
    "logistic": lambda: _of("linear_model").LogisticRegression(max_iter=300),
    "tree": lambda: _of("tree").DecisionTreeClassifier(random_state=0),
    "forest": lambda: _of("ensemble").RandomForestClassifier(50, random_state=0),
}
"""Classifiers; their probabilities are dictionaries from class to number."""


def _of(module: str) -> Any:
    return importlib.import_module(f"sklearn.{module}")


def _digits() -> tuple[Array, Array]:
    x, y = _of("datasets").load_digits(return_X_y=True)
    return x.astype(np.float32), y


@dataclass(frozen=True, slots=True)
class Estimator:
    """One estimator and how many rows it is asked for at once."""

    name: str
    rows: int
    family: str = "ml"

    def path(self) -> Path:
        """The file, built when it is not there yet."""
        target = folder() / f"zoo-{REVISION}" / f"{self.name}.ml.onnx"
        if not target.is_file():
            x, y = _digits()
            made = ESTIMATORS[self.name]().fit(x[:LEARNT], y[:LEARNT])
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{target.stem}.{os.getpid()}.onnx")
            convert: Any = importlib.import_module("skl2onnx").to_onnx
            partial.write_bytes(convert(made, x[:1], target_opset=18).SerializeToString())
            partial.replace(target)
        return target

    def feeds(self) -> dict[str, Array]:
        x, _ = _digits()
        return {"X": np.ascontiguousarray(x[LEARNT : LEARNT + self.rows])}


ML = {f"{name}_{rows}": Estimator(name, rows) for name in ESTIMATORS for rows in (1, 797)}
