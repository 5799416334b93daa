"""Caffe: a net as text (prototxt), its weights in a binary file (caffemodel)."""
