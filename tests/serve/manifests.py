"""Says what Kubernetes and KServe do not know of a file of theirs; for the environment of KServe's package.

python tests/serve/manifests.py FILE
"""

import re
import sys
from pathlib import Path

import kserve.models
import kubernetes.client
import yaml


def unknown(given, kind, path):
    """Fields that a kind lacks.  kind: as KServe's models name it."""
    inner = re.fullmatch(r"(?:list\[|dict\(str, )(.+)[\])]", kind)
    if inner is not None and isinstance(given, list):
        return [line for i, x in enumerate(given) for line in unknown(x, inner[1], f"{path}[{i}]")]
    if inner is not None:
        return [line for key, x in given.items() for line in unknown(x, inner[1], f"{path}.{key}")]
    if (found := getattr(kserve.models, kind, None)) is not None:
        names = {key: name for name, key in found.attribute_map.items()}
        lost = [f"{path}: no field {key}" for key in given if key not in names]
        return lost + [
            line for key in given if key in names
            for line in unknown(given[key], found.openapi_types[names[key]], f"{path}.{key}")
        ]  # fmt: skip
    if (found := getattr(kubernetes.client, kind, None)) is not None:
        return differing(given, found.from_dict(given).model_dump(mode="json", by_alias=True), path)
    return []


def differing(given, kept, path):
    """Fields that are lost when an object is read and written."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [line for key in given for line in differing(given[key], kept.get(key), f"{path}.{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = enumerate(zip(given, kept, strict=True))
        return [line for i, pair in pairs for line in differing(*pair, f"{path}[{i}]")]
    return [] if given == kept else [f"{path}: {given!r} became {kept!r}"]


def main(file):
    for given in yaml.safe_load_all(file.read_text()):
        version = given["apiVersion"].rpartition("/")[2].capitalize()
        for line in unknown(given, version + given["kind"], given["kind"]):
            sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
