"""A folder for ``sys.path`` of child processes: they find its ``apex`` first (see finder.py)."""
