"""JAX as a device: graphs as functions that XLA compiles."""
