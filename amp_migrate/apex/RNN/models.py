"""The networks by name.

Source: apex/RNN/models.py. They take (steps, batch, features) whatever ``batch_first`` says, as in Apex.
"""

from __future__ import annotations

from ...notices import notice_once
from .cells import GRUCell, LSTMCell, RNNReLUCell, RNNTanhCell, mLSTMCell, mLSTMRNNCell
from .RNNBackend import RNNCell, bidirectionalRNN, stackedRNN

__all__ = ["GRU", "LSTM", "ReLU", "Tanh", "bidirectionalRNN", "mLSTM", "mLSTMCell", "stackedRNN", "toRNNBackend"]


def toRNNBackend(
    inputRNN: RNNCell, num_layers: int, bidirectional: bool = False, dropout: float = 0
) -> stackedRNN | bidirectionalRNN:
    """Stack ``num_layers`` cells like ``inputRNN``, in one direction or in both."""
    stack = bidirectionalRNN if bidirectional else stackedRNN
    return stack(inputRNN, num_layers, dropout=dropout)


def _note_ignored(batch_first: bool, dropout: float) -> None:
    if batch_first or dropout:
        notice_once(
            "apex.RNN always took (steps, batch, features) and never applied dropout: batch_first and dropout have no "
            "effect. Use torch.nn.LSTM and its relatives for them."
        )


def LSTM(
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0,
    bidirectional: bool = False,
    output_size: int | None = None,
) -> stackedRNN | bidirectionalRNN:
    """An LSTM over (steps, batch, ``input_size``); ``output_size`` projects its output."""
    _note_ignored(batch_first, dropout)
    cell = RNNCell(4, input_size, hidden_size, LSTMCell, 2, bias, output_size)
    return toRNNBackend(cell, num_layers, bidirectional, dropout=dropout)


def GRU(
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0,
    bidirectional: bool = False,
    output_size: int | None = None,
) -> stackedRNN | bidirectionalRNN:
    """A GRU over (steps, batch, ``input_size``)."""
    _note_ignored(batch_first, dropout)
    cell = RNNCell(3, input_size, hidden_size, GRUCell, 1, bias, output_size)
    return toRNNBackend(cell, num_layers, bidirectional, dropout=dropout)


def ReLU(
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0,
    bidirectional: bool = False,
    output_size: int | None = None,
) -> stackedRNN | bidirectionalRNN:
    """A ReLU network over (steps, batch, ``input_size``); ``output_size`` projects its output."""
    _note_ignored(batch_first, dropout)
    cell = RNNCell(1, input_size, hidden_size, RNNReLUCell, 1, bias, output_size)
    return toRNNBackend(cell, num_layers, bidirectional, dropout=dropout)


def Tanh(
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0,
    bidirectional: bool = False,
    output_size: int | None = None,
) -> stackedRNN | bidirectionalRNN:
    """A tanh network over (steps, batch, ``input_size``); ``output_size`` projects its output."""
    _note_ignored(batch_first, dropout)
    cell = RNNCell(1, input_size, hidden_size, RNNTanhCell, 1, bias, output_size)
    return toRNNBackend(cell, num_layers, bidirectional, dropout=dropout)


def mLSTM(
    input_size: int,
    hidden_size: int,
    num_layers: int,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0,
    bidirectional: bool = False,
    output_size: int | None = None,
) -> stackedRNN | bidirectionalRNN:
    """A multiplicative LSTM over (steps, batch, ``input_size``); ``output_size`` projects its output."""
    _note_ignored(batch_first, dropout)
    cell = mLSTMRNNCell(input_size, hidden_size, bias=bias, output_size=output_size)
    return toRNNBackend(cell, num_layers, bidirectional, dropout=dropout)
