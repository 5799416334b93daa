"""The bench itself: two tiny models through real processes, its tables, and the comparison of two results."""

from __future__ import annotations

import copy
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import bolt_numba as bn
from bench import arithmetic, compare, convert, layers, limits, plot, quantised, ragged, report, run, translate, workers
from bench.contest import Turn, summary
from bench.engines import PEERS
from bench.page import fill
from bench.zoo import ZOO, bert
from bolt_numba.ops.arrays.reduce import ReduceSum
from bolt_numba.peers import OnnxRuntimeEngine, with_old_ir
from bolt_numba.runtime.reports.profile import Row

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bench reads /proc")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOLT_NUMBA_MODELS", str(folder))
        patch.setattr(run, "machine", lambda: dict(MACHINE))
        words = "--models mlp,kws_dscnn --peers bolt,onnxruntime,mnn --turns 1 --turn-s 0.02 --patience-s 0"
        args = run.arguments([*words.split(), "--output", str(folder / "r.json")])
        run.run(args, lambda line: None)
    loaded: dict[str, Any] = json.loads((folder / "r.json").read_text())
    return loaded


MACHINE = {
    "processor": "p", "cores": 2, "isa": "i", "date": "d", "peak_gflops": 100.0, "copy_gb_s": 10.0, "copy_gb_s_2": 20.0,
    "load_at_start": 0.0,
}  # fmt: skip


def test_engines_run_and_agree(result: dict[str, Any]) -> None:
    rows = {(r["model"], r["peer"]): r for r in result["rows"]}
    for model in ("mlp", "kws_dscnn"):
        for peer in ("bolt", "onnxruntime"):
            row = rows[model, peer]
            assert row["agrees"], row
            assert 0 < row["best_ms"] <= row["median_ms"]
            assert row["peak_rss_mib"] > 10
        assert rows[model, "mnn"]["error"], "an engine without its model file is left out with a word"


def test_tables_hold_the_ratio(result: dict[str, Any]) -> None:
    found = report.cases(result["rows"])["mlp", 1]
    table = report.latency(result)
    line = dict(zip(table[0], table[1], strict=True))
    assert line["model"] == "mlp"
    assert line["best peer"] == "onnxruntime"
    assert float(line["best / bolt"]) == pytest.approx(report.ratio(found, "onnxruntime"), abs=0.01)
    assert "| mlp | 1 |" in report.as_markdown(result)


def test_compare_tells_what_changed(result: dict[str, Any]) -> None:
    slower = copy.deepcopy(result)
    for row in slower["rows"]:
        if row["peer"] == "bolt" and row["model"] == "mlp":
            row["median_ms"] *= 1.5
    found = compare.changes(result, slower, 0.05, "onnxruntime")
    assert [line[:3] for line in found] == [["mlp", "1", "bolt"]]
    assert found[0][-1] == "1.50"
    assert compare.changes(result, result, 0.05, "onnxruntime") == []


def test_wrong_results_are_no_peers() -> None:
    time = {"median_ms": 1.0, "best_ms": 1.0, "noisy": False}
    engines = {"bolt": {**time, "agrees": True}, "a": {**time, "agrees": False}}
    assert report.best_peer(engines) is None
    assert report.ratio(engines, "a") is None


def test_disturbed_turns_do_not_count() -> None:
    turns = [Turn([0.001, 0.001], True), Turn([0.001], True), Turn([1.0], False)]
    assert summary(turns)["median_ms"] == pytest.approx(1.0)
    assert summary(turns[1:])["noisy"]


def test_difference() -> None:
    a = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    assert run.difference([a.transpose(0, 2, 3, 1)], [a]) == 0
    assert run.difference([a[0].transpose(0, 2, 1)], [a[0]]) == 0
    assert run.difference([a + 2.3], [a]) == pytest.approx(0.1)
    assert run.difference([a[:, :1]], [a]) == float("inf")


