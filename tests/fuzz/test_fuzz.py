"""The fuzzers are fed with what their targets read, and what they report is a fault."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import bolt_numba as bn
from bolt_numba.base.budget import Budget, within
from bolt_numba.errors import BoltError, BudgetError, InternalError, InvalidModelError
from tests.fuzz.__main__ import HERE, build_program, write_seeds
from tests.fuzz.targets import TARGETS, Target, joined

READERS = [name for name, target in TARGETS.items() if target.read is not None]
SEEDS, CHANGES = 4, 6
"""Good files of each target that are tried, and changes of each."""


def raising(error: Exception) -> Target:
    def read(parts: list[bytes], folder: Path) -> None:
        raise error

    return Target(read, lambda: iter(()), ((),))


@pytest.mark.parametrize("name", READERS)
def test_good_files_are_read_and_changed_ones_refused_or_read(name: str, tmp_path: Path) -> None:
    target, rng, different = TARGETS[name], np.random.default_rng(0), 0
    for data in islice(target.seeds(), SEEDS):
        assert target.read is not None
        target.read(target.parts(data), tmp_path)
        for _ in range(CHANGES):
            changed = target.changed(data, rng, lambda part, rng: part[: rng.integers(len(part) + 1)])
            target.attempt(changed, tmp_path)
            different += changed != data
    assert different > SEEDS * CHANGES // 2


FOUND = HERE / "found"
"""What was found, by target and kind: a variable and a Split of as much memory as there is, a chain without steps."""


@pytest.mark.parametrize("file", sorted(FOUND.iterdir()), ids=lambda file: file.name)
def test_what_was_found_is_refused(file: Path, tmp_path: Path) -> None:
    target = TARGETS[file.name.partition("-")[0]]
    assert target.read is not None
    with within(Budget(memory=1 << 26)), pytest.raises(BoltError) as caught:
        target.read(target.parts(file.read_bytes()), tmp_path)
    assert not isinstance(caught.value, InternalError)


def test_sizes_in_files_are_asked_for_before_memory_is_taken(tmp_path: Path) -> None:
    """Of the same kind as what was found: states of Caffe's recurrent layers, sparse tensors."""
    net = tmp_path / "net.prototxt"
    shapes = "".join(f"input_shape {{ dim: 1 dim: 268435456 {more} }} " for more in ("dim: 1", ""))
    for kind in ("LSTM", "RNN"):
        layer = (
            f'layer {{ name: "r" type: "{kind}" bottom: "x" bottom: "c" top: "y" recurrent_param {{ num_output: 1 }} }}'
        )
        net.write_text(f'name: "n" input: "x" input: "c" {shapes} {layer}')
        with within(Budget(memory=1 << 26)), pytest.raises(BudgetError, match="got 1024 MiB"):
            bn.load(net)
    values, places = (helper.make_tensor("s", kind, [1], [1]) for kind in (TensorProto.FLOAT, TensorProto.INT64))
    node = helper.make_node("Constant", [], ["y"], sparse_value=helper.make_sparse_tensor(values, places, [1 << 27]))
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with within(Budget(memory=1 << 26)), pytest.raises(BudgetError, match="got 512 MiB"):
        bn.load(model.SerializeToString())


def test_two_files_are_one_input() -> None:
    target = TARGETS["caffe"]
    for parts in ([b"net", b"weights"], [b"", b""], [b"net", b""]):
        assert target.parts(joined(*parts)) == parts
    assert target.parts(b"\xff\xff\xff\xffnet") == [b"net", b""]
    assert TARGETS["onnx"].parts(joined(b"model")) == [b"model"]


def test_what_is_no_refusal_is_found(tmp_path: Path) -> None:
    raising(InvalidModelError("so it should be")).attempt(b"", tmp_path)
    for error in (InternalError("ours"), KeyError("ours"), RecursionError()):
        with pytest.raises(type(error)):
            raising(error).attempt(b"", tmp_path)


def test_a_flow_imports_nothing(tmp_path: Path) -> None:
    """A file of a flow names functions, and a fuzzer would find the dangerous ones."""
    text = b'inputs = "x"\noutputs = "y"\n[nodes.n]\nfunction = "antigravity:fly"\ninputs = "x"\noutputs = "y"\n'
    TARGETS["flow"].attempt(text, tmp_path)
    assert "antigravity" not in sys.modules


def test_seeds_are_written(tmp_path: Path) -> None:
    write_seeds(tmp_path, ["flow"])
    assert len(list((tmp_path / "flow").iterdir())) == len(list(TARGETS["flow"].seeds()))


def test_the_script_of_oss_fuzz_builds_what_there_is() -> None:
    """Its loop is over the folders of seeds; what it names is there."""
    script = (HERE / "oss_fuzz" / "build.sh").read_text()
    subprocess.run(["bash", "-n", HERE / "oss_fuzz" / "build.sh"], check=True)
    for module in re.findall(r"--(?:collect-submodules|hidden-import) (\S+)", script):
        assert __import__(module), module
    for folder in re.findall(r"--add-data (\S+):", script):
        assert (HERE.parents[1] / folder).is_dir(), folder


@pytest.mark.skipif(shutil.which("clang") is None, reason="there is no clang: apt-get install clang libfuzzer-14-dev")
def test_the_fuzzer_of_programs(tmp_path: Path) -> None:
    """It opens a program and finds what has another checksum, too."""
    build_program(tmp_path / "fuzzer")
    write_seeds(tmp_path, ["program"])
    done = subprocess.run(
        [tmp_path / "fuzzer", "-runs=200", f"-artifact_prefix={tmp_path}/", tmp_path / "program"],
        capture_output=True, text=True, check=False, env={"ASAN_OPTIONS": "allocator_may_return_null=1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Done 200 runs" in done.stderr
