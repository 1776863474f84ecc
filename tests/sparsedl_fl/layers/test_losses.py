"""The client's loss, whatever it is made of; layers that run twice; networks that are sure of their labels."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.audit import audit_model
from sparsedl_fl.models import inspect_model
from sparsedl_fl.simulation import client_gradient, fully_connected

WEIGHTS = torch.linspace(0.5, 9, 10, dtype=torch.float32)

LOSSES = {
    "class weights in a lambda": lambda o, t: functional.cross_entropy(o, t, weight=WEIGHTS),
    "class weights in double": nn.CrossEntropyLoss(weight=WEIGHTS.double()),
    "ignore_index": nn.CrossEntropyLoss(ignore_index=3),
    "smoothing": nn.CrossEntropyLoss(label_smoothing=0.1),
    "a sum": nn.CrossEntropyLoss(reduction="sum"),
    "one-hot in single": lambda o, t: functional.mse_loss(o, functional.one_hot(t, 10).float()),
    "a float32 matrix": lambda o, t: -(torch.eye(10, dtype=torch.float32)[t] * o.log_softmax(1)).sum(1).mean(),
}


def labels_right(found, batch, labels):
    nearest = ((found.inputs_[:, None] - batch.numpy()[None]) ** 2).mean(-1).argmin(1)
    is_known = found.labels_ >= 0
    return int(is_known.sum()), bool(np.all(found.labels_ == labels[nearest].numpy(), where=is_known))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_true_loss_shows_all_labels(loss):
    batch = torch.randn(8, 60, generator=torch.Generator().manual_seed(0))
    labels, model = torch.tensor([0, 1, 2, 3, 3, 5, 6, 7]), fully_connected(60, width=90, n_hidden=1, random_state=0)
    is_double = loss == "class weights in double"
    of_client = nn.CrossEntropyLoss(weight=WEIGHTS) if is_double else LOSSES[loss]
    gradients = client_gradient(model, batch, labels, loss=of_client)
    found = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, gradients, loss=LOSSES[loss]))
    n_there = 6 if loss == "ignore_index" else 8  # those left out leave no gradient
    assert found.recovered_.sum() == n_there
    assert labels_right(found, batch, labels) == (n_there, True)


def test_a_loss_that_cannot_be_evaluated_is_said_and_left_out():
    batch = torch.randn(6, 60, generator=torch.Generator().manual_seed(0))
    model = fully_connected(60, width=90, n_hidden=1, random_state=0)
    gradients = client_gradient(model, batch, torch.arange(6))

    def broken(outputs, labels):
        raise RuntimeError("no such luck")

    with pytest.warns(UserWarning, match="loss could not be evaluated.*no such luck.*cross-entropy is assumed instead"):
        given = LayerGradient.from_model(model, gradients, loss=broken)
    assert labels_right(GradientInverter(random_state=0).fit(given), batch, torch.arange(6)) == (6, True)


class Siamese(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.shared, self.activation, self.head = nn.Linear(40, 120), activation, nn.Linear(240, 10)

    def forward(self, pairs):
        return self.head(torch.cat([self.activation(self.shared(one)) for one in pairs.unbind(1)], dim=1))


def test_a_layer_that_runs_twice_is_attacked_as_one_batch():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, pairs = Siamese(nn.ReLU()), torch.randn(5, 2, 40)
    gradients = client_gradient(model, pairs, torch.arange(5))
    found = audit_model(model, gradients, example=pairs[:1])["shared"]
    assert (found.n_certified, found.n_inputs) == (10, 10)
    off = ((found.batch.inputs[:, None] - pairs.reshape(-1, 40).numpy()[None]) ** 2).mean(-1).min(1)
    assert off.max() < 1e-10
    smooth = inspect_model(Siamese(nn.GELU()), pairs[:1])[0]
    assert "whose derivative is nowhere zero" in smooth.obstacle


def test_a_weight_that_is_an_embedding_as_well_is_out_of_reach():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.hidden, self.head = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 50)
            self.head.weight = self.table.weight

        def forward(self, tokens):
            return self.head(torch.relu(self.hidden(self.table(tokens).mean(1))))

    hidden, table = inspect_model(Tied())[:2]
    assert hidden.attack == "zeros"  # the head's gradient does not span the activations alone
    assert "its weight is also that of an embedding" in table.obstacle


def test_a_network_that_is_sure_of_its_labels_shows_them_in_single_precision():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        batch, labels = torch.randn(8, 60), torch.arange(8)
        model = nn.Sequential(nn.Linear(60, 90), nn.Tanh(), nn.Linear(90, 10))
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(1500):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), labels)
            if loss < 3e-6:
                break
            loss.backward()
            optimizer.step()
    given = LayerGradient.from_model(model, client_gradient(model, batch, labels))
    n_known, is_right = labels_right(GradientInverter(random_state=0).fit(given), batch, labels)
    assert is_right
    assert n_known >= 7