def test_work_of_known_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spotter has 3.2 million multiply-adds here; the perceptron 64 * 64 + 64 * 10."""
    monkeypatch.setenv("BOLT_NUMBA_MODELS", str(tmp_path))
    flops = {name: arithmetic.work(ZOO[name].path(), ZOO[name].feeds())["gflop"] for name in ("mlp", "kws_dscnn")}
    assert flops["mlp"] == pytest.approx(2 * (64 * 64 + 64 * 10) / 1e9)
    assert flops["kws_dscnn"] is not None
    assert 6e-3 < flops["kws_dscnn"] < 9e-3


def test_graphs_are_simplified_for_frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MiniLM has six layers, each with one GELU and one attention; the spotter's norms all follow convolutions."""
    monkeypatch.setenv("BOLT_NUMBA_MODELS", str(tmp_path))
    small = bert(11, 2, 48, 4, 8)(1)
    onnx.save(small, tmp_path / "small.onnx")
    found = Counter(s.op for s in translate.read(tmp_path / "small.onnx", attention=True).steps)
    assert (found["Gelu"], found["Attention"], found["Softmax"], found["Erf"]) == (2, 2, 0, 0)
    spotter = translate.read(ZOO["kws_dscnn"].path(), attention=False)
    assert "BatchNormalization" not in {s.op for s in spotter.steps}


def test_body_of_a_transformer_begins_behind_its_table(tmp_path: Path) -> None:
    part = convert.body(bert(11, 1, 48, 4, 8)(1))
    assert [len(i.type.tensor_type.shape.dim) for i in part.graph.input] == [3, 4]
    assert "Gather" not in {n.op_type for n in part.graph.node}
    spotter = ZOO["mlp"].build(1)
    assert convert.body(spotter) is spotter


def test_twins_of_halves_say_what_their_sources_say(tmp_path: Path) -> None:
    source, target = tmp_path / "source.onnx", tmp_path / "half.onnx"
    onnx.save(ZOO["kws_dscnn"].build(1), source)
    quantised._half(source, target)
    wide, half = bn.compile(str(source)), bn.compile(str(target))
    assert {s.dtype for s in (*half.inputs, *half.outputs)} == {np.dtype(np.float16)}
    x = np.random.default_rng(0).standard_normal(wide.inputs[0].shape).astype(np.float16)
    wanted, got = wide(x.astype(np.float32))[0], half(x)[0]
    assert np.abs(got.astype(np.float32) - wanted).max() < 1e-2 * np.abs(wanted).max()


def test_precision_that_an_engine_lacks_is_told() -> None:
    peer = PEERS["onnxruntime"](Path("x.onnx"), None, 1, {}, "bf16")
    with pytest.raises(NotImplementedError, match="has no bf16"):
        workers.load(peer)


