"""Optional packages that a command needs."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["require"]


def require(extra: str, *modules: str) -> None:
    """Raise ``ImportError`` that says what to install, unless all modules are there."""
    for module in modules:
        if find_spec(module) is None:
            raise ImportError(f"this command needs {module}: pip install 'sparsedl[{extra}]'")
