"""Hear in several streams of sound at once when somebody speaks: a Flow with a state for each stream.

    python examples/speech_flow.py [RECORDING.wav ...]        # 16,000 samples a second, 16 bits, one channel

The network is Silero VAD of the package silero-vad 6.2.3 (MIT), which hears 32 ms of sound at a time.  Without
recordings one of the package useful-moonshine-onnx is fetched, and taken by three microphones at different times.
Pieces of all streams come by turns, as from microphones; each stream remembers what it has heard.
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from model_files import file_of

from bolt_numba.flow import Flow, FlowError, State

RATE, PIECE, BEFORE = 16000, 512, 64
MODEL = (
    "silero-vad==6.2.3", "silero_vad/data/silero_vad.onnx",
    "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
)  # fmt: skip
VOICE = (
    "useful-moonshine-onnx==20251121", "moonshine_onnx/assets/beckett.wav",
    "e5a26b3d29e5b0bc8dbd72c11d16a3808a4ec0ac45b21f12a27d2a2fe5c5ae61",
)  # fmt: skip
SPEECH, SILENCE, QUIET_PIECES = 0.5, 0.35, 6
"""Speech begins where it is likelier than the first, and ends where so many pieces are below the second."""

Floats = npt.NDArray[np.float32]


class Listener:
    """What is known of one stream: how many pieces came, when speech began, and for how long it is quiet.

    Nothing of it changes: each piece makes another, so that a task that fails leaves the last one.
    """

    def __init__(self, pieces: int = 0, begin: int | None = None, quiet: int = 0) -> None:
        self.pieces, self.begin, self.quiet = pieces, begin, quiet

    def hear(self, p: float) -> tuple[tuple[float, float] | None, Listener]:
        """Begin and end of speech in seconds, once its end is certain, and what is known then."""
        begin = self.pieces if self.begin is None and p > SPEECH else self.begin
        quiet = self.quiet + 1 if p < SILENCE else 0
        if begin is not None and quiet == QUIET_PIECES:
            second = PIECE / RATE
            spoken = begin * second, (self.pieces + 1 - quiet) * second
            return spoken, Listener(self.pieces + 1, None, quiet)
        return None, Listener(self.pieces + 1, begin, quiet)


def with_before(samples: Floats, before: Floats) -> tuple[Floats, Floats]:
    """What the network takes, [1, 576], and the samples that stand before the next piece."""
    return np.concatenate([before, samples])[None], samples[-BEFORE:]


def heard(probability: Floats, listener: Listener) -> tuple[tuple[float, float] | None, Listener]:
    return listener.hear(float(probability[0, 0]))


def detector(**options: Any) -> Flow:
    """A flow from 512 samples of a stream to how likely they are speech, and (begin, end) where speech has ended."""
    flow = Flow("speech", inputs={"samples": f"f32[{PIECE}]"}, outputs=["probability", "spoken"], **options)
    flow.function(with_before, "samples", "sound", states={"before": State("before", np.zeros(BEFORE, np.float32))})
    state = State("stateN", np.zeros((2, 1, 128), np.float32))
    flow.model(
        file_of(*MODEL), {"input": "sound"}, {"output": "probability"}, name="silero", threads=1,
        states={"state": state}, fixed={"sr": np.int64(RATE)},
    )  # fmt: skip
    return flow.function(heard, "probability", "spoken", states={"listener": State("listener", Listener())})


def pieces(path: Path) -> Iterator[Floats]:
    """A recording, 512 samples at a time, from -1 to 1.  Ends the program at once for one of another kind."""
    with wave.open(str(path)) as file:
        if (file.getframerate(), file.getsampwidth(), file.getnchannels()) != (RATE, 2, 1):
            raise SystemExit(f"{path}: wanted {RATE} samples a second, 16 bits, one channel")
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    return iter(samples[: len(samples) // PIECE * PIECE].reshape(-1, PIECE))


def microphones() -> dict[str, Iterator[Floats]]:
    """One voice, heard by three microphones after 0, 1 and 2 seconds, further away each time."""
    voice, silence = list(pieces(file_of(*VOICE))), [np.zeros(PIECE, np.float32)] * (RATE // PIECE)
    return {f"microphone {i + 1}": iter(silence * i + [x / (1 + i) for x in voice]) for i in range(3)}


def feed(flow: Flow, streams: dict[str, Iterator[Floats]]) -> None:
    """Piece by piece of all streams by turns, until all have ended."""
    try:
        for turn in itertools.zip_longest(*streams.values()):
            for name, samples in zip(streams, turn, strict=True):
                if samples is not None:
                    flow.enqueue(samples=samples, stream=name)
    except FlowError:  # it is closed
        return
    finally:
        flow.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="*", type=Path)
    options = parser.parse_args()
    streams = {str(path): pieces(path) for path in options.recordings} or microphones()
    with detector() as flow:
        start = time.perf_counter()
        threading.Thread(target=feed, args=(flow, streams)).start()
        count = 0
        for task in flow:
            count += 1
            if (spoken := task.result()["spoken"]) is not None:
                print(f"{task.stream}: {spoken[0]:5.2f} to {spoken[1]:5.2f} s")
        spent = time.perf_counter() - start
        print(f"\n{count * PIECE / RATE:.0f} s of sound in {spent:.2f} s\n{flow.statistics().table()}")


if __name__ == "__main__":
    main()
