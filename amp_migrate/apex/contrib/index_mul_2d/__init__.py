"""``apex.contrib.index_mul_2d``: names that raise on use."""

from ..._name_only import fill

fill(__name__)
