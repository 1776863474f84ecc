"""Filters of a whole update do what those of the frameworks do."""

import numpy as np
import pytest
import torch

from sparsedl_fl.audit import STOCK, Setting, example, sweep
from sparsedl_fl.simulation import (
    ExcludeVars,
    PercentilePrivacy,
    RandomK,
    SimulatedClient,
    SVTPrivacy,
    fully_connected,
)

UPDATE = {name: 0.01 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
          for name, shape in {"0.weight": (30, 20), "0.bias": (30,), "2.weight": (5, 30)}.items()}  # fmt: skip


def seeded():
    return torch.Generator().manual_seed(1)


def by_nvflare(made):
    """Return what NVFLARE's own filter makes of the update."""
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable

    arrays = {name: tensor.numpy().copy() for name, tensor in UPDATE.items()}
    return made.process_dxo(DXO(DataKind.WEIGHT_DIFF, data=arrays), Shareable(), FLContext()).data


@pytest.mark.parametrize(("percentile", "gamma"), [(10, 0.01), (50, 0.1), (95, 1e-3)])
def test_percentiles_are_those_of_nvflare(percentile, gamma):
    theirs = pytest.importorskip("nvflare.app_common.filters.percentile_privacy").PercentilePrivacy(percentile, gamma)
    ours = PercentilePrivacy(percentile, gamma)(UPDATE, seeded())
    for name, array in by_nvflare(theirs).items():
        np.testing.assert_allclose(ours[name].numpy(), array, rtol=1e-6)


@pytest.mark.parametrize("pattern", ["bias", "^0", "weight$", "none"])
def test_tensors_left_out_are_those_of_nvflare(pattern):
    theirs = pytest.importorskip("nvflare.app_common.filters.exclude_vars").ExcludeVars(pattern)
    assert set(ExcludeVars(pattern)(UPDATE, seeded())) == set(by_nvflare(theirs))


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_the_sparse_vector_technique_is_that_of_nvflare_in_distribution(fraction):
    theirs = pytest.importorskip("nvflare.app_common.filters.svt_privacy").SVTPrivacy(fraction=fraction)
    np.random.seed(0)  # noqa: NPY002 (NVFLARE draws from the global generator)
    numbers = [
        np.concatenate([np.asarray(part).ravel() for part in sent.values()])
        for sent in (by_nvflare(theirs), SVTPrivacy(fraction=fraction)(UPDATE, seeded()))
    ]
    (their_share, our_share), (their_size, our_size) = (
        [measure(found) for found in numbers]
        for measure in (lambda x: np.mean(x != 0), lambda x: np.median(np.abs(x[x != 0])))
    )
    assert abs(their_share - our_share) < 0.1  # it depends on one draw of a threshold
    assert 0.6 < their_size / our_size < 1.6
    assert our_size > 5 * 1e-5  # the noise is larger than the largest entry that is sent


def test_entries_at_random():
    sent = RandomK(0.3)(UPDATE, seeded())
    kept = torch.cat([tensor.flatten() != 0 for tensor in sent.values()])
    assert 0.2 < kept.double().mean() < 0.4
    assert all(torch.equal(sent[name][sent[name] != 0], UPDATE[name][sent[name] != 0]) for name in UPDATE)


def test_a_client_filters_the_change_of_its_weights():
    model, batch = fully_connected(12, width=9, random_state=0), torch.rand(4, 12, generator=seeded())
    plain = SimulatedClient(batch_size=4, n_epochs=1, learning_rate=0.01)
    clipped = SimulatedClient(
        batch_size=4, n_epochs=1, learning_rate=0.01, update_filter=PercentilePrivacy(0, gamma=1e-4)
    )
    sent, cut = (one.update(model, batch, torch.arange(4)).gradients for one in (plain, clipped))
    for name, tensor in sent.items():
        torch.testing.assert_close(cut[name], tensor.clamp(-0.01, 0.01))  # 1e-4 at the rate 0.01
    assert plain.is_exact
    assert not clipped.is_exact
    assert "filter" not in repr(plain)  # records of sweeps on file keep their keys


def test_sweeps_try_filters(tmp_path):
    digits = example.records()
    model = fully_connected(64, width=100, n_hidden=2, random_state=0)
    model = torch.nn.Sequential(torch.nn.Flatten(), *model)
    filters = {"0": RandomK(0.5), "1": ExcludeVars("bias"), "2": ExcludeVars("^1")}
    settings = [
        Setting("filter", name, SimulatedClient(batch_size=4, update_filter=one)) for name, one in filters.items()
    ]
    how = {"settings": settings, "n_batches": 1, "max_effort": 2, "n_rounds": 1, "out": tmp_path / "records.jsonl"}
    rows = sweep(model, *digits, **how).rows
    assert rows[0].share == 1
    assert rows[1].share == 1  # the next layer tells what the biases would
    assert all(row.n_wrong == 0 for row in rows)
    keys = [line for line in (tmp_path / "records.jsonl").read_text().splitlines() if "ExcludeVars" in line]
    assert len(keys) == 2
    assert {one.client.update_filter for one in STOCK if one.client.update_filter} == {
        PercentilePrivacy(), ExcludeVars("bias"), SVTPrivacy(),
    }  # fmt: skip
