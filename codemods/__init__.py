"""Every rule about source code: what Apex code looks like, and what it becomes.

Nothing in here imports torch, opens a file or starts a process. Bytes and facts come in, edits and findings go out.
Importing this package doesn't import libcst; importing :mod:`~amp_migrate.codemods.engine` does.
"""
