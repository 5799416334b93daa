"""Language models in GGUF files: container, families of decoders, tokenizers."""
