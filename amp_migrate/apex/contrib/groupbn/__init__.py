"""``apex.contrib.groupbn``: names that raise on use."""

from ..._name_only import fill

fill(__name__)
