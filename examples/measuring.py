"""What the comparisons share: options, one thread, one judge of what is exact, and what a result was measured with."""

from __future__ import annotations

import os
import platform
import warnings
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from sparsedl import SparseDictionaryRecovery
from sparsedl.linalg import normalized
from sparsedl.metrics import match_components
from sparsedl.preconditioning import Whitening, whiten
from sparsedl.zeros import ZeroTest

EXACT, CLOSE = 1e-8, 0.1
"""Sines of the angle between a component and its true one."""

PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "joblib", "python-picard", "dictlearn", "distributed")


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold all linear algebra of this process to one thread, and be quiet where a method does not converge."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.filterwarnings("ignore", "Picard did not converge")  # a plain UserWarning
            yield
    finally:
        torch.set_num_threads(before)


def parser_of(about: str | None) -> ArgumentParser:
    """Return what reads the options that the comparisons share, with the first line of a docstring as its help."""
    parser = ArgumentParser(description=(about or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path("examples/results"))
    parser.add_argument("--trials", type=int, default=10, help="seeds of each setting")
    parser.add_argument("--small", action="store_true", help="one small setting, for a quick look")
    return parser


def worst_sine(found: np.ndarray, true: np.ndarray) -> float:
    """Return the sine of the angle of the worst component, 1 where one is missing."""
    return float(sines(found, true).max())


def sines(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return the sine of the angle of each true component to the one found, 1 where it is missing."""
    found = found[np.linalg.norm(found, axis=1) > 0]
    if len(found) < len(true) or not np.isfinite(found).all():
        return np.ones(len(true))
    return match_components(found, true).errors


def n_wrong(sdr: SparseDictionaryRecovery, true: np.ndarray, X: np.ndarray | None = None) -> int:
    """Return how many components are marked as recovered whose direction is that of no true code.

    Others have a share of 1e-6, or of a thousand times the rounding: single precision left 1e-6 at 200 components.
    Given the observations, codes that are nonzero only in rows that were left out, as ``status_`` says, do not count:
    the marks are about the other rows.
    """
    tolerance = max(1e-6, 1000 * float(np.finfo(sdr.directions_.dtype).eps))
    directions = sdr.directions_[:, sdr.recovered_].T.astype(np.float64)
    if not len(directions):
        return 0
    # In coordinates where a direction is the mixture of the true codes that it makes.
    mixtures = directions @ true.T
    if X is not None:
        explained = np.linalg.norm(X - sdr.inverse_transform(sdr.codes_), axis=1) <= 1e-6 * np.linalg.norm(X, axis=1)
        codes = X[explained] @ np.linalg.pinv(true)
        mixtures = mixtures[:, np.abs(codes).max(axis=0) > tolerance * np.abs(codes).max()]
    mixtures /= np.linalg.norm(mixtures, axis=1, keepdims=True)
    others = np.sqrt(np.maximum(np.sum(mixtures**2, axis=1) - np.max(mixtures**2, axis=1), 0))
    return int(np.sum(others > tolerance))


def provable(X: np.ndarray, true: np.ndarray) -> bool:
    """Return whether the zero test proves every true column, as an oracle who knows them would show it.

    Where it does not, the observations are too few for these zeros: no search could prove what it finds.
    """
    whitening = whiten(X)
    return bool(proven(whitening, (whitening.mixing @ np.linalg.pinv(true)).T).all())


def proven(whitening: Whitening, columns: np.ndarray, *, refitted: bool = False) -> np.ndarray:
    """Return which true columns, as rows in whitened coordinates, the zero test proves: none where the rank is below.

    With ``refitted`` a column is first estimated from its own zeros, as a search would, and has to stay the same.
    """
    if whitening.whitened.shape[1] < len(columns):
        return np.zeros(len(columns), dtype=bool)
    test = ZeroTest(
        observations=torch.from_numpy(whitening.whitened),
        unmixing=torch.from_numpy(whitening.unmixing),
        noise_level=torch.from_numpy(np.ascontiguousarray(whitening.noise_level)),
    )
    true = normalized(torch.from_numpy(np.ascontiguousarray(columns)), dim=1)
    if not refitted:
        return test.prove(true, test.zeros(true)).numpy()
    directions = test.refit(true)
    aside = directions - (directions * true).sum(dim=1, keepdim=True) * true
    stays = torch.linalg.vector_norm(aside, dim=1) < EXACT
    return (test.prove(directions, test.zeros(directions)) & stays).numpy()


def resident(which: str) -> int:
    """Return the memory that this process holds (``VmRSS``), or the most it ever held (``VmHWM``), in bytes.

    As Linux tells it: ``ru_maxrss`` is the same as ``VmHWM``, but a child begins with that of its parent.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(which + ":"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"the system does not tell {which}")


def measured_with() -> dict[str, Any]:
    """Return processor, cores of this process, and versions of what is compared."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {"processor": _processor(), "cores": len(os.sched_getaffinity(0)), "packages": packages}


def measured_in_words(what: dict[str, Any]) -> str:
    """Return the same as a sentence."""
    packages = ", ".join(f"{name} {number}" for name, number in what["packages"].items() if number)
    return f"Measured on {what['processor']}, {what['cores']} cores, with {packages}."


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Return a table in Markdown, a line each."""
    return ["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]]


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
