"""The larger examples in C against the same models in Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.preprocessing import Image, with_preprocessing
from bolt_numba.types import Array
from tests.models import FetchError, fetch
from tests.native import c_programs as c
from tests.native.c_programs import needs_cc, on_this_machine, program_bytes
from tests.test_examples import example

pytestmark = [needs_cc, on_this_machine]
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
FLAGS = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")


def built(name: str, folder: Path) -> Path:
    """An example of that name, with the library in it."""
    source = EXAMPLES / "c" / f"{name}.c"
    command = ["cc", *FLAGS, source, f"-I{c.built()}", c.built() / "libbolt_numba.a", "-lm", "-lpthread"]
    subprocess.run([*command, "-o", folder / name], check=True)
    return folder / name


def ran(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fetched(name: str) -> Path:
    try:
        return fetch(name)
    except FetchError as error:
        pytest.skip(str(error))


def write_ppm(path: Path, pixels: Array) -> Path:
    """A PPM file of [h, w, 3] bytes, or a PGM file of [h, w]."""
    head = f"P{6 if pixels.ndim == 3 else 5}\n# a comment 1 2 3\n{pixels.shape[1]} {pixels.shape[0]}\n255\n"
    path.write_bytes(head.encode() + pixels.tobytes())
    return path


def test_pictures_are_classified(tmp_path: Path) -> None:
    photo = pytest.importorskip("sklearn.datasets").load_sample_image("china.jpg")
    graph = bn.load(fetched("efficientnet_lite3.tflite"))
    names = graph.metadata["file labels_without_background.txt"]
    (tmp_path / "labels").write_text(names)
    graph = with_preprocessing(graph, {"images": Image(280, mode="crop", shorter=320, layout="NHWC")})
    pictures = [photo, np.repeat(photo[:300, :400].mean(2, keepdims=True).astype(np.uint8), 3, axis=2)]
    (tmp_path / "model").write_bytes(program_bytes(graph, shapes=[{"images": p.shape} for p in pictures], threads=1))
    files = [write_ppm(tmp_path / "photo", photo), write_ppm(tmp_path / "gray", pictures[1][..., 0])]
    program, session = built("picture", tmp_path), bn.compile(graph, threads=1)
    for pixels, file in zip(pictures, files, strict=True):
        (scores,) = session(images=pixels).values()
        best = np.argsort(-scores[0].astype(int), kind="stable")[:5]
        wanted = [f"{100 * (scores[0, i] / 256):5.1f} %  {names.splitlines()[i]}" for i in best]
        made = ran(program, tmp_path / "model", tmp_path / "labels", file).splitlines()
        assert made == wanted
        assert made[0].endswith("palace")
    for pixels, text in ((photo[:9], "shapes: got images 9x640x3; wanted images 427x640x3; or"), (photo[:0], "wanted")):
        other = write_ppm(tmp_path / "other", pixels)
        done = subprocess.run([program, tmp_path / "model", tmp_path / "labels", other], capture_output=True, text=True)
        assert (done.returncode, text in done.stderr) == (1, True), done.stderr
    (tmp_path / "labels").write_text("palace\n")
    args = [program, tmp_path / "model", tmp_path / "labels", files[0]]
    done = subprocess.run(args, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("labels: wanted a line for each class of the model\n")


def test_texts_are_written(tmp_path: Path) -> None:
    writer = example("writer")
    (tmp_path / "model").write_bytes(program_bytes(writer.decoder(), threads=1))
    session, prompts = bn.compile(writer.decoder(), threads=1), ["A kernel ", "The session ", "A kernel "]
    made = ran(built("writer", tmp_path), tmp_path / "model", 50, *prompts)
    wanted = ["".join(writer.write(session, prompt, 50, seed)) for seed, prompt in enumerate(prompts)]
    assert made == "".join(f"{text}\n" for text in wanted)
    assert len(set(wanted)) == 3
    for prompt, text in (("x" * 129, "too short or too long"), ("\t", "wanted letters of ASCII")):
        done = subprocess.run([tmp_path / "writer", tmp_path / "model", "5", prompt], capture_output=True, text=True)
        assert (done.returncode, text in done.stderr) == (1, True)
    for letters in ("five", "5x", "-5", ""):
        done = subprocess.run([tmp_path / "writer", tmp_path / "model", letters, "A"], capture_output=True, text=True)
        assert (done.returncode, "usage: writer MODEL.bolt LETTERS" in done.stderr) == (2, True)


def test_text_on_a_page_is_read(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    example("model_files")
    ocr, page = example("ocr"), example("ocr").sample()
    detect, read = (bn.load(fetched(f"ch_PP-OCRv4_{name}_infer.onnx")) for name in ("det", "rec"))
    steps = Image((736, 1312), mode="stretch", color="BGR", mean=0.5, std=0.5)
    shapes: list[dict[str, tuple[int, ...]]] = [{"x": (1, 3, 48, width)} for width in (320, 640, 960)]
    prepared = with_preprocessing(detect, {"x": steps})
    (tmp_path / "detect").write_bytes(program_bytes(prepared, shapes=[{"x": (400, 720, 3)}]))
    (tmp_path / "read").write_bytes(program_bytes(read, shapes=shapes))
    (tmp_path / "letters").write_text(read.metadata["character"])
    files = [tmp_path / "letters", write_ppm(tmp_path / "page", np.asarray(page))]
    lines = ran(built("ocr", tmp_path), tmp_path / "detect", tmp_path / "read", *files).splitlines()
    made = [line.split(maxsplit=6) for line in lines]
    boxes, reader = ocr.find_lines(bn.compile(detect), page), bn.compile(read)
    wanted = [ocr.read_line(reader, ocr.alphabet_of(read), page, box) for box in boxes]
    assert [row[6] for row in made] == [text for text, _ in wanted]
    assert len(made) == 4
    for row, box, (_, sure) in zip(made, boxes, wanted, strict=True):
        assert row[:5] == [str(n) for n in (box.left, box.top, box.right - box.left, "x", box.bottom - box.top)]
        assert float(row[5].rstrip("%")) / 100 == pytest.approx(sure, abs=0.1)
    (tmp_path / "letters").write_text("A\nB\n")
    args = [tmp_path / "ocr", tmp_path / "detect", tmp_path / "read", *files]
    done = subprocess.run(args, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "letters: wanted a line for each class of the model\n")
