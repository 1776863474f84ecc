"""Write reports: whole or not at all, never through a symbolic link, and never over other files."""

from __future__ import annotations

import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from sparsedl_fl.wording import argument

__all__ = ["MARK", "check_folder", "check_target", "is_ours", "write_whole", "written"]

MARK = "sparsedl-fl"
"""Mark at the head of every page, table and picture that is ours."""

KEYS = ({"schema_version", "verdict"}, {"sweep_version"}, {"ledger_version"}, {"key", "verdict"})
"""Names that a report, the result of a sweep and a record of one have in JSON."""

HEAD = 4096
"""Bytes at the beginning of a file that are searched for it."""


def write_whole(path: str | Path, content: str | bytes, *, is_private: bool = False) -> None:
    """Write a file under another name in its folder and rename it, so that it is there whole or not at all.

    Parameters
    ----------
    path : str or Path
        Where it goes; what is there is replaced.
    content : str or bytes
        What is in it; text becomes UTF-8.
    is_private : bool, default=False
        Whether nobody else may read it (mode 0600).

    Raises
    ------
    ValueError
        If it cannot be written, or the path is a symbolic link or no file.
    """
    path = Path(path)
    check_target(path, is_forced=True)
    content = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_private else 0o666)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror or error}") from error


def written(text: str, path: str | Path | None, *, is_private: bool = False) -> str:
    """Return text, after writing it where a path is given, as of `write_whole`."""
    if path is not None:
        write_whole(path, text, is_private=is_private)
    return text


def check_target(path: str | Path, *, is_forced: bool = False) -> None:
    """Raise ``ValueError`` where a report may not go: a symbolic link, a folder, or a file that is no report of ours.

    Parameters
    ----------
    path : str or Path
        Where it shall go.
    is_forced : bool, default=False
        Whether files that are no report of ours may be overwritten.
    """
    path = Path(path)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror or error}") from error
    if stat.S_ISLNK(mode):
        raise ValueError(f"{path} is a symbolic link, and reports are not written through one: remove it")
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is there and no file: remove it, or write somewhere else")
    if not is_forced and not is_ours(path):
        raise ValueError(
            f"{path} is there and no report of sparsedl-fl: write somewhere else, or pass {argument('force')} to "
            "overwrite it"
        )


def check_folder(path: str | Path) -> Path:
    """Make a folder for reports, with those above it; return it.

    Raises
    ------
    ValueError
        If it cannot be made, or nothing can be written into it.
    """
    path = Path(path)
    option = argument("out")
    if path.is_symlink():
        raise ValueError(f"{option} {path} is a symbolic link, through which no report is written: name its target")
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".{secrets.token_hex(8)}.part"
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except OSError as error:
        why = "there is a file of that name" if isinstance(error, FileExistsError) else error.strerror or str(error)
        raise ValueError(f"{option} {path} cannot be made, or written into: {why}") from error
    return path


def is_ours(path: str | Path) -> bool:
    """Return whether a file is a report of ours, which may be overwritten; an empty file has nothing to lose."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
        if path.suffix in (".json", ".jsonl") and head:
            text = path.read_text(encoding="utf-8")
            found = json.loads(text.splitlines()[0] if path.suffix == ".jsonl" else text)
            return isinstance(found, dict) and any(keys <= set(found) for keys in KEYS)
    except (OSError, ValueError):
        return False
    return not head or MARK.encode() in head
