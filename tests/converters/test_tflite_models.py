"""Real TFLite models mean what LiteRT, or their twin in ONNX, computes, and stay NHWC."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import Array
from tests.models import MODELS, FetchError, fetch

NAMES = [name for name in MODELS if name.endswith(".tflite")]
TRANSPOSES = {"face_sparse.tflite": 2}
"""Those that the file itself has and that no pass can take away."""


def fetched(name: str) -> Path:
    try:
        return fetch(name)
    except FetchError as error:
        pytest.skip(str(error))


def feeds(session: bn.Session) -> dict[str, Array]:
    """Inputs of the sizes that the files are made for."""
    rng, made = np.random.default_rng(0), {}
    for spec in session.inputs:
        assert spec.shape is not None
        shape = tuple(d if isinstance(d, int) else 1 for d in spec.shape)
        real = rng.random(shape)
        made[spec.name] = (real if spec.dtype.kind == "f" else real * 255).astype(spec.dtype)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_sessions_give_what_the_references_give(name: str) -> None:
    graph = bn.load(fetched(name))
    session = bn.compile(graph, threads=1)
    given = feeds(session)
    wanted = interpret(graph, given)
    for key, got in session(given).items():
        within = 3 if got.dtype.kind in "iu" else 1e-3 * float(np.abs(wanted[key]).max())
        assert np.abs(got.astype(float) - wanted[key].astype(float)).max() <= within, key
    transposes = [n for n in session.optimised.nodes if n.op.name == "Transpose"]
    assert len(transposes) <= TRANSPOSES.get(name, 0)


@pytest.mark.parametrize("name", NAMES)
def test_files_mean_what_litert_computes(name: str) -> None:
    """Where LiteRT is installed."""
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    kernels = interpreter.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    judge = interpreter.Interpreter(model_path=str(fetched(name)), experimental_op_resolver_type=kernels)
    judge.allocate_tensors()
    session = bn.compile(fetched(name), threads=1)
    given = feeds(session)
    for detail, array in zip(judge.get_input_details(), given.values(), strict=True):
        judge.set_tensor(detail["index"], array)
    judge.invoke()
    for detail, got in zip(judge.get_output_details(), session.run(None, given), strict=True):
        wanted = judge.get_tensor(detail["index"])
        within = 2 if got.dtype.kind in "iu" else 1e-3 * float(np.abs(wanted).max())
        assert np.abs(got.astype(float) - wanted.astype(float)).max() <= within


def test_a_model_and_its_twin_in_onnx_agree() -> None:
    ours, twin = bn.compile(fetched("nmp.tflite")), bn.compile(fetched("nmp.onnx"))
    x = np.random.default_rng(1).standard_normal((1, 43844, 1), np.float32)
    found = ours.run(None, {ours.inputs[0].name: x})
    for wanted in twin.run(None, {twin.inputs[0].name: x}):
        assert min(np.abs(a - wanted).max() for a in found if a.shape == wanted.shape) < 2e-3


def test_bytes_are_computed_with_as_bytes() -> None:
    session = bn.compile(fetched("efficientnet_lite3.tflite"), threads=1)
    operators = [n.op.name for n in session.optimised.nodes]
    assert operators.count("QLinearConv") > 10 * operators.count("Conv")
