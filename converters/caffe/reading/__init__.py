"""Caffe's nets read: layers in order, one function each."""
