"""Files of examples/serve: schemas of clusters and systemd know them, a server has what they ask for, the demo runs."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import typer

from bolt_numba.cli.app import app
from tests.serve.serving import running
from tests.serve.test_adapters import FOLDER, ROOT, python_with
from tests.small import add

CLUSTER = ("kserve.yaml", "kubernetes.yaml")
SERVICE = FOLDER / "bolt-numba.service"
PROGRAM = "/opt/bolt-numba/bin/bolt-numba"
PATH = re.compile(r"/(?:v2/[\w/]+|metrics)")
GRACE_S = 30
"""What requests under way get where nothing else is said."""


def containers(given: Any) -> Iterator[dict[str, Any]]:
    """All containers of a document."""
    if isinstance(given, dict):
        yield from given.get("containers", ())
        for value in given.values():
            yield from containers(value)


def options(words: list[str]) -> dict[str, str]:
    """Options of a command line of the server.  Each must be one that it has."""
    whole: Any = typer.main.get_command(app)
    known = {option for parameter in whole.commands["serve"].params for option in parameter.opts}
    assert words[0].rpartition("/")[2] == "bolt-numba"
    assert words[1] == "serve"
    found = dict(zip(words[3::2], words[4::2], strict=True))
    assert found.keys() <= known
    return found


@pytest.mark.parametrize("name", CLUSTER)
def test_clusters_know_every_field(name: str) -> None:
    script = Path(__file__).with_name("manifests.py")
    command = [python_with("kserve"), script, FOLDER / name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ""


@pytest.mark.parametrize("name", CLUSTER)
def test_probes_ask_the_ports_that_the_server_gets(name: str) -> None:
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    documents = list(yaml.safe_load_all((FOLDER / name).read_text()))
    (container,) = (found for document in documents for found in containers(document))
    ports = options([*container.get("command", ()), *container["args"]])
    assert ports["--host"] == "0.0.0.0"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert str(container[probe]["httpGet"]["port"]) == ports["--http-port"]
    assert str(container["ports"][0]["containerPort"]) == ports["--http-port"]
    noted = documents[0]["spec"]
    notes = noted.get("annotations") or noted["template"]["metadata"]["annotations"]
    assert ports["--http-port"] in notes.values()
    security = container["securityContext"]
    assert security["runAsNonRoot"]
    assert security["readOnlyRootFilesystem"]


def test_a_server_has_all_paths_that_are_asked_for(tmp_path: Path) -> None:
    add(tmp_path / "served" / "sum" / "1" / "model.onnx")
    asked = {path for file in FOLDER.iterdir() if file.suffix != ".py" for path in PATH.findall(file.read_text())}
    assert asked == {"/v2/health/live", "/v2/health/ready", "/metrics"}
    with running(tmp_path / "served") as server:
        for path in asked:
            with urlopen(f"http://{server.http}{path}", timeout=60) as answer:
                assert answer.status == 200


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / SERVICE.name
    unit.write_text(SERVICE.read_text().replace(PROGRAM, sys.executable))
    done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_unit_waits_for_the_grace_and_lets_kernels_be_loaded() -> None:
    text = SERVICE.read_text()
    command = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
    stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert command is not None
    assert stop is not None
    assert "--grpc-port" in options(shlex.split(command[1]))
    assert int(stop[1]) > GRACE_S
    assert not re.search(r"^(MemoryDenyWriteExecute|ProcSubset)=", text, re.MULTILINE)


def test_the_demo_serves_and_ends() -> None:
    """`make serve-demo`: a server begins, answers, tells its counts, and ends."""
    if (found := importlib.util.find_spec("magika")) is None or found.origin is None:
        pytest.skip("magika is not installed")
    folder = Path(found.origin).parent / "models" / "standard_v3_3"
    command = [sys.executable, FOLDER / "demo.py", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for line in ("a script: python", "a page: html", "a program: c", 'outcome="ok",version="1"} 3.0', "ended with 0."):
        assert line in done.stdout
