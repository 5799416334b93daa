"""TFLite files to graphs."""
