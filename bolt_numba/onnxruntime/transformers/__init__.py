"""The one helper of onnxruntime.transformers that clients of sessions use; the rest rewrites model files."""
