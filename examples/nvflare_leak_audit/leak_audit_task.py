"""What every site has: the model, its records, local training as an NVFLARE executor, and the policy of the audit."""

import os

import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.fedavg import FedAvg
from sklearn.datasets import load_digits
from torch import nn

from sparsedl_fl.federation import LeakPolicy

RATE, N_RECORDS = 0.05, 8


def make_model():
    """Return a classifier of 8 x 8 digits."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
        )


def load_records(site):
    """Return the records of one site, of those called site-1, site-2, ..."""
    digits, first = load_digits(), (int(site.split("-")[1]) - 1) * N_RECORDS
    part = slice(first, first + N_RECORDS)
    return torch.tensor(digits.images[part, None] / 16, dtype=torch.float32), torch.tensor(digits.target[part])


def make_policy():
    """Return how updates are audited; ``mode="block"`` would empty a leaking one."""
    return LeakPolicy(make_model, learning_rate=RATE, n_steps=1, mode="report", out=os.environ.get("LEAK_REPORTS"))


class FedAvgOfModel(FedAvg):
    """NVFLARE's FedAvg on this model, without files."""

    def load_model(self):
        """Return the first weights."""
        return FLModel(params={name: tensor.numpy() for name, tensor in make_model().state_dict().items()})

    def save_model(self, model):
        """Keep nothing."""


class OneStep(Executor):
    """Takes one local step, and returns the weights."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        """Train the model that the server sent on this site's records."""
        model, sent = make_model(), from_shareable(shareable).data
        model.load_state_dict({name: torch.as_tensor(array) for name, array in sent.items()})
        inputs, labels = load_records(fl_ctx.get_identity_name())
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        result = DXO(DataKind.WEIGHTS, data=weights, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 1}).to_shareable()
        result.set_header(AppConstants.CURRENT_ROUND, shareable.get_header(AppConstants.CURRENT_ROUND))
        return result
