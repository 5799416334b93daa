"""Operators as OpenVINO's nodes, by family.  Importing these modules needs no OpenVINO."""
