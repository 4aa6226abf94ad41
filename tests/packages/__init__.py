"""Real packages of the time train through their own Apex branch on the drop-in. Run by ``nox -s packages``."""
