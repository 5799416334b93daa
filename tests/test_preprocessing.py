"""Image steps against Pillow and OpenCV, before models, in sessions and in files."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import surgery
from bolt_numba.errors import BoltError, BudgetError, DataError, ShapeError
from bolt_numba.export.program import native_program
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.ops.arrays.reduce import ReduceMax
from bolt_numba.ops.data.camera import WarpImage
from bolt_numba.preprocessing import Audio, Image, Warp, matrix_of, open_image, with_preprocessing
from bolt_numba.preprocessing.text import steps_of
from bolt_numba.types import F16, F32, I8, U8, Array, Sym, TensorType, type_of
from tests.native_programs import Interpreter

SIZES = [
    ((37, 53), (20, 31)), ((20, 31), (37, 53)), ((100, 100), (33, 33)), ((64, 48), (32, 24)), ((9, 200), (50, 210)),
    ((1, 1), (5, 7)), ((120, 90), (16, 224)), ((30, 40), (30, 40)),
]  # fmt: skip


def pictures(h: int, w: int, c: int = 3) -> list[Array]:
    """Noise, black and white noise, and a ramp."""
    rng = np.random.default_rng(h * w)
    noise = rng.integers(0, 256, (h, w, c), dtype=U8)
    ramp = np.linspace(0, 255, h * w * c).reshape(h, w, c).astype(U8)
    return [noise, np.where(noise > 127, U8.type(255), U8.type(0)), ramp]


def levels(x: Array, size: tuple[int, int], **options: Any) -> Array:
    """The result as levels [h, w, c]."""
    steps = Image(size, dtype=U8, layout="NHWC", **options)
    return np.asarray(bn.compile(steps.graph(), threads=2)(x))[0]


def differ(got: Array, wanted: Array) -> int:
    return int(np.abs(got.astype(int) - wanted.astype(int)).max())


@pytest.mark.parametrize("resize", ["nearest", "box", "bilinear", "bicubic", "lanczos"])
def test_antialiased_levels_are_those_of_pillow(resize: str) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="Pillow judges")
    method = pillow.Resampling[resize.upper()]
    for given, size in SIZES:
        for x in pictures(*given):
            wanted = np.asarray(pillow.fromarray(x).resize(size[::-1], method))
            assert differ(levels(x, size, resize=resize), wanted) == 0, (given, size)


@pytest.mark.parametrize("resize", ["nearest", "bilinear", "bicubic", "area"])
def test_other_levels_are_those_of_opencv(resize: str) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV judges")
    ways = {"nearest": cv2.INTER_NEAREST, "bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}
    for (h, w), size in SIZES:
        if resize == "area" and (h > size[0]) != (w > size[1]):
            continue  # OpenCV takes linear weights where one axis grows
        for x in pictures(h, w):
            wanted = cv2.resize(x, size[::-1], interpolation=ways.get(resize, cv2.INTER_AREA))
            got = levels(x, size, resize=resize, antialias=False)
            assert differ(got, wanted) <= (resize != "nearest"), ((h, w), size)


def test_letterbox_is_opencv_with_a_border() -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV judges")
    for h, w in ((90, 160), (160, 90), (31, 32)):
        x = pictures(h, w)[0]
        ratio = min(64 / h, 64 / w)
        high, wide = round(h * ratio), round(w * ratio)
        top, left = (64 - high) // 2, (64 - wide) // 2
        inner = cv2.resize(x, (wide, high), interpolation=cv2.INTER_LINEAR)
        wanted = cv2.copyMakeBorder(
            inner, top, 64 - high - top, left, 64 - wide - left, cv2.BORDER_CONSTANT, value=(114,) * 3
        )
        assert differ(levels(x, (64, 64), mode="letterbox", antialias=False), wanted) <= 1


def test_crop_is_pillow_with_the_shorter_side_given() -> None:
    pillow = pytest.importorskip("PIL.Image", reason="Pillow judges")
    for h, w in ((90, 160), (161, 90), (64, 64)):
        x = pictures(h, w)[0]
        high, wide = (72, 72 * w // h) if h <= w else (72 * h // w, 72)
        whole = pillow.fromarray(x).resize((wide, high), pillow.Resampling.BILINEAR)
        top, left = round((high - 64) / 2), round((wide - 64) / 2)
        wanted = np.asarray(whole.crop((left, top, left + 64, top + 64)))
        assert differ(levels(x, (64, 64), mode="crop", shorter=72), wanted) <= 1


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("source", "color"),
    [("RGB", "BGR"), ("BGR", "RGB"), ("RGBA", "RGB"), ("BGRA", "BGR"), ("gray", "RGB"), ("gray", "gray"),
     ("BGR", "gray")],
)  # fmt: skip
def test_colours_and_numbers(source: str, color: str, layout: str) -> None:
    """Each channel is scaled by its own mean and std; a session computes what the interpreter does."""
    x = pictures(12, 10, {"gray": 1}.get(source, len(source)))[0]
    count = 1 if color == "gray" else 3
    mean, std = [0.4, 0.5, 0.6][:count], [0.2, 0.3, 0.25][:count]
    graph = Image((12, 10), source=source, color=color, mean=mean, std=std, layout=layout).graph()
    rgb = {k: x[:, :, source.index(k)] if source != "gray" else x[:, :, 0] for k in "RGB"}
    if color == "gray":
        gray = np.rint(0.299 * rgb["R"] + 0.587 * rgb["G"] + 0.114 * rgb["B"])
        planes = [x[:, :, 0] if source == "gray" else gray]
    else:
        planes = [rgb[k] for k in color]
    wanted = np.stack([(p / 255 - m) / s for p, m, s in zip(planes, mean, std, strict=True)])
    wanted = wanted if layout == "NCHW" else wanted.transpose(1, 2, 0)
    got = np.asarray(bn.compile(graph, threads=1)(x))
    np.testing.assert_allclose(got[0], wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got, interpret(graph, {"image": x})["tensor"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("source", ["NV12", "NV21"])
def test_video_is_that_of_opencv(source: str) -> None:
    """YuvToRgba."""
    cv2 = pytest.importorskip("cv2", reason="OpenCV judges")
    for h, w in ((2, 2), (36, 54), (64, 34)):
        x = np.random.default_rng(h).integers(0, 256, (h * 3 // 2, w), dtype=U8)
        wanted = cv2.cvtColor(x, getattr(cv2, f"COLOR_YUV2RGB_{source}"))
        assert differ(levels(x, (h, w), source=source), wanted) <= 1
        several = Image(8, source=source, batch=True, color="BGR", dtype=U8, layout="NHWC")
        got = np.asarray(bn.compile(several.graph())(np.stack([x, x[::-1]])))
        assert differ(got[0], levels(wanted, (8, 8))[:, :, ::-1]) <= 1
    with pytest.raises(ShapeError, match="rows of x: got 4, wanted a multiple of 3"):
        bn.compile(Image(8, source=source).graph())(np.zeros((4, 4), U8))
    with pytest.raises(ShapeError, match="columns of x: got 5, wanted an even number"):
        bn.compile(Image(8, source=source).graph())(np.zeros((6, 5), U8))


VIEWS = np.array([
    [[1.3, 0.4, 20], [-0.3, 1.2, 30], [0, 0, 1]], [[0.5, 0, 0], [0, 0.5, 0], [0, 0, 1]],
    [[1.1, 0.2, -9], [0.1, 0.9, 3], [0.002, -0.001, 1]],
])  # fmt: skip


@pytest.mark.parametrize("edge", ["fill", "repeat"])
def test_views_are_those_of_opencv(edge: str) -> None:
    """Ties of coordinates may go elsewhere where a division is in them."""
    cv2 = pytest.importorskip("cv2", reason="OpenCV judges")
    x, size = pictures(90, 120)[0], (60, 80)
    session = bn.compile(Warp(Image(size, dtype=U8, layout="NHWC"), edge).graph(), threads=2)
    border = cv2.BORDER_CONSTANT if edge == "fill" else cv2.BORDER_REPLICATE
    got = np.asarray(session(x, VIEWS))
    for matrix, view in zip(VIEWS, got, strict=True):
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        wanted = cv2.warpPerspective(x, matrix, size[::-1], flags=flags, borderMode=border, borderValue=(114,) * 3)
        far = np.abs(view.astype(int) - wanted.astype(int)) > 1
        assert far.mean() <= (0 if matrix[2, 0] == 0 else 0.002)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_views_of_each_kind_are_the_reference_level_by_level(channels: int) -> None:
    """Steps of halves of 32nds are ties; turned, far, huge and infinite views leave the fast way for some rows."""
    x = pictures(33, 70)[0]
    x = np.concatenate([x, x[::-1]], axis=2)[:, :, :channels].copy()
    turn = np.random.default_rng(channels).uniform(-2, 2, (12, 3, 3)) * [[1, 1, 30], [1, 1, 20], [0, 0, 1]]
    turn[3] = [[1 / 64, 0, 5], [0, 1 / 64, 7], [0, 0, 1]]
    turn[4] = [[63 / 64, 1 / 64, 1 / 64], [-1 / 64, 1, 3], [0, 0, 1]]
    turn[5] = [[1e9, 0, 0], [0, 1, 0], [0, 0, 1]]
    turn[6] = [[1, 0, 1e300], [0, 1, 0], [0, 0, 1]]
    turn[7] = [[1, np.nan, 0], [0, 1, 0], [0, 0, 1]]
    turn[8] = [[-0.7, 0, 60], [0, -0.4, 30], [0, 0, 1]]
    turn[9] = [[1, 0, -1048570], [0, 1, 0], [0, 0, 1]]
    turn[10] = [[0.9, 0.1, 3], [0.2, 0.8, -5], [0, 0.1, 0.5]]
    turn[11] = [[1, 0, 0], [0, 1, 0], [0, -0.25, 1]]  # the third number is 0 in a row
    for edge in ("fill", "repeat"):
        op = WarpImage((19, 75), edge, 7)
        graph = Graph("views")
        given = [graph.add_input("x", type_of(x)), graph.add_input("matrix", type_of(turn))]
        graph.add_output(Builder(graph)(op, *given), "y")
        session = bn.compile(graph, threads=2)
        np.testing.assert_array_equal(session(x, turn)["y"], op.reference(x, turn))
        assert [row["runner"] for row in session.report()] == ["warp"]


def test_views_by_their_corners_before_a_model() -> None:
    """A model gets all views; a view of a whole picture is the picture."""
    x = pictures(30, 40)[0]
    whole = matrix_of([(0, 0), (39, 0), (39, 29), (0, 29)], (30, 40))
    turned = matrix_of([(39, 0), (39, 29), (0, 29), (0, 0)], (40, 30))
    session = bn.compile(Warp(Image((40, 30), dtype=U8, layout="NHWC")).graph())
    np.testing.assert_array_equal(session(x, turned[None])[0][0], np.rot90(x))
    graph = with_preprocessing(network(Sym("n"), 3, 30, 40), {"input": Warp(Image())})
    assert [v.name for v in graph.caller_inputs] == ["input", "input_matrix"]
    got = np.asarray(bn.compile(graph)(input=x, input_matrix=np.stack([whole, whole])))
    np.testing.assert_allclose(got, np.stack([x.max(axis=(0, 1))] * 2) / np.float32(255), rtol=1e-6)
    with pytest.raises(BoltError, match="wanted no three on a line"):
        matrix_of([(0, 0), (1, 1), (2, 2), (0, 2)], (8, 8))
    with pytest.raises(BoltError, match="wanted 4 points"):
        matrix_of([(0, 0)], (8, 8))
    for image in (Image(8, mode="crop"), Image(8, batch=True), Image(8, source="NV12")):
        with pytest.raises(BoltError, match=r"warp: image: got .*, wanted one picture of pixels"):
            Warp(image).graph()
    with pytest.raises(BoltError, match="edge: got mirror, wanted fill or repeat"):
        Warp(Image(8), "mirror").graph()


@pytest.mark.parametrize(("dtype", "mean"), [(U8, 0), (I8, 128), (F16, 0)])
@pytest.mark.parametrize("color", ["RGB", "gray"])
def test_bytes_and_halves(dtype: Any, mean: int, color: str) -> None:
    x = pictures(8, 9)[0]
    got = np.asarray(bn.compile(Image((8, 9), color=color, dtype=dtype, mean=mean, layout="NHWC").graph())(x))[0]
    rgb = x if color == "RGB" else np.rint(x @ [0.299, 0.587, 0.114])[:, :, None]
    assert got.dtype == dtype
    np.testing.assert_allclose(got, (rgb - np.float64(mean)) / (255 if dtype == F16 else 1), rtol=1e-3, atol=1e-6)


def network(*shape: Any, rank: int = 4) -> Graph:
    """The greatest value of each channel."""
    graph = Graph("network")
    x = graph.add_input("input", TensorType(F32, shape))
    graph.add_output(Builder(graph)(ReduceMax(keepdims=False), x, np.arange(2, rank)), "greatest")
    return graph


def test_before_a_model(tmp_path: Path) -> None:
    """Images of many sizes run, size and dtype are the model's, and a stored model has the steps."""
    for batch in (1, Sym("n")):
        graph = surgery.with_preprocessing(network(batch, 3, 24, 32), {"input": Image(antialias=False)})
        bn.save(graph, tmp_path / "m.bolt")
        session = bn.compile(tmp_path / "m.bolt", threads=2)
        for i in range(8):  # from the fifth on by a tape
            x = pictures(20 + 7 * i, 50 - 3 * i)[i % 3]
            wanted = levels(x, (24, 32), antialias=False).max(axis=(0, 1)) / np.float32(255)
            np.testing.assert_allclose(np.asarray(session(input=x))[0], wanted, rtol=1e-6)


