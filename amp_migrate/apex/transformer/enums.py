"""The enums of ``apex.transformer``.

Source: apex/transformer/enums.py.
"""

from __future__ import annotations

import enum

LayerType = enum.Enum("LayerType", ["encoder", "decoder"])
AttnType = enum.Enum("AttnType", ["self_attn", "cross_attn"])
AttnMaskType = enum.Enum("AttnMaskType", ["padding", "causal"])
ModelType = enum.Enum("ModelType", ["encoder_or_decoder", "encoder_and_decoder"])
