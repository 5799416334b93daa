"""What the SDK raises."""


class SimError(Exception):
    """Any failure of the device or its compiler."""


class UnsupportedError(SimError):
    """The chip lacks an operator, or an operand is beyond its limits."""


class BlobError(SimError):
    """Bytes that no compiler made, or that were damaged since."""


class VersionError(BlobError):
    """A blob of another chip or another version of the SDK."""


class MemoryFullError(SimError):
    """The memory of the device is full."""


class LostError(SimError):
    """The device does not answer any more."""
