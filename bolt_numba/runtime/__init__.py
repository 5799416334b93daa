"""Plan and run a graph."""
