"""Sessions of files with a plug-in's device: how they begin without their model, and are noted for that."""
