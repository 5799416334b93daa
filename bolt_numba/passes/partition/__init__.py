"""Parts of a graph for devices of plug-ins: marking, clusters, what a user wants where."""
