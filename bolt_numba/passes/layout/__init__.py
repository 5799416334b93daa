"""Channels last, and where transposes stand."""
