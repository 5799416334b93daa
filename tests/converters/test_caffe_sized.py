"""Nets of Caffe at other sizes of their input than their file says: fixed, at a run, and in all that takes shapes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import bolt_numba as bn
from bolt_numba import compiling, surgery
from bolt_numba.cli.app import app
from bolt_numba.compiling import SizedSession
from bolt_numba.export.plans import planned
from bolt_numba.quantize import quantize
from bolt_numba.types import F32, Array
from tests import formats
from tests.caffe_sized import NETS, SHAPE
from tests.formats import GOLDEN

with np.load(GOLDEN / "caffe_sizes" / "opencv.npz") as archive:
    OPENCV = {key: archive[key] for key in archive.files}
OTHERS = ((1, 3, 48, 40), (3, 3, 37, 29), (1, 3, 33, 33), (2, 3, 32, 40))
OPEN = ("classifier", "inception", "segmenter", "interpolated", "reshaped", "normalised")
"""Nets whose layers ask for no number, so that one session serves all sizes."""

REFUSED = {
    "LSTM": "operand 'x' whose dimension 2 is x_2",
    "LSTMUnit": "operand 'c' whose dimension 2 is c_2",
    "RNN": "operand 'x' whose dimension 2 is x_2",
    "SPP": "operand 'data' whose dimension 2 is data_2",
    "Convolution/axis2": "operand 'data' whose dimension 0 is data_0",
    "Pooling/max_mask": "operand 'data' whose dimension 2 is data_2",
    "Pooling/stride_gt_k": "a stride of 3 above the kernel of 2 along a size that only the run tells",
    "Pooling/stride_gt_k_ave": "a stride of 3 above the kernel of 2 along a size that only the run tells",
    "Slice/axis2": "operand 'data' whose dimension 2 is data_2",
    "Slice/axis_neg": "operand 'data' whose dimension 2 is data_2",
}
"""Layers, and cases of them, that ask for a number, and what they say."""
STATEFUL = ("LSTM", "LSTMUnit", "RNN")


def graph_of(name: str) -> Any:
    net = NETS[name]()
    return bn.load(net.text(), weights=net.model())


def session_of(name: str, **options: Any) -> bn.Session:
    net = NETS[name]()
    return bn.compile(net.text(), weights=net.model(), threads=1, **options)


def image(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape, F32)


def only(session: bn.Session, x: Array) -> Array:
    (found,) = session(data=x).values()
    return np.asarray(found)


def cli(*args: object) -> str:
    done = CliRunner().invoke(app, [*map(str, args)])
    assert done.exit_code == 0, done.output
    return done.output


def in_order(boxes: Array) -> Array:
    """Boxes [n, 7] whatever order they were found in."""
    rows = boxes.reshape(-1, 7)
    return rows[np.lexsort(np.round(rows, 4).T[::-1])]


@pytest.mark.parametrize("name", [n for n in NETS if n != "normalised"])
def test_results_are_those_of_opencv(name: str) -> None:
    session, graph = session_of(name), graph_of(name)
    keys = sorted({key.rpartition("/")[0] for key in OPENCV if key.startswith(f"{name}/")})
    assert keys or name == "dense"
    for key in keys:
        shape = tuple(map(int, key.partition("/")[2].split("x")))
        fixed = bn.compile(surgery.with_shapes(graph, {"data": shape}), threads=1)
        for got in (only(session, image(shape)), only(fixed, image(shape))):
            found = in_order(got) if name == "detector" else got
            assert found.size == np.prod(OPENCV[f"{key}/shape"])
            wanted = OPENCV[f"{key}/values"]
            np.testing.assert_allclose(found.reshape(-1)[::11], wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", [n for n in NETS if n != "dense"])
def test_a_run_gives_what_a_net_of_that_size_gives(name: str) -> None:
    """Bit for bit but for how sums are cut: a session with symbols against a net that is written with other numbers."""
    session, net = session_of(name), NETS[name]()
    for shape in (*OTHERS, SHAPE):
        dims = " ".join(f"dim: {d}" for d in shape)
        text = net.text().replace(b" ".join(b"dim: %d" % d for d in SHAPE), dims.encode())
        own = bn.compile(text, weights=net.model(), threads=1)
        assert own.inputs[0].shape == shape
        x = image(shape)
        np.testing.assert_allclose(only(session, x), only(own, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OPEN)
def test_one_session_serves_all_sizes(name: str) -> None:
    session = session_of(name)
    assert isinstance(session, SizedSession)
    for side in (32, 33, 48, 65, 80, 96):
        only(session, image((1, 3, side + 1, side + 3)))
    assert len(session._others) == 1


def test_sessions_of_numbers_are_kept_in_number() -> None:
    """A detector's boxes are constants, so each size has a session; the last ones used stay."""
    session = session_of("detector")
    assert isinstance(session, SizedSession)
    for side in (40, 48, 56, 64, 72, 80):
        only(session, image((1, 3, side, side)))
    assert [key[-1] for key in session._others] == [56, 64, 72, 80]
    only(session, image((1, 3, 56, 56)))
    assert [key[-1] for key in session._others] == [64, 72, 80, 56]


