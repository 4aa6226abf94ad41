"""The command line of the converter."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

_DESCRIPTION = """\
Convert checkpoints that programs with NVIDIA Apex wrote, so that native PyTorch code resumes from them: the state of
amp becomes GradScaler's, fused optimizers' states become torch's, master weights land in the model. Nothing in a file
is executed, and what isn't Apex's is carried over bit by bit.
"""
_EPILOG = """\
One SRC without DST is written beside it as NAME.native.pt (NAME.apex.pt with --to apex). A folder is converted file by
file into DST, or into a folder beside it called NAME.native; what is no checkpoint is copied. Three or more paths are
all sources, each written beside itself.

Exit codes: 0 done, or nothing to do; 2 wrong usage, or a file that could not be read, converted or written (the others
are still done).
"""


@dataclass(frozen=True)
class Command:
    """What was asked for.

    Args:
        sources: files and folders.
        target: where to; None is beside each source.
        into_folder: ``target`` is a folder that gets each source under its name.
        options: the fields of ``Options`` that were given.
        in_place: replace the sources, and keep a backup of each.
        dry_run: write nothing.
        json: report as JSON on stdout.
        inspect: show what the files hold, and convert nothing.
        jobs: processes for several files; None is one per processor.
    """

    sources: tuple[Path, ...]
    target: Path | None
    into_folder: bool
    options: dict[str, Any]
    in_place: bool
    dry_run: bool
    json: bool
    inspect: bool
    jobs: int | None


def parse(arguments: Sequence[str] | None) -> Command:
    """Return what the command line asks for. Exits with code 2 and a message for one that makes no sense."""
    parser = _parser()
    given = vars(parser.parse_intermixed_args(arguments))
    paths: tuple[str, ...] = tuple(given.pop("paths"))
    inspect: str | None = given.pop("inspect")
    output: str | None = given.pop("output")
    command = {name: given.pop(name) for name in ("in_place", "dry_run", "json", "jobs")}
    target: str | None = None
    if inspect is not None:
        paths = (inspect, *paths)
        if output is not None or command["in_place"]:
            parser.error("--inspect only shows what is in a file; it goes with neither --in-place nor --output")
    elif not paths:
        parser.error("no file given; --help says more")
    else:
        paths, target = _sources_and_target(parser, paths, output, command["in_place"])
    options = {name: value for name, value in given.items() if value is not None}
    return Command(
        tuple(map(Path, paths)),
        None if target is None else Path(target),
        target is not None and (len(paths) > 1 or _is_folder(target)) and not _is_one_folder(paths),
        options,
        inspect=inspect is not None,
        **command,
    )


def _sources_and_target(
    parser: argparse.ArgumentParser, paths: tuple[str, ...], output: str | None, in_place: bool
) -> tuple[tuple[str, ...], str | None]:
    if in_place:
        if output is not None:
            parser.error("--in-place and --output exclude each other")
        return paths, None
    sources, target = paths, output
    if output is None and len(paths) == 2:
        sources, target = paths[:1], paths[1]
    if target is not None and os.path.isfile(target) and os.path.exists(sources[0]):
        _refuse_file(parser, sources, target, is_named=output is not None)
    return sources, target


def _refuse_file(parser: argparse.ArgumentParser, sources: tuple[str, ...], target: str, is_named: bool) -> None:
    if len(sources) > 1:
        parser.error(f"{target} is a file, and there are several to convert; name a folder")
    if os.path.isdir(sources[0]):
        parser.error(f"{target} is a file, and {sources[0]} is a folder; name a folder to convert it into")
    both = "" if is_named else "; to convert both files, use --in-place, or --output FOLDER"
    parser.error(f"{target} exists, and is not overwritten: delete it, or name another DST{both}")


def _is_folder(target: str) -> bool:
    return os.path.isdir(target) or target.endswith(("/", os.sep))


def _is_one_folder(paths: tuple[str, ...]) -> bool:
    """A folder alone becomes the target itself, not a folder in it."""
    return len(paths) == 1 and os.path.isdir(paths[0])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m amp_migrate.convert",
        usage="python -m amp_migrate.convert [OPTIONS] SRC [DST]\n       python -m amp_migrate.convert --inspect FILE",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("paths", nargs="*", metavar="SRC [DST]", help="files or folders")
    _add_files(parser.add_argument_group("files"))
    _add_unsaid(parser.add_argument_group("what a file doesn't say"))
    _add_safety(parser.add_argument_group("foreign objects in a file"))
    return parser


def _add_files(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--inspect", metavar="FILE", help="show what is in FILE and who wrote it")
    group.add_argument("-o", "--output", metavar="DST", help="the file, or the folder for several")
    group.add_argument("--in-place", action="store_true", help="replace each file; the old one stays as NAME.bak")
    group.add_argument("--dry-run", action="store_true", help="say what would be done, and write nothing")
    group.add_argument("--json", action="store_true", help="report as JSON on stdout")
    group.add_argument("--jobs", type=_count, metavar="N", help="processes for several files (default: processors)")


def _add_unsaid(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--to", choices=("native", "apex"), help="where to (default: native)")
    group.add_argument("--scaler", type=int, metavar="N", help="keep this one of several loss scalers, from 0")
    group.add_argument("--key", metavar="KEY", help="the same by its key, or the key of the amp state that is meant")
    group.add_argument(
        "--static-scale",
        action="store_true",
        default=None,
        help="the loss scale was static: amp's state doesn't say so",
    )
    group.add_argument(
        "--adam-w-mode", action="store_true", default=None, help="FusedAdam decayed weights as AdamW does (its default)"
    )
    group.add_argument("--no-adam-w-mode", dest="adam_w_mode", action="store_false", help="… as Adam does")
    group.add_argument(
        "--accumulation-steps",
        type=_count,
        metavar="N",
        help="backward passes per step: Apex counted each (default: 1)",
    )
    group.add_argument("--strip-prefix", metavar="PREFIX", help='cut this off the names of weights, such as "module."')
    group.add_argument(
        "--param-order",
        type=_names,
        metavar="NAMES",
        help="the parameters in the optimizer's order, with commas, or @FILE with a name per line: for master weights "
        "that fit several parameters",
    )


def _add_safety(group: argparse._ArgumentGroup) -> None:
    choice = group.add_mutually_exclusive_group()
    choice.add_argument(
        "--drop-unknown", action="store_true", default=None, help="leave out entries that need something executed"
    )
    choice.add_argument(
        "--trust", action="store_true", default=None, help="execute what the file asks for; only for files you trust"
    )


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"takes a number from 1 on, not {text!r}")
    return number


def _names(text: str) -> list[str]:
    if not text.startswith("@"):
        return [name.strip() for name in text.split(",") if name.strip()]
    try:
        lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"can't read {text[1:]}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text[1:]} isn't text: give a file with a name per line") from error
    return [line.strip() for line in lines if line.strip()]
