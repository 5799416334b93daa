"""Readers of TFLite's operators, by family; importing a module registers those in it."""