def test_a_product_refuses_another_size_and_takes_another_batch() -> None:
    session = session_of("dense")
    assert only(session, image((4, 3, 32, 40))).shape == (4, 5)
    with pytest.raises(bn.ShapeError, match="320"):
        session(data=image((1, 3, 48, 40)))
    with pytest.raises(bn.BoltError, match="wanted"):
        surgery.with_shapes(graph_of("dense"), {"data": (1, 3, 48, 40)})


@pytest.mark.parametrize("shape", [(1, 4, 32, 40), (1, 3, 32), (1, 3, 0, 40), (1, 3, -1, 40)])
def test_what_is_no_size_for_the_net_is_refused(shape: tuple[int, ...]) -> None:
    graph = graph_of("classifier")
    with pytest.raises(bn.BoltError, match="got"):
        surgery.with_shapes(graph, {"data": shape})
    if min(shape) >= 0:
        with pytest.raises(bn.BoltError, match="got"):
            session_of("classifier")(data=np.zeros(shape, F32))


@pytest.mark.parametrize("group", sorted(file.stem for file in (GOLDEN / "caffe").glob("*.npz")))
def test_nets_read_with_symbols_give_what_caffe_gives(group: str, tmp_path: Path) -> None:
    """Layers that ask for a number say so; the others compute the same without it.

    Those that keep a state take any number of steps.
    """
    for place, case in enumerate(formats.cases("caffe", f"^{group}/")):
        folder = tmp_path / str(place)
        folder.mkdir()
        graph = formats.load(case, folder)
        sizes = {v.name: [-1 if i != 1 else d for i, d in enumerate(v.type.shape or ())] for v in graph.caller_inputs}
        refused = REFUSED.get(group) or REFUSED.get(f"{group}/{case.name}")
        if refused is not None:
            with pytest.raises(bn.UnsupportedOpError, match=f"{group} at layer 'l_.*': {refused}"):
                bn.compile(graph.anew(sizes), threads=1)
            if group not in STATEFUL:
                continue
            shapes = {v.name: list(v.type.shape or ()) for v in graph.caller_inputs}
            sizes = {name: [-1, *shape[1:]] if name != "x_static" else shape for name, shape in shapes.items()}
        session = bn.compile(graph.anew(sizes), threads=1)
        for run in case.runs:
            for spec, got in zip(session.outputs, session.run(None, run.inputs), strict=True):
                wanted = run.outputs[spec.name]
                assert got.shape == wanted.shape
                np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


def test_sizes_that_are_refused_leave_nothing_behind() -> None:
    session = session_of("classifier")
    with pytest.raises(bn.BoltError):
        session(data=np.zeros((1, 3, 0, 40), F32))
    assert only(session, image((1, 3, 48, 40))).shape == (1, 5, 1, 1)


@pytest.mark.parametrize("given", [[[1, 2], [3]], 3, "text", None])
def test_what_is_no_array_is_refused_as_by_other_sessions(given: Any) -> None:
    graph, session = graph_of("classifier"), session_of("classifier")
    other = bn.Session(graph, threads=1)
    for run in (lambda s: s(data=given), lambda s: s.run(None, {"data": given}), lambda s: s.warmup(data=given)):
        with pytest.raises(bn.BoltError) as wanted:
            run(other)
        with pytest.raises(type(wanted.value)) as got:
            run(session)
        assert str(got.value) == str(wanted.value)


def test_a_session_is_closed_while_threads_bring_sizes() -> None:
    session = session_of("detector")

    def run(side: int) -> int:
        return only(session, image((1, 3, side, side))).ndim

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(run, 32 + 8 * (i % 7)) for i in range(40)]
        while not all(each.done() for each in found):
            session.close()
    assert [each.result() for each in found] == [4] * 40


def test_threads_share_the_session_of_a_size() -> None:
    session = session_of("detector")
    shapes = [(1, 3, 40, 40), (1, 3, 48, 48)] * 8
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda shape: only(session, image(shape)), shapes))
    for one, two in zip(found, found[2:], strict=False):
        np.testing.assert_array_equal(one, two)


def test_known_sizes_do_not_wait_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of("detector")
    known = image((1, 3, 40, 40))
    wanted, own = only(session, known), only(session, image(SHAPE))
    begun, goes_on, make = Event(), Event(), compiling.Session

    def slow(*args: Any, **options: Any) -> bn.Session:
        begun.set()
        assert goes_on.wait(60)
        return make(*args, **options)

    monkeypatch.setattr(compiling, "Session", slow)
    with ThreadPoolExecutor(3) as pool:
        try:
            new = [pool.submit(only, session, image((1, 3, 48, 48))) for _ in range(2)]
            assert begun.wait(60)
            np.testing.assert_array_equal(pool.submit(only, session, known).result(60), wanted)
            np.testing.assert_array_equal(pool.submit(only, session, image(SHAPE)).result(60), own)
            assert not any(each.done() for each in new)
        finally:
            goes_on.set()
        np.testing.assert_array_equal(*(each.result() for each in new))
    assert len(session._inner()) == 2, "both threads got one session"


