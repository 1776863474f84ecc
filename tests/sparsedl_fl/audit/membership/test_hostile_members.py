"""No record is found that was not trained on, and none is missed that is said to be in range."""

from collections import Counter
from copy import deepcopy

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from sparsedl_fl.audit import members

N_OTHERS, N_NEAR = 100, 10


def records_of(kind, rng):
    if kind == "digits":
        return load_digits().data / 16
    if kind == "numbers":
        return rng.standard_normal((1000, 100))
    sizes = (5, 8, 12, 3, 9, 7, 20, 20) if kind == "categories" else (5, 8, 12, 3, 9, 7)
    parts = [np.eye(k)[np.minimum(rng.geometric(0.35, 1000) - 1, k - 1)] for k in sizes]
    if kind == "table":
        parts += [rng.standard_normal((1000, 3)), rng.integers(0, 6, (1000, 2)) / 5]
    return np.hstack(parts)


def problem(seed):
    """Return a client's model before and after, records to test, and which were trained on, near or others."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    x = torch.tensor(records_of(rng.choice(["digits", "numbers", "categories", "table"]), rng), dtype=torch.float32)
    n, width = x.shape[1], int(rng.choice([50, 100, 200, 400]))
    n_trained = int(rng.integers(2, max(3, int(min(width, n + 1) * rng.choice([0.3, 0.6, 0.9, 1.3])))))
    activation = [nn.ReLU(), nn.GELU(), nn.Tanh()][rng.integers(3)]
    before = nn.Sequential(nn.Linear(n, width, bias=rng.random() > 0.15), activation, nn.Linear(width, 10))
    index = torch.randperm(len(x))
    inside, outside = x[index[:n_trained]], x[index[n_trained : n_trained + N_OTHERS]]
    after, used = trained(before, inside, rng)
    near = inside[rng.integers(n_trained, size=N_NEAR)]
    near = near + float(10 ** rng.uniform(-3, -0.5)) * inside.std() * torch.randn(near.shape)
    changed = inside[rng.integers(n_trained, size=N_NEAR)].clone()
    feature = torch.tensor(rng.integers(n, size=N_NEAR))
    changed[torch.arange(N_NEAR), feature] = x[index[-N_NEAR:], feature]
    how = {"others": x[index[n_trained + N_OTHERS :][:50]]} if rng.random() < 0.3 else {}
    return before, after, torch.cat([inside, outside, near, changed]), used, how


def trained(before, inside, rng):
    """Return the state after local training, in a format, maybe with noise; and which records it used."""
    after, labels = deepcopy(before), torch.tensor(rng.integers(10, size=len(inside)))
    options = {"momentum": float(rng.choice([0, 0.9])), "weight_decay": float(rng.choice([0, 0, 1e-3, 1e-2]))}
    steps = torch.optim.SGD(after.parameters(), lr=float(rng.choice([0.01, 0.05, 0.1])), **options)
    what = rng.choice(["SGD"] * 8 + ["Adam", "noise"])
    if what == "Adam":
        steps = torch.optim.Adam(after.parameters(), lr=1e-3)
    n_steps, used = int(rng.choice([1, 5, 50, 200])), torch.zeros(len(inside), dtype=torch.bool)
    batch = int(rng.choice([len(inside), 16])) if n_steps > 1 else len(inside)
    for _ in range(n_steps):
        index = torch.randint(len(inside), (batch,)) if batch < len(inside) else torch.arange(len(inside))
        used[index] = True
        steps.zero_grad()
        cross_entropy(after(inside[index]), labels[index]).backward()
        steps.step()
    state = {name: tensor.clone() for name, tensor in after.state_dict().items()}
    if what == "noise":
        level = float(10 ** rng.uniform(-6, -3))
        state = {name: tensor + level * torch.randn_like(tensor) for name, tensor in state.items()}
    kind = {"half": torch.float16, "brain": torch.bfloat16}.get(rng.choice(["single"] * 6 + ["half", "brain"]))
    return {name: tensor if kind is None else tensor.to(kind).float() for name, tensor in state.items()}, used.numpy()


def judged(seed):
    """Return how many members were tested and found, and how many were wrong or missed."""
    before, after, records, used, how = problem(seed)
    found = members(before, after, records, **how)
    is_inside = np.arange(len(records)) < len(used)
    away = torch.cdist(records.double(), records[: len(used)].double()).min(1).values / records.double().norm(dim=1)
    differs = away.numpy() > np.maximum(3 * np.nan_to_num(found.expected_distances), 1e-7)
    missed = found.in_range[: len(used)] & ~found.is_member[: len(used)] & used
    wrong = found.is_member & ~is_inside & differs
    return Counter(
        tested=len(used), found=found.is_member[is_inside].sum(), wrong=wrong.sum(), missed=missed.sum(),
        in_range=found.in_range[~is_inside].sum(), others=int((~is_inside).sum()),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "n_problems"), [(0, 10), *(pytest.param(k, 48, marks=pytest.mark.slow) for k in (10, 58, 106, 154))]
)
def test_nothing_is_found_wrongly_or_missed(first, n_problems):
    total = sum((judged(seed) for seed in range(first, first + n_problems)), Counter())
    assert total["wrong"] == 0, total
    assert total["missed"] == 0, total
    assert total["found"] > 0.2 * total["tested"], total
