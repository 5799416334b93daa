"""Writes tests/golden/text/whisper.zip: a tiny export of Whisper's type, and what transformers hears.

    python -m tests.text.golden_speech        # with torch, transformers and optimum-onnx

Its weights are random, and it hears two seconds at once.  `heard.json` has for each case the tokens of each part and
its times.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.types import Array

FILE = Path(__file__).parent.parent / "golden" / "text" / "whisper.zip"
RATE, SECONDS, WIDTH, SHARP = 16000, 2, 16, 4.0
LOUD = {"encoder.embed_positions": 0.1, "decoder.embed_positions": 10.0, "decoder.encoder_attn.v_proj": 40.0}
"""What weights are multiplied by, so that texts depend on the sound."""
LANGUAGES, TASKS, MARKS = ("en", "de", "fr"), ("translate", "transcribe"), ("startoflm", "startofprev", "nospeech")
CASES: list[dict[str, Any]] = [
    {"seconds": seconds, "language": language, "num_beams": beams, "timestamps": timed}
    for seconds, timed in ((1.3, False), (2.0, True), (5.4, True), (7.0, True))
    for language in (None, "fr") for beams in (1, 3)
]  # fmt: skip


def sound(case: int) -> Array:
    """A tone that goes up and down, and noise: f32 of so many seconds."""
    random, t = np.random.default_rng(case), np.arange(int(CASES[case]["seconds"] * RATE)) / RATE
    tone = np.sin(900 * t + 300 * np.sin((2 + case) * t)) * (1 + np.sin(9 * t)) / 3
    return np.asarray(tone + 0.02 * random.standard_normal(t.size), np.float32)


def tokenizer() -> Any:
    """All bytes, marks as Whisper has them, and times."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = ["endoftext", "startoftranscript", *LANGUAGES, *TASKS, *MARKS, "notimestamps"]
    made.add_special_tokens([f"<|{name}|>" for name in names])
    stamps = [f"<|{i / 50:.2f}|>" for i in range(SECONDS * 50 + 1)]
    made.add_tokens([AddedToken(stamp, special=False, normalized=False) for stamp in stamps])
    return made


def model(own: Any) -> Any:
    """Of PyTorch, with the settings of generation that Whisper's files have."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    ids = {name.strip("<|>"): own.token_to_id(name) for name in own.get_vocab() if name.startswith("<|")}
    end = ids["endoftext"]
    torch.manual_seed(0)
    made = WhisperForConditionalGeneration(WhisperConfig(
        vocab_size=own.get_vocab_size(), num_mel_bins=80, encoder_layers=1, decoder_layers=1, d_model=WIDTH,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=WIDTH, decoder_ffn_dim=WIDTH,
        max_source_positions=SECONDS * 50, max_target_positions=64, decoder_start_token_id=ids["startoftranscript"],
        eos_token_id=end, bos_token_id=end, pad_token_id=end,
    )).eval()  # fmt: skip
    with torch.no_grad():
        for name, weights in made.named_parameters():
            loud = LOUD.get(name.removeprefix("model.").rpartition(".")[0].replace("layers.0.", ""), SHARP)
            weights.mul_(loud if weights.dim() > 1 else 1)
    said = made.generation_config
    for name, value in {
        "_from_model_config": False, "is_multilingual": True, "max_length": 40, "max_initial_timestamp_index": 9,
        "lang_to_id": {f"<|{name}|>": ids[name] for name in LANGUAGES}, "task_to_id": {n: ids[n] for n in TASKS},
        "no_timestamps_token_id": ids["notimestamps"], "prev_sot_token_id": ids["startofprev"],
        "suppress_tokens": [1, 2, 7, *(ids[name] for name in (*TASKS, *MARKS))], "begin_suppress_tokens": [220, end],
    }.items():  # fmt: skip
        setattr(said, name, value)
    return made


def heard(made: Any, case: int) -> list[Any]:
    """Parts that transformers finds: begin, end, tokens."""
    import torch
    from transformers import WhisperFeatureExtractor

    own, samples = dict(CASES[case]), sound(case)
    whole = {"truncation": False, "padding": "longest", "return_attention_mask": True}
    listen = WhisperFeatureExtractor(chunk_length=SECONDS)
    features = listen(
        samples, sampling_rate=RATE, return_tensors="pt", **(whole if own.pop("seconds") > SECONDS else {})
    )
    timed = own.pop("timestamps")
    with torch.no_grad():
        found = made.generate(
            **features, **own, task="transcribe", return_timestamps=timed, return_segments=timed,
            force_unique_generate_call=not timed,
        )  # fmt: skip
    if not timed:
        return [[0.0, len(samples) / RATE, found[0].tolist()]]
    return [[float(part["start"]), float(part["end"]), part["tokens"].tolist()] for part in found["segments"][0]]


def main() -> None:
    from optimum.exporters.onnx import main_export
    from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor

    own = tokenizer()
    made = model(own)
    mark = "<|endoftext|>"
    with tempfile.TemporaryDirectory() as place:
        made.save_pretrained(place)
        PreTrainedTokenizerFast(tokenizer_object=own, eos_token=mark, pad_token=mark).save_pretrained(place)
        WhisperFeatureExtractor(chunk_length=SECONDS).save_pretrained(place)
        task = "automatic-speech-recognition-with-past"
        main_export(place, output=f"{place}/onnx", task=task, do_validation=False, nb_max_frames=SECONDS * 100)
        kept = ["encoder_model.onnx", "decoder_model_merged.onnx", "config.json", "generation_config.json"]
        kept += ["preprocessor_config.json"]
        with zipfile.ZipFile(FILE, "w", zipfile.ZIP_DEFLATED) as file:
            for name in kept:
                file.write(f"{place}/onnx/{name}", name)
            file.writestr("tokenizer.json", own.to_str())
            file.writestr("heard.json", json.dumps([heard(made, case) for case in range(len(CASES))]))


if __name__ == "__main__":
    main()
