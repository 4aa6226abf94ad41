"""The command line of ``python -m amp_migrate.rewrite``. Reading it imports neither libcst nor rich nor pathspec."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Sequence

_DESCRIPTION = """\
Rewrite programs that use NVIDIA Apex. With --to shim, their imports of Apex become imports of amp_migrate.apex, which
has the same names on PyTorch's own AMP. Files are changed in place; --diff and --check write nothing.
"""
_EPILOG = """\
Exit codes: 0 done, or nothing to do; 1 with --check or --diff, something would change; 2 wrong usage, a missing path,
or a file that could not be read, parsed or written (the others are still done).
"""


def _target(value: str) -> str:
    if value == "native":
        raise argparse.ArgumentTypeError("'native' is not in this version yet; use --to shim")
    if value != "shim":
        raise argparse.ArgumentTypeError(f"'{value}' is unknown; use --to shim")
    return value


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m amp_migrate.rewrite",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="files and folders (default: .); - reads stdin and writes stdout")
    add("--to", type=_target, metavar="shim", help="what to rewrite to: shim (the drop-in); required")
    add("--diff", action="store_true", help="print a unified diff and write nothing")
    add("--check", action="store_true", help="only say what would change, and write nothing")
    add("--force", action="store_true", help="write even to files with uncommitted changes")
    add("--exclude", action="append", default=[], metavar="GLOB", help="leave out what matches, as in a .gitignore")
    add("--include", action="append", default=[], metavar="GLOB", help="look at what matches, not at *.py *.pyw *.pyi")
    add("--no-gitignore", action="store_true", help="look at files that git ignores, too")
    add("--stdin-filename", metavar="PATH", help="the name of what is read from stdin, for messages")
    add("--explain", metavar="CODE", help="say what a rule does and why, and stop")
    add("--list-rules", action="store_true", help="list the rules, and stop")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. Wrong usage raises SystemExit(2), as argparse does."""
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        return _run(parser, options)
    except BrokenPipeError:
        # the reader has gone (`| head`); files are written before anything is printed, so nothing is lost
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if options.list_rules:
        return _list_rules()
    if options.explain is not None:
        return _explain(parser, options.explain)
    if options.to is None:
        parser.error("--to is required: --to shim")
    if "-" in options.paths:
        if len(options.paths) > 1:
            parser.error("- can't be combined with other paths")
        return _stdin(options)
    return _paths(options)


def _list_rules() -> int:
    from amp_migrate.codemods.registry import all_rules
    from amp_migrate.rewrite.output import put

    put(sys.stdout, (f"{rule.code}  {rule.level.value:<6}  {rule.summary}" for rule in all_rules()))
    return 0


def _explain(parser: argparse.ArgumentParser, code: str) -> int:
    from amp_migrate.codemods.registry import all_rules, explain, find_rule
    from amp_migrate.rewrite.output import put

    rule = find_rule(code)
    if rule is None:
        parser.error(f"no rule is called {code}; there are {', '.join(rule.code for rule in all_rules())}")
    put(sys.stdout, iter([explain(rule).rstrip("\n")]))
    return 0


def _paths(options: argparse.Namespace) -> int:
    from amp_migrate.rewrite.discover import Selection
    from amp_migrate.rewrite.output import print_report
    from amp_migrate.rewrite.results import Settings, WriteMode
    from amp_migrate.rewrite.session import rewrite_paths

    mode = WriteMode.DIFF if options.diff else WriteMode.CHECK if options.check else WriteMode.IN_PLACE
    selection = Selection(tuple(options.include), tuple(options.exclude), not options.no_gitignore)
    report = rewrite_paths(
        options.paths or [os.curdir], Settings(options.to), mode=mode, selection=selection, force=options.force
    )
    print_report(report)
    return report.exit_code


def _stdin(options: argparse.Namespace) -> int:
    from amp_migrate.rewrite.results import Settings, WriteMode
    from amp_migrate.rewrite.stdin import rewrite_stdin

    mode = WriteMode.DIFF if options.diff else WriteMode.CHECK if options.check else WriteMode.IN_PLACE
    return rewrite_stdin(options.stdin_filename, Settings(options.to), mode)
