"""Models over tables of rows, in the workers of Ray Data, Spark, Dask and joblib (docs/batch.md)."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.config import plans_limit
from bolt_numba.base.errors import BoltError, DTypeError, OptionError, ShapeError
from bolt_numba.base.files.stamps import stamp_at
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.options import count_of, not_among
from bolt_numba.base.types import STRING, Array, TensorSpec, dtype_name
from bolt_numba.compiling import compile
from bolt_numba.sessions.inputs import as_array, as_input, names_of
from bolt_numba.sessions.rows import MAX_BATCH, in_parts

if TYPE_CHECKING:
    from bolt_numba.sessions.session import Session

__all__ = ["Predictor", "predict", "prepare", "ray_settings", "spark_udf"]

SHARE = 0.5
"""Of a processor that an actor of Ray asks for at most: Ray waits for ever where actors leave none to readers."""
Path: TypeAlias = "str | os.PathLike[str]"
NUMBERS = "fiub"
"""Kinds of dtypes of which one is made of the other where the values stay."""
_sessions: dict[Hashable, tuple[Any, Session]] = {}
_lock = threading.Lock()
renew_after_fork(sys.modules[__name__], "_lock", threading.Lock)


@border("prepare", OSError)
def prepare(model: Path, path: Path, *, shapes: Mapping[str, Sequence[int]] | None = None) -> str:
    """Write a model as a packed ``.bolt`` file, compile the kernels of one thread, keep its plan; the path, as a text.

    shapes: of inputs whose sizes are free; what they leave free is guessed.  All workers then open the one file.
    Raises what `bolt_numba.load` raises, OptionError for another suffix, and ShapeError for shapes.
    """
    from bolt_numba import surgery
    from bolt_numba.base.files import stamps
    from bolt_numba.sessions.guesses import complete_shapes
    from bolt_numba.sessions.known_plans import wait_for_kept
    from bolt_numba.sessions.loading import load, save

    graph, target = load(model), os.path.abspath(path)
    if not target.endswith(".bolt"):
        raise OptionError(f"{path}: got another suffix, wanted .bolt")
    save(surgery.packed(graph, threads=(1,), shapes=shapes), target)
    sizes = complete_shapes(graph, shapes)
    if plans_limit():
        time.sleep(max(0.0, stamps.SETTLED))  # no plan is kept of what was written to just now
    session = compile(target, threads=1, stand_ins=False)
    session.warmup(sizes)
    wait_for_kept()
    free = [spec.name for spec in session.inputs if spec.shape and isinstance(spec.shape[0], str)]
    for power in range(MAX_BATCH.bit_length()):  # of rows, as predictors run them
        with suppress(BoltError):  # a first axis that is not that of rows may not have every size
            session.warmup(sizes | {name: (1 << power, *sizes[name][1:]) for name in free})
    return target


class Predictor:
    """A model for batches of rows: a mapping, or a table, of columns, which are arrays or lists with an item a row.

    Parameters
    ----------
    model: what `bolt_numba.compile` takes; for a file and the same options a process has one session.
    inputs: columns by the model's input, or several columns that together are the features of one input; None: columns
        have the names of the inputs, or all of them are the features of the only input.
    outputs: the model's outputs by the column that they become; None: all, by their names.
    keep: a column, or several, that are given on.  max_batch: rows of a run, where the model does not fix them.
    options: of `bolt_numba.compile`.
    A predictor may be called by many threads, and is pickled by what it was made of.
    The constructor raises what `compile` raises, BoltError for inputs and outputs that the model does not have.
    """

    def __init__(
        self, model: Any, *, inputs: Mapping[str, str | Sequence[str]] | None = None,
        outputs: Mapping[str, str] | None = None, keep: str | Sequence[str] = (), max_batch: int = MAX_BATCH,
        **options: Any,
    ) -> None:  # fmt: skip
        own: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "keep": keep, "max_batch": max_batch}
        self._again = partial(type(self), model, **own, **options)
        self.session = _session_of(model, {"stand_ins": False, **options})
        for what, names_by in (("inputs", inputs), ("outputs", outputs)):
            if not isinstance(names_by or {}, Mapping):
                raise OptionError(f"{what}: got {names_by!r:.80}, wanted a name by each name")
        specs, made = [s.name for s in self.session.inputs], {s.name: s for s in self.session.outputs}
        names = outputs or {name: name for name in made}
        for what, wanted, known in (("inputs", inputs or (), specs), ("outputs", names.values(), [*made])):
            if unknown := [name for name in wanted if name not in known]:
                raise BoltError(not_among(what, unknown, known))
        self.keep = (keep,) if isinstance(keep, str) else tuple(names_of(keep))
        self.inputs = inputs and {n: c if isinstance(c, str) else names_of(c) for n, c in inputs.items()}
        self.outputs = {name: made[o] for name, o in names.items()}
        self.max_batch = count_of("max_batch", max_batch)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, ()

    @border("predict")
    def __call__(self, batch: Any) -> Any:
        """Results by column, a row for each that was given; those of different shapes as objects.

        A DataFrame of pandas gives one with its index.  Raises BoltError with the number of the row that does not fit.
        """
        columns = _columns_of(batch)
        given = self._given(columns)
        rows, wanted = len(given[0]), [spec.name for spec in self.outputs.values()]
        parts = [*in_parts(self.session, wanted, given, rows, self.max_batch)]
        made = {name: columns[name] for name in self.keep}
        for at, (name, spec) in enumerate(self.outputs.items()):
            made[name] = _gathered(spec, [(numbers, found[at]) for numbers, found in parts], rows)
        if not hasattr(batch, "iloc"):
            return made
        return type(batch)({n: list(v) if v.ndim > 1 else v for n, v in made.items()}, index=batch.index)

    def _given(self, columns: Mapping[str, Any]) -> list[Any]:
        """Of each input an array of all rows, or a list of the rows where they differ in shape."""
        specs, chosen = self.session.inputs, dict(self.inputs or {})
        are_features = self.inputs is None and len(specs) == 1 and len(columns) > 0 and specs[0].name not in columns
        if are_features:
            chosen = {specs[0].name: [name for name in columns if name not in self.keep]}
        names = [chosen.get(spec.name, spec.name) for spec in specs]
        wanted = [*self.keep, *(one for name in names for one in ([name] if isinstance(name, str) else name))]
        if missing := [name for name in wanted if name not in columns]:
            raise BoltError(not_among("columns", missing, [*columns]))
        items = {name: _items(name, columns[name]) for name in wanted}
        others = [column for column in columns.values() if hasattr(column, "__len__") and np.iterable(column)]
        if len(counts := {*map(len, (*items.values(), *others))}) != 1 or not items:
            raise ShapeError(f"columns: got {sorted(counts)} rows, wanted as many in each")
        of = [items[n] if isinstance(n, str) else [*zip(*(items[one] for one in n), strict=True)] for n in names]
        try:
            return [_column(spec, column) for spec, column in zip(specs, of, strict=True)]
        except BoltError as error:
            if not are_features:
                raise
            said = not_among("all columns together are its features", [specs[0].name], [*columns])
            raise type(error)(f"{error}; {said}") from error


@border("predict", OSError)
def predict(batch: Any, model: Any, **options: Any) -> Any:
    """A batch through the `Predictor` of a model and options, as ``frame.map_partitions(predict, "m.bolt")``.

    Raises as that, BoltError.
    """
    return Predictor(model, **options)(batch)


def ray_settings(model: Any, *, workers: int | None = None, batch_size: int = 256, **options: Any) -> dict[str, Any]:
    """What ``ds.map_batches(**ray_settings("m.bolt"))`` takes for Ray Data, which leaves processors to readers.

    workers: actors, which share the processors; None: one for each of the cluster.  options: of `Predictor`.
    """
    import ray

    if not ray.is_initialized():
        ray.init()
    there = int(ray.cluster_resources()["CPU"])
    count = count_of("workers", there if workers is None else workers)
    return {
        "fn": Predictor, "fn_constructor_args": (model,), "batch_size": batch_size,
        "fn_constructor_kwargs": {"threads": max(1, there // count), **options},
        "compute": ray.data.ActorPoolStrategy(size=count), "num_cpus": min(SHARE, (there - 1) / count),
    }  # fmt: skip


def spark_udf(model: str, *, output: str | None = None, **options: Any) -> Callable[..., Any]:
    """A pandas function of Spark: ``df.withColumn("y", spark_udf("m.bolt")("x"))``; a column for each input, in order.

    output: which one; None: the first.  Workers need the file under the same path.  options: of `Predictor`; a task
    has one thread where nothing else is said.  Lists of a column may have different lengths.  Raises as `Predictor`.
    """
    import pandas as pd
    from pyspark.sql import types
    from pyspark.sql.functions import pandas_udf

    options = {"threads": 1, **options}
    session = Predictor(model, **options).session
    names, chosen = [spec.name for spec in session.inputs], output or session.outputs[0].name
    of = {s.name: s for s in session.outputs}.get(chosen)
    if of is None or of.shape is None:
        raise BoltError(f"output: got {chosen!r}, wanted one of known rank of {[s.name for s in session.outputs]}")
    kinds: dict[str, tuple[Any, Any]] = {"b": (bool, types.BooleanType()), "O": (object, types.StringType())}
    kinds |= dict.fromkeys("iu", (np.int64, types.LongType())) | {"d": (np.float64, types.DoubleType())}
    held, kind = kinds.get("d" if of.dtype == np.float64 else of.dtype.kind, (np.float32, types.FloatType()))
    for _ in of.shape[1:] if of.shape[1:] != (1,) else ():
        kind = types.ArrayType(kind)

    def run(parts: Iterator[Any]) -> Iterator[Any]:
        predictor = Predictor(model, outputs={"y": chosen}, **options)
        for part in parts:
            columns = part if isinstance(part, tuple) else (part,)
            results = predictor(dict(zip(names, columns, strict=True)))["y"]
            yield pd.Series([np.asarray(row, held).tolist() for row in results], dtype=object)

    run.__annotations__ = dict.fromkeys(("parts", "return"), Iterator[pd.Series])  # Spark looks at them; no texts
    return pandas_udf(run, kind)  # type: ignore[no-any-return]


def _session_of(model: Any, options: Mapping[str, Any]) -> Session:
    """A process has one session for each file and its options."""
    if not isinstance(model, (str, os.PathLike)):
        return model if hasattr(model, "run_into") else compile(model, **options)
    stamp, key = stamp_at(model), (os.path.abspath(model), repr(sorted(options.items())))
    with _lock:
        if key not in _sessions or _sessions[key][0] != stamp:
            _sessions[key] = stamp, compile(model, **options)
        return _sessions[key][1]


# --- columns ---------------------------------------------------------------------------------------------------------


def _columns_of(batch: Any) -> dict[str, Any]:
    """Columns by name of a mapping, or of a table of pandas, polars or Arrow."""
    if not isinstance(batch, Mapping) and not hasattr(batch, "columns"):
        raise DTypeError(f"batch: got a {type(batch).__name__}, wanted columns by name")
    names = batch.column_names if hasattr(batch, "column_names") else getattr(batch, "columns", batch)
    return {str(name): batch[name] for name in names}


def _items(name: str, column: Any) -> Any:
    """A column as an array or a list of its rows."""
    if not np.iterable(column) or isinstance(column, (str, bytes)):
        raise DTypeError(f"column {name!r}: got a {type(column).__name__}, wanted rows")
    return column if isinstance(column, list) else np.asarray(column) if hasattr(column, "__array__") else list(column)


def _column(spec: TensorSpec, items: Any) -> Any:
    """An array of all rows for an input, or a list where they differ in shape.  Raises BoltError that names a row."""
    if isinstance(items, np.ndarray) or not any(item is None for item in items):
        with suppress(BoltError):  # row by row it is said which one does not fit
            return _fitted(spec, items, 1)
    rows = []
    for number, item in enumerate(items):
        try:
            rows.append(_fitted(spec, item, 0))
        except BoltError as error:
            raise type(error)(f"row {number}: {error}") from error
    return np.stack(rows) if len({row.shape for row in rows}) == 1 else rows


def _fitted(spec: TensorSpec, given: Any, leading: int) -> Array:
    """An array of the input's dtype.  leading: 1 for a column, 0 for a row; a number may stand for a row of one."""
    rest = None if spec.shape is None else spec.shape[1:]
    array = as_array(spec, given if spec.dtype == STRING else _plain(given))
    if rest is not None and array.ndim == leading:
        array = array.reshape(array.shape + (1,) * len(rest))
    if array.dtype != spec.dtype != STRING and array.dtype.kind in NUMBERS:
        with np.errstate(invalid="ignore"):  # NaN as an integer
            made = array.astype(spec.dtype)
        if spec.dtype.kind in "iub" and not np.array_equal(made, array):
            raise DTypeError(f"input {spec.name!r}: got other numbers than {dtype_name(spec.dtype)} has")
        array = made
    shape = None if rest is None else (*("rows",) * leading, *rest)
    return as_input(TensorSpec(spec.name, spec.dtype, shape), array)  # type: ignore[no-any-return]


def _plain(given: Any) -> Any:
    """Arrays of objects as lists, at every level."""
    return [*map(_plain, given)] if getattr(given, "dtype", None) == STRING else given


def _gathered(spec: TensorSpec, parts: Sequence[tuple[Any, Any]], rows: int) -> Any:
    """Results of all rows: one array, or an object for each where they differ.  A row of one number is that number."""
    dims = tuple(d if isinstance(d, int) else 0 for d in (spec.shape or ())[1:])
    shapes = {np.shape(values)[1:] for _, values in parts if isinstance(values, np.ndarray)} if parts else {dims}
    made: Array = np.empty((rows, *shapes.pop()), spec.dtype) if len(shapes) == 1 else np.empty(rows, object)
    for numbers, values in parts:
        for number, value in zip(numbers, values, strict=False):  # there may be more, of rows that only fill up
            made[number] = value
    return made[:, 0] if made.shape[1:] == (1,) == dims else made
