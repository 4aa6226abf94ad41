"""One step of each recurrent network, as functions, and the mLSTM cell.

Source: apex/RNN/cells.py, and torch/nn/_functions/rnn.py of torch 0.4, which Apex took the others from.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .RNNBackend import RNNCell


def RNNReLUCell(
    input: Tensor, hidden: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """One step of a ReLU network: ``input`` (batch, in) and ``hidden`` (batch, out) to the next hidden state."""
    return torch.relu(F.linear(input, w_ih, b_ih) + F.linear(hidden, w_hh, b_hh))


def RNNTanhCell(
    input: Tensor, hidden: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """One step of a tanh network: ``input`` (batch, in) and ``hidden`` (batch, out) to the next hidden state."""
    return torch.tanh(F.linear(input, w_ih, b_ih) + F.linear(hidden, w_hh, b_hh))


def GRUCell(
    input: Tensor, hidden: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """One step of a GRU; the rows of the weights are the gates reset, update, new."""
    i_reset, i_update, i_new = F.linear(input, w_ih, b_ih).chunk(3, 1)
    h_reset, h_update, h_new = F.linear(hidden, w_hh, b_hh).chunk(3, 1)
    new = torch.tanh(i_new + torch.sigmoid(i_reset + h_reset) * h_new)
    return new + torch.sigmoid(i_update + h_update) * (hidden - new)


def LSTMCell(
    input: Tensor,
    hidden: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of an LSTM; the rows of the weights are the gates input, forget, cell, output."""
    return _lstm_step(F.linear(input, w_ih, b_ih) + F.linear(hidden[0], w_hh, b_hh), hidden[1])


def mLSTMCell(
    input: Tensor,
    hidden: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    w_mih: Tensor,
    w_mhh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of a multiplicative LSTM: the gates see input times hidden state instead of the hidden state."""
    mixed = F.linear(input, w_mih) * F.linear(hidden[0], w_mhh)
    return _lstm_step(F.linear(input, w_ih, b_ih) + F.linear(mixed, w_hh, b_hh), hidden[1])


def _lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    entry, forget, new, output = gates.chunk(4, 1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(entry) * torch.tanh(new)
    return torch.sigmoid(output) * torch.tanh(cell), cell


class mLSTMRNNCell(RNNCell):
    """The mLSTM cell: :class:`RNNCell` with ``w_mih`` (out, in) and ``w_mhh`` (out, out) besides."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = False, output_size: int | None = None) -> None:
        super().__init__(4, input_size, hidden_size, mLSTMCell, 2, bias, output_size)
        self.w_mih = nn.Parameter(torch.empty(self.output_size, self.input_size))
        self.w_mhh = nn.Parameter(torch.empty(self.output_size, self.output_size))
        self.reset_parameters()

    def _weights(self) -> tuple[Any, ...]:
        return self.w_ih, self.w_hh, self.w_mih, self.w_mhh

    def new_like(self, new_input_size: int | None = None) -> mLSTMRNNCell:
        """A fresh cell of the same sizes, but for the input's if given."""
        size = self.input_size if new_input_size is None else new_input_size
        return type(self)(size, self.hidden_size, self.bias, self.output_size)