@pytest.mark.parametrize("name", ["segmenter", "detector"])
def test_what_is_told_of_a_session_has_all_sizes(name: str) -> None:
    session = session_of(name)
    assert not session.report()
    before = session.memory()
    only(session, image((1, 3, 64, 80)))
    (inner,) = session._inner()
    said = {"segmenter": "data [1, 3, data_2, data_3]", "detector": "data [1, 3, 64, 80]"}[name]
    assert session.report() == [{"inputs": said, **row} for row in inner.report()]
    assert before["packed"] == before["arena"] == 0
    assert session.memory()["packed"] == inner.memory()["packed"] > 0
    assert session.memory()["arena"] == inner.memory()["arena"] > 0
    packs = {(place, f"{said}: {key}"): array for (place, key), array in inner.packs().items()}
    assert packs
    assert session.packs() == packs
    only(session, image(SHAPE))
    rows = session.report()
    assert [row for row in rows if "inputs" in row] == [{"inputs": said, **row} for row in inner.report()]
    assert len(rows) > len(inner.report())
    assert session.memory()["packed"] > inner.memory()["packed"]
    assert session.memory()["arena"] == inner.memory()["arena"], "that of the largest plan"
    assert len(session.packs()) > len(packs)
    assert "inputs" in rows._repr_html_()
    session.close()
    assert not session.report()


def test_a_crop_that_does_not_lie_within_is_refused() -> None:
    """Its sizes are known in the run alone."""
    text = """
    layer { name: "in" type: "Input" top: "data" top: "like"
            input_param { shape { dim: 1 dim: 1 dim: 8 dim: 8 } shape { dim: 1 dim: 1 dim: 4 dim: 4 } } }
    layer { name: "c" type: "Crop" bottom: "data" bottom: "like" top: "y" crop_param { axis: 2 offset: 2 } }
    """
    session = bn.compile(text.encode())
    x = image((1, 1, 8, 9))
    like = np.zeros((1, 1, 6, 5), F32)
    np.testing.assert_array_equal(session(data=x, like=like)["y"], x[:, :, 2:8, 2:7])
    with pytest.raises(bn.ShapeError, match="Reshape"):
        session(data=x, like=np.zeros((1, 1, 7, 5), F32))


def test_every_way_to_run_takes_other_sizes() -> None:
    session, shape = session_of("segmenter"), (2, 3, 36, 44)
    x = image(shape)
    wanted = only(session, x)
    session.warmup(data=shape)
    np.testing.assert_array_equal(session.run(["score"], {"data": x})[0], wanted)
    (inner,) = session.run(["fine"], {"data": x})
    assert inner.shape == (2, 4, 18, 22)
    buffer = np.empty_like(wanted)
    session.run_into({"data": x}, {"score": buffer})
    np.testing.assert_array_equal(buffer, wanted)
    assert "ConvTranspose" in str(session.profile(x, runs=1))
    np.testing.assert_array_equal(only(session.clone(), x), wanted)
    session.close()
    np.testing.assert_array_equal(only(session, x), wanted)
    with pytest.raises(bn.BoltError, match="inputs"):
        session(x, x)
    with pytest.raises(bn.DTypeError):
        session.run(None, 3)  # type: ignore[arg-type]


def test_commands_take_shapes(tmp_path: Path) -> None:
    net = NETS["segmenter"]()
    path = tmp_path / "net.prototxt"
    path.write_bytes(net.text())
    path.with_suffix(".caffemodel").write_bytes(net.model())
    shape = ("--shape", "data=1,3,48,64")
    assert "[1, 4, 48, 64]" in cli("run", path, *shape)
    assert "agrees with reference" in cli("verify", path, *shape, "--against", "reference")
    assert "f32[1, 4, 48, 64]" in cli("viz", path, "--text", *shape)
    cli("convert", path, *shape, "-o", tmp_path / "net.bolt")
    assert bn.load(tmp_path / "net.bolt").inputs[0].type.shape == (1, 3, 48, 64)
    assert bn.verify(path, against="reference", shapes={"data": (2, 3, 40, 56)}).ok


def test_plans_for_other_sizes_are_exported(tmp_path: Path) -> None:
    graph = graph_of("segmenter")
    made = planned(graph, [{"data": (1, 3, 32, 40)}, {"data": (1, 3, 48, 64)}], "avx2", 1)
    assert [chain.begin[0] for chain in made.chains] == [(1, 3, 32, 40), (1, 3, 48, 64)]


def test_calibration_of_another_size() -> None:
    made = quantize(graph_of("classifier"), [{"data": image((1, 3, 48, 56))}], timed=False)
    assert made.graph.inputs[0].type.shape == (1, 3, 48, 56)
