"""The command line: one module per group of commands, over the public API only."""
