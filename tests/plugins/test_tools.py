"""The commands and examples that pages of devices name, run with SimNPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bench import plugins
from bolt_numba.plugins import registry
from tests.pages import agrees, blocks
from tests.plugins.simnpu import BYTES, OPERATORS, SimDriver, opened

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "simnpu"
PAGE = ROOT / "docs" / "plugins" / "simnpu.md"
AFTERNOON = ROOT / "docs" / "plugins" / "index.md"


def test_the_demo_prints_what_the_page_of_simnpu_shows() -> None:
    typed, shown = blocks(PAGE.read_text())
    assert (typed.language, shown.language) == ("sh", "text")
    command = typed.text.replace(" python ", f" {sys.executable} ").replace(
        "=examples/simnpu", f"=examples/simnpu:{ROOT}"
    )
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert agrees(shown.text, done.stdout), done.stdout


def test_the_table_of_models_is_made_by_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, properties = tmp_path / "result.json", ["--property", "chip=sim100", "--property", "fail=run:2"]
    driver = ["--device", "simnpu", "--plugin", "simnpu_driver:SimDriver"]
    assert plugins.main(["digits", *driver, *properties, "--turns", "1", "-o", str(result)]) == 0
    printed = capsys.readouterr().out
    assert "digits: computed by ourselves: run: SimError: run fails on request" in printed
    assert re.search(
        r"^\| digits \| 9 of 10 \| 1 \| [\d.]+ \| [\d.]+ \| [\d.]+ \| \d\.\de-0[1-4] \|$", printed, re.MULTILINE
    )
    facts = json.loads(result.read_text())
    assert facts["version"] == "1.4 sim100 format 3"
    assert facts["rows"][0]["inside"] == 9


def test_a_device_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    registry.register_driver(SimDriver)
    monkeypatch.setattr(SimDriver, "missing", lambda self: "no SDK")
    assert plugins.main(["--device", "simnpu"]) == 1
    assert capsys.readouterr().out == "simnpu is not available: no SDK\n"


def test_operators_come_with_the_reasons_for_what_is_left() -> None:
    lines = plugins.operators(opened(), ["Exp", "Softmax", "Sin", "Loop"]).splitlines()
    assert lines[2:] == ["| `Exp` | all |  |", "| `Softmax` | some | Softmax is along the last axis, on f32 |"]


def test_the_operators_of_simnpu_are_those_of_its_page() -> None:
    shown = {line for line in PAGE.read_text().splitlines() if re.match(r"\| `\w+` \| (all|some) ", line)}
    names = {line.split("`")[1] for line in shown}
    some = sorted(names)[::4]  # a quarter of them: the cases of all take long to draw
    assert {line for line in shown if line.split("`")[1] in some} == set(
        plugins.operators(opened(), some).splitlines()[2:]
    )
    assert names >= OPERATORS.keys() - set(BYTES)


def test_an_installed_package_announces_its_driver(tmp_path: Path) -> None:
    """By the entry point that its pyproject.toml has, as pip would write it down."""
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    lines = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in made.items())
        for group, made in project["entry-points"].items()
    ]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (info / "entry_points.txt").write_text("".join(lines))
    code = "from bolt_numba.plugins.registry import driver as d; print(d('simnpu').vendor, not d('simnpu').missing())"
    path = os.pathsep.join(map(str, (tmp_path, FOLDER, ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "the bolt-numba authors True\n"


def test_the_plug_in_of_the_afternoon_is_short() -> None:
    files = {block.title: block.text for block in blocks(AFTERNOON.read_text()) if block.title}
    assert len(files["tape_driver.py"].splitlines()) + len(files["tape_sdk.py"].splitlines()) < 150
    assert len(re.search(r"^NAMES = (.*)$", files["tape_driver.py"], re.MULTILINE)[1].split(",")) == 5
