"""TFLite files, those of LiteRT: FlatBuffers with a schema of their own."""
