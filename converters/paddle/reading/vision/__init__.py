"""Readers of operators on images: boxes, regions, resampling."""
