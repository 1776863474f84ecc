"""Models looked at by running them: order, functional calls, layers of one's own, and every parameter."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout, relu

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.activations import (
    CELU,
    ELU,
    GELU,
    SELU,
    Hardtanh,
    LeakyReLU,
    PReLU,
    ReLU,
    ReLU6,
    Softplus,
    Tanh,
    Threshold,
)
from sparsedl_fl.audit import audit_model
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.models import inspect_model
from sparsedl_fl.simulation import client_gradient, fully_connected
from sparsedl_fl.tracing.naming import named_gradients
from sparsedl_fl.tracing.tracing import trace_model


class OwnLinear(nn.Module):
    """A linear layer that is no nn.Linear, stored as (inputs, outputs)."""

    def __init__(self, n_inputs, n_outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_inputs, n_outputs) / n_inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(n_outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Backwards(nn.Module):
    """Declared from the last layer to the first."""

    def __init__(self):
        super().__init__()
        self.head, self.second, self.first = nn.Linear(80, 10), nn.Linear(80, 80), OwnLinear(50, 80)

    def forward(self, x):
        x = torch.clamp(self.first(x), min=0)
        return self.head(relu(self.second(dropout(x, 0.5, self.training))))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(100, 16), nn.LSTM(16, 32, batch_first=True)
        self.hidden, self.head = nn.Linear(32, 64), nn.Linear(64, 5)

    def forward(self, tokens):
        return self.head(relu(self.hidden(self.lstm(self.embedding(tokens))[0][:, -1])))


class LeNet(nn.Module):
    """As the tutorials write it."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.pool = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(relu(self.conv2(self.pool(relu(self.conv1(x))))))
        return self.fc3(relu(self.fc2(relu(self.fc1(x.view(-1, 400))))))


@pytest.fixture(autouse=True)
def _seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def test_layers_count_in_the_order_in_which_they_run():
    model = Backwards()
    trace = trace_model(model)
    assert [(use.name, use.activation, use.next_weight) for use in trace.layers] == [
        ("first", ReLU(), "second.weight"),
        ("second", ReLU(), "head.weight"),
        ("head", None, ""),
    ]
    assert model.training  # left as it was


def test_a_layer_declared_last_and_of_ones_own_gives_its_batch_away():
    model, batch = Backwards().eval(), torch.randn(6, 50)
    gradients = client_gradient(model, batch, torch.arange(6))
    given = LayerGradient.from_model(model, gradients, layer=0)
    assert given.shape == (80, 50)
    inverter = GradientInverter(random_state=0).fit(given)
    assert inverter.recovered_.all()
    assert match_batches(batch, inverter.inputs_).squared_errors.max() < 1e-8
    audits = audit_model(model, gradients, peel=False)
    assert list(audits) == ["first", "second", "head"]
    assert audits["first"].inverter.recovered_.all()
    assert not audits["head"].inverter.recovered_.any()  # six inputs, ten classes


@pytest.mark.parametrize("model", [LeNet(), Recurrent(), nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)])
def test_every_parameter_is_in_the_table(model):
    rows = inspect_model(model)
    assert sorted(name for row in rows for name in row.parameters) == sorted(dict(model.named_parameters()))
    assert all(row.obstacle or row.attack.gives_pictures for row in rows if row.kind != "Linear")


def test_each_layer_says_what_feeds_it_and_how_much_it_leaks():
    rows = [(row.name, row.feeds, row.attack, row.largest_batch) for row in inspect_model(LeNet()) if row.attack]
    assert rows == [
        ("fc1", "features", "span", 54),
        ("fc2", "features", "next weights", 44),  # the next layer has ten outputs
        ("fc3", "features", "head", 4),
        ("conv1, conv2", "", "pictures with gradients", 1),
    ]
    first = inspect_model(nn.Sequential(nn.Linear(20, 50), nn.Tanh(), nn.LayerNorm(50), nn.Linear(50, 10)))[0]
    assert (first.feeds, first.attack, first.largest_batch) == ("the model's input", "rest", 10)


@pytest.mark.parametrize(("activation", "largest"), [(nn.GELU, 125), (nn.ReLU, 90), (nn.LeakyReLU, 90)])
def test_smooth_activations_leak_more_by_the_spans_of_several_layers(activation, largest):
    sizes = (300, 200, 200, 200)
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), activation())]
    first = inspect_model(nn.Sequential(*layers, nn.Linear(200, 10)))[0]
    assert (first.attack, first.largest_batch) == ("span", largest)


def test_the_lenet_of_the_tutorials_is_seen_whole():
    uses = trace_model(LeNet()).layers
    assert [(use.name, use.next_weight) for use in uses] == [("fc1", "fc2.weight"), ("fc2", "fc3.weight"), ("fc3", "")]


def test_what_follows_is_told_apart():
    layers = {
        nn.ReLU6(): ReLU6(),
        nn.GELU(): GELU(),
        nn.GELU("tanh"): GELU("tanh"),
        nn.Tanh(): Tanh(),
        nn.ReLU(inplace=True): ReLU(),
        nn.LeakyReLU(0.01): LeakyReLU(),
        nn.LeakyReLU(0.2): LeakyReLU(0.2),
        nn.PReLU(8, 0.1): PReLU([0.1] * 8),
        nn.ELU(0.5): ELU(0.5),
        nn.CELU(0.5): CELU(0.5),
        nn.SELU(): SELU(),
        nn.Softplus(2.0): Softplus(2.0),
        nn.Threshold(0.1, 0.05): Threshold(0.1, 0.05),
        nn.Hardtanh(-0.3, 0.7): Hardtanh(-0.3, 0.7),
        nn.LayerNorm(8): None,
    }
    for layer, activation in layers.items():
        model = nn.Sequential(nn.Linear(6, 8), layer, nn.Linear(8, 2)).double()
        found = trace_model(model, torch.randn(5, 6, dtype=torch.float64)).layers[0].activation
        assert repr(found) == repr(activation)


