"""``apex.contrib.focal_loss`` in plain torch. As in Apex, the name ``focal_loss`` here is the module."""

from . import focal_loss

__all__ = ["focal_loss"]
