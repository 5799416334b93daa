"""`verify` of models in other formats: against the engine whose format it is, tensor by tensor."""

from __future__ import annotations

from pathlib import Path

import pytest

import bolt_numba as bn
from bench.caffe_nets import CaffeNet, ssd_heads
from bolt_numba.arbitration import COARSE, DYNAMIC, INPUTS_DIFFER, TO_BYTES
from bolt_numba.benchmark import bench
from bolt_numba.errors import BoltError, InternalError, UnsupportedOpError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.types import F32, TensorType
from tests.formats import cases
from tests.graphs import make

pytest.importorskip("ai_edge_litert")


def tflite(folder: Path, pattern: str) -> Path:
    """A golden case as a file."""
    path = folder / "net.tflite"
    path.write_bytes(next(cases("tflite", pattern)).files["model"])
    return path


@pytest.mark.parametrize("pattern", ["conv_2d/f32_same_s2$", "conv_2d/i8pc_act_relu$", "add/f32_act_relu$"])
def test_litert_judges_its_own_format(tmp_path: Path, pattern: str) -> None:
    path = tflite(tmp_path, pattern)
    report = bn.verify(path)
    assert report.against == "litert"
    assert report.ok, report
    assert bn.verify(path, "onnxruntime").ok
    assert bn.verify(path, "reference").ok


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("depthwise_conv_2d/hyb_pc_same$", DYNAMIC), ("batch_matmul/hyb_pt$", TO_BYTES), ("svdf/hyb_rank2$", DYNAMIC),
        ("nets/i8_lstm_unrolled$", INPUTS_DIFFER), ("/i16_up$", COARSE), ("rsqrt/i16_3d$", COARSE),
    ],
)  # fmt: skip
def test_documented_differences_are_named(tmp_path: Path, pattern: str, why: str) -> None:
    """Operands that LiteRT rounds to bytes, levels behind other levels, tables of 16 bits; one has states."""
    case = next(cases("tflite", pattern))
    path = tflite(tmp_path, pattern)
    names = [v.name for v in bn.load(path).caller_inputs]
    report = bn.verify(path, feeds=dict(zip(names, case.runs[0].inputs.values(), strict=True)))
    assert report.ok, report
    assert {c.explained for c in report.checks if c.explained} == {why}
    assert why in str(report)


def test_what_opencv_cannot_run_is_said_to_be_opencvs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cv2 = pytest.importorskip("cv2")
    files = next(cases("caffe", "nets/lenet$")).files
    path, weights = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    path.write_bytes(files["prototxt"])
    weights.write_bytes(files["caffemodel"])

    def fails(*_: object) -> None:
        raise cv2.error("no such layer")

    for place in ("bolt_numba.judges.OpenCv.values", "bolt_numba.judges.OpenCv.__init__"):
        monkeypatch.setattr(place, fails)
        with pytest.raises(BoltError, match=r"opencv: model: got what it fails at.*no such layer") as told:
            bn.verify(path)
        assert not isinstance(told.value, InternalError)


