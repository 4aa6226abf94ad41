"""The one kind of warning that amp_migrate gives, so that users can filter it by category."""

from __future__ import annotations

import warnings


class MigrationNotice(UserWarning):
    """Something works, but not exactly as the program may expect: what, and what to do."""


_already_said: set[str] = set()


def notice_once(message: str) -> None:
    """Warn with :class:`MigrationNotice`, once per process and message."""
    if message not in _already_said:
        _already_said.add(message)
        warnings.warn(message, MigrationNotice, stacklevel=3)
