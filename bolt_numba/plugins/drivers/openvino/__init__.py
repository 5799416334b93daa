"""OpenVINO as a device: `device` opens it, `table` says what it gets."""
