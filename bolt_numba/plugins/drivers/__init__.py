"""Drivers of SDKs that pip installs.  Each is an extra of its own, and importing its module needs no SDK."""
