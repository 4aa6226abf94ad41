"""``amp-migrate VERB``: the same as ``python -m amp_migrate.VERB``."""

from __future__ import annotations

import importlib
import importlib.util
import sys

#: verb → its one-line summary; the module is ``amp_migrate.<verb>``
VERBS = {
    "run": "run a program that imports apex on native AMP, without changing it",
    "rewrite": "rewrite source files",
    "convert": "take over checkpoints that programs with apex wrote",
    "detect": "show torch, its features, the installed apex, and the backend used",
}


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:{width}}  {summary}" for verb, summary in VERBS.items()]
    return "\n".join(["usage: amp-migrate VERB [ARGS...]", "", *lines, "", "amp-migrate VERB --help says more."])


def main(argv: list[str] | None = None) -> int:
    """Call the verb. Exit code 2 without one, or for one that isn't there."""
    args = sys.argv[1:] if argv is None else argv
    if args and args[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if args and args[0] == "--version":
        from . import __version__

        print(f"amp-migrate {__version__}")
        return 0
    if not args or args[0] not in VERBS:
        print(_overview() if not args else f"amp-migrate: no verb {args[0]!r}\n\n{_overview()}", file=sys.stderr)
        if importlib.util.find_spec("torch") is None:
            print("\ntorch isn't installed, so nothing can be trained here: pip install torch", file=sys.stderr)
        return 2
    code: int = importlib.import_module(f"amp_migrate.{args[0]}").main(args[1:])
    return code


if __name__ == "__main__":
    sys.exit(main())
