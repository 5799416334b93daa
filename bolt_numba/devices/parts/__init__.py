"""Plug-ins as devices of a session: they run the operators that hold a part of the graph, or we do in their place."""
