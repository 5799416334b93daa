"""Images: pools, resizing, sampling, regions, boxes."""
