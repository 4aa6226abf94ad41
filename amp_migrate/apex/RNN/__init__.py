"""``apex.RNN``: recurrent networks from cells with named gates, in plain torch."""

from .models import GRU, LSTM, ReLU, Tanh, mLSTM

__all__ = ["GRU", "LSTM", "ReLU", "Tanh", "mLSTM"]
