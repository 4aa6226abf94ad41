"""What a child process finds as ``apex``: it installs the drop-in there, then gives way to it."""

import os
import sys

try:
    from amp_migrate.finder import install
except ImportError:  # the parent ran from a clone that isn't on the child's path
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3)))
    from amp_migrate.finder import install

sys.modules.pop(__name__, None)
install()
__import__(__name__)
