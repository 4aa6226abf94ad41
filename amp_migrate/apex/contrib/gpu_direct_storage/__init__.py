"""``apex.contrib.gpu_direct_storage``: names that raise on use."""

from ..._name_only import fill

fill(__name__)
