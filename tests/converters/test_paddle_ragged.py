"""Ragged inputs of Paddle's programs: lists of arrays, the operators on them, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import Array
from tests.paddle_program import feed, fetch, op, program, record, var

STORED = Path(__file__).parents[1] / "golden" / "ragged" / "paddle.npz"
LENGTHS = (3, 1, 4)
Lists = list[Array]


def cases() -> list[str]:
    with np.load(STORED) as archive:
        return sorted({key.split("/")[0] for key in archive.files})


def parts(flat: Array, lengths: Sequence[int]) -> Lists:
    return np.split(flat, np.cumsum(lengths)[:-1])


@pytest.mark.parametrize("name", cases())
def test_as_paddle(name: str) -> None:
    """By session and interpreter; a ragged result is a list whose parts are as long as those of the input."""
    with np.load(STORED) as archive:
        stored = {key.removeprefix(f"{name}/"): archive[key] for key in archive.files if key.startswith(f"{name}/")}
    weights = {key.removeprefix("weight/"): a for key, a in stored.items() if key.startswith("weight/")}
    feeds: dict[str, Any] = {key.removeprefix("in/"): a for key, a in stored.items() if key.startswith("in/")}
    for key in [key for key in stored if key.startswith("lengths/")]:
        place = key.removeprefix("lengths/")
        feeds[place] = parts(feeds[place], stored[key])
    graph = bn.load(stored["model"].tobytes(), weights=b"".join(record(weights[k]) for k in sorted(weights)) or None)
    (got,), (other,) = bn.compile(graph).run(None, feeds), interpret(graph, feeds).values()
    for found in (got, other):
        flat = np.concatenate(found) if isinstance(found, list) else found
        assert flat.dtype == stored["out"].dtype
        np.testing.assert_allclose(flat, stored["out"], rtol=1e-5, atol=1e-6)


def run(operations: Sequence[bytes], output: str = "y", **inputs: Any) -> Any:
    """What a program without weights makes of inputs, of which lists are ragged."""
    declared = []
    for name, given in inputs.items():
        first = given[0] if isinstance(given, list) else given
        declared.append(var(name, first.dtype, [-1, *first.shape[1:]], lod=int(isinstance(given, list))))
    feeds = [feed(name, i) for i, name in enumerate(inputs)]
    graph = bn.load(program([*feeds, *operations, fetch(output), *declared]))
    return bn.compile(graph).run(None, inputs)[0]


def rows(*lengths: int, width: int = 3, seed: int = 0) -> Lists:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, width)).astype(np.float32) for n in lengths]


def same(got: Any, wanted: Sequence[Array]) -> None:
    assert [g.shape for g in got] == [w.shape for w in wanted]
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(g, w)


X, Z = rows(*LENGTHS), rows(2, 5, 1, seed=1)
IDS = [np.array(row, np.int64).reshape(-1, 1) for row in ([3, 1, 3], [3], [2, 1, 4, 1])]


@pytest.mark.parametrize(
    ("operation", "inputs", "wanted"),
    [
        (op("sequence_reverse", {"X": ["x"]}, {"Y": ["y"]}), {"x": X}, lambda: [x[::-1] for x in X]),
        (
            op("sequence_concat", {"X": ["x", "z"]}, {"Out": ["y"]}), {"x": X, "z": Z},
            lambda: [np.concatenate(pair) for pair in zip(X, Z, strict=True)],
        ),
        (
            op("sequence_expand_as", {"X": ["z"], "Y": ["x"]}, {"Out": ["y"]}), {"x": X, "z": Z[1][:3]},
            lambda: [np.repeat(Z[1][i : i + 1], n, 0) for i, n in enumerate(LENGTHS)],
        ),
        (
            op("sequence_slice", {"X": ["x"], "Offset": ["o"], "Length": ["n"]}, {"Out": ["y"]}),
            {"x": X, "o": np.array([[1], [0], [2]]), "n": np.array([[2], [1], [1]])},
            lambda: [X[0][1:3], X[1][:1], X[2][2:3]],
        ),
        (
            op("sequence_reshape", {"X": ["x"]}, {"Out": ["y"]}, new_dim=1), {"x": X},
            lambda: [x.reshape(-1, 1) for x in X],
        ),
        (
            op("sequence_enumerate", {"X": ["x"]}, {"Out": ["y"]}, win_size=2, pad_value=9), {"x": IDS},
            lambda: [np.concatenate([i, np.append(i[1:], [[9]], 0)], 1) for i in IDS],
        ),
        (
            op("sequence_erase", {"X": ["x"]}, {"Out": ["y"]}, tokens=[1, 2]), {"x": IDS},
            lambda: [i[(i[:, 0] != 1) & (i[:, 0] != 2)] for i in IDS],
        ),
    ],
    ids=lambda v: None,
)  # fmt: skip
def test_what_only_older_paddle_has(operation: bytes, inputs: Mapping[str, Any], wanted: Callable[[], Lists]) -> None:
    same(run([operation], **inputs), wanted())


@pytest.mark.parametrize("most", [-1, 6])
def test_padding_and_back(most: int) -> None:
    pad = op("sequence_pad", {"X": ["x"], "PadValue": ["v"]}, {"Out": ["p"], "Length": ["n"]}, padded_length=most)
    back = op("sequence_unpad", {"X": ["p"], "Length": ["n"]}, {"Out": ["y"]})
    value = np.array([7], np.float32)
    padded = run([pad], "p", x=X, v=value)
    assert padded.shape == (3, 4 if most < 0 else most, 3)
    assert np.all(padded[1, 1:] == 7)
    same(run([pad, back], x=X, v=value), X)


def test_pools_of_a_sequence_without_rows() -> None:
    pool = op("sequence_pool", {"X": ["x"]}, {"Out": ["y"]}, pooltype="AVERAGE", pad_value=5.0)
    got = run([pool], x=[X[0], X[1][:0], X[2]])
    np.testing.assert_allclose(got, [X[0].mean(0), [5, 5, 5], X[2].mean(0)], rtol=1e-6)


def tagger() -> tuple[bytes, dict[str, Array]]:
    """Words to labels: embedding, product, recurrent layer, scores, best path."""
    rng = np.random.default_rng(2)
    shapes = {"emb": (9, 4), "w": (4, 6), "b": (6,), "r": (2, 6), "s": (2, 3), "t": (5, 3)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    operations = [
        op("lookup_table", {"Ids": ["words"], "W": ["emb"]}, {"Out": ["e"]}, padding_idx=-1),
        op("mul", {"X": ["e"], "Y": ["w"]}, {"Out": ["m"]}, x_num_col_dims=1, y_num_col_dims=1),
        op("elementwise_add", {"X": ["m"], "Y": ["b"]}, {"Out": ["a"]}, axis=1),
        op("gru", {"Input": ["a"], "Weight": ["r"]}, {"Hidden": ["h"]}, is_reverse=True),
        op("mul", {"X": ["h"], "Y": ["s"]}, {"Out": ["f"]}, x_num_col_dims=1, y_num_col_dims=1),
        op("crf_decoding", {"Emission": ["f"], "Transition": ["t"]}, {"ViterbiPath": ["y"]}),
    ]
    kept = [var(name, "f4", a.shape, is_kept=True) for name, a in weights.items()]
    return program([feed("words"), *operations, fetch("y"), var("words", "i8", [-1, 1], lod=1), *kept]), weights


def test_a_tagger_keeps_to_its_sentences() -> None:
    """Each sentence gets the labels that it gets alone."""
    model, weights = tagger()
    graph = bn.load(model, weights=b"".join(record(weights[name]) for name in sorted(weights)))
    session = bn.compile(graph)
    together = session.run(None, {"words": IDS})[0]
    assert [labels.shape for labels in together] == [(3, 1), (1, 1), (4, 1)]
    for ids, labels in zip(IDS, together, strict=True):
        same(session.run(None, {"words": [ids]})[0], [labels])


def test_what_is_not_ragged_is_told() -> None:
    with pytest.raises(bn.UnsupportedOpError, match="operand 'x' that is not ragged"):
        run([op("sequence_reverse", {"X": ["x"]}, {"Y": ["y"]})], x=X[0])
    two = program([feed("x"), op("relu", {"X": ["x"]}, {"Out": ["y"]}), fetch("y"), var("x", "f4", [-1, 3], lod=2)])
    with pytest.raises(bn.UnsupportedOpError, match="input 'x' with 2 levels"):
        bn.load(two)
    with pytest.raises(bn.BoltError):
        run([op("relu", {"X": ["x"]}, {"Out": ["y"]})], x=[X[0], np.zeros((2, 4), np.float32)])
