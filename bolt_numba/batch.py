"""Models over tables of rows, in the workers of Ray Data, Spark, Dask and joblib (docs/batch.md).

Before the job `prepare` converts a model once, and compiles its kernels once.  In a worker a `Predictor` opens the
file, which workers map together, and runs batches of sizes that were planned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.config import processors
from bolt_numba.base.errors import BoltError, ShapeError
from bolt_numba.base.options import count_of
from bolt_numba.base.types import Array, TensorSpec
from bolt_numba.compiling import compile
from bolt_numba.sessions.inputs import as_input

if TYPE_CHECKING:
    from os import PathLike

    from bolt_numba.sessions.session import Session

__all__ = ["Predictor", "predict", "prepare", "ray_settings", "spark_udf"]

MAX_BATCH = 32
_sessions: dict[Hashable, Session] = {}
_lock = threading.Lock()


@border("prepare", OSError)
def prepare(
    model: str | PathLike[str], path: str | PathLike[str], *, shapes: Mapping[str, Sequence[int]] | None = None
) -> str:
    """Write a model as a packed ``.bolt`` file, and compile the kernels of one thread; the path, as a text.

    shapes: of inputs whose sizes are free; None: guessed.  All workers then map the one file.
    Raises what `bolt_numba.load` raises, and ShapeError for shapes.
    """
    from bolt_numba import surgery
    from bolt_numba.sessions.loading import load, save

    save(surgery.packed(load(model), threads=(1,), shapes=shapes), Path(path))
    return str(Path(path).resolve())


class Predictor:
    """A model for batches of rows: a mapping, or a DataFrame, of columns, which are arrays or lists with an item a row.

    Parameters
    ----------
    model: what `bolt_numba.compile` takes; for files of one path and options a process has one session.
    inputs: columns by the model's input, or several columns that together are the features of one input; None: columns
        have the names of the inputs, or all of them are the features of the only input.
    outputs: the model's outputs by the column that they become; None: all, by their names.
    keep: columns that are given on.  max_batch: rows of a run.
    options: of `bolt_numba.compile`; threads is 1 where nothing else is said: engines start a worker a processor.
    The constructor raises what `compile` raises, BoltError for inputs and outputs that the model does not have.
    """

    def __init__(
        self,
        model: Any,
        *,
        inputs: Mapping[str, str | Sequence[str]] | None = None,
        outputs: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
        max_batch: int = MAX_BATCH,
        **options: Any,
    ) -> None:
        self.session = _session_of(model, {"threads": 1, "stand_ins": False, **options})
        self.inputs, self.keep, self.max_batch = inputs, tuple(keep), count_of("max_batch", max_batch)
        made = [spec.name for spec in self.session.outputs]
        self.outputs = dict(outputs or {name: name for name in made})
        wanted = [spec.name for spec in self.session.inputs]
        for what, given, known in (("inputs", inputs or {}, wanted), ("outputs", {*self.outputs.values()}, made)):
            if unknown := [name for name in given if name not in known]:
                raise BoltError(f"{what}: got {unknown}, wanted some of {known}")

    def __call__(self, batch: Any) -> dict[str, Any]:
        """Results by column, a row for each that was given; those of different shapes as objects.

        Raises BoltError with the number of the row that does not fit.
        """
        columns = {str(name): batch[name] for name in (batch.columns if hasattr(batch, "columns") else batch)}
        rows = self._rows(columns)
        made: list[list[Array] | None] = [None] * len(rows)
        for numbers in _alike(rows, self._most()):
            for number, results in zip(numbers, self._run(rows, numbers), strict=True):
                made[number] = results
        names = [spec.name for spec in self.session.outputs]
        found = {column: [r[names.index(name)] for r in made if r is not None] for column, name in self.outputs.items()}
        specs = dict(zip(names, self.session.outputs, strict=True))
        made_columns = {name: _column(values, specs[self.outputs[name]]) for name, values in found.items()}
        return {name: columns[name] for name in self.keep} | made_columns

    def _rows(self, columns: Mapping[str, Any]) -> list[list[Array]]:
        """The inputs of each row, without the axis of the batch."""
        specs = self.session.inputs
        chosen = self.inputs
        if chosen is None:
            alone = len(specs) == 1 and specs[0].name not in columns
            chosen = {specs[0].name: list(columns)} if alone else {spec.name: spec.name for spec in specs}
        parts = []
        for spec in specs:
            names = chosen.get(spec.name, spec.name)
            several = [names] if isinstance(names, str) else list(names)
            if missing := [name for name in several if name not in columns]:
                raise BoltError(f"input {spec.name!r}: got columns {list(columns)}, wanted {missing}")
            lists = [_items(columns[name]) for name in several]
            parts.append(lists[0] if isinstance(names, str) else [np.asarray(row) for row in zip(*lists, strict=True)])
        if len({len(part) for part in parts}) > 1:
            raise ShapeError(f"columns: got {[len(part) for part in parts]} rows, wanted as many in each")
        return [self._row(i, row) for i, row in enumerate(zip(*parts, strict=True))]

    def _row(self, number: int, items: Iterable[Any]) -> list[Array]:
        try:
            return [_as_row(spec, item) for spec, item in zip(self.session.inputs, items, strict=True)]
        except (BoltError, ValueError, TypeError) as error:
            raise BoltError(f"row {number}: {error}") from error

    def _most(self) -> int:
        """Rows of a run: those that the model fixes, else as many as are wanted."""
        fixed = [s.shape[0] for s in self.session.inputs if s.shape and isinstance(s.shape[0], int)]
        return min([self.max_batch, *fixed])

    def _run(self, rows: Sequence[Sequence[Array]], numbers: Sequence[int]) -> list[list[Array]]:
        """Results of rows of the same shapes.  A model of a fixed number of rows gets the last one several times."""
        count, most = len(numbers), self._most()
        is_fixed = any(s.shape and isinstance(s.shape[0], int) for s in self.session.inputs)
        taken = [*numbers, *[numbers[-1]] * (most - count)] if is_fixed else numbers
        feeds = {
            spec.name: np.stack([rows[n][i] for n in taken]) if spec.shape != () else rows[taken[0]][i]
            for i, spec in enumerate(self.session.inputs)
        }
        try:
            results = self.session.run(None, feeds)
            for spec, result in zip(self.session.outputs, results, strict=True):
                if len(result) != len(taken):
                    raise ShapeError(f"output {spec.name!r}: got {len(result)} rows, wanted {len(taken)}")
        except BoltError as error:
            if count == 1:
                raise BoltError(f"row {numbers[0]}: {error}") from error
            return [row for number in numbers for row in self._run(rows, [number])]  # the one at fault is named
        return [[result[i] for result in results] for i in range(count)]


def predict(batch: Any, model: Any, **options: Any) -> Any:
    """A batch of rows through a model: ``ddf.map_partitions(predict, "m.bolt")``, or a call of joblib's.

    options: those of `Predictor`.  Gives a DataFrame for one, with its index, else columns by name.
    Raises as `Predictor`.
    """
    made = Predictor(model, **options)(batch)
    if not hasattr(batch, "columns"):
        return made
    return type(batch)({name: list(v) if v.ndim > 1 else v for name, v in made.items()}, index=batch.index)


def ray_settings(model: Any, *, workers: int | None = None, batch_size: int = 256, **options: Any) -> dict[str, Any]:
    """What ``ds.map_batches(**ray_settings("m.bolt"))`` takes for Ray Data, which leaves processors to readers.

    workers: actors, each with one thread; None: one for each processor of the cluster.  options: of `Predictor`.
    An actor asks for less than a processor: Ray waits for ever where actors have them all and a reader wants one.
    """
    import ray

    if not ray.is_initialized():
        ray.init()
    there = int(ray.cluster_resources().get("CPU", processors()))
    count = count_of("workers", there if workers is None else workers)
    share = min(1.0, max(0.1, (there - 0.5) / count))
    return {
        "fn": Predictor, "fn_constructor_args": (model,), "fn_constructor_kwargs": options, "batch_size": batch_size,
        "compute": ray.data.ActorPoolStrategy(size=count), "num_cpus": round(share, 2),
    }  # fmt: skip


def spark_udf(model: str, *, output: str | None = None, **options: Any) -> Callable[..., Any]:
    """A pandas function of Spark: ``df.withColumn("y", spark_udf("m.bolt")("x"))``; a column for each input, in order.

    output: which one; None: the first.  Workers need the file under the same path.  options: of `Predictor`.
    Lists of a column may have different lengths.  Raises as `Predictor`.
    """
    import pandas as pd
    from pyspark.sql import types
    from pyspark.sql.functions import PandasUDFType, pandas_udf

    session = Predictor(model, **options).session
    names, outputs = [spec.name for spec in session.inputs], {s.name: s for s in session.outputs}
    chosen = output if output is not None else next(iter(outputs))
    if chosen not in outputs:
        raise BoltError(f"output: got {output!r}, wanted one of {list(outputs)}")
    numbers = {"f": types.FloatType(), "i": types.LongType(), "u": types.LongType(), "b": types.BooleanType()}
    of = outputs[chosen]
    kind = types.DoubleType() if of.dtype == np.float64 else numbers.get(of.dtype.kind, types.StringType())
    is_scalar = of.shape is not None and (len(of.shape) == 1 or of.shape[1:] == (1,))

    def run(parts: Iterable[Any]) -> Iterable[Any]:
        predictor = Predictor(model, outputs={"y": chosen}, **options)
        for part in parts:
            columns = part if isinstance(part, tuple) else (part,)
            yield pd.Series(list(predictor(dict(zip(names, columns, strict=True)))["y"]))

    kind = kind if is_scalar else types.ArrayType(kind)
    return pandas_udf(run, kind, PandasUDFType.SCALAR_ITER)  # type: ignore[no-any-return]


# --- rows ------------------------------------------------------------------------------------------------------------


def _session_of(model: Any, options: Mapping[str, Any]) -> Session:
    """A process has one session for each file and its options."""
    if not isinstance(model, (str, Path)):
        return model if hasattr(model, "run_into") else compile(model, **options)
    stat = Path(model).stat()
    key = (str(Path(model).resolve()), stat.st_mtime_ns, stat.st_size, repr(sorted(options.items())))
    with _lock:
        if key not in _sessions:
            _sessions[key] = compile(model, **options)
        return _sessions[key]


def _items(column: Any) -> Any:
    """A column as a sequence of its rows."""
    made = column.to_numpy() if hasattr(column, "to_numpy") else column
    return made if isinstance(made, (np.ndarray, list)) else list(made)


def _as_row(spec: TensorSpec, item: Any) -> Array:
    """What one row gives an input: of the input's dtype, with its axes but the first; a number is a row of one."""
    if spec.shape is not None and np.ndim(item) < len(spec.shape) - 1 and np.size(item) == 1:
        item = np.reshape(item, [1] * (len(spec.shape) - 1))
    array = np.asarray(item)
    if array.dtype != spec.dtype and array.dtype.kind in "fiub" and spec.dtype.kind in "fiub":
        made = array.astype(spec.dtype)
        if spec.dtype.kind in "iu" and not np.array_equal(made, array):
            raise ShapeError(f"input {spec.name!r}: got numbers of {array.dtype}, wanted such as {spec.dtype} holds")
        array = made
    return as_input(TensorSpec(spec.name, spec.dtype, None if spec.shape is None else spec.shape[1:]), array)  # type: ignore[no-any-return]


def _alike(rows: Sequence[Sequence[Array]], most: int) -> Iterable[list[int]]:
    """Numbers of rows that run together: of the same shapes, up to so many, and in powers of two at the end."""
    groups: dict[Hashable, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(tuple(array.shape for array in row), []).append(number)
    for numbers in groups.values():
        while numbers:
            size = min(most, 1 << (len(numbers).bit_length() - 1))
            yield numbers[:size]
            numbers = numbers[size:]


def _column(values: Sequence[Array], spec: TensorSpec) -> Any:
    """Results of all rows: one array, or an object for each where they differ.  A row of one number is that number."""
    if len({v.shape for v in values}) <= 1:
        made = np.stack(values) if values else np.empty(0, spec.dtype)
        return made[:, 0] if made.ndim == 2 and made.shape[1] == 1 and spec.shape and spec.shape[1:] == (1,) else made
    found = np.empty(len(values), object)
    for i, value in enumerate(values):
        found[i] = value
    return found
