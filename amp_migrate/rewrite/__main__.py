"""``python -m amp_migrate.rewrite``."""

from __future__ import annotations

import sys

from amp_migrate.rewrite.cli import main

if __name__ == "__main__":
    sys.exit(main())
