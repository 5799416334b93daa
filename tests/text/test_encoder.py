"""Texts to vectors and scores: the usual recipe's, each text's own, and what is not taken."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

import bolt_numba as bn
from bolt_numba.cli.app import run
from bolt_numba.errors import BoltError, DataError, DTypeError, InvalidModelError, OptionError, ShapeError
from bolt_numba.text import Encoder, TruncationWarning
from bolt_numba.types import Array
from tests.models import FetchError, fetch
from tests.small import softmax
from tests.text.encoders import WIDTH, folder, network, tokenizer

tokenizers = pytest.importorskip("tokenizers")
onnxruntime = pytest.importorskip("onnxruntime")
TEXTS = ["a b c", "", "flight", "a b c a b c a b c", "Train \0 cat", "\ud800 b", "日本 cat", "a"] * 3
POOL: dict[str, Callable[[Array], Array]] = {
    "mean": lambda x: x.mean(0), "max": lambda x: x.max(0), "cls": lambda x: x[0], "last": lambda x: x[-1],
}  # fmt: skip


def _mended(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def usual(model: Path, reader: Path, text: Any, most: int = 512) -> Array:
    """What onnxruntime makes of one text, by the recipe that is found everywhere."""
    read = tokenizers.Tokenizer.from_file(str(reader))
    read.no_padding()
    read.enable_truncation(most)
    found = read.encode(*text) if isinstance(text, tuple) else read.encode(_mended(text))
    session = onnxruntime.InferenceSession(model)
    feeds = {"input_ids": found.ids, "attention_mask": found.attention_mask, "token_type_ids": found.type_ids}
    made: Array = session.run(None, {x.name: np.array([feeds[x.name]]) for x in session.get_inputs()})[0][0]
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def encoder(place: Path) -> Encoder:
    return Encoder(place)


@pytest.mark.parametrize("pooling", POOL)
@pytest.mark.parametrize("normalize", [True, False])
def test_as_the_usual_recipe(pooling: str, normalize: bool, place: Path) -> None:
    made = Encoder(place, pooling=pooling, normalize=normalize).embed(TEXTS)
    assert made.dtype == np.float32
    for text, vector in zip(TEXTS, made, strict=True):
        wanted = POOL[pooling](usual(place / "model.onnx", place / "tokenizer.json", text))
        wanted = wanted / np.linalg.norm(wanted) if normalize else wanted
        assert np.allclose(vector, wanted, atol=1e-6)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return Encoder(folder(tmp_path_factory.mktemp("shared")), max_tokens=9)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(alphabet=["a", "b", " ", "c", "é", "\0", "\ud8ff"]), max_size=20))
def test_each_text_has_its_own_result(texts: list[str], shared: Encoder) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        made = shared.embed(texts)
        assert made.shape == (len(texts), WIDTH)
        for text, vector in zip(texts, made, strict=True):
            assert np.array_equal(shared.embed([text])[0], vector)


def test_a_real_model_as_the_usual_recipe() -> None:
    try:
        model, reader = fetch("minilm.onnx"), fetch("minilm_tokenizer.json")
    except FetchError as error:
        pytest.skip(str(error))
    texts = [*TEXTS[:8], "How do I get to my flight?", "word " * 100]
    made = Encoder(model, reader, max_tokens=64)
    with pytest.warns(TruncationWarning, match="more than 64 tokens: 1 of 10 texts, the first is number 9"):
        found = made.embed(texts)
    means = np.stack([usual(model, reader, text, 64).mean(0) for text in texts])
    assert np.allclose(found, means / np.linalg.norm(means, axis=1, keepdims=True), atol=2e-6)


def test_pairs_get_scores(tmp_path: Path) -> None:
    place = folder(tmp_path, output="logits")
    pairs = [("a b", "c"), ("a", "flight train cat a b"), ("", "b")]
    made = Encoder(place, tokenizer=place / "tokenizer.json").score(pairs)
    wanted = [usual(place / "model.onnx", place / "tokenizer.json", pair)[0] for pair in pairs]
    assert made.shape == (3,)
    assert np.allclose(made, wanted, atol=1e-6)
    assert Encoder(place).score([]).shape == (0,)
    with pytest.raises(DTypeError, match="pair 1: got 3 texts, wanted two"):
        Encoder(place).score([("a", "b"), ("a", "b", "c")])  # type: ignore[list-item]
    with pytest.raises(BoltError, match=r"outputs: got \['logits'\], wanted vectors"):
        Encoder(place).embed(["a"])


# --- what folders say ------------------------------------------------------------------------------------------------


def modules(*kinds: str) -> list[dict[str, str]]:
    return [{"path": "" if k == "Transformer" else f"{i}_{k}", "type": f"a.models.{k}"} for i, k in enumerate(kinds)]


POOLING = "1_Pooling/config.json"


def test_a_folder_says_how(tmp_path: Path) -> None:
    files = {
        "modules.json": modules("Transformer", "Pooling", "Normalize"),
        POOLING: {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        "sentence_bert_config.json": {"max_seq_length": 4, "do_lower_case": True},
        "tokenizer_config.json": {"model_max_length": 1000000000000000019884624838656},
        "tokenizer.json": tokenizer(normalizer=None),
    }
    made = Encoder(folder(tmp_path, model="onnx/model.onnx", files=files))
    assert (made.pooling, made.normalize, made.max_tokens) == ("cls", True, 4)
    assert [list(row.ids) for row in made.tokens(["A b"])] == [[2, 4, 5, 3]]
    assert [row.is_cut for row in made.tokens(["a b", "a b c"])] == [False, True]
    other = Encoder(tmp_path / "onnx" / "model.onnx", pooling="max", normalize=False, max_tokens=9)
    assert (other.pooling, other.normalize, other.max_tokens) == ("max", False, 9)


def test_where_nothing_is_said(place: Path, encoder: Encoder, tmp_path: Path) -> None:
    assert (encoder.pooling, encoder.normalize, encoder.max_tokens) == ("mean", True, 512)
    limit = {"max_length": 7, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    assert Encoder(folder(tmp_path, files={"tokenizer.json": tokenizer(truncation=limit)})).max_tokens == 7
    (tmp_path / "modules.json").write_text(json.dumps(modules("Transformer", "Pooling")))
    (tmp_path / POOLING).parent.mkdir()
    (tmp_path / POOLING).write_text(json.dumps({"pooling_mode": "lasttoken"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 5}))
    made = Encoder(tmp_path)
    assert (made.pooling, made.normalize, made.max_tokens) == ("last", False, 5)


def test_vectors_of_the_model_go_before_a_pooling(tmp_path: Path) -> None:
    place = folder(tmp_path, output="sentence_embedding", files={"modules.json": modules("Transformer", "Dense")})
    made = Encoder(place, normalize=False).embed(["a b"])[0]
    assert np.allclose(made, usual(place / "model.onnx", place / "tokenizer.json", "a b"), atol=1e-6)
    network(place / "model.onnx")
    with pytest.raises(BoltError, match=r"modules.json: got \('Dense',\), wanted them in the model"):
        Encoder(place).embed(["a"])


def test_a_model_of_one_length_and_other_integers(tmp_path: Path) -> None:
    made = Encoder(folder(tmp_path, length=5, kind=TensorProto.INT32), normalize=False)
    free = Encoder(folder(tmp_path / "free"), normalize=False)
    assert made.max_tokens == 5
    assert np.allclose(made.embed(["a", "a b c"]), free.embed(["a", "a b c"]), atol=1e-6)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("tokenizer.json", "", "tokenizer.json: JSON: content: got what the package tokenizers refuses: EOF"),
        ("tokenizer.json", "[" * 100_000, "tokenizer.json: JSON: "),
        ("tokenizer.json", "[]", "tokenizer.json: model: "),
        ("tokenizer.json", tokenizer(model={}), "tokenizer.json: model: "),
        ("tokenizer.json", tokenizer(normalizer={"type": "Magic"}), "tokenizer.json: normalizer: "),
        ("tokenizer.json", tokenizer(added_tokens=7), "tokenizer.json: added_tokens: "),
        ("tokenizer.json", tokenizer(post_processor=[1]), "tokenizer.json: post_processor: "),
        ("modules.json", "{", "modules.json: got what is no JSON"),
        ("modules.json", {}, "modules.json: got a dict, wanted a list of JSON"),
        ("modules.json", [7], "modules.json: got 7, wanted objects"),
        ("modules.json", [{"type": 7}], "modules.json: type: got 7, wanted a str"),
        ("modules.json", [{"type": "Pooling", "path": "../up"}], "modules.json: path: got '../up'"),
        ("modules.json", [{"type": "Pooling", "path": "/etc"}], "modules.json: path: got '/etc'"),
        (POOLING, [], "config.json: got a list, wanted a dict"),
        (POOLING, {"pooling_mode_cls_token": 1}, "pooling_mode_cls_token: got 1, wanted a bool"),
        (POOLING, {"pooling_mode": "magic"}, "pooling_mode: got magic, wanted one of cls"),
        (POOLING, {"pooling_mode_weightedmean_tokens": True}, "pooling_mode_weightedmean_tokens: got True"),
        (POOLING, {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "cls_token, pooling_mode_max"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length: got 0, wanted a number from 1"),
        ("sentence_bert_config.json", {"max_seq_length": True}, "max_seq_length: got True, wanted a number from 1"),
        ("tokenizer_config.json", {"model_max_length": "1"}, "model_max_length: got '1', wanted a number from 1"),
    ],
)
def test_files_that_say_what_they_cannot(file: str, content: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=re.escape(said)):
        Encoder(folder(tmp_path, files={file: content}))


def test_large_files_are_not_read(tmp_path: Path) -> None:
    place = folder(tmp_path)
    for name in ("tokenizer.json", "modules.json"):
        with (place / name).open("r+b" if name == "tokenizer.json" else "wb") as file:
            file.truncate(1 << 27)
        with pytest.raises(InvalidModelError, match=f"{name}: got more than"):
            Encoder(place)


def test_a_panic_of_the_tokenizer_is_an_error(place: Path) -> None:
    class PanicException(BaseException):
        pass

    def panics(given: Any) -> Any:
        raise PanicException("index out of bounds")

    made = Encoder(place)
    made.tokenizer.own = type("Own", (), {"encode_batch_fast": staticmethod(panics)})
    with pytest.raises(InvalidModelError, match="a text: got what the package tokenizers refuses: index out"):
        made.embed(["a"])


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"pooling": "sum"}, OptionError, "pooling: got 'sum', wanted one of cls"),
        ({"normalize": 1}, OptionError, "normalize: got 1, wanted True or False"),
        ({"max_tokens": 2}, OptionError, "max_tokens: got 2, wanted more than the 2 that frame a text"),
        ({"max_tokens": True}, OptionError, "max_tokens: got True, wanted a whole number"),
        ({"max_tokens": 0}, OptionError, "max_tokens: got 0, wanted a whole number"),
        ({"tokenizer": "nowhere.json"}, InvalidModelError, "nowhere.json: got no tokenizer"),
        ({"threads": 0}, OptionError, "threads: got 0"),
    ],
)
def test_options(options: dict[str, Any], kind: type[Exception], said: str, place: Path) -> None:
    with pytest.raises(kind, match=said):
        Encoder(place, **options)


def test_models_that_are_no_encoders(tmp_path: Path) -> None:
    place = folder(tmp_path)
    softmax(place / "model.onnx")
    with pytest.raises(BoltError, match=r"inputs: got \['x'\], wanted input_ids, and of others only"):
        Encoder(place)
    with pytest.raises(InvalidModelError, match="got no model, wanted one of model"):
        Encoder(tmp_path.parent)
    (place / "model.onnx").rename(place / "model.safetensors")
    with pytest.raises(InvalidModelError, match=r"got model.safetensors, which has no network.*text\.md"):
        Encoder(place)


@pytest.mark.usefixtures("logs")
def test_a_missing_file_is_told_in_the_same_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "nothing.onnx")
    for opens in (Encoder, bn.compile, bn.load, bn.batch.Predictor):
        with pytest.raises(FileNotFoundError) as told:
            opens(path)
        assert str(told.value) == f"[Errno 2] No such file or directory: '{path}'"
    for command in (["embed", path, "a"], ["run", path], ["serve", path]):
        assert run(command) == 1
        assert capsys.readouterr().err == f"error: {path}: No such file or directory\n"
    with pytest.raises(DTypeError, match="model: got 3, wanted a path"):
        Encoder(3)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match=r"tokenizer: got 'a\\x00b', wanted a path"):
        Encoder(folder(tmp_path), "a\0b")


def test_more_tokens_than_the_model_has_positions(tmp_path: Path) -> None:
    place = folder(tmp_path, positions=600)
    assert Encoder(place, max_tokens=600).embed(["a " * 598]).shape == (1, WIDTH)
    for count in (601, 10**9):
        with pytest.raises(OptionError, match=r"^max_tokens: got \d+, wanted at most 600: the model has no more pos"):
            Encoder(place, max_tokens=count)
    few = Encoder(folder(tmp_path, positions=8))  # of which nothing is said
    assert few.embed(["a b", "a b c a b c"]).shape == (2, WIDTH)
    with pytest.raises(OptionError, match="max_tokens: got 512, wanted at most 8"):
        few.embed(["a", "a b c a b c a"])


def test_an_option_that_there_is_not(place: Path) -> None:
    with pytest.raises(OptionError, match=r"^encoder: options: 'max_token' is not one of .* did you mean 'max_tokens'"):
        Encoder(place, max_token=3)  # type: ignore[call-arg]


# --- what texts may be -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("a", "texts: got 'a', wanted a list of texts"), (None, "texts: got None, wanted a list"),
        (7, "texts: got 7, wanted a list"), ([1], "texts: number 0: got 1, wanted a text"),
        (["a", b"b"], "texts: number 1: got b'b', wanted a text"),
    ],
)  # fmt: skip
def test_what_is_no_list_of_texts(given: Any, said: str, encoder: Encoder) -> None:
    with pytest.raises(DTypeError, match=said):
        encoder.embed(given)


class Table(list[str]):
    """Iterating over it gives the names of its columns, as with a DataFrame."""

    columns = ("a", "b")


@pytest.mark.parametrize("table", [Table("ab"), {"a": "text"}])
def test_a_table_is_no_list_of_texts(table: Any, encoder: Encoder) -> None:
    with pytest.raises(DTypeError, match=f"texts: got a {type(table).__name__}, wanted a list of texts, such as one"):
        encoder.embed(table)
    with pytest.raises(DTypeError, match="pairs: got a NoneType, wanted a list of pairs"):
        encoder.score(None)  # type: ignore[arg-type]


def test_texts_of_a_column(encoder: Encoder) -> None:
    """As pandas gives it: iterating over it gives what is in it."""
    wanted = encoder.embed(["a b", "c"])
    for column in (np.array(["a b", "c"]), np.array(["a b", "c"], object), iter(["a b", "c"])):
        assert np.array_equal(encoder.embed(column), wanted)
    with pytest.raises(DTypeError, match="texts: number 1: got nan, wanted a text"):
        encoder.embed(np.array(["a b", np.nan], object))


def test_a_text_that_the_model_refuses_is_told_by_its_number(tmp_path: Path) -> None:
    vocabulary = tokenizer()["model"] | {"vocab": {"[UNK]": 1, "a": 4, "flight": 500}}
    made = Encoder(folder(tmp_path, files={"tokenizer.json": tokenizer(model=vocabulary)}))
    with pytest.raises(DataError, match=r"^text 1026: node .*got 500, wanted -10 to 9"):
        made.embed([*["a a a a", "a"] * 513, "a flight", "a"])


def test_dimensions(encoder: Encoder) -> None:
    made = encoder.embed(["a b"], dimensions=3)[0]
    whole = encoder.embed(["a b"])[0][:3]
    assert np.allclose(made, whole / np.linalg.norm(whole))
    assert encoder.embed([], dimensions=3).shape == (0, 3)
    with pytest.raises(OptionError, match="dimensions: got 0, wanted a whole number from 1"):
        encoder.embed([], dimensions=0)
    with pytest.raises(ShapeError, match=f"dimensions: got 7, wanted at most {WIDTH}"):
        encoder.embed(["a"], dimensions=7)


def test_a_text_without_tokens_is_told_by_its_number(tmp_path: Path) -> None:
    made = Encoder(folder(tmp_path, files={"tokenizer.json": tokenizer(post_processor=None)}))
    assert made.embed(["a"]).shape == (1, WIDTH)
    with pytest.raises(DataError, match="text 1030: got ' ', wanted one with tokens"):
        made.embed(["a"] * 1030 + [" "])


@pytest.mark.parametrize("text", ["a " * 5_000_000, "a" * 10_000_000, " " * 9_000_000 + "a", "日 " * 3_000_000])
def test_long_texts_are_not_looked_at_to_their_end(text: str, encoder: Encoder) -> None:
    begin = time.monotonic()
    assert len(encoder.tokens([text])[0].ids) <= encoder.max_tokens
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("blanks", [1, 100, 3_000, 500_000])
def test_the_tokens_of_a_long_text_are_those_of_its_beginning(blanks: int, encoder: Encoder) -> None:
    text = (" " * blanks).join(["a", "b", "cat"] * (600 if blanks <= 100 else 1))
    read = tokenizers.Tokenizer.from_str(json.dumps(tokenizer()))
    read.enable_truncation(512)
    found = encoder.tokens([text])[0]
    assert list(found.ids) == read.encode(text).ids
    assert found.is_cut == (len(text.split()) > 510)


def test_a_session_may_be_shared(place: Path, encoder: Encoder) -> None:
    other = Encoder(place, session=encoder.session, normalize=False)
    assert other.session is encoder.session
    with pytest.raises(OptionError, match=r"session: got it with \['threads'\]"):
        Encoder(place, session=encoder.session, threads=1)


def test_limits_beyond_all_texts(place: Path) -> None:
    made = Encoder(place, max_tokens=10**30)
    begin = time.monotonic()
    assert made.tokens([" " * 20_000_000 + "a"])[0].is_cut
    assert time.monotonic() - begin < 5


def test_the_package_is_asked_for_when_it_is_needed(place: Path) -> None:
    code = (
        "import sys\nsys.modules['tokenizers'] = None\nimport bolt_numba as bn\n"
        f"try: bn.text.Encoder({str(place)!r})\nexcept bn.BoltError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "package tokenizers: got none, wanted it: pip install 'bolt-numba[text]'" in done.stdout


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command(place: Path, encoder: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["embed", str(place), "a b", "cat", "--dimensions", "3"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == ["a b", "cat"]
    assert np.allclose([row["embedding"] for row in rows], encoder.embed(["a b", "cat"], dimensions=3))
    lines, out = tmp_path / "lines.txt", tmp_path / "out.npy"
    lines.write_bytes(b"a b\r\n\ncat \xff\n")
    assert run(["embed", str(place), "--file", str(lines), "-o", str(out), "--pooling", "max", "--no-normalize"]) == 0
    wanted = Encoder(place, pooling="max", normalize=False).embed(["a b", "", "cat \ufffd"])
    assert np.array_equal(np.load(out), wanted)
    assert run(["embed", str(place), "a b", "--file", str(lines)]) == 0
    rows = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert rows == ["a b", "a b", "", "cat \ufffd"]
    assert run(["embed", str(place), "a", "-o", str(tmp_path / "out.csv")]) == 2
    assert "got the suffix '.csv', wanted .npy" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()
    assert run(["embed", str(place / "nothing"), "a", "-o", str(tmp_path / "none" / "out.npy")]) == 1
    assert "out.npy': cannot be written" in capsys.readouterr().err  # before anything is computed
    lines.write_bytes(b"")
    assert run(["embed", str(place), "--file", str(lines), "-o", str(out), "--dimensions", "2"]) == 0
    assert np.load(out).shape == (0, 2)
    assert run(["embed", str(place)]) == 2
    assert "wanted TEXT or --file" in capsys.readouterr().err