def test_a_wrong_tensor_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the filters were read wrong."""
    path = tflite(tmp_path, "conv_2d/f32_valid$")
    filters = max((v.const for v in bn.load(path).constants() if v.const is not None), key=lambda c: c.size)
    wrong = bn.load(path.read_bytes().replace(filters.tobytes(), (2 * filters).tobytes()))
    monkeypatch.setattr("bolt_numba.verification.load", lambda *_, **__: wrong)
    report = bn.verify(path)
    assert not report.ok
    assert report.first_divergent == wrong.output_names[0]


def test_others_judge_no_foreign_format(tmp_path: Path) -> None:
    path = tflite(tmp_path, "add/f32_same$")
    with pytest.raises(BoltError, match=r"got 'litert' for a graph, wanted 'onnxruntime' or 'reference' or 'cpu'$"):
        bn.verify(bn.load(path), "litert")
    with pytest.raises(
        BoltError, match="against: got 'tensorrt', wanted one of 'onnxruntime', 'reference', 'cpu', 'litert', 'opencv'"
    ):
        bn.verify(path, "tensorrt")


@pytest.mark.parametrize(
    "pattern", ["nets/mini_resnet$", "nets/squeezenet_fire$", "InnerProduct/axis0$", "inplace/chain$"]
)
def test_opencv_judges_nets_of_caffe(tmp_path: Path, pattern: str) -> None:
    pytest.importorskip("cv2")
    files = next(cases("caffe", pattern)).files
    path = tmp_path / "net.prototxt"
    path.write_bytes(files["prototxt"])
    (tmp_path / "net.caffemodel").write_bytes(files["caffemodel"])
    report = bn.verify(path)
    assert report.against == "opencv"
    assert report.ok, report
    assert bn.verify(tmp_path / "net.caffemodel", weights=path).ok
    with pytest.raises(BoltError, match="got a caffemodel alone, wanted its prototxt"):
        bn.verify(tmp_path / "net.caffemodel")


def test_opencv_names_a_wrong_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cv2")
    files = next(cases("caffe", "nets/lenet$")).files
    (tmp_path / "net.prototxt").write_bytes(files["prototxt"])
    (tmp_path / "net.caffemodel").write_bytes(files["caffemodel"])
    wrong = bn.load(files["prototxt"].replace(b"MAX", b"AVE"), weights=files["caffemodel"])
    monkeypatch.setattr("bolt_numba.verification.load", lambda *_, **__: wrong)
    report = bn.verify(tmp_path / "net.prototxt")
    assert not report.ok
    assert report.first_divergent == next(n.output.name for n in wrong.nodes if "Pool" in n.op.name)


def test_opencv_judges_detections_in_our_order(tmp_path: Path) -> None:
    """Boxes of three classes and of the background, of two maps."""
    pytest.importorskip("cv2")
    net = CaffeNet("ssd", 1, 3, 64, 64, seed=3)
    maps = [net.relu(net.conv("a", "data", 16, 3, 4))]
    maps.append(net.relu(net.conv("b", maps[0], 16, 3, 2)))
    ssd_heads(net, maps, classes=4, sizes=(16.0, 24.0, 40.0))
    (tmp_path / "net.prototxt").write_bytes(net.text())
    (tmp_path / "net.caffemodel").write_bytes(net.model())
    report = bn.verify(tmp_path / "net.prototxt")
    assert report.against == "opencv"
    assert report.ok, report


def test_another_judge_is_refused_by_name(tmp_path: Path) -> None:
    path = tflite(tmp_path, "add/f32_act_relu$")
    with pytest.raises(BoltError, match=r"got 'opencv' for a file of tflite, wanted .* or 'cpu' or 'litert'"):
        bn.verify(path, "opencv")


def test_bench_gives_onnxruntime_what_it_reads(tmp_path: Path) -> None:
    """A file of another format is written as ONNX for it, also for the process of its own."""
    pytest.importorskip("onnxruntime")
    report = bench(tflite(tmp_path, "conv_2d/f32_same_s2$"), vs=["onnxruntime"], seconds=0.1)
    ours, other = report.engines
    assert (ours.error, other.error) == ("", "")
    assert other.latencies
    assert other.load_s


def test_bench_runs_the_engine_whose_format_it_is(tmp_path: Path) -> None:
    """On the file itself, also in the process of its own, beside one that gets ONNX; others are told why not."""
    pytest.importorskip("onnxruntime")
    report = bench(tflite(tmp_path, "conv_2d/f32_same_s2$"), vs=["litert", "onnxruntime", "paddle"], seconds=0.1)
    ours, own, other, none = report.engines
    assert (ours.error, own.error, other.error) == ("", "", "")
    assert own.latencies
    assert own.load_s
    assert none.error == "paddle: model: got a file of tflite, wanted one of paddle"


def test_bench_runs_opencv_on_a_net_and_its_weights(tmp_path: Path) -> None:
    """Which may be two files of any names."""
    pytest.importorskip("cv2")
    net = CaffeNet("net", 1, 3, 16, 16, seed=3)
    net.relu(net.conv("a", "data", 8, 3, 1))
    (tmp_path / "net.prototxt").write_bytes(net.text())
    (tmp_path / "other.caffemodel").write_bytes(net.model())
    report = bench(tmp_path / "net.prototxt", vs=["opencv"], seconds=0.1, weights=tmp_path / "other.caffemodel")
    ours, own = report.engines
    assert (ours.error, own.error) == ("", "")
    assert own.first_run_s


def test_a_format_that_an_engine_does_not_read_is_told(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    report = bench(tflite(tmp_path, "add/f32_act_relu$"), vs=["opencv"], seconds=0.1, processes=False)
    assert report.engines[1].error == "opencv: model: got a file of tflite, wanted one of caffe"


def test_who_verifies_what_has_no_spelling_is_told_of_the_reference() -> None:
    graph = Graph("g")
    votes = Builder(graph)(make("PairwiseCoupling", classes=3), graph.add_input("p", TensorType(F32, (2, 3))))
    graph.add_output(votes, "votes")
    with pytest.raises(UnsupportedOpError, match=r"^g: as ONNX \(--against reference does without\): 1 unsupported"):
        bn.verify(graph, against="onnxruntime")
