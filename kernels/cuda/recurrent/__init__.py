"""Recurrent layers on NVIDIA GPUs: LSTM, GRU, RNN."""
