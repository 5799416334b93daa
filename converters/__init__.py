"""Readers and writers of model files: one folder per format, `formats` above them.  What formats share is beside them."""
