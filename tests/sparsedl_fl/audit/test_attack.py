import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sparsedl_fl import GradientInverter
from sparsedl_fl.audit import audit_model
from sparsedl_fl.certify.labels import NO_LABEL
from sparsedl_fl.demo import natural_patches
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.simulation import WIRES, client_gradient, fully_connected


def activations(model, batch):
    """Return the input of every linear layer."""
    inputs = []
    for module in model:
        if isinstance(module, nn.Linear):
            inputs.append(batch.detach().numpy().astype(float))
        batch = module(batch)
    return inputs


def mean_absolute_errors(true, recovered):
    order = match_batches(true, recovered).order
    return np.abs(true - recovered[order]).mean(axis=1)


@pytest.fixture(scope="module")
def tiny_images():
    """Return 300 pictures of 64 x 64 pixels, each of four patches of photographs, with labels below 200."""
    patches, mean, std = natural_patches(1200, random_state=0)
    pictures = ((patches - mean) / std).reshape(300, 2, 2, 32, 32, 3).transpose(0, 1, 3, 2, 4, 5)
    labels = torch.from_numpy(np.random.default_rng(0).integers(200, size=300))
    return torch.tensor(pictures, dtype=torch.float32).flatten(1), labels


@pytest.mark.parametrize(("n_steps", "depth"), [(0, 3), pytest.param(50, 4, marks=pytest.mark.slow)])
def test_each_layer_of_a_deep_network_gives_its_inputs_away(tiny_images, n_steps, depth):
    inputs, labels = tiny_images
    rng = np.random.default_rng(0)
    model = fully_connected(inputs.shape[1], width=400, n_hidden=5, n_classes=200, random_state=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(n_steps):
        part = rng.choice(len(inputs), 64, replace=False)
        optimizer.zero_grad()
        cross_entropy(model(inputs[part]), labels[part]).backward()
        optimizer.step()
    part = rng.choice(len(inputs), 20, replace=False)
    audits = audit_model(model, client_gradient(model, inputs[part], labels[part]))
    true = activations(model, inputs[part])
    assert list(audits) == ["0", "2", "4", "6", "8", "10"]
    for audit, expected in [*zip(audits.values(), true, strict=True)][:depth] + [(audits["10"], true[5])]:
        assert audit.inverter.recovered_.all(), audit.reason
        assert mean_absolute_errors(expected, audit.inverter.inputs_).max() < 1e-4
    assert sorted(audits["10"].inverter.labels_) == sorted(labels[part].tolist())


class Functional(nn.Module):
    """ReLU as a function, which no list of modules shows; and a layer of each kind that cannot be attacked."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(50, 80)
        self.no_bias = nn.Linear(80, 80, bias=False)
        self.narrow = nn.Linear(80, 6)
        self.squashed = nn.Linear(6, 80)
        self.squash = nn.Tanh()
        self.head = nn.Linear(80, 10)

    def forward(self, x):
        for layer in (self.first, self.no_bias, self.narrow):
            x = torch.relu(layer(x))
        return self.head(self.squash(self.squashed(x)))


def test_obstacles_are_named():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, batch = Functional(), torch.randn(7, 50)
    audits = audit_model(
        model, client_gradient(model, batch, torch.arange(7)), GradientInverter(random_state=1), peel=False
    )
    assert audits["first"].inverter.recovered_.all()
    assert audits["first"].inverter.random_state == 1
    assert "it has no bias: the scale of each input is not known" in audits["no_bias"].reason
    assert "the batch size is uncertain" in audits["narrow"].reason
    assert audits["squashed"].inverter.recovered_.all()  # more inputs than it has features, and a layer behind it
    assert not audits["head"].inverter.recovered_.any()
    assert "of the classes of a head" in audits["head"].reason


@pytest.mark.parametrize("n_left", [0, 5])
def test_a_layer_of_which_a_search_left_some_or_all_open_follows_from_a_later_one(monkeypatch, n_left):
    model = fully_connected(30, width=50, n_hidden=3, random_state=0)
    batch = torch.randn(6, 30, generator=torch.Generator().manual_seed(0))
    whole, seen = GradientInverter.fit, []

    def cut_short(inverter, given):
        whole(inverter, given)
        if not seen:
            inverter.recovered_[n_left:] = False
        seen.append(inverter)
        return inverter

    monkeypatch.setattr(GradientInverter, "fit", cut_short)
    audit = audit_model(model, client_gradient(model, batch, torch.arange(6)))
    assert [layer.n_certified for layer in audit.layers] == [6, 6, 6, 6]
    assert audit["0"].source == "backward from layer '2'"
    assert match_batches(batch.numpy(), audit["0"].batch.inputs).squared_errors.max() < 1e-8


def without_bias(make, is_frozen, seed=0):
    """Return a model whose first and third layers send no bias gradient, a batch and what a client sends."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, third = (nn.Linear(n, m, bias=is_frozen) for n, m in ((30, 60), (50, 40)))
        model = nn.Sequential(first, make(), nn.Linear(60, 50), make(), third, make(), nn.Linear(40, 10))
        batch = torch.randn(6, 30)
    gradients = client_gradient(model, batch, torch.arange(6))
    return model, batch, {name: part for name, part in gradients.items() if name not in ("0.bias", "4.bias")}


@pytest.mark.parametrize("make", [nn.ReLU, nn.LeakyReLU, nn.Tanh])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_layer_without_a_bias_gradient_follows_from_others(make, is_frozen):
    model, batch, gradients = without_bias(make, is_frozen)
    audit = audit_model(model, gradients)
    assert [layer.n_certified for layer in audit.layers] == [6, 6, 6, 6]
    assert audit["0"].source.split()[0] in ("attacked", "backward")
    assert audit["4"].source.split()[0] == "forward"
    match = match_batches(batch.numpy(), audit["0"].batch.inputs)
    assert match.squared_errors.mean() < 3**2 * np.mean(audit["0"].batch.errors ** 2)
    assert audit["0"].batch.errors.max() < 1e-4


@pytest.mark.parametrize("is_frozen", [False, True])
def test_other_weights_in_a_layer_without_a_bias_gradient_are_certified_with_their_error_or_not(is_frozen):
    for size in (1e-1, 1e-2, 1e-3):
        model, batch, gradients = without_bias(nn.ReLU, is_frozen)
        with torch.no_grad():
            model[0].weight *= 1 + size * torch.randn(60, 30, generator=torch.Generator().manual_seed(1))
        layer = audit_model(model, gradients)["0"]
        if layer.n_certified:
            match = match_batches(batch.numpy(), layer.batch.inputs)
            assert (np.sqrt(match.squared_errors) < 3 * layer.batch.errors[match.order]).all()


def test_layers_can_be_chosen():
    model = fully_connected(30, width=60, random_state=0)
    gradients = client_gradient(model, torch.randn(4, 30, generator=torch.Generator().manual_seed(0)), torch.arange(4))
    assert list(audit_model(model, gradients, layers=[1, "0"])) == ["2", "0"]


def test_a_model_without_linear_layers_is_refused():
    with pytest.raises(ValueError, match="the model has no linear layer"):
        audit_model(nn.Sequential(nn.ReLU()), [])


@pytest.mark.parametrize("wire", ["float32", "bfloat16", "int8"])
def test_labels_of_a_batch_larger_than_the_classes_come_from_the_last_layer(cifar, wire):
    _, inputs, labels, model = cifar.client(30, 200, 0)
    gradients = client_gradient(model, inputs, labels)
    gradients = {name: WIRES[wire](tensor) if wire in WIRES else tensor for name, tensor in gradients.items()}
    # In eight bits a search ends with mixtures among its columns in about one of five batches, and certifies nothing.
    audits = (audit_model(model, gradients, GradientInverter(random_state=seed), layers=[0, 3]) for seed in range(4))
    batch = next(audit["0"].batch for audit in audits if audit["0"].batch.is_whole)
    order = match_batches(inputs.double().numpy(), batch.inputs).order
    found = batch.labels[order]
    known = found != NO_LABEL
    np.testing.assert_array_equal(found[known], labels.numpy()[known])
    assert known.mean() >= (1.0 if wire == "float32" else 0.9)


@pytest.mark.parametrize("loss", ["mse", "smooth"])
def test_another_loss_shows_no_labels(cifar, loss):
    def other(outputs, labels):
        if loss == "mse":
            return nn.functional.mse_loss(outputs, nn.functional.one_hot(labels, 10).float())
        return cross_entropy(outputs, labels, label_smoothing=0.3)

    _, inputs, labels, model = cifar.client(16, 200, 0)
    audit = audit_model(model, client_gradient(model, inputs, labels, other))
    assert audit["0"].n_certified == 16
    assert audit["0"].n_labels == 0
