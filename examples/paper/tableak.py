"""TabLeak (Vero et al., ICML 2023), run by its authors' own code from a clone of it; nothing of it is copied.

    git clone https://github.com/eth-sri/tableak
    TABLEAK=tableak python examples/paper/run.py tabular-peers --directions tableak

Its best set-up for a gradient with known labels (``run_inversion_attacks.py``, experiment 46): cosine of gradients,
Adam on their signs at 0.06, 1500 iterations, a softmax over each category and a sigmoid between the least and the
largest of each number, and the median of 30 members, each from a start of its own. ``--members`` takes fewer, which is
then a budget below its authors'. Labels, batch size, and the means, deviations and bounds of the table are told.

Its last line writes into the numbers that were optimised, which its torch (1.7.1) takes and today's refuses; it is
given a copy of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from paper.census import Census

__all__ = ["CLONE", "TabLeak"]

CLONE = "TABLEAK"
"""The environment variable that names the folder of the clone."""

PACKAGES = ("attacks", "datasets", "defenses", "models", "utils")
"""Of the clone, whose names others have too."""

N_ITERATIONS, RATE = 1500, 0.06


class TabLeak:
    """The peer, on one table.

    Parameters
    ----------
    census : Census
        The table; its rows are not used but for their means, deviations and bounds.

    Attributes
    ----------
    version : str
        The commit of the clone.

    Raises
    ------
    ValueError
        If there is no clone.
    """

    def __init__(self, census: Census) -> None:
        folder = os.environ.get(CLONE, "")
        if not folder or not (Path(folder) / "attacks" / "gradient_inversion_attack.py").is_file():
            raise ValueError(
                "TabLeak needs a clone of https://github.com/eth-sri/tableak, and its folder in the environment "
                f"variable {CLONE}; this is {folder!r}"
            )
        self._code = _imported(str(Path(folder).resolve()))
        self._table = self._code.dataset()
        _fill(self._table, census)
        self.version = f"tableak {_commit(folder)}"

    def invert(
        self, model: nn.Module, gradients: Mapping[str, torch.Tensor], labels: torch.Tensor, n_members: int, seed: int
    ) -> np.ndarray:
        """Return what an ensemble finds, standardised, of shape (batch_size, n_columns)."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found = self._code.invert(
                net=model,
                training_criterion=nn.CrossEntropyLoss(),
                true_grad=[gradients[name] for name, _ in model.named_parameters()],
                true_label=labels,
                true_data=torch.zeros(len(labels), len(self._table.mean)),  # read for its shape alone
                reconstruction_loss="cosine_sim",
                initialization_mode="uniform",
                learning_rates=RATE,
                dataset=self._table,
                max_iterations=N_ITERATIONS,
                post_selection=n_members,
                softmax_trick=True,
                sigmoid_trick=True,
                sign_trick=True,
                weight_trick=False,
                temperature_mode="constant",
                pooling="median+softmax",
            )
        return self._code.clamp(found.detach(), self._table).double().numpy()


@lru_cache(maxsize=1)
def _imported(folder: str) -> SimpleNamespace:
    """Return what is used of a clone, and leave no trace of it among the modules and their paths."""
    others, paths = _taken_out(), list(sys.path)
    sys.path.insert(0, folder)
    try:
        invert = import_module("attacks").invert_grad
        attack, utils = import_module("attacks.gradient_inversion_attack"), import_module("utils")
        base = import_module("datasets.base_dataset").BaseDataset
    except ImportError as error:
        raise ValueError(f"TabLeak in {folder} cannot be imported ({error}): pip install what it needs") from error
    finally:
        _taken_out()
        sys.modules.update(others)
        sys.path[:] = paths
    bounded = attack.continuous_sigmoid_bound
    attack.continuous_sigmoid_bound = lambda x, dataset: bounded(x.clone() if x.is_leaf else x, dataset)  # type: ignore[attr-defined]
    made = type("Table", (base,), {"__init__": lambda self: base.__init__(self, "ADULT", "cpu")})
    return SimpleNamespace(invert=invert, clamp=utils.post_process_continuous, dataset=made)


def _taken_out() -> dict[str, Any]:
    """Remove the modules that have a name of the clone's packages, and return them."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in PACKAGES}


def _fill(table: Any, census: Census) -> None:
    """Give the clone's data set our table, standardised with our means and deviations."""
    raw = census.one_hot(census.rows)
    table.label = "income"
    table.train_features = {name: of if of is None else list(of) for name, of in census.features.items()}
    table.features = {**table.train_features, table.label: ["no", "yes"]}
    table.Xtrain = torch.tensor(raw, dtype=torch.float32)
    table.ytrain = torch.from_numpy(census.labels)
    table.Xtest, table.ytest = table.Xtrain[:0], table.ytrain[:0]
    table.num_features = raw.shape[1]
    table.train()
    table.mean = torch.tensor(raw.mean(axis=0), dtype=torch.float32)
    table.std = torch.tensor(raw.std(axis=0, ddof=1), dtype=torch.float32)
    table._calculate_categorical_feature_distributions_and_continuous_bounds()
    table.standardize()


def _commit(folder: str) -> str:
    """Return the commit of a clone, or that it is none."""
    command = ["git", "-C", folder, "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "of no commit"
