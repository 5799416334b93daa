"""A storm of requests while models change, by hand.

    python -m tests.serve.heavy 1000000

Every request has numbers of its own, so an answer that is lost, doubled or another's is seen; memory is looked at while
it runs.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import numpy as np

from bolt_numba.errors import BoltError
from bolt_numba.serve import ModelSettings, Repository, models
from bolt_numba.serve.models import RequestTerms
from tests.serve.serving import resident
from tests.small import softmax


async def storm(folder: Path, count: int) -> Counter[str]:
    """Requests of many clients with deadlines, cancels and errors, while the model is reloaded."""
    path = softmax(folder / "models" / "m" / "1" / "model.onnx")
    settings = ModelSettings(max_batch=8, max_wait_us=200, queue=64)
    repository = Repository(folder / "models", {}, settings)
    await repository.look()
    found, rng, left = Counter[str](), random.Random(count), count
    sizes: list[int] = []

    async def client(number: int) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            base = rng.random() * 10
            x = np.array([[0.0, base]], "f4")
            terms = RequestTerms({"timeout": 50 if rng.random() < 0.02 else 0, "priority": rng.randint(0, 3)})
            try:
                given = {"x": x if rng.random() < 0.98 else x.astype("f8")}
                run = asyncio.ensure_future(repository.find("m").infer(given, [], terms))
                if rng.random() < 0.02:
                    await asyncio.sleep(0)
                    run.cancel()
                made = (await run)["y"]
                wanted = 1 / (1 + np.exp(-base))
                assert abs(float(made[0, 1]) - wanted) < 1e-5, (made, base)
                found["ok"] += 1
            except asyncio.CancelledError:
                found["cancelled"] += 1
            except BoltError as error:
                found[type(error).__name__] += 1
                await asyncio.sleep(0.005)  # as who is told to come back later

    async def reload() -> None:
        while left > 0:
            await asyncio.sleep(0.5)
            models.QUICK_S = usual if found["reloads"] % 3 == 2 else 0.0  # with none, all requests go by the queue
            path.touch()
            await repository.load("m")
            found["reloads"] += 1
            sizes.append(resident())

    usual = models.QUICK_S
    with patch.object(models, "QUICK_S", 0.0):
        await asyncio.gather(*[client(i) for i in range(100)], reload())
        await repository.end(5)
    assert sum(found.values()) - found["reloads"] == count, found
    first, middle, last, most = (size >> 20 for size in (sizes[0], sizes[len(sizes) // 2], sizes[-1], max(sizes)))
    found[f"MiB in the beginning {first}, in the middle {middle}, at the end {last}, at most {most}"] += 1
    return found


def main(count: int) -> None:
    logging.getLogger("bolt_numba").setLevel(logging.ERROR)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(storm(Path(folder), count))
    for key, times in sorted(found.items()):
        sys.stdout.write(f"{times:9d} {key}\n")
    sys.stdout.write(f"{time.perf_counter() - begin:.0f} s\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
