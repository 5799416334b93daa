"""Attack the engine at length.

    python -m tests.attack operands [--count 100000] [--seed 0] [NAME ...]
    python -m tests.attack models   [--count 100000] [--seed 0]
    python -m tests.attack files    [--count 100000] [--seed 0] [FILE ...]
    python -m tests.attack documents [--count 100000] [--seed 0]
    python -m tests.attack formats  [--count 100000] [--seed 0] [tflite|caffe|paddle ...]
    python -m tests.attack texts    [--count 100000] [--seed 0] [gguf|spelling|prompts ...]

``operands`` spoils the operands of every operator; ``models`` alters the structure of models and compares what runs
with onnxruntime's; ``files`` damages bytes; ``documents`` changes what .bolt files say; ``formats`` damages files of
TFLite, Caffe and Paddle; ``texts`` alters files of GGUF, tokenizers, templates, and what generators are asked for.
A case is good when it is refused by a BoltError or runs right: no signal, nothing over 10 s
or 2 GiB, no other exception.  A number makes a case again: ``--seed N --count 1``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.attack import documents, files, formats, models, operands, texts
from tests.attack.child import serve, summary, tell_of_compiles

KINDS = {
    "operands": operands, "models": models, "files": files, "documents": documents, "formats": formats, "texts": texts
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=KINDS)
    parser.add_argument("only", nargs="*", metavar="NAME", help="operators, or files, to attack; else all")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        tell_of_compiles()
        serve(*KINDS[options.what].prepare(options.work))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "operands":
            results = operands.attack_operands(options.count, options.seed, options.only)
        elif options.what == "models":
            results = models.attack_models(options.count, options.seed)
        elif options.what == "documents":
            results = documents.attack_documents(Path(folder), options.count, options.seed)
        elif options.what == "texts":
            results = texts.attack_texts(options.count, options.seed, options.only)
        elif options.what == "formats":
            results = formats.attack_formats(options.count, options.seed, options.only)
        else:
            chosen = [Path(name) for name in options.only] or files.default_files(Path(folder))
            results = files.attack_files(chosen, options.count, options.seed)
        return int(summary(results, write) > 0)


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
