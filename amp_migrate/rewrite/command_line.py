"""The parser of the command line, made from the table of options."""

from __future__ import annotations

import argparse
from typing import Any, Sequence

from amp_migrate.rewrite.options import OPTIONS, Option, Takes

_DESCRIPTION = """\
Rewrite programs that use NVIDIA Apex. They become programs on PyTorch's own AMP where that trains the same, and use the
drop-in amp_migrate.apex, which has Apex's names, where it doesn't. Files are changed in place; --diff and --check write
nothing.
"""
_EPILOG = """\
Settings are also read from [tool.amp_migrate] in the nearest pyproject.toml above the first path: each long option is a
key (torch = "2.1", select = ["AMP001"], strict = true). The command line wins; --no-strict takes back a flag.

`# amp-migrate: ignore` on a line, or ignore[CODE], silences what is said of it and keeps it; `# amp-migrate: skip-file`
leaves out the file.

Exit codes: 0 done, or nothing to do; 1 with --check or --diff, something would change, or with --strict, places are
left; 2 wrong usage, a missing path, or a file that could not be read, parsed or written (the others are still done).
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command. What isn't given has no attribute in what it parses."""
    parser = argparse.ArgumentParser(
        prog="python -m amp_migrate.rewrite",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="files and folders (default: .); - reads stdin and writes stdout"
    )
    parser.add_argument("--explain", metavar="CODE", help="say what a rule does and why, and stop")
    parser.add_argument("--list-rules", action="store_true", help="list the rules, and stop")
    for group in dict.fromkeys(option.group for option in OPTIONS):
        arguments = parser.add_argument_group(group)
        for option in OPTIONS:
            if option.group == group:
                _add(arguments, option)
    return parser


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    name = f"--{option.name}"
    if option.takes is Takes.FLAG:
        group.add_argument(name, action="store_true", help=option.help)
        if option.in_file:
            undo = f"--{option.name[3:]}" if option.name.startswith("no-") else f"--no-{option.name}"
            group.add_argument(undo, dest=option.field, action="store_false", help=argparse.SUPPRESS)
        return
    if option.takes is Takes.LIST:
        group.add_argument(name, action=_Extend, type=option.convert, metavar=option.metavar, help=option.help)
        return
    metavar = option.metavar or "|".join(option.choices)
    group.add_argument(name, type=_converter(option), metavar=metavar, help=option.help)


def _converter(option: Option) -> Any:
    def convert(text: str) -> Any:
        return value_of(option, text)

    return convert


def value_of(option: Option, text: str) -> Any:
    """Return the value that ``text`` gives to ``option``; raise ArgumentTypeError if it's none."""
    if option.choices and text not in option.choices:
        raise argparse.ArgumentTypeError(f"'{text}' is unknown; use {' or '.join(option.choices)}")
    return option.convert(text)


class _Extend(argparse.Action):
    """Collect what a repeatable option got: a converted text is one value, a tuple several."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        new = (values,) if isinstance(values, str) else tuple(values or ())
        setattr(namespace, self.dest, (*getattr(namespace, self.dest, ()), *new))
