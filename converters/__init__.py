"""Readers and writers of model files: one folder per format, and `formats` above.  What they share is beside them."""
