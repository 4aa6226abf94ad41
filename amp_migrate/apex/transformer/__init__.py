"""``apex.transformer``: names that raise on use, and the enums, which programs need while they are imported."""

from .._name_only import fill
from .enums import AttnMaskType, AttnType, LayerType, ModelType

fill(__name__)

__all__ = ["AttnMaskType", "AttnType", "LayerType", "ModelType"]
