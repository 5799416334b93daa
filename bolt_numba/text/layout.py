"""Folders of text models as Hugging Face and sentence-transformers lay them out: which files, and what they say.

Files are hostile until proven otherwise: each is bounded, and what does not fit is told with its file and key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bolt_numba.base.errors import DTypeError, InvalidModelError
from bolt_numba.base.files.regular import read_text
from bolt_numba.base.records import record

MODELS = ("model.bolt", "model.onnx", "decoder_model_merged.onnx", "onnx/model.onnx", "onnx/decoder_model_merged.onnx")
"""Of a folder, the first that there is."""
TRAINED = ("*.safetensors", "pytorch_model*.bin")
"""Weights of PyTorch, which a folder has that nobody exported."""
TOKENIZER = "tokenizer.json"
MOST_BYTES = 1 << 23
"""Of a file of settings; those of tokenizers with many special tokens have a megabyte."""
MOST_TOKENS = 1 << 20
"""What tokenizer_config.json says beyond it means that there is no limit."""
PLAIN = ("Transformer", "Pooling", "Normalize")
"""Modules of sentence-transformers that are done here."""
POOLING_KEYS = {
    "pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last", "pooling_mode_mean_sqrt_len_tokens": "", "pooling_mode_weightedmean_tokens": "",
}  # fmt: skip
"""Keys of a pooling's settings, and what it is called here, if it is there."""
POOLINGS = ("cls", "mean", "max", "last")


@record(frozen=True)
class TextLayout:
    """What is known of a text model before it is opened; None where nothing is said.

    others: modules behind the network that are not done here.  lower: whether texts are made lower case.
    """

    model: Path
    tokenizer: Path
    pooling: str | None
    normalize: bool | None
    max_tokens: int | None
    lower: bool
    others: tuple[str, ...]


def model_in(path: str | os.PathLike[str], page: str = "docs/text.md") -> Path:
    """The model of a folder, or the file itself.  page: says how one is made of weights.

    Raises InvalidModelError where the folder has none, DTypeError, OSError.
    """
    given = path_of("model", path)
    given.stat()  # raises OSError where there is nothing
    if not given.is_dir():
        return given
    found = next((given / name for name in MODELS if (given / name).is_file()), None)
    if found is None:
        trained = next((file.name for form in TRAINED for file in sorted(given.glob(form))), None)
        got = "no model" if trained is None else f"{trained}, which has no network in it"
        see = "" if trained is None else f": optimum exports it, see {page}"
        raise InvalidModelError(f"{given}: got {got}, wanted one of {', '.join(MODELS)}{see}")
    return found


def layout_of(path: str | os.PathLike[str], tokenizer: str | os.PathLike[str] | None = None) -> TextLayout:
    """What the folder of a model says.  Raises InvalidModelError for files that say what they cannot, DTypeError."""
    model = model_in(path)
    folder = model.parent
    if not (folder / TOKENIZER).is_file() and (folder.parent / TOKENIZER).is_file():
        folder = folder.parent
    found = folder / TOKENIZER if tokenizer is None else path_of("tokenizer", tokenizer)
    if not found.is_file():
        other = ": a model of GGUF makes texts, see docs/generate.md" if model.suffix == ".gguf" else ""
        raise InvalidModelError(f"{found}: got no tokenizer, wanted {TOKENIZER} beside the model, or tokenizer={other}")
    kinds = _modules(folder / "modules.json")
    pooling = _pooling(folder / kinds.get("Pooling", "1_Pooling") / "config.json")
    told, said = folder / "sentence_bert_config.json", folder / "tokenizer_config.json"
    own = value_of(told, settings_of(told), "max_seq_length", int)
    limit = value_of(said, settings_of(said), "model_max_length", int, float)
    most = own or (int(limit) if limit is not None and 0 < limit <= MOST_TOKENS else None)
    lower = bool(value_of(told, settings_of(told), "do_lower_case", bool))
    others = tuple(kind for kind in kinds if kind not in PLAIN)
    return TextLayout(model, found, pooling, "Normalize" in kinds if kinds else None, most, lower, others)


def path_of(what: str, given: Any) -> Path:
    if not isinstance(given, (str, os.PathLike)) or "\0" in str(given):
        raise DTypeError(f"{what}: got {given!r:.80}, wanted a path")
    return Path(given)


def settings_of(path: Path, kind: type = dict) -> Any:
    """What a file of JSON holds; nothing where there is none."""
    if not path.is_file():
        return kind()
    try:
        found = json.loads(read_text(path, MOST_BYTES, "settings in JSON"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidModelError):
            raise
        raise InvalidModelError(f"{path}: got what is no JSON: {error}") from None
    if not isinstance(found, kind):
        raise InvalidModelError(f"{path}: got a {type(found).__name__}, wanted a {kind.__name__} of JSON")
    return found


def value_of(path: object, holder: Mapping[str, Any], key: str, *kinds: type) -> Any:
    """A value of a file; None where it is not said.  Raises InvalidModelError for one of another kind."""
    found = holder.get(key)
    if found is not None and (type(found) not in kinds or (type(found) is int and found < 1)):
        wanted = "a number from 1" if int in kinds else f"a {kinds[0].__name__}"
        raise InvalidModelError(f"{path}: {key}: got {found!r:.80}, wanted {wanted}")
    return found


def _modules(path: Path) -> dict[str, str]:
    """Kinds of the modules of sentence-transformers in their order, and their folders."""
    rows, found = settings_of(path, list), dict[str, str]()
    for row in rows:
        if not isinstance(row, dict):
            raise InvalidModelError(f"{path}: got {row!r:.80}, wanted objects with type and path")
        kind, folder = (value_of(path, row, key, str) or "" for key in ("type", "path"))
        if Path(folder).is_absolute() or ".." in Path(folder).parts:
            raise InvalidModelError(f"{path}: path: got {folder!r:.80}, wanted a folder below")
        found[kind.rpartition(".")[2]] = folder
    return found


def _pooling(path: Path) -> str | None:
    settings = settings_of(path)
    if (mode := value_of(path, settings, "pooling_mode", str)) is not None:  # as it is written since version 5
        modes = {"pooling_mode": {"lasttoken": "last"}.get(mode, mode)}
    else:
        modes = {key: name for key, name in POOLING_KEYS.items() if value_of(path, settings, key, bool)}
    if len(modes) > 1 or any(name not in POOLINGS for name in modes.values()):
        raise InvalidModelError(f"{path}: {', '.join(modes)}: got {mode or True}, wanted one of {', '.join(POOLINGS)}")
    return next(iter(modes.values()), None)
