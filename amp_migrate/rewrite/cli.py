"""The command ``python -m amp_migrate.rewrite``. Reading it imports neither libcst nor rich nor pathspec."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from amp_migrate.rewrite.command_line import build_parser
from amp_migrate.rewrite.options import Options

if TYPE_CHECKING:
    from amp_migrate.rewrite.output import Style
    from amp_migrate.rewrite.report import Report
    from amp_migrate.rewrite.results import Settings, WriteMode

_NAMED = 5  # rules that a note still names
_INTERRUPTED = 130  # what shells say of a program that Ctrl-C ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. Wrong usage raises SystemExit(2), as argparse does."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    parser = build_parser()
    given = vars(parser.parse_args(arguments))
    try:
        return _run(parser, given, arguments)
    except BrokenPipeError:
        # the reader has gone (`| head`); files are written before anything is printed, so nothing is lost
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        print("stopped; every file is either as it was or rewritten as a whole", file=sys.stderr)
        return _INTERRUPTED


def _run(parser: argparse.ArgumentParser, given: Mapping[str, Any], arguments: Sequence[str]) -> int:
    if given.get("list_rules"):
        return _list_rules()
    if "explain" in given:
        return _explain(parser, given["explain"])
    options = _options(parser, given)
    if "-" in options.paths and len(options.paths) > 1:
        parser.error("- can't be combined with other paths")
    return _rewrite(options, _review_command(arguments))


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


def _options(parser: argparse.ArgumentParser, given: Mapping[str, Any]) -> Options:
    """Return what the command line says, what ``pyproject.toml`` says where it doesn't, and the defaults."""
    from amp_migrate.rewrite.settings_file import TABLE, SettingsError, read_settings, settings_file

    file = settings_file(_first_path(given))
    try:
        from_file = read_settings(file) if file else {}
    except SettingsError as error:
        parser.exit(2, f"error: {error}\n")
    options = Options(**{**from_file, **given, "paths": tuple(given.get("paths", ()))})
    if options.output is not None and not os.path.isdir(os.path.dirname(options.output) or os.curdir):
        parser.error(f"--output {options.output}: there is no such folder")
    for key in ("select", "ignore"):
        unknown = _unknown_codes(getattr(options, key))
        if unknown:
            where = f"--{key}" if key in given else f"{file}: {TABLE} {key}"
            parser.exit(2, f"error: {where}: {unknown}\n")
    return options


def _first_path(given: Mapping[str, Any]) -> str:
    first = next(iter(given.get("paths", ())), os.curdir)
    return str(given.get("stdin_filename", os.curdir) if first == "-" else first)


def _unknown_codes(codes: Sequence[str]) -> str:
    if not codes:
        return ""
    from amp_migrate.codemods.registry import all_rules
    from amp_migrate.rewrite.choice import unknown_codes

    unknown = unknown_codes(codes)
    if not unknown:
        return ""
    return f"no rule's code begins with {', '.join(unknown)}; there are {', '.join(rule.code for rule in all_rules())}"


def _rewrite(options: Options, review_command: str) -> int:
    from amp_migrate.codemods.target import Target
    from amp_migrate.rewrite.output import ReportNotWritten, Style
    from amp_migrate.rewrite.results import Settings, WriteMode

    target = Target(
        to=options.to,
        device_type=options.device_type,
        dtype=options.dtype,
        torch=options.torch,
        level=options.level,
        autocast_eval=options.autocast_eval,
        keep_old_checkpoints=options.keep_old_checkpoints,
        guard_scheduler=options.guard_scheduler,
    )
    settings = Settings(target, options.select, options.ignore)
    mode = WriteMode.DIFF if options.diff else WriteMode.CHECK if options.check else WriteMode.IN_PLACE
    style = Style(options.format, options.output, review_command)
    try:
        if options.paths == ("-",):
            from amp_migrate.rewrite.stdin import rewrite_stdin

            return rewrite_stdin(options.stdin_filename, settings, mode, style, options.strict)
        return _paths(options, settings, mode, style)
    except ReportNotWritten as error:
        print(f"error: the report can't be written: {error}", file=sys.stderr)
        return 2


def _paths(options: Options, settings: Settings, mode: WriteMode, style: Style) -> int:
    from amp_migrate.progress import ProgressBar
    from amp_migrate.rewrite.discover import Selection
    from amp_migrate.rewrite.jobs import default_jobs, rare_collections
    from amp_migrate.rewrite.output import print_report
    from amp_migrate.rewrite.session import rewrite_paths

    paths = options.paths or (os.curdir,)
    selection = Selection(options.include, options.exclude, not options.no_gitignore)
    bar = ProgressBar(sys.stderr)
    try:
        with rare_collections():
            report = rewrite_paths(
                paths,
                settings,
                mode=mode,
                selection=selection,
                force=options.force,
                jobs=options.jobs or default_jobs(),
                on_progress=bar,
            )
    finally:
        bar.close()
    report = replace(report, notes=_notes(report, paths[0], settings), strict=options.strict)
    print_report(report, style)
    return report.exit_code


def _notes(report: Report, path: str, settings: Settings) -> tuple[str, ...]:
    from amp_migrate.codemods.target import NATIVE
    from amp_migrate.rewrite.results import Outcome

    if settings.target.to != NATIVE or not report.count(Outcome.CHANGED):
        return ()
    from amp_migrate.rewrite.torch_pins import notes_on_torch

    return (*_note_on_rules(settings), *notes_on_torch(path, settings.target.torch))


def _note_on_rules(settings: Settings) -> tuple[str, ...]:
    if not (settings.select or settings.ignore):
        return ()
    from amp_migrate.rewrite.choice import chosen_rules, missing_parts

    missing = sorted(missing_parts(chosen_rules(settings.select, settings.ignore)))
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    named = ", ".join(missing[:_NAMED]) + more
    return (f"without {named}, files that need one of them are left on the drop-in",) if missing else ()


def _review_command(arguments: Sequence[str]) -> str:
    """Return the command that was given, with ``--level review``."""
    kept = []
    following = iter(arguments)
    for argument in following:
        if argument == "--level":
            next(following, None)
        elif not argument.startswith("--level="):
            kept.append(argument)
    return " ".join(map(shlex.quote, ("python", "-m", "amp_migrate.rewrite", "--level", "review", *kept)))
