"""OpenVINO as a device: `device` opens it, `table` has a function for each operator, written in `nodes`."""
