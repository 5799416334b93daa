"""Attention, the caches that it reads, rotary embeddings."""
