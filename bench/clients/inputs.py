"""Inputs of the scenarios, made in code: a page of text, a picture, a sound. The same on every machine."""

from __future__ import annotations

import numpy as np

LINES = (
    "Neural networks in Python",
    "Invoice No. 2026-1123",
    "Total amount: 1,024.50 EUR",
    "The quick brown fox jumps",
    "over the lazy dog",
    "Thank you for your visit",
)


def page(width=640, height=480, lines=LINES, size=32):
    """A page of printed lines, u8 [height, width, 3]."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size)
    for i, line in enumerate(lines):
        draw.text((40, 30 + i * int(size * 2.2)), line, fill="black", font=font)
    return np.asarray(image).copy()


def word(text="K7PX", width=160, height=60, size=36):
    """A short word on a shaded ground with strokes over it, u8 [height, width, 3]."""
    from PIL import Image, ImageDraw, ImageFont

    shade = np.linspace(200, 250, width).astype(np.uint8)
    image = Image.fromarray(np.repeat(np.repeat(shade[None, :, None], height, 0), 3, 2))
    draw = ImageDraw.Draw(image)
    draw.text((20, 6), text, fill=(30, 40, 90), font=ImageFont.load_default(size))
    draw.line((5, height - 12, width - 5, 14), fill=(120, 120, 160), width=1)
    return np.asarray(image).copy()


def photo(width=640, height=480, seed=0):
    """Smooth shades with discs, rectangles, and noise over them, u8 [height, width, 3]."""
    from PIL import Image, ImageDraw

    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    ground = np.stack([128 + 90 * np.sin(x / 97 + k) * np.cos(y / 71 - k) for k in range(3)], axis=2)
    image = Image.fromarray(ground.astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for k in range(12):
        left, top = int(random.integers(0, width - 80)), int(random.integers(0, height - 80))
        colour = tuple(int(c) for c in random.integers(0, 256, 3))
        shape = draw.ellipse if k % 2 else draw.rectangle
        shape((left, top, left + int(random.integers(20, 80)), top + int(random.integers(20, 80))), fill=colour)
    return np.clip(np.asarray(image) + random.normal(0, 6, (height, width, 3)), 0, 255).astype(np.uint8)


def voice(seconds=6.0, rate=16000, seed=0):
    """A voice-like sound with pauses, f32 [seconds * rate] in -1..1: a buzz through three moving resonances."""
    random = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    pitch = 120 + 25 * np.sin(2 * np.pi * 0.7 * t) + 6 * np.sin(2 * np.pi * 5 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    sound = np.zeros_like(t)
    for harmonic in range(1, 30):
        frequency = harmonic * pitch
        weight = sum(
            gain * np.exp(-(((frequency - centre * (1 + 0.25 * np.sin(2 * np.pi * 2.1 * t + centre))) / 130) ** 2))
            for centre, gain in ((550.0, 1.0), (1500.0, 0.5), (2500.0, 0.25))
        )
        sound += (weight + 0.02) * np.sin(harmonic * phase)
    speaks = (np.sin(2 * np.pi * t / 2.5) > -0.3) * (0.6 + 0.4 * np.abs(np.sin(2 * np.pi * 2.3 * t)))
    sound = sound * speaks + random.normal(0, 0.003, t.shape)
    return (0.5 * sound / np.abs(sound).max()).astype(np.float32)


def portrait(width=640, height=480):
    """A drawn head and shoulders, softened, u8 [height, width, 3]."""
    from PIL import Image, ImageDraw, ImageFilter

    image = Image.new("RGB", (width, height), (90, 120, 150))
    draw = ImageDraw.Draw(image)
    x, y, r = width // 2, int(height * 0.42), height * 0.24

    def oval(dx, dy, rx, ry, fill):
        draw.ellipse((x + (dx - rx) * r, y + (dy - ry) * r, x + (dx + rx) * r, y + (dy + ry) * r), fill=fill)

    skin, dark = (222, 178, 150), (60, 40, 30)
    oval(0, 2.3, 1.9, 1.0, (70, 60, 110))
    oval(0, 1.2, 0.35, 0.5, (205, 160, 132))
    oval(0, -0.15, 0.92, 1.15, dark)
    oval(0, 0.05, 0.78, 1.0, skin)
    for side in (-1, 1):
        oval(side * 0.32, -0.1, 0.17, 0.09, (245, 245, 245))
        oval(side * 0.32, -0.1, 0.08, 0.09, (50, 80, 60))
        oval(side * 0.32, -0.3, 0.2, 0.04, dark)
        oval(side * 0.8, 0.05, 0.1, 0.2, (205, 160, 132))
    oval(0, 0.2, 0.1, 0.16, (205, 155, 130))
    oval(0, 0.52, 0.27, 0.09, (170, 80, 80))
    return np.asarray(image.filter(ImageFilter.GaussianBlur(height / 240))).copy()
