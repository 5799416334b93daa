"""Operators whose data are strings, sequences, dictionaries or pictures, and decision trees."""
