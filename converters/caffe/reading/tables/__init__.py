"""Readers of Caffe's layers, by family."""
