"""Operators as functions of jax.numpy and jax.lax, by family.  Importing these modules needs no JAX."""
