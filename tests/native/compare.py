"""By hand: rewrite programs natively, run them on the drop-in and as rewritten, and say whether both trained the same.

python tests/native/compare.py FILE…              a file, or the main.py of a folder
python tests/native/compare.py --show FILE…       also print the rewritten source
python tests/native/compare.py --overflow FILE…   also with infinities in each backward, and with too high a loss scale
python tests/native/compare.py --by-hand NEW FILE  compare with NEW, which a person wrote, in place of the rewrite
python tests/native/compare.py --mutants FILE…    also take out one step, update, unscale, scale or region at a time
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from comparing import compare  # noqa: E402
from expected import EITHER, EXPECTED, Expected  # noqa: E402
from mutants import survivors  # noqa: E402
from overflows import accumulates, compared, disagreements  # noqa: E402
from runs import NATIVE, Rewritten, program_name, rewrite_program, run_all  # noqa: E402

from amp_migrate.codemods.findings import Level  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 if a rewrite doesn't train as the drop-in does."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--level", choices=["safe", "review"], default="safe")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--by-hand", type=Path, metavar="NEW")
    parser.add_argument("--overflow", action="store_true")
    parser.add_argument("--mutants", action="store_true")
    options = parser.parse_args(argv)
    files = [file / "main.py" if file.is_dir() else file for file in options.files]
    return max([_one(file.resolve(), options) for file in files])


def _one(main: Path, options: argparse.Namespace) -> int:
    settings = replace(NATIVE, target=replace(NATIVE.target, level=Level(options.level)))
    expected = EXPECTED.get(program_name(main), Expected(EITHER))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            if options.by_hand:
                rewritten = Rewritten(options.by_hand.resolve(), {main.name: options.by_hand.read_text("utf-8")}, ())
            else:
                rewritten = rewrite_program(main, folder, settings)
        except ValueError as error:
            print(f"{program_name(main)}: not rewritten: {error}")
            return 1
        _describe(main, rewritten, expected, options.show)
        original, new = run_all([(main, folder), (rewritten.main, folder)])
        found = compare(original, new)
        print(f"    {len(original.steps)} steps, {sum(s.skipped for s in original.steps)} skipped: {found}")
        wrong = not found.agrees(expected, accumulates(original))
        if options.overflow and rewritten.is_native:
            for disturbance, found in compared(main, rewritten.main, folder, expected, original):
                print(f"    {disturbance}: {found}")
            wrong |= bool(disagreements(main, rewritten.main, folder, expected, original))
        if options.mutants and rewritten.is_native:
            left = survivors(main, rewritten, folder, expected)
            print("".join(f"    nothing notices {text}\n" for text in left) or "    every mutant is noticed\n", end="")
            wrong |= bool(left)
        if wrong:
            print("    WRONG")
    return int(wrong)


def _describe(main: Path, rewritten: Rewritten, expected: Expected, show: bool) -> None:
    verdict = "native" if rewritten.is_native else "on the drop-in"
    print(f"{program_name(main)}: {verdict} (expected: {expected.verdict}, rules {expected.rules or '-'})")
    for finding in rewritten.findings:
        print(f"    {finding.kind.value}: {finding}")
    if show:
        for name, source in sorted(rewritten.sources.items()):
            print(f"--- {name}\n{source}")


if __name__ == "__main__":
    sys.exit(main())
