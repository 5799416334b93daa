"""Readers of the operators of the domains ai.onnx and ai.onnx.preview.training."""
