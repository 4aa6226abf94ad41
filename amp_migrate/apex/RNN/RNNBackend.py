"""Cells that keep their hidden state, stacks of them, and two stacks for both directions.

Source: apex/RNN/RNNBackend.py. Everything takes (steps, batch, features). As in Apex, ``dropout`` is kept, not applied.
"""

from __future__ import annotations

import math
from typing import Any, Callable, List, Sequence, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: without ``collect_hidden`` one (layers, batch, features) per hidden state, with it one per step and hidden state
Hiddens = List[Union[Tensor, List[Tensor]]]


def is_iterable(maybe_iterable: Any) -> bool:
    """Whether it is a list or a tuple."""
    return isinstance(maybe_iterable, (list, tuple))


def flatten_list(tens_list: Any) -> Any:
    """Stack a list of tensors along a new first dimension; return anything else as it is."""
    return torch.stack(tuple(tens_list)) if is_iterable(tens_list) else tens_list


class RNNCell(nn.Module):
    """A recurrent cell that keeps its hidden states between calls.

    Args:
        gate_multiplier: gates: 4 for an LSTM, 3 for a GRU, 1 for the others.
        input_size, hidden_size: features.
        cell: computes the next hidden states, such as ``cells.LSTMCell``.
        n_hidden_states: 2 for an LSTM, else 1.
        bias: whether there are ``b_ih`` and ``b_hh``.
        output_size: features of the output if not ``hidden_size``; then ``w_ho`` projects it.
    """

    def __init__(
        self,
        gate_multiplier: int,
        input_size: int,
        hidden_size: int,
        cell: Callable[..., Any],
        n_hidden_states: int = 2,
        bias: bool = False,
        output_size: int | None = None,
    ) -> None:
        super().__init__()
        self.gate_multiplier = gate_multiplier
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.cell = cell
        self.bias = bias
        self.output_size = hidden_size if output_size is None else output_size
        self.gate_size = gate_multiplier * hidden_size
        self.n_hidden_states = n_hidden_states
        self.w_ih = nn.Parameter(torch.empty(self.gate_size, self.input_size))
        self.w_hh = nn.Parameter(torch.empty(self.gate_size, self.output_size))
        if self.output_size != self.hidden_size:
            self.w_ho = nn.Parameter(torch.empty(self.output_size, self.hidden_size))
        self.b_ih: Any = nn.Parameter(torch.empty(self.gate_size)) if bias else None
        self.b_hh: Any = nn.Parameter(torch.empty(self.gate_size)) if bias else None
        self.hidden: list[Any] = [None] * n_hidden_states
        self.reset_parameters()

    def new_like(self, new_input_size: int | None = None) -> RNNCell:
        """A fresh cell of the same sizes, but for the input's if given."""
        size = self.input_size if new_input_size is None else new_input_size
        return type(self)(
            self.gate_multiplier,
            size,
            self.hidden_size,
            self.cell,
            self.n_hidden_states,
            self.bias,
            self.output_size,
        )

    def reset_parameters(self, gain: float = 1) -> None:
        """Draw all parameters uniformly within 1/sqrt(hidden_size) of 0 (``gain`` is ignored, as in Apex)."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for param in self.parameters():
            param.data.uniform_(-bound, bound)

    def init_hidden(self, bsz: int) -> None:
        """Zero the hidden states where there are none, or where they are for another batch size."""
        for index, hidden in enumerate(self.hidden):
            if hidden is None or hidden.size(0) != bsz:
                size = self.output_size if index == 0 else self.hidden_size
                self.hidden[index] = self.w_ih.data.new_zeros(bsz, size)

    def reset_hidden(self, bsz: int) -> None:
        """Zero the hidden states."""
        self.hidden = [None] * self.n_hidden_states
        self.init_hidden(bsz)

    def detach_hidden(self) -> None:
        """Cut the hidden states from the graph: backward stops there.

        Raises:
            RuntimeError: if there are none yet.
        """
        if any(hidden is None for hidden in self.hidden):
            raise RuntimeError("There is no hidden state to detach: call init_hidden(batch size) or the network first.")
        self.hidden = [hidden.detach() for hidden in self.hidden]

    def init_inference(self, bsz: int) -> None:
        """Zero the hidden states (in Apex the stacks have this method, and the cells lack it)."""
        self.reset_hidden(bsz)

    def _weights(self) -> tuple[Any, ...]:
        """What the cell function takes after input and hidden states."""
        return self.w_ih, self.w_hh

    def forward(self, input: Tensor) -> tuple[Tensor, ...]:
        """One step: ``input`` (batch, in) to the hidden states, the output first."""
        self.init_hidden(input.size(0))
        before = self.hidden[0] if self.n_hidden_states == 1 else self.hidden
        after = self.cell(input, before, *self._weights(), b_ih=self.b_ih, b_hh=self.b_hh)
        self.hidden = [after] if self.n_hidden_states == 1 else list(after)
        if self.output_size != self.hidden_size:
            self.hidden[0] = F.linear(self.hidden[0], self.w_ho)
        return tuple(self.hidden)


class _Group(nn.Module):
    """Passes calls about hidden states and parameters on to its members."""

    rnns: nn.ModuleList

    def _each(self, method: str, *args: Any) -> None:
        for rnn in self.rnns:
            getattr(rnn, method)(*args)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        self._each("reset_parameters")

    def init_hidden(self, bsz: int) -> None:
        """Zero the hidden states where there are none for this batch size."""
        self._each("init_hidden", bsz)

    def detach_hidden(self) -> None:
        """Cut the hidden states from the graph."""
        self._each("detach_hidden")

    def reset_hidden(self, bsz: int) -> None:
        """Zero the hidden states."""
        self._each("reset_hidden", bsz)

    def init_inference(self, bsz: int) -> None:
        """Zero the hidden states."""
        self._each("init_inference", bsz)


class stackedRNN(_Group):
    """Layers of cells.

    Args:
        inputRNN: the first cell, the others being made like it; or a list with a cell for each layer.
        num_layers: layers.
        dropout: kept, not applied.

    Raises:
        RuntimeError: if ``inputRNN`` is neither.
    """

    def __init__(self, inputRNN: RNNCell | list[RNNCell], num_layers: int = 1, dropout: float = 0) -> None:
        super().__init__()
        self.dropout = dropout
        if isinstance(inputRNN, RNNCell):
            others = [inputRNN.new_like(inputRNN.output_size) for _ in range(num_layers - 1)]
            cells = [inputRNN, *others]
        elif isinstance(inputRNN, list):
            assert len(inputRNN) == num_layers, f"{len(inputRNN)} cells for num_layers={num_layers}: give one for each."
            cells = inputRNN
        else:
            raise RuntimeError(f"stackedRNN takes an RNNCell or a list of them, not {type(inputRNN).__name__}.")
        self.nLayers = len(cells)
        self.rnns = nn.ModuleList(cells)

    def forward(self, input: Tensor, collect_hidden: bool = False, reverse: bool = False) -> tuple[Tensor, Hiddens]:
        """Run ``input`` (steps, batch, in); hidden states carry over from the last call.

        Returns:
            The outputs (steps, batch, out), and for each hidden state (layers, batch, features) at the last step, or
            a list with that of every step if ``collect_hidden``. With ``reverse`` the steps run backwards; the
            states then are those at the last step too, the first one run, as in Apex.
        """
        steps = range(input.size(0))
        outputs: dict[int, Tensor] = {}
        states: dict[int, list[tuple[Tensor, ...]]] = {}
        for step in reversed(steps) if reverse else steps:
            out = input[step]
            states[step] = []
            for cell in self.rnns:
                hidden = cell(out)
                states[step].append(hidden)
                out = hidden[0]
            outputs[step] = out
        kept = steps if collect_hidden else steps[-1:]
        first: Any = self.rnns[0]
        per_state = [
            [torch.stack([layer[index] for layer in states[step]]) for step in kept]
            for index in range(first.n_hidden_states)
        ]
        hiddens: Hiddens = list(per_state) if collect_hidden else [steps_of[0] for steps_of in per_state]
        return torch.stack([outputs[step] for step in steps]), hiddens


class bidirectionalRNN(_Group):
    """A stack in each direction, ``fwd`` and ``bckwrd``, with their features side by side.

    Args:
        inputRNN: the first cell of the forward stack.
        num_layers: layers of each stack.
        dropout: kept, not applied.
    """

    def __init__(self, inputRNN: RNNCell, num_layers: int = 1, dropout: float = 0) -> None:
        super().__init__()
        self.dropout = dropout
        self.fwd = stackedRNN(inputRNN, num_layers=num_layers, dropout=dropout)
        self.bckwrd = stackedRNN(inputRNN.new_like(), num_layers=num_layers, dropout=dropout)
        self.rnns = nn.ModuleList([self.fwd, self.bckwrd])

    def forward(self, input: Tensor, collect_hidden: bool = False) -> tuple[Tensor, tuple[Any, ...]]:
        """Run ``input`` (steps, batch, in) both ways: outputs (steps, batch, 2 out), hidden states joined likewise."""
        outputs, hiddens = self.fwd(input, collect_hidden=collect_hidden)
        back_outputs, back_hiddens = self.bckwrd(input, reverse=True, collect_hidden=collect_hidden)
        joined = tuple(_side_by_side(pair) for pair in zip(hiddens, back_hiddens))
        return torch.cat([outputs, back_outputs], -1), joined


def _side_by_side(pair: Sequence[Any]) -> Any:
    forward, backward = pair
    if isinstance(forward, Tensor):
        return torch.cat([forward, backward], -1)
    return [torch.cat(steps, -1) for steps in zip(forward, backward)]
