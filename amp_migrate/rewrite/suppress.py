"""Comments by which a person keeps lines as they are: ``# amp-migrate: ignore[CODE]`` and ``# amp-migrate: skip-file``.

What ``ignore`` means: nothing is said of the line, and no rule named by it changes the line. Rules agree on a file as a
whole, so a rule can't leave out one line and be trusted with the others. If a rule would change a line on which it is
ignored, it therefore isn't run on that file at all; see :mod:`amp_migrate.rewrite.parsed`.
"""

from __future__ import annotations

import io
import re
import tokenize
from typing import FrozenSet, Iterator, Mapping, Optional

#: by line, which codes are ignored there; None: every one
Ignored = Mapping[int, Optional[FrozenSet[str]]]

SKIP_FILE = "# amp-migrate: skip-file"
_MARK = b"amp-migrate:"
_SKIP = re.compile(r"#\s*amp-migrate:\s*skip-file(?![\w-])")
# an opened bracket that isn't closed must not turn into "ignore everything"
_IGNORE = re.compile(r"#\s*amp-migrate:\s*ignore(?:\[(?P<codes>[\w,\s]*)\]|(?![\w\[-]))")


def suppressions(source: bytes) -> Ignored:
    """Return, by line (counted from 1), the codes that a comment says to ignore there; None stands for all.

    A comment behind a statement of several lines counts for all of its lines, as it does behind a closing parenthesis;
    one inside the parentheses counts for its own line. What looks like a comment in a string isn't one.
    """
    found: dict[int, frozenset[str] | None] = {}
    for comment, lines in _comments(source):
        match = _IGNORE.search(comment)
        if match is None:
            continue
        codes = match.group("codes")
        ignored = (
            None if codes is None else frozenset(filter(None, (code.strip().upper() for code in codes.split(","))))
        )
        for line in lines:
            already = found.get(line, frozenset())
            found[line] = None if ignored is None or already is None else ignored | already
    return found


def skips_file(source: bytes) -> bool:
    """Return whether a comment says to leave out the file."""
    return any(_SKIP.search(comment) for comment, _ in _comments(source))


def is_ignored(ignored: Ignored, line: int, code: str) -> bool:
    """Return whether ``code`` is ignored on ``line``."""
    codes = ignored.get(line, frozenset())
    return codes is None or code in codes


def _comments(source: bytes) -> Iterator[tuple[str, range]]:
    """Yield the comments that may speak to us, each with the lines that it counts for."""
    if _MARK not in source:
        return
    start = 0  # the line that the statement begins on; 0 between statements
    last: tuple[str, int] | None = None  # the comment that the statement may end with
    try:
        for token in tokenize.tokenize(io.BytesIO(source).readline):
            line = token.start[0]
            if token.type == tokenize.COMMENT:
                if last is not None:
                    yield last[0], range(last[1], last[1] + 1)
                last = (token.string, line)
            elif token.type == tokenize.NEWLINE:
                if last is not None:
                    yield last[0], range(start if last[1] == line else last[1], last[1] + 1)
                start, last = 0, None
            elif token.type not in (tokenize.NL, tokenize.ENCODING, tokenize.INDENT, tokenize.DEDENT) and not start:
                start = line
    except (tokenize.TokenError, SyntaxError):
        pass  # it doesn't compile either, which is said elsewhere
    if last is not None:
        yield last[0], range(last[1], last[1] + 1)
