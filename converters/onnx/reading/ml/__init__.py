"""Readers of classical learning (domain ai.onnx.ml)."""
