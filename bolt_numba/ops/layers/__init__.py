"""Operators that are layers of networks: convolutions, products, attention, normalisation, quantised numbers."""
