"""Predictors in the workers of Ray Data, Spark, Dask and joblib: all rows come once, also where a worker is killed.

`make engines` makes an environment that has them, and runs these tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bolt_numba import batch
from tests.engines.dying import DyingPredictor, die_once, dying_predict
from tests.small import softmax

ROWS, COLUMNS = 1000, 8
WORKERS = 2
REASON = "make engines has it"
TIMEOUT_S = 240
pytestmark = [
    pytest.mark.timeout(TIMEOUT_S),  # an engine that waits for ever fails
    pytest.mark.filterwarnings("default"),  # what engines say of themselves and each other
]

X = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("f4")
E = np.exp(X - X.max(1, keepdims=True))
WANTED = E / E.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("engines")
    return batch.prepare(softmax(folder / "softmax.onnx"), folder / "softmax.bolt", shapes={"x": (32, COLUMNS)})


@pytest.fixture
def flag(tmp_path: Path) -> str:
    return str(tmp_path / "died")


def check(numbers: Any, results: Any) -> None:
    """Every row came once, with its result."""
    assert sorted(int(i) for i in numbers) == list(range(ROWS))
    for i, y in zip(numbers, results, strict=True):
        np.testing.assert_allclose(y, WANTED[int(i)], rtol=1e-5)


PREPARE = """
import sys
from bolt_numba import batch
batch.prepare(sys.argv[1], sys.argv[2], shapes={"x": (32, 8)})
"""
RUN = """
import sys
import numpy as np
from bolt_numba import batch
predictor = batch.Predictor(sys.argv[2], threads=1)
for rows in (32, 63, 1):
    predictor({"x": np.ones((rows, 8))})
