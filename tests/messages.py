"""Every error and warning that the packages write themselves, in one list: python -m tests.messages

Read it before a release. A message names the argument or option, what was wrong with it, and what to do next.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUIET = {"NotImplementedError", "StopIteration", "KeyboardInterrupt", "SystemExit"}


def text_of(node):
    """Return a string of the source, with what is filled in as {expression}; None where it is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}" for part in node.values
        )
    if isinstance(node, ast.BinOp):
        left, right = text_of(node.left), text_of(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.IfExp):
        return f"{text_of(node.body)} | {text_of(node.orelse)}"
    return f"{{{ast.unparse(node)}}}"


def messages(path):
    """Yield the line, the kind and the text of each message in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            kind = ast.unparse(node.exc.func)
            if kind not in QUIET:
                yield node.lineno, kind, text_of(node.exc.args[0]) if node.exc.args else ""
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("warnings.warn", "warn"):
            kind = ast.unparse(node.args[1]) if len(node.args) > 1 else "UserWarning"
            yield node.lineno, kind, text_of(node.args[0])


def listed():
    """Return all messages of both packages, (file, line, kind, text)."""
    files = sorted(path for package in ("sparsedl", "sparsedl_fl") for path in (ROOT / package).rglob("*.py"))
    return [(path.relative_to(ROOT).as_posix(), *found) for path in files for found in sorted(messages(path))]


if __name__ == "__main__":
    for file, line, kind, text in listed():
        print(f"{file}:{line}: {kind}: {text}")
