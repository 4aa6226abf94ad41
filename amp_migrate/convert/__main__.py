"""``python -m amp_migrate.convert``."""

from __future__ import annotations

import sys

from amp_migrate.convert.command.main import main

if __name__ == "__main__":
    sys.exit(main())
