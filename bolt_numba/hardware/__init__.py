"""Plug-ins: devices whose makers give a compiler for graphs.  A driver brings one in.

`interface` says what a driver owes, `registry` finds drivers; docs/hardware tells the way from nothing to a device.
"""
