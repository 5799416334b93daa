"""Modules under the names that onnxruntime's compiled part has."""
