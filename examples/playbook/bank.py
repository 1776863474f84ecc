"""A bank's table of credit applications in Flower: what the audit on the client says and holds.

The rows are drawn from a seed. One client, one round, Flower's own ClientApp, in one process:
python examples/playbook/bank.py OUT [EPSILON]
"""

import sys
import warnings

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.supercore.task_identity import TaskIdentity
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

from sparsedl_fl.federation import LeakPolicy
from sparsedl_fl.federation.flower import LeakAuditMod
from sparsedl_fl.tabular import decode_table

RATE, N_RECORDS = 0.1, 8
LEVELS = {
    "purpose": ("car", "house", "studies", "holiday"),
    "work": ("none", "hired", "self-employed"),
    "region": "ABCDEFGH",
}


def draw(n, seed):
    """Return rows of a table, (n, 5): amount, age, and three categories."""
    rng = np.random.default_rng(seed)
    numbers = [rng.integers(5, 500, n) * 100, rng.integers(18, 80, n)]
    return np.array([*numbers, *(rng.choice(list(levels), n) for levels in LEVELS.values())], dtype=object).T


table = draw(500, seed=0)
encoder = ColumnTransformer(
    [("numbers", StandardScaler(), [0, 1]), ("categories", OneHotEncoder(), [2, 3, 4])], sparse_threshold=0
).fit(table)
inputs = torch.tensor(encoder.transform(table).astype(np.float32))


def model():
    """Return the network that the federation trains."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs.shape[1], 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 2))


def one_step(message, context):
    """Train on the client's first rows, and return the weights."""
    network = model()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    nn.functional.cross_entropy(network(inputs[:N_RECORDS]), torch.arange(N_RECORDS) % 2).backward()
    optimizer.step()
    content = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": N_RECORDS})}
    return Message(RecordDict(content), reply_to=message)


def main(out, epsilon=None):
    """Run one round; return the audit and the rows that it recovered, decoded."""
    policy = LeakPolicy(model, RATE, n_steps=1, mode="block", batch_size=N_RECORDS, out=out)
    mods = [LeakAuditMod(policy)]  # the outermost: it sees what leaves
    if epsilon is not None:
        mods.append(LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=epsilon, delta=1e-5))
    app = ClientApp(mods=mods)
    app.train()(one_step)
    asked = RecordDict({"arrays": ArrayRecord(model().state_dict()), "config": ConfigRecord({"server-round": 1})})
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = 1  # what a SuperNode sets
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reply = app(Message(asked, dst_node_id=1, message_type="train"), context)
    (checked,) = policy.table.audits
    print(
        "held" if reply.has_error() else "sent",
        "-",
        checked.finding,
        "-",
        checked.result.verdict,
        checked.result.reason,
    )
    samples = [sample.values for sample in checked.result.samples if sample.kind == "inputs of the model"]
    if not samples:
        return checked, None
    decoded = decode_table(encoder, np.stack(samples))
    rows = list(zip(*decoded.values(), strict=True))
    print("first row recovered:", *rows[0])
    return checked, rows


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
