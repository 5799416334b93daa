"""Attention, its cache of keys and values, and rotary embeddings."""
