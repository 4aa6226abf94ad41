"""``apex.contrib.conv_bias_relu``: names that raise on use."""

from ..._name_only import fill

fill(__name__)
