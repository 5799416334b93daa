"""The typed graph: data, builder, verifier, interpreter, file."""
