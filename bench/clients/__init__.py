"""Packages that use onnxruntime, unmodified, with the drop-in in its place: same results, and how fast."""
