"""Readers of onnxruntime's operators (domain com.microsoft)."""
