"""Images: pools, resizing, sampling, regions of interest, boxes."""