def test_onnxruntime_gets_files_of_a_version_that_it_reads(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    text = '<ir_version: 14, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
    content = onnx.parser.parse_model(text).SerializeToString()
    (tmp_path / "new.onnx").write_bytes(content)
    for source in (content, tmp_path / "new.onnx"):
        made = OnnxRuntimeEngine(source, 1).run({"x": np.array([-1, 2], "f4")})
        assert made[0].tolist() == [0, 2]
    older = onnx.parser.parse_model(text.replace("14", "10")).SerializeToString()
    assert with_old_ir(older) is older


def test_parts_of_a_page_are_replaced(result: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n" + "".join(f"<!-- {n}: begin -->\nstale\n<!-- {n}: end -->\n" for n in report.parts(result))
    )
    fill(page, report.parts(result))
    made = page.read_text()
    assert "stale" not in made
    assert made.startswith("before\n<!-- machine: begin -->\n")
    assert "| mlp | 1 |" in made
    with pytest.raises(ValueError, match="'other'"):
        fill(page, {"other": ""})


def test_the_page_has_every_generated_part(result: dict[str, Any]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "performance.md").read_text(encoding="utf-8")
    for name in (*report.parts(result), "limits", "kernels"):
        assert page.count(f"<!-- {name}: begin -->") == 1


def test_pictures(result: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for draw in (plot.bars, plot.roofline):
        draw(result, tmp_path / "p.png")
        assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"


def test_steps_fall_into_groups() -> None:
    rows = [
        Row("n", op, runner, "o", 1.0, 0.0) for op, runner in (("Conv", "conv"), ("Conv", "depthwise"), ("Add", "p"))
    ]
    assert limits.shares(rows, 4.0) == {"product": 1, "depthwise": 1, "both": 0, "rest": 1, "between": 1}
    assert limits.largest(rows) == "Add 33 %"


def test_kernels_beyond_the_layers_get_a_test_case() -> None:
    case = layers.largest_test_case(ReduceSum, lambda c: c.inputs[0] is not None and c.inputs[0].ndim == 2)
    assert case is not None
    assert isinstance(case.op, ReduceSum)


def test_labels_keep_apart() -> None:
    assert plot.spread([0.0, 5.0, 0.1], 1.0) == pytest.approx([-0.45, 5.0, 0.55])


def test_calls_of_several_threads_are_counted() -> None:
    pytest.importorskip("onnxruntime")
    from bench.bars import crowd

    counts = Counter[str]()

    def call(engine: str) -> None:
        counts[engine] += 1
        time.sleep(2e-3)

    found = crowd({name: [lambda name=name: call(name)] * 2 for name in ("one", "two")}, 3, 2, 0.05)  # type: ignore[misc]
    for engine, (rate, middle, late, busy) in found.items():
        assert 0 < rate <= 3 / 2e-3
        assert 2 <= middle <= late
        assert busy < middle, "a sleeping thread takes no processor"
        assert counts[engine] > 6


def test_flows_stand_beside_programs_by_hand(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("PIL")
    from bench import flow as bench_flow
    from bolt_numba.flow import Flow

    digits = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"
    images = list(np.random.default_rng(0).random((6, 1, 1, 8, 8), np.float32))

    def flow() -> Flow:
        made = Flow("digits", inputs="image", outputs="digit", workers=2)
        made.model(digits, "image", "p", name="digits", threads=1)
        return made.function(lambda p: int(p.argmax()), "p", "digit")

    pipeline = bench_flow.Pipeline(
        [str(digits)], images, lambda runs, image: int(runs[0](image).argmax()), flow, lambda found: found["digit"]
    )
    case = bench_flow.measured(pipeline, 2, 0.1, 0.5)
    assert case["tasks"] == 6
    for row in case["engines"].values():
        assert row["per_s"] > 0 < row["work_ms"]
        assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert case["ratios"]["onnxruntime"]["per_s"] == pytest.approx(
        case["engines"]["flow"]["per_s"] / case["engines"]["onnxruntime"]["per_s"]
    )
    wrong = pipeline._replace(result=lambda found: -1)
    with pytest.raises(SystemExit, match="6 of 6 results differ"):
        bench_flow.measured(wrong, 1, 0.1, 0.5)
    rows = {"per_s": 1.2, "work_ms": 1.0, "p50_ms": 3.0, "p99_ms": 0.9}
    cases = {"digits": case | {"ratios": {"onnxruntime": rows, "sessions": rows}}}
    machine = {"processor": "P", "load_at_start": 0.5}
    found = {"machine": machine, "rounds": 2, "seconds": 0.1, "load": 0.5, "pipelines": cases}
    assert "| digits | Flow |" in bench_flow.table(found)
    assert bench_flow.met(found) == {"digits: throughput": False, "digits: p99": True}
    (tmp_path / "found.json").write_text(json.dumps(found))
    (tmp_path / "page.md").write_text("<!-- flow: begin -->\n<!-- flow: end -->\n")
    asked = ["--show", str(tmp_path / "found.json"), "--page", str(tmp_path / "page.md")]
    assert bench_flow.main(asked) == 0
    assert "| digits | onnxruntime by hand |" in (tmp_path / "page.md").read_text()
    with pytest.raises(SystemExit):
        bench_flow.main(["nothing"])


def test_texts_of_unequal_lengths_are_padded_to_the_longest_of_a_batch() -> None:
    for mix, low, high in (("uniform", 250, 280), ("skewed", 55, 70), ("short", 35, 38)):
        lengths = ragged.lengths_of(mix, 256)
        assert (lengths.min() >= 8, lengths.max() <= 512, low < lengths.mean() < high) == (True, True, True)
    rows = ragged.rows_of([5, 2, 9])
    first, last = ragged.batches_of(rows, 2)
    np.testing.assert_array_equal(first["attention_mask"], [[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    np.testing.assert_array_equal(last["input_ids"][0], rows[2]["input_ids"])
    assert ragged.flops_of(np.array([1, 2])) == 24 * 6 * 384**2 * 3 + 4 * 6 * 384 * 5
