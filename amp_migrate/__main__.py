"""``python -m amp_migrate``."""

import sys

from .cli import main

sys.exit(main())