def test_a_batch_before_a_model() -> None:
    graph = with_preprocessing(network(Sym("n"), 3, Sym("h"), Sym("w")), {"input": Image(16, batch=True, mode="crop")})
    x = np.stack(pictures(30, 20))
    got = np.asarray(bn.compile(graph)(x))
    wanted = [levels(each, (16, 16), mode="crop").max(axis=(0, 1)) / np.float32(255) for each in x]
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ({"inptu": Image(8)}, "input: got 'inptu', wanted 'input'"),
        ({"input": Image(8, color="HSV")}, "color: got HSV, wanted RGB, BGR, gray"),
        ({"input": Image(8, source="YUV")}, "source: got YUV, wanted RGB, BGR"),
        ({"input": Image(8, source=[])}, r"source: got \[\], wanted RGB, BGR"),
        ({"input": Image(8, dtype="f99")}, "dtype: got f99, wanted u8, i8 or a float"),
        ({"input": Image(8, dtype=3)}, "dtype: got 3, wanted u8, i8 or a float"),
        ({"input": Image(8, antialias=3)}, "antialias: got 3, wanted True or False"),
        ({"input": Image(8, batch="no")}, "batch: got no, wanted True or False"),
        ({"input": Image(8, mode="crop", shorter=1.5)}, "shorter: got 1.5, wanted a whole number of pixels"),
        ({"input": Image((True, 8))}, r"size: got \(True, 8\), wanted"),
        ({"input": Warp(3)}, "warp: image: got 3, wanted Image"),
        ({"input": Image(8, std=0)}, "std: got .*, wanted no zero"),
        ({"input": Image(8, scale=math.inf)}, "scale: got inf, wanted a finite number"),
        ({"input": Image(8, scale=math.nan)}, "scale: got nan, wanted a finite number"),
        ({"input": Image(8, scale=10**400)}, "scale: got 1000*, wanted a finite number"),
        ({"input": Image(8, scale="1")}, "scale: got 1, wanted a finite number"),
        ({"input": Image(8, scale=1e30, std=1e-30)}, r"scale / std and mean / std: got .*inf.*, wanted finite numbers"),
        ({"input": Image(8, mean=1e30, std=1e-30)}, r"scale / std and mean / std: got .*inf.*, wanted finite numbers"),
        ({"input": Image(8, mean=math.nan)}, "mean: got nan, wanted a finite number or 3"),
        ({"input": Image(8, mean=[0, math.inf, 0])}, r"mean: got \[0, inf, 0\], wanted a finite number or 3"),
        ({"input": Image(8, std=["a", "b", "c"])}, "std: got .*, wanted a finite number or 3"),
        ({"input": Image(8, std=math.inf, color="gray")}, "std: got inf, wanted a finite number or 1"),
        ({"input": Image(8, fill=math.nan)}, "fill: got nan, wanted 0 to 255"),
        ({"input": Image(8, mean=[1, 2])}, "mean: got .*, wanted a finite number or 3"),
        ({"input": Image(8, mode="fit")}, "FitImage: mode: got fit, wanted stretch, letterbox or crop"),
        ({"input": Image(8, resize="box", antialias=False)}, "box without antialias"),
        ({"input": Image(8, shorter=9)}, "shorter: got 9, wanted at least 0, and 0 unless"),
        ({"input": Image(8, fill=256)}, "fill: got 256, wanted 0 to 255"),
        ({"input": Image((8, 0))}, "size: got .*, wanted two numbers"),
        ({"input": Image(8, dtype=np.dtype("i4"))}, "dtype: got i32, wanted u8, i8 or a float"),
    ],
)  # fmt: skip
def test_mistakes_are_told(steps: Any, message: str) -> None:
    with pytest.raises(BoltError, match=message):
        with_preprocessing(network(1, 3, Sym("h"), Sym("w")), steps)


