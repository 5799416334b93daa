"""Graphs to ONNX files."""
