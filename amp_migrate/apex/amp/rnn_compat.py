"""The names of torch's RNN functions. Source: apex/amp/rnn_compat.py; autocast casts RNNs by itself."""

from __future__ import annotations

RNN_NAMES = ["rnn_relu", "rnn_tanh", "gru", "lstm"]


def has_old_rnns() -> bool:
    """Whether this torch has the RNN backend of torch 0.4: never on a torch with native AMP."""
    return False