"""


def test_workers_compile_nothing_after_prepare(tmp_path: Path) -> None:
    source, cache = softmax(tmp_path / "softmax.onnx"), tmp_path / "cache"
    environment = {**os.environ, "BOLT_NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    kernels = []
    for program in (PREPARE, RUN):
        command = [sys.executable, "-c", program, str(source), str(tmp_path / "softmax.bolt")]
        subprocess.run(command, env=environment, check=True)
        kernels.append(sorted(file.name for file in cache.rglob("*.kernel")))
    assert kernels[0] == kernels[1] != []


# --- joblib ----------------------------------------------------------------------------------------------------------


def parts() -> list[dict[str, Any]]:
    return [{"i": i, "x": X[i]} for i in np.array_split(np.arange(ROWS), 4)]


def test_joblib(path: str) -> None:
    joblib = pytest.importorskip("joblib", reason=REASON)
    found = joblib.Parallel(n_jobs=WORKERS)(joblib.delayed(batch.predict)(part, path, keep=["i"]) for part in parts())
    check(np.concatenate([p["i"] for p in found]), np.concatenate([p["y"] for p in found]))
    predictor = batch.Predictor(path, keep=["i"])
    found = joblib.Parallel(n_jobs=WORKERS)(joblib.delayed(predictor)(part) for part in parts())
    check(np.concatenate([p["i"] for p in found]), np.concatenate([p["y"] for p in found]))


def test_joblib_goes_on_where_a_killed_job_has_ended(path: str, flag: str, tmp_path: Path) -> None:
    """joblib ends the job where a worker dies; `Memory` keeps what is done."""
    joblib = pytest.importorskip("joblib", reason=REASON)
    kept = joblib.Memory(tmp_path / "kept", verbose=0).cache(dying_predict)

    def job() -> Any:
        return joblib.Parallel(n_jobs=WORKERS)(joblib.delayed(kept)(p, path, flag, keep=["i"]) for p in parts())

    with pytest.raises(Exception, match="terminated"):
        job()
    found = job()
    check(np.concatenate([p["i"] for p in found]), np.concatenate([p["y"] for p in found]))


# --- Dask ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def dask() -> Iterator[Any]:
    distributed = pytest.importorskip("dask.distributed", reason=REASON)
    pytest.importorskip("pandas", reason=REASON)
    with (
        distributed.LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster),
    ):
        yield __import__("dask.dataframe").dataframe


def table(dask: Any) -> Any:
    import pandas as pd

    frame = pd.DataFrame({"i": range(ROWS), **{f"f{i}": X[:, i] for i in range(COLUMNS)}})
    return dask.from_pandas(frame, npartitions=4)


def test_dask(path: str, dask: Any) -> None:
    found = table(dask).map_partitions(batch.predict, path, keep=["i"], meta={"i": int, "y": object}).compute()
    check(found["i"], found["y"])


def test_dask_finds_the_columns_by_itself(path: str, dask: Any) -> None:
    made = table(dask).map_partitions(batch.predict, path, keep=["i"])
    assert list(made.columns) == ["i", "y"]


def test_dask_does_the_work_of_a_killed_worker_anew(path: str, dask: Any, flag: str) -> None:
    meta = {"i": int, "y": object}
    found = table(dask).map_partitions(dying_predict, path, flag, keep=["i"], meta=meta).compute()
    assert Path(flag).exists()
    check(found["i"], found["y"])


# --- Ray Data --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    found = pytest.importorskip("ray", reason=REASON)
    pytest.importorskip("ray.data", reason=REASON)
    found.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    found.data.DataContext.get_current().enable_progress_bars = False
    yield found
    found.shutdown()


def with_rows(given: Any) -> Any:
    return {"i": given["id"], "x": X[given["id"]]}


def test_ray_does_not_wait_for_ever_with_two_actors_on_two_processors(path: str, ray: Any) -> None:
    numbers = ray.data.range(ROWS, override_num_blocks=4).map_batches(with_rows)  # readers want a whole processor
    found = numbers.map_batches(**batch.ray_settings(path, keep=["i"])).take_all()
    check([row["i"] for row in found], [row["y"] for row in found])


def test_ray_reads_lists_of_different_lengths(path: str, ray: Any) -> None:
    rows = [{"i": i, "x": X[i, : 7 + i % 2]} for i in range(40)]
    found = ray.data.from_items(rows).map_batches(**batch.ray_settings(path, workers=1, keep=["i"])).take_all()
    assert sorted((row["i"], len(row["y"])) for row in found) == [(i, 7 + i % 2) for i in range(40)]


def test_ray_does_the_work_of_a_killed_actor_anew(path: str, ray: Any, flag: str) -> None:
    numbers = ray.data.range(ROWS, override_num_blocks=4).map_batches(with_rows)
    settings = batch.ray_settings(path, keep=["i"], flag=flag) | {"fn": DyingPredictor}
    found = numbers.map_batches(**settings).take_all()
    assert Path(flag).exists()
    check([row["i"] for row in found], [row["y"] for row in found])


# --- Spark -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql", reason=REASON)
    pytest.importorskip("pandas", reason=REASON)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = sql.SparkSession.builder.master(f"local[{WORKERS},4]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    yield session
    session.stop()


def rows_of(spark: Any, lists: Any) -> Any:
    return spark.createDataFrame([(i, row.tolist()) for i, row in enumerate(lists)], "i int, x array<float>")


def test_spark(path: str, spark: Any) -> None:
    with warnings.catch_warnings(record=True) as said:
        function = batch.spark_udf(path)
    assert not [w for w in said if "pandas >=" not in str(w.message)]  # no form of functions that Spark gives up
    found = rows_of(spark, X).repartition(4).withColumn("y", function("x")).collect()
    check([row["i"] for row in found], [row["y"] for row in found])


def test_spark_with_lists_of_different_lengths_and_outputs_by_name(path: str, spark: Any) -> None:
    lists = [X[i, : 7 + i % 2] for i in range(40)]
    found = rows_of(spark, lists).withColumn("y", batch.spark_udf(path, output="y", max_batch=8)("x")).collect()
    assert sorted((row["i"], len(row["y"])) for row in found) == [(i, 7 + i % 2) for i in range(40)]
    with pytest.raises(Exception, match="output: got 'z'"):
        batch.spark_udf(path, output="z")


def test_spark_does_the_work_of_a_killed_worker_anew(path: str, spark: Any, flag: str) -> None:
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def given_on(numbers: Any) -> Any:
        die_once(flag, numbers)
        return numbers

    given_on.__annotations__ = dict.fromkeys(("numbers", "return"), pd.Series)
    rows = rows_of(spark, X).repartition(4).withColumn("i", pandas_udf(given_on, "int")("i"))
    found = rows.withColumn("y", batch.spark_udf(path)("x")).collect()
    assert Path(flag).exists()
    check([row["i"] for row in found], [row["y"] for row in found])
