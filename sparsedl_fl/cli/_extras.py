"""Optional packages that a command needs."""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["BAD_USAGE", "require"]

BAD_USAGE = 2
"""Exit status, as argparse has it; 1 means that something was recovered."""


def require(extra: str, *modules: str) -> None:
    """Exit with a sentence that says what to install, unless all modules are there."""
    for module in modules:
        if find_spec(module) is None:
            print(f"error: this command needs {module}: pip install 'sparsedl[{extra}]'", file=sys.stderr)
            raise SystemExit(BAD_USAGE)
