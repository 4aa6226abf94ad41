"""Write ``docs/rules.md`` from the docstrings of the rules: ``python tests/rewrite/make_rules_page.py``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "rules.md"

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from amp_migrate.codemods.registry import rules_page

    PAGE.write_text(rules_page(), encoding="utf-8")
