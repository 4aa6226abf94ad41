"""AMP002: an import that has to stay on Apex."""

from __future__ import annotations

from typing import Iterator

from .edits import Site
from .findings import Level
from .imports import ApexImport
from .registry import rule
from .source_file import SourceFile


@rule("AMP002", "an import of Apex stays, because the drop-in can't serve it", Level.MANUAL)
def check(source: SourceFile) -> Iterator[Site]:
    """
    Why: the drop-in may not have the module, or the file may not show which parts of Apex it uses: after
    `from apex import *`, or when the whole package is handed to a function. A program must also see one apex.amp only;
    so when `import apex` stays because of one part, everything else that the file reaches through it stays too.

    Left as it is:
        from apex.contrib.sparsity import ASP    # not in the drop-in
        from apex import *                       # which names?
        import apex                              # because of apex.contrib below
        apex.contrib.sparsity.ASP.prune_trained_model(model, optimizer)

    What to do: import what is used by name, replace the part by what torch has, or keep Apex installed for it. Then
    run the command again.

    It is also reported where the project has a module called apex of its own: that may not be NVIDIA's.
    """
    for verdict in source.verdicts:
        if verdict.stays is not None and isinstance(verdict.site, ApexImport):
            yield Site(verdict.site.node, verdict.stays.message, verdict.stays.advice, verdict.stays.because)
