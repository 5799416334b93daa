"""Readers of recurrent layers."""

from __future__ import annotations

from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.onnx.reading.registry import add_reader
from bolt_numba.ops.layers.recurrent import GRU, LSTM, RNN

STATES = "x w r bias? sequence_lens? initial_h?"

add_reader("LSTM", AsIs(LSTM, f"{STATES} initial_c? peepholes?", {"output_sequence": 0}))
add_reader("GRU", AsIs(GRU, STATES, {"output_sequence": 0}))
add_reader("RNN", AsIs(RNN, STATES, {"output_sequence": 0}))
