"""Rewrites of the graph, in stages."""