def test_a_residual_connection_around_the_activation_is_seen():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, x):
            z = self.first(x)
            return self.head(z + relu(z))

    assert "a path around it" in inspect_model(Residual())[0].behind


def test_relu6_gives_its_batch_away():
    model = nn.Sequential(nn.Linear(50, 80), nn.ReLU6(), nn.Linear(80, 10))
    batch = torch.randn(6, 50)
    given = LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(6)))
    assert given.activation == "relu6"
    assert GradientInverter(random_state=0).fit(given).recovered_.all()


@pytest.mark.parametrize("has_bias", [True, False])
def test_batch_normalisation_in_evaluation_mode_is_folded(has_bias):
    norm = nn.BatchNorm1d(80)
    with torch.no_grad():
        norm.running_mean.normal_(0, 0.3)
        norm.running_var.uniform_(0.3, 1.5)
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_(0, 0.2)
    model = nn.Sequential(nn.Linear(50, 80, bias=has_bias), norm, nn.ReLU(), nn.Linear(80, 10)).eval()
    batch = torch.randn(6, 50)
    gradients = client_gradient(model, batch, torch.arange(6))
    inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, gradients))
    assert inverter.recovered_.all()
    assert inverter.sparsity_matching_ == 1
    assert match_batches(batch, inverter.inputs_).squared_errors.max() < 1e-8
    with pytest.raises(ValueError, match="batch normalisation in training mode follows, which mixes"):
        LayerGradient.from_model(model.train(), gradients)


def test_a_model_that_cannot_be_run_is_said_and_still_attacked():
    class TwoInputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(50, 80), nn.Linear(80, 10)

        def forward(self, x, shift):
            return self.head(relu(self.first(x + shift)))

    model, batch = TwoInputs(), torch.randn(6, 50)
    outputs = nn.functional.cross_entropy(model(batch, 0), torch.arange(6))
    gradients = torch.autograd.grad(outputs, list(model.parameters()))
    with pytest.warns(UserWarning, match="could not be run on a made-up input.*pass example="):
        given = LayerGradient.from_model(model, gradients)
    assert given.activation is None
    assert GradientInverter(random_state=0).fit(given).recovered_.all()


class TestNames:
    @pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
    def test_wrappers_may_stand_on_either_side(self, prefix):
        model = fully_connected(5, width=6, random_state=0)
        gradients = client_gradient(model, torch.randn(2, 5), torch.arange(2))
        wrapped = {prefix + name: gradient for name, gradient in gradients.items()}
        assert list(named_gradients(model, wrapped)) == list(gradients)
        assert list(named_gradients(nn.DataParallel(model), gradients)) == list(gradients)

    def test_compiled_models_are_looked_at_as_others(self):
        model = nn.Sequential(nn.Linear(40, 60), nn.GELU(), nn.Linear(60, 60), nn.GELU(), nn.Linear(60, 10))
        compiled, inputs = torch.compile(model, backend="eager"), torch.randn(6, 40)
        nn.functional.cross_entropy(compiled(inputs), torch.arange(6)).backward()
        gradients = {name: parameter.grad for name, parameter in compiled.named_parameters()}
        given = LayerGradient.from_model(compiled, gradients)
        assert given.activation == "gelu"
        assert given.next_weight_grad is not None
        assert given.rest is not None

    def test_what_is_mixed_up_is_named(self):
        model = fully_connected(5, width=6, random_state=0)
        gradients = client_gradient(model, torch.randn(2, 5), torch.arange(2))
        with pytest.raises(ValueError, match=r"every gradient is None: call loss.backward\(\)"):
            LayerGradient.from_model(model, [parameter.grad for parameter in model.parameters()])
        with pytest.raises(TypeError, match="model must be a torch.nn.Module, got OrderedDict"):
            LayerGradient.from_model(model.state_dict(), gradients)
        with pytest.raises(TypeError, match=r"before must map .* pass its state_dict\(\)"):
            LayerGradient.from_update(model, model, learning_rate=0.1)
        with pytest.raises(TypeError, match="gradients must be tensors, got a module"):
            LayerGradient.from_model(model, model)
        other = fully_connected(7, width=6, random_state=0)
        with pytest.raises(ValueError, match=r"gradient of '0.weight' has shape \(6, 5\).*not of the same model"):
            LayerGradient.from_model(other, gradients)

    def test_weights_that_are_computed_or_shared_are_named(self):
        normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 6)), nn.ReLU(), nn.Linear(6, 2))
        gradients = [torch.ones_like(parameter) for parameter in normed.parameters()]
        with pytest.raises(ValueError, match="computed from other parameters"):
            LayerGradient.from_model(normed, gradients, "0")
        assert "computed from other parameters" in audit_model(normed, gradients)["0"].reason
        tied = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2))
        tied[2].weight = tied[0].weight  # with other biases
        gradients = client_gradient(tied, torch.randn(2, 5), torch.arange(2))
        with pytest.raises(ValueError, match="runs several times with other biases"):
            LayerGradient.from_model(tied, gradients, 0)

    def test_a_frozen_bias_is_named(self):
        model = fully_connected(5, width=6, random_state=0)
        gradients = client_gradient(model, torch.randn(2, 5), torch.arange(2))
        del gradients["0.bias"]
        with pytest.raises(ValueError, match="'0.bias'.*is the bias frozen"):
            LayerGradient.from_model(copy.deepcopy(model), gradients)
