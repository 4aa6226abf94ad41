"""Write ``fixtures/records/NAME.json``: what each legacy program does on the drop-in. Run it when that may change.

python tests/native/make_records.py           all programs
python tests/native/make_records.py NAME…     only these
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from recorded import RECORDS, write  # noqa: E402
from runs import program_name, program_paths, run_all  # noqa: E402


def main(names: list[str]) -> int:
    """Exit code 1 if a program failed."""
    RECORDS.mkdir(exist_ok=True)
    paths = [path for path in program_paths() if not names or program_name(path) in names]
    with tempfile.TemporaryDirectory() as folder:
        runs = run_all([(path, Path(folder)) for path in paths])
    for path, run in zip(paths, runs):
        if run.code:
            print(f"{program_name(path)} failed:\n{run.err}", file=sys.stderr)
        else:
            write(program_name(path), run)
    return int(any(run.code for run in runs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
