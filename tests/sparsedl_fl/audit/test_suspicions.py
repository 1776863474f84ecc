"""What a caller forgot to say of a client."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl.audit import Verdict, audit_model
from sparsedl_fl.audit.suspicions import rounding_noted, without_penalties
from sparsedl_fl.layers.diagnosis import is_of_one_size
from sparsedl_fl.simulation import WIRES, client_gradient


@pytest.fixture
def client():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(60, 120), nn.ReLU(), nn.Linear(120, 40), nn.ReLU(), nn.Linear(40, 10))
        x = torch.randn(10, 60)
    return model, x, client_gradient(model, x, torch.arange(10))


@pytest.mark.parametrize("kind", ["decay", "penalty on one", "signs"])
def test_penalties_are_found_and_taken_away(client, kind):
    model, _, gradients = client
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    changed = {
        "decay": {name: t + 1e-3 * weights[name] for name, t in gradients.items()},
        "penalty on one": gradients | {"2.weight": gradients["2.weight"] + 0.01 * weights["2.weight"]},
        "signs": gradients | {"0.weight": gradients["0.weight"] + 1e-3 * weights["0.weight"].sign()},
    }[kind]
    cleaned, notes = without_penalties(model, changed)
    assert notes
    for name in ("0.weight", "2.weight"):
        np.testing.assert_allclose(cleaned[name], gradients[name], atol=1e-6 * gradients[name].abs().max())
    audit = audit_model(model, changed)
    assert audit.verdict is Verdict.RECOVERED
    assert "was subtracted" in audit.notes[0]


def test_honest_gradients_stay_as_they_are(client):
    model, _, gradients = client
    cleaned, notes = without_penalties(model, gradients)
    assert notes == ()
    assert all(cleaned[name] is tensor for name, tensor in gradients.items())


def test_weights_in_the_place_of_an_update_are_refused(client):
    model, _, _ = client
    with pytest.raises(ValueError, match="the update equals the model's weights"):
        audit_model(model, dict(model.named_parameters()))


def test_adam_is_named_and_never_green(client):
    model, x, _ = client
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    functional.cross_entropy(model(x), torch.arange(10)).backward()
    optimizer.step()
    update = {name: (before[name] - tensor) / 1e-3 for name, tensor in model.state_dict().items()}
    model.load_state_dict(before)
    audit = audit_model(model, update)
    assert audit.verdict is Verdict.OUT_OF_RANGE
    assert "was the optimiser Adam" in audit.reason
    assert "sparsified" not in audit.reason


@pytest.mark.parametrize("wire", [name for name in WIRES if name != "sign"])
def test_no_other_wire_has_entries_of_one_size(client, wire):
    moduli = WIRES[wire](client[2]["0.weight"]).float().abs().numpy()
    assert not is_of_one_size(moduli[moduli > 0])


def test_bfloat16_is_looked_at_for_rounding_too(client):
    model, _, gradients = client
    assert rounding_noted(model, {name: tensor.bfloat16() for name, tensor in gradients.items()}) == ()
