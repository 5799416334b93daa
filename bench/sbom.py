"""A bill of materials for each wheel (CycloneDX, in ``*.dist-info/sboms`` as PEP 770 says).

Wheels hold no code of others.  So the bill names what pip installs beside them, and what compiled their machine code.
``python -m bench.sbom dist/*.whl`` checks the bills of wheels; it needs cyclonedx-python-lib.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "sboms/bolt_numba.cdx.json"
"""Where a wheel keeps its bill, below its ``.dist-info``."""
_REQUIREMENT = re.compile(r"(?m)^Requires-Dist: ([\w.-]+)\s*([^;\n]*)$")


def _external(name: str, versions: str) -> dict[str, Any]:
    """A package that pip installs: ``("numba", "<0.69,>=0.62")``."""
    bounds = sorted(versions.split(","), key=lambda bound: bound.startswith("<"))  # the lower one first
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}"
    found = {"type": "library", "name": name, "bom-ref": purl, "purl": purl, "isExternal": True}
    return found | {"versionRange": f"vers:pypi/{'|'.join(bounds)}"}


def sbom(metadata: str, compilers: Mapping[str, str] | None = None) -> str:
    """The bill of a wheel.  metadata: its METADATA; compilers: versions by name, where it carries machine code."""
    name, version = (re.search(rf"(?m)^{field}: (.*)$", metadata)[1] for field in ("Name", "Version"))  # type: ignore[index]
    purl = f"pkg:pypi/{name}@{version}"
    needed = [_external(*found) for found in _REQUIREMENT.findall(metadata.partition("\n\n")[0])]
    own = {"type": "library", "name": name, "version": version, "bom-ref": purl, "purl": purl}
    about: dict[str, Any] = {"component": own | {"licenses": [{"license": {"id": "MIT"}}]}}
    if compilers:
        tools = [{"type": "library", "name": n, "version": v} for n, v in compilers.items()]
        about |= {"tools": {"components": tools}}
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, purl)}",  # equal content, equal wheel
        "version": 1,
        "metadata": about,
        "components": needed,
        "dependencies": [{"ref": purl, "dependsOn": [each["bom-ref"] for each in needed]}],
    }
    return json.dumps(bill, indent=1) + "\n"


def main() -> None:
    """Check wheels: each has a bill that the schema of CycloneDX accepts."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    for wheel in map(Path, sys.argv[1:]):
        with zipfile.ZipFile(wheel) as content:
            bills = [name for name in content.namelist() if re.fullmatch(rf"[^/]+\.dist-info/{NAME}", name)]
            wrong = [JsonStrictValidator(SchemaVersion.V1_7).validate_str(content.read(n).decode()) for n in bills]
        if wrong != [None]:
            sys.exit(f"{wheel.name}: bill of materials: got {wrong}, wanted one without faults")
        sys.stdout.write(f"{wheel.name}: {bills[0]} is well-formed\n")


if __name__ == "__main__":
    main()
