"""Paddle: programs of `framework.proto` and of PIR, with their weights."""
