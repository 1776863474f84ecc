"""Models and losses from a user's own code."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from sparsedl_fl.audit.context import digest
from sparsedl_fl.wording import argument, first_line

__all__ = ["check_fixed", "load_object", "made_model", "users_code"]


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Turn any error of a user's code into ``ValueError``; what it prints goes to the standard error.

    A call of ``exit`` counts too: otherwise it would set the exit status of an audit.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(f"{what}: {first_line(error)}") from error


def load_object(spec: str, what: str = "MODEL") -> Any:
    """Return the object with the name ``package.module:name`` or ``path/to/file.py:name``.

    Raises
    ------
    ValueError
        If it cannot be found.
    """
    place, separator, name = spec.rpartition(":")
    if not separator or not place or not name:
        raise ValueError(f"{what} must be package.module:name or file.py:name, got {spec!r}")
    with users_code(f"{what} {spec!r} cannot be imported"):
        if place.endswith(".py"):
            module = _module_at(Path(place))
        else:
            _look_in(Path.cwd())
            module = importlib.import_module(place)
    found = getattr(module, name, None)
    if found is None:
        raise ValueError(f"{what} {spec!r}: {place} has no {name!r}")
    return found


def _module_at(path: Path) -> Any:
    if not path.is_file():
        raise ImportError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"_audited_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    # While it runs, dataclasses look for it among the modules, and modules in its folder come first.
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
        del sys.modules[spec.name]
    _look_in(path.parent.resolve())
    return module


def _look_in(folder: Path) -> None:
    """Let imports find modules in a folder, after all others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def made_model(spec: str) -> nn.Module:
    """Return the model that a function without arguments makes; a class or a module object is accepted too.

    Raises
    ------
    ValueError
        If there is none.
    """
    made = load_object(spec)
    if callable(made) and not isinstance(made, nn.Module):
        with users_code(f"MODEL {spec!r} cannot be made, for its function raises"):
            made = made()
    if not isinstance(made, nn.Module):
        raise ValueError(f"MODEL {spec!r} must make a torch.nn.Module, got {type(made).__name__}")
    lazy = next((name for name, tensor in made.named_parameters() if is_lazy(tensor)), None)
    if lazy is not None:
        raise ValueError(f"MODEL {spec!r} has lazy layers ({lazy!r} has no shape): run it once where it is made")
    meta = next((name for name, tensor in made.state_dict().items() if getattr(tensor, "is_meta", False)), None)
    if meta is not None:
        raise ValueError(f"MODEL {spec!r} has no numbers for {meta!r}, which is on the meta device")
    return made


def check_fixed(spec: str) -> None:
    """Raise ``ValueError`` where a function makes a model with other weights at each call: a file is then needed."""
    if digest(made_model(spec).state_dict()) != digest(made_model(spec).state_dict()):
        raise ValueError(
            f"MODEL {spec!r} makes other weights at each call, and an update says nothing without those that the "
            f"client was given: pass {argument('weights')}"
        )
