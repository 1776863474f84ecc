"""The ledger of a training's audits."""

import pytest
import torch

from sparsedl_fl.federation import LeakPolicy
from sparsedl_fl.simulation import fedavg_update, fully_connected


@pytest.mark.filterwarnings("ignore")
def test_the_ledger_counts_a_record_once_and_names_what_failed():
    batch, policy = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)), None
    for number, rows in enumerate(([0, 1, 2], [2, 3, 4]), 1):
        model = fully_connected(64, width=100, n_hidden=2, random_state=number)
        policy = policy or LeakPolicy(model, 0.1, mode="report", n_steps=1)
        before, after = fedavg_update(model, batch[rows], torch.arange(3), learning_rate=0.1)
        policy.check(before, after, client="a", server_round=number)
    policy.check(None, (), client="b", server_round=2)
    found = policy.table.ledger()
    assert [row.name for row in found.rows] == ["round 1, client a", "round 2, client a"]
    assert (found.n_certified, found.n_different) == (6, (5, 5))
    assert found.to_dict()["totals"]["n_failed"] == 1
    assert "1 audits failed, and are no rows; that is no reassurance" in found.notes
    assert found.exit_status == 1
    assert [one["name"] for one in policy.table.audits[0].result.to_dict()["statement"]["declared"]][:2] == [
        "kind", "loss",
    ]  # fmt: skip


def test_no_audits_are_no_ledger():
    policy = LeakPolicy(fully_connected(64, width=100, random_state=0), 0.1)
    with pytest.raises(ValueError, match="an audit or more"):
        policy.table.ledger()
