"""What a project's metadata says about the oldest torch that it runs on."""

from __future__ import annotations

import configparser
import glob
import os
import re
from typing import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import Specifier
from packaging.version import InvalidVersion, Version

from amp_migrate.codemods.target import Version as MajorMinor
from amp_migrate.rewrite.settings_file import shown
from amp_migrate.rewrite.toml_file import TomlError, parse_toml

_FROM = frozenset({">=", ">", "==", "~=", "==="})
_UP_TO = frozenset({"<", "<="})


def notes_on_torch(path: str, oldest: MajorMinor) -> tuple[str, ...]:
    """Return a note for each requirement of the project around ``path`` that allows a torch before ``oldest``."""
    wanted = f"{oldest[0]}.{oldest[1]}"
    notes = []
    for file, requirement in _requirements(_project_folder(path)):
        allowed = _oldest_allowed(requirement)
        if allowed is not None and allowed < oldest:
            notes.append(
                f"{shown(file)} allows {requirement}, but what is written here needs torch {wanted} or newer; "
                f"raise the requirement, or run this with --torch {allowed[0]}.{allowed[1]}"
            )
    return tuple(dict.fromkeys(notes))


def _project_folder(path: str) -> str:
    """Return the nearest folder at or above ``path`` that has metadata, or ``""``."""
    folder = os.path.abspath(path)
    if not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    while not _files(folder):
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above
    return folder


def _files(folder: str) -> list[str]:
    fixed = [os.path.join(folder, name) for name in ("pyproject.toml", "setup.cfg")]
    found = sorted(glob.glob(os.path.join(glob.escape(folder), "requirements*.txt")))
    return [file for file in (*fixed, *found) if os.path.isfile(file)]


def _requirements(folder: str) -> Iterator[tuple[str, Requirement]]:
    """Yield what is required of torch, with the file that says so. What can't be read requires nothing."""
    for file in _files(folder) if folder else ():
        try:
            with open(file, "rb") as opened:
                content = opened.read()
        except OSError:
            continue
        if b"torch" not in content.lower():
            continue
        for line in _lines(os.path.basename(file), content):
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            if requirement.name.lower() == "torch":
                yield file, requirement


def _lines(name: str, content: bytes) -> Iterator[str]:
    if name == "pyproject.toml":
        return _of_pyproject(content)
    text = content.decode("utf-8", "replace")
    return _of_setup_cfg(text) if name == "setup.cfg" else _of_requirements(text)


def _of_pyproject(content: bytes) -> Iterator[str]:
    try:
        parsed = parse_toml(content)
    except TomlError:
        return
    project = parsed.get("project")
    if not isinstance(project, dict):
        return
    yield from _texts(project.get("dependencies"))
    extras = project.get("optional-dependencies")
    for extra in extras.values() if isinstance(extras, dict) else ():
        yield from _texts(extra)


def _texts(value: object) -> Iterator[str]:
    yield from (item for item in (value if isinstance(value, list) else ()) if isinstance(item, str))


def _of_setup_cfg(text: str) -> Iterator[str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error:
        return
    lists = [parser.get("options", "install_requires", fallback="")]
    if parser.has_section("options.extras_require"):
        lists += [value for _, value in parser.items("options.extras_require")]
    for each in lists:
        yield from _of_requirements(each)


def _of_requirements(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        without_comment = re.sub(r"(^|\s)#.*", "", line)
        requirement = re.split(r"\s--\w", without_comment)[0].strip()  # --hash=… and the like
        if requirement and not requirement.startswith("-"):
            yield requirement


def _oldest_allowed(requirement: Requirement) -> MajorMinor | None:
    """Return the oldest torch that is allowed, as far as it is said; None if any would do."""
    lowest = [_major_minor(each) for each in requirement.specifier if each.operator in _FROM]
    highest = [_major_minor(each) for each in requirement.specifier if each.operator in _UP_TO]
    known = [version for version in lowest if version is not None]
    if known:
        return max(known)
    return min((version for version in highest if version is not None), default=None)


def _major_minor(specifier: Specifier) -> MajorMinor | None:
    try:
        release = Version(specifier.version.replace(".*", "")).release
    except InvalidVersion:
        return None
    return release[0], release[1] if len(release) > 1 else 0