def test_a_result_that_the_model_does_not_take() -> None:
    with pytest.raises(ShapeError, match=r"after its steps: got f32\[1, 1, 9, 9\], wanted f32\[1, 3, 8, 8\]"):
        with_preprocessing(network(1, 3, 8, 8), {"input": Image(9, color="gray")})
    with pytest.raises(BoltError, match="size: got None"):
        Image().graph()
    for size in ((1, 2, 3), "x", (4.5, 4)):
        with pytest.raises(BoltError, match=r"size: got .*, wanted \(height, width\) in whole numbers"):
            Image(size).graph()


def test_files_are_decoded_upright(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EXIF orientation, colours, and what is no image."""
    pillow = pytest.importorskip("PIL.Image", reason="Pillow decodes")
    x = pictures(6, 9)[0]
    turned = pillow.fromarray(x)
    exif = turned.getexif()
    exif[0x0112] = 6  # turned by a quarter
    turned.save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(open_image(tmp_path / "a.png"), np.rot90(x, -1))
    file = io.BytesIO()
    pillow.fromarray(x).save(file, "png")
    np.testing.assert_array_equal(open_image(file.getvalue(), "BGR"), x[:, :, ::-1])
    assert open_image(file.getvalue(), "RGBA").shape == (6, 9, 4)
    assert open_image(file.getvalue(), "gray").shape == (6, 9, 1)
    with monkeypatch.context() as patch:
        patch.setattr(pillow, "MAX_IMAGE_PIXELS", 20)
        with pytest.raises(BudgetError, match="image: "):
            open_image(file.getvalue())
    with pytest.raises(BoltError, match=r"nothing.png: cannot read it: No such file"):
        open_image(tmp_path / "nothing.png")
    with pytest.raises(BoltError, match="color: got 'CMYK', wanted RGB, BGR"):
        open_image(file.getvalue(), "CMYK")
    whole = file.getvalue()
    for broken in (b"", b"GIF89a", whole[: len(whole) // 2], whole[:40] + bytes(40) + whole[80:]):
        with pytest.raises(DataError, match="image: got what Pillow cannot decode"):
            open_image(broken)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Image(224)", Image(224)), (' Image((48, 320), color="BGR", mean=[0.5, -1, 1e-2]) ',
                                     Image((48, 320), color="BGR", mean=[0.5, -1, 0.01])),
        ("Audio(log=None, bands=40)", Audio(log=None, bands=40)),
        ("Warp(Image(8), edge='repeat')", Warp(Image(8), "repeat")),
    ],
)  # fmt: skip
def test_steps_are_texts(text: str, wanted: Any) -> None:
    assert steps_of(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "224", "Image", "Image(", "Image(sise=3)", "Image(open('x'))", "__import__('os')", "Image(**{'size': 3})",
     "Image(1 if 1 else 2)", "Image().graph()", "(" * 9000, "Image(1)" * 2000, "Warp(Image(8), Image(8).x)"],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BoltError, match=r"steps: got .*, wanted Image") as raised:
        steps_of(text)
    assert "object at" not in str(raised.value)


def test_steps_of_the_command_line(call: Any, tmp_path: Path) -> None:
    digits = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"
    steps = "image=Image(8, color='gray', antialias=False)"
    done = call("convert", digits, "-o", tmp_path / "d.bolt", "--preprocess", steps, "--simplify")
    assert done.code == 0, done.err
    x = pictures(20, 30)[0]
    prepared = bn.compile(Image(8, color="gray", antialias=False).graph())(x)[0]
    np.testing.assert_allclose(
        bn.compile(tmp_path / "d.bolt")(image=x)[0], bn.compile(digits)(prepared)[0], rtol=1e-4, atol=1e-6
    )
    done = call("convert", digits, "-o", tmp_path / "d.bolt", "--preprocess", "Image(8)")
    assert done.code == 2
    assert "wanted NAME=Image(...)" in done.err.replace("\n", " ")


@pytest.mark.skipif(not target().is_x86, reason="programs that need no linker are of x86-64")
def test_steps_leave_python() -> None:
    """Native programs, run from their tables alone, give the bits of sessions."""
    x, sound = pictures(40, 50)[0], np.sin(np.arange(4000, dtype=F32))
    for steps, feeds in (
        (Image(24, mode="letterbox"), {"image": x}), (Image(24, source="NV12"), {"image": x[:36, :, 0]}),
        (Warp(Image(24)), {"image": x, "image_matrix": VIEWS}), (Audio(), {"image": sound}),
    ):  # fmt: skip
        graph = steps.graph("image")
        made = native_program(graph, shapes=[{k: np.shape(a) for k, a in feeds.items()}], threads=2)
        got = Interpreter(made.block.tobytes()).run({k: np.ascontiguousarray(a) for k, a in feeds.items()})
        wanted = bn.compile(graph, threads=1, stand_ins=False)(feeds)["tensor"]
        assert got["tensor"].tobytes() == wanted.tobytes()
