"""Membership by the row space of a layer's change."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from sparsedl_fl.audit import make_canaries, members
from sparsedl_fl.simulation import client_gradient

DIGITS = torch.tensor(load_digits().data / 16, dtype=torch.float32)
LABELS = torch.tensor(load_digits().target)


def network(n=64, width=100, bias=True, activation=None, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Linear(n, width, bias=bias), activation or nn.ReLU(), nn.Linear(width, 32), nn.ReLU()
        return nn.Sequential(*layers, nn.Linear(32, 10))


def trained(model, inputs, labels, n_steps=30, batch=16, seed=0, optimizer=torch.optim.SGD, **options):
    """Return the model after local training."""
    after, rng = deepcopy(model), torch.Generator().manual_seed(seed)
    steps = optimizer([p for p in after.parameters() if p.requires_grad], **{"lr": 0.05, **options})
    for _ in range(n_steps):
        index = torch.randint(len(inputs), (batch,), generator=rng) if batch < len(inputs) else slice(None)
        steps.zero_grad()
        cross_entropy(after(inputs[index]), labels[index]).backward()
        steps.step()
    return after


def split(n_trained=25, n_others=60, seed=0):
    index = torch.randperm(len(DIGITS), generator=torch.Generator().manual_seed(seed))
    inside, outside = index[:n_trained], index[n_trained : n_trained + n_others]
    return DIGITS[inside], LABELS[inside], DIGITS[outside]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "weight_decay": 5e-3},
        {"n_steps": 1},
        {"n_steps": 200, "weight_decay": 1e-2},
    ],
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])
def test_records_trained_on_are_found_and_no_others(options, seed):
    inputs, labels, others = split(seed=seed)
    before = network(seed=seed)
    after = trained(before, inputs, labels, batch=64, seed=seed, **options)
    found = members(before, after, torch.cat([inputs, others]))
    assert found.n_directions == len(inputs)
    assert not found.is_member[len(inputs) :].any()
    assert found.is_member[: len(inputs)].all()
    assert found.p_values[: len(inputs)].max() < 1e-5
    assert (found.p_values[len(inputs) :] == 1).all()
    assert found.in_range.all()
    assert found.exit_status == 1


def test_weight_decay_of_the_weights_alone_is_found():
    inputs, labels, others = split()
    before = network()
    after = deepcopy(before)
    groups = [
        {"params": [p for p in after.parameters() if p.ndim == 2], "weight_decay": 1e-2},
        {"params": [p for p in after.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    steps = torch.optim.SGD(groups, lr=0.05)
    for _ in range(50):
        steps.zero_grad()
        cross_entropy(after(inputs), labels).backward()
        steps.step()
    found = members(before, after, torch.cat([inputs, others]))
    assert found.is_member[:25].all()
    assert not found.is_member[25:].any()


def test_none_is_found_where_none_was_trained_on():
    inputs, labels, others = split()
    before = network()
    found = members(before, trained(before, inputs, labels), others)
    assert found.n_members == 0
    assert found.in_range.all()
    assert found.exit_status == 0
    assert "leave no trace" in str(found)


def test_the_distance_is_the_one_expected():
    inputs, labels, others = split()
    before = network()
    found = members(before, trained(before, inputs, labels, batch=64), torch.cat([inputs, others]))
    ratios = found.distances / found.expected_distances
    assert 0.7 < np.median(ratios[:25]) < 1.3
    assert ratios[25:].min() > 100


@pytest.mark.parametrize("eps", [1e-3, 1e-2, 0.1])
def test_near_duplicates_are_told_apart(eps):
    inputs, labels, _ = split()
    before = network()
    after = trained(before, inputs, labels, batch=64)
    near = inputs + eps * torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0))
    found = members(before, after, torch.cat([inputs, near]))
    assert found.is_member[:25].all()
    assert not found.is_member[25:].any()


def test_a_bias_tells_a_record_from_its_multiples():
    inputs, labels, _ = split()
    before = network()
    found = members(before, trained(before, inputs, labels, batch=64), torch.cat([inputs, 2 * inputs]))
    assert found.is_member.tolist() == [True] * 25 + [False] * 25


def test_a_record_of_zeros():
    inputs, labels, others = split()
    zero = torch.zeros(1, 64)
    before = network()
    assert not members(before, trained(before, inputs, labels), torch.cat([zero, others])).is_member.any()
    without = network(bias=False)
    found = members(without, trained(without, inputs, labels), torch.cat([zero, others]))
    assert not found.is_member.any()
    assert found.reasons[0] == "a record of zeros leaves no trace in a layer without bias"
    both = torch.cat([inputs, zero]), torch.cat([labels, labels[:1]])
    found = members(before, trained(before, *both, batch=64), torch.cat([zero, others]))
    assert found.is_member.tolist() == [True] + [False] * 60


@pytest.mark.parametrize("others", [None, "given"])
def test_a_single_record(others):
    inputs, labels, outside = split()
    before = network()
    after = trained(before, inputs, labels, batch=64)
    how = {} if others is None else {"others": outside[1:]}
    assert members(before, after, inputs[:1], **how).is_member.all()
    found = members(before, after, outside[:1], **how)
    assert not found.is_member.any()
    assert found.exit_status == 0


@pytest.mark.parametrize("n_trained", [70, 110, 300])
def test_more_records_than_the_layer_shows_are_out_of_range(n_trained):
    inputs, labels, others = split(n_trained)
    before = network()
    found = members(before, trained(before, inputs, labels, n_steps=100), torch.cat([inputs, others]))
    assert not found.is_member.any()
    assert not found.in_range.any()
    assert found.exit_status == 3


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_adam_is_out_of_range(optimizer):
    inputs, labels, others = split()
    before = network()
    after = trained(before, inputs, labels, optimizer=optimizer, lr=1e-3)
    found = members(before, after, torch.cat([inputs, others]))
    assert not found.is_member.any()
    assert not found.in_range[:25].any()
    assert found.exit_status == 3


def test_noise_is_out_of_range_for_what_is_not_found():
    inputs, labels, others = split()
    before = network()
    after = trained(before, inputs, labels)
    with torch.no_grad():
        for parameter in after.parameters():
            parameter.add_(1e-4 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    found = members(before, after, torch.cat([inputs, others]))
    assert not found.is_member[25:].any()
    assert not found.in_range[25:].any()
    assert "noise was added" in found.reason


def test_one_hot_records_that_any_other_would_look_like():
    rng = np.random.default_rng(0)
    records = np.hstack([np.eye(k)[rng.integers(k, size=400)] for k in (3, 4, 5, 6, 7)])
    inputs, labels = torch.tensor(records[:60], dtype=torch.float32), torch.tensor(rng.integers(10, size=60))
    before = network(n=25)
    found = members(before, trained(before, inputs, labels, batch=64), records[60:].astype(np.float32))
    assert found.n_directions == 21  # the whole space of such records
    assert not found.is_member.any()
    assert not found.in_range.any()


def test_fewer_inputs_than_were_trained_on():
    inputs, labels, others = split()
    before = network()
    after = trained(before, inputs, labels, batch=64)
    assert members(before, after, others, n_trained=25).exit_status == 0
    found = members(before, after, others, n_trained=26)
    assert found.exit_status == 3
    assert "25 inputs show, of 26" in found.reason


def test_kinds_of_updates():
    inputs, labels, others = split()
    before = network()
    after = trained(before, inputs, labels, batch=64)
    records = torch.cat([inputs, others])
    delta = {name: tensor - before.state_dict()[name] for name, tensor in after.state_dict().items()}
    gradient = client_gradient(before, inputs, labels)
    for sent, kind in ((delta, "delta"), (gradient, "gradient"), (after.state_dict(), "weights")):
        found = members(before.state_dict(), sent, records, kind=kind)
        assert found.is_member.tolist() == [True] * 25 + [False] * 60, kind


def test_units_change_nothing():
    inputs, labels, others = split()
    before = network()
    gradient = client_gradient(before, inputs, labels)
    records = torch.cat([inputs, others])
    found = members(before, gradient, records, kind="gradient")
    scaled = members(before, {k: 2.0**-40 * g for k, g in gradient.items()}, records, kind="gradient")
    np.testing.assert_array_equal(found.is_member, scaled.is_member)
    np.testing.assert_allclose(found.distances, scaled.distances)


def test_a_frozen_convolution_is_run_through():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 60), nn.ReLU(), nn.Linear(60, 10))
    inputs, labels, others = split()
    pictures, outside = inputs.reshape(-1, 1, 8, 8), others.reshape(-1, 1, 8, 8)
    found = members(model, trained(model, pictures, labels), outside)
    assert found.exit_status == 3
    assert "training changes the inputs of every linear layer" in found.reason
    model[0].requires_grad_(False)
    found = members(model, trained(model, pictures, labels, batch=64), torch.cat([pictures, outside]))
    assert found.layer == "3"
    assert found.is_member.tolist() == [True] * 25 + [False] * 60


@pytest.mark.parametrize("front", [nn.Dropout(0.2), nn.BatchNorm1d(64, affine=False)])
def test_what_changes_inputs_in_training_is_out_of_range(front):
    model = nn.Sequential(front, nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    inputs, labels, others = split()
    found = members(model, trained(model, inputs, labels), torch.cat([inputs, others]))
    assert found.exit_status == 3
    model.eval()
    found = members(model, trained(model, inputs, labels, batch=64), torch.cat([inputs, others]))
    assert found.is_member.tolist() == [True] * 25 + [False] * 60


def test_a_layer_that_is_fed_several_rows_a_record():
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(16, 150), nn.Linear(150, 10)

        def forward(self, x):
            return self.last(torch.relu(self.first(x.reshape(-1, 4, 16))).mean(1))

    generator = torch.Generator().manual_seed(0)
    records = torch.randn(30, 64, generator=generator)
    model = Rows()
    after = trained(model, records[:3], torch.arange(3), batch=9)
    found = members(model, after, records, layer="first")
    assert found.is_member.tolist() == [True] * 3 + [False] * 27


def test_canaries_are_found():
    inputs, labels, _ = split()
    canaries = make_canaries(DIGITS, 40, random_state=0)
    assert torch.equal(canaries, make_canaries(DIGITS, 40, random_state=0))
    own = torch.cat([inputs, canaries[:10]]), torch.cat([labels, torch.arange(10)])
    before = network()
    found = members(before, trained(before, *own, batch=64), canaries[:10], others=canaries[10:])
    assert found.is_member.all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"records": torch.zeros(3, 7)}, "records"),
        ({"records": torch.zeros(0, 64)}, "records"),
        ({"records": torch.full((2, 64), torch.nan)}, "NaN"),
        ({"others": torch.zeros(3, 7)}, "others"),
        ({"kind": "state"}, "kind"),
        ({"layer": "nothing"}, "layer"),
        ({"after": {"0.weight": torch.zeros(3, 3)}}, "0.weight"),
        ({"after": {"0.weight": torch.full((100, 64), torch.inf)}}, "after has NaN or infinity"),
    ],
)
def test_what_is_wrong_is_said(change, message):
    before = network()
    given = {"before": before, "after": trained(before, *split()[:2]).state_dict(), "records": split()[2], **change}
    with pytest.raises(ValueError, match=message):
        members(**given)


def test_a_model_that_was_not_trained():
    before = network()
    found = members(before, before, split()[2])
    assert found.exit_status == 3
    assert "did not change" in found.reason


def test_canaries_need_records():
    with pytest.raises(ValueError, match="records must have shape"):
        make_canaries(torch.zeros(1, 4), 3)
    with pytest.raises(ValueError, match="n_canaries"):
        make_canaries(torch.zeros(3, 4), 0)
