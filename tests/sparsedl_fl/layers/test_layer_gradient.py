from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import LayerGradient
from sparsedl_fl.activations import Identity, ReLU
from sparsedl_fl.simulation import client_gradient, fedavg_update, fully_connected

M, N = 6, 5


def arrays(**changes):
    rng = np.random.default_rng(0)
    good = {
        "weight": rng.standard_normal((M, N)),
        "bias": rng.standard_normal(M),
        "weight_grad": rng.standard_normal((M, N)),
        "bias_grad": rng.standard_normal(M),
    }
    return good | changes


def with_entry(shape, value):
    array = np.ones(shape)
    array.flat[1] = value
    return array


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"weight": np.ones(M)}, ValueError, r"weight must have shape \(outputs, inputs\)"),
        ({"weight": np.ones((0, N))}, ValueError, r"weight must have shape \(outputs, inputs\), both positive"),
        ({"weight_grad": np.ones((N, M))}, ValueError, r"weight_grad must have shape \(6, 5\).*got \(5, 6\)"),
        ({"bias": np.ones(N)}, ValueError, r"bias must have shape \(6,\)"),
        ({"bias_grad": np.ones((M, 1))}, ValueError, r"bias_grad must have shape \(6,\)"),
        ({"next_weight_grad": np.ones((3, N))}, ValueError, r"next_weight_grad must have shape \(outputs, 6\)"),
        ({"bias": None}, ValueError, "bias is missing"),
        ({"bias_grad": None}, ValueError, "bias_grad is missing"),
        ({"weight_grad": np.zeros((M, N))}, ValueError, "weight_grad is all zeros: the batch was empty"),
        ({"weight_grad": with_entry((M, N), np.nan)}, ValueError, "weight_grad contains NaN or infinity"),
        ({"weight": with_entry((M, N), np.inf)}, ValueError, "weight contains NaN or infinity"),
        ({"weight_grad": np.ones((M, N), dtype=int)}, TypeError, "weight_grad must be of a floating type, got int64"),
        ({"weight_grad": torch.ones(M, N, dtype=torch.int64)}, TypeError, "weight_grad must be of a floating type"),
        (
            {"weight": torch.ones(M, N), "weight_grad": torch.ones(M, N, device="meta")},
            ValueError,
            "all tensors must be on one device, got weight on cpu, weight_grad on meta",
        ),
        ({"weight_grad": torch.ones(M, N, device="meta")}, ValueError, "on the device 'meta' and hold no data"),
        ({"rows_per_sample": 0}, ValueError, "rows_per_sample must be a positive integer, got 0"),
        ({"rows_per_sample": 2.5}, ValueError, "rows_per_sample must be a positive integer, got 2.5"),
    ],
)
def test_bad_input_is_named(changes, error, message):
    with pytest.raises(error, match=message):
        LayerGradient(**arrays(**changes))


def test_arrays_and_tensors_of_both_precisions_are_taken():
    for convert in (lambda a: a.astype(np.float32), torch.tensor, lambda a: torch.tensor(a).float().requires_grad_()):
        layer_gradient = LayerGradient(**{name: convert(array) for name, array in arrays().items()})
        # The large arrays stay as the client sent them.
        assert str(layer_gradient.weight.dtype) == str(convert(arrays()["weight"]).dtype).removeprefix("torch.")
        assert layer_gradient.bias_grad.dtype == np.float64
        assert layer_gradient.shape == (M, N)
        assert layer_gradient.next_weight_grad is None


class TestLayersThatFollow:
    """One list of layers and one tail, whichever keywords they came by."""

    @pytest.fixture
    def given(self):
        model = fully_connected(12, width=9, n_hidden=3, n_classes=4, random_state=0)
        batch = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
        return LayerGradient.from_model(model, client_gradient(model, batch, torch.tensor([0, 1, 2])))

    def test_each_is_there_once(self, given):
        assert [layer.weight_grad.shape for layer in given.layers] == [(9, 9), (9, 9), (4, 9)]
        assert [layer.weight is None for layer in given.layers] == [False, False, True]
        assert [layer.activation for layer in given.layers[:-1]] == [ReLU(), ReLU()]
        assert given.next_weight is given.layers[0].weight
        assert given.next_weight_grad is given.layers[0].weight_grad
        assert (given.rest, given.head) == (given.tail.rest, given.tail.head)
        for layer, behind, after in zip(given.layers, given.behind, given.layers[1:], strict=False):
            np.testing.assert_array_equal(behind.weight, layer.weight)
            np.testing.assert_array_equal(behind.bias, layer.bias)
            np.testing.assert_array_equal(behind.next_weight_grad, after.weight_grad)

    def test_replaced_by_nothing_all_stays(self, given):
        same = replace(given)
        for one, other in zip(given.layers, same.layers, strict=True):
            for name in ("weight_grad", "weight", "bias"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
            assert one.activation == other.activation
        assert (same.rest, same.head) == (given.rest, given.head)

    @pytest.mark.parametrize(
        ("changes", "n_layers", "has_tail", "has_head"),
        [
            ({"next_weight_grad": None}, 3, True, True),
            ({"next_weight": None}, 3, True, True),
            ({"behind": ()}, 1, True, True),
            ({"next_weight": None, "behind": ()}, 1, True, True),
            ({"next_weight_grad": None, "next_weight": None, "behind": ()}, 0, True, True),
            ({"rest": None}, 3, False, True),
            ({"head": None}, 3, True, False),
            ({"head": None, "rest": None}, 3, False, False),
        ],
    )
    def test_each_keyword_is_replaced_alone(self, given, changes, n_layers, has_tail, has_head):
        changed = replace(given, **changes)
        assert len(changed.layers) == n_layers
        assert (changed.rest is not None, changed.head is not None) == (has_tail, has_head)
        assert (changed.next_weight_grad is None) == ("next_weight_grad" in changes)
        assert len(changed.behind) == (0 if "behind" in changes else 2)
        has_weight = "next_weight" not in changes or "behind" not in changes
        assert (changed.next_weight is not None) == has_weight
        if "next_weight_grad" in changes and n_layers:
            back = replace(changed, next_weight_grad=given.next_weight_grad)
            np.testing.assert_array_equal(back.layers[0].weight_grad, given.layers[0].weight_grad)

    def test_the_next_weights_that_are_named_count(self, given):
        other = replace(given, next_weight=2 * given.next_weight)
        np.testing.assert_array_equal(other.layers[0].weight, 2 * given.layers[0].weight)
        np.testing.assert_array_equal(other.layers[0].bias, given.layers[0].bias)
        with pytest.raises(ValueError, match=r"the shape of the weight of behind\[0\] \(9, 9\), got \(4, 9\)"):
            replace(given, next_weight=np.ones((4, 9)), next_weight_grad=np.ones((4, 9)))

    def test_a_gradient_with_nan_counts_as_missing_with_what_lies_behind(self, given):
        with pytest.warns(UserWarning, match="next_weight_grad contains NaN or infinity and counts as missing"):
            changed = replace(given, next_weight_grad=np.full((9, 9), np.nan))
        assert (changed.next_weight_grad, changed.behind, changed.head) == (None, (), None)
        assert changed.rest is given.rest

    def test_scaled_with_the_gradient(self, given):
        scaled, factor = replace(given, weight_grad=1024 * given.weight_grad).in_range()
        for one, other in zip(scaled.layers, given.layers, strict=True):
            np.testing.assert_array_equal(one.weight_grad, factor * other.weight_grad)


def test_takes_a_copy():
    given = arrays()
    layer_gradient = LayerGradient(**given)
    given["weight"][:] = 0
    assert layer_gradient.weight.all()


@pytest.fixture
def client():
    model = fully_connected(12, width=9, n_hidden=2, n_classes=4, random_state=0)
    batch = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    return model, batch, torch.tensor([0, 1, 2])


def test_from_model_by_name_and_by_order(client):
    model, batch, labels = client
    gradients = client_gradient(model, batch, labels)
    one = LayerGradient.from_model(model, gradients)
    two = LayerGradient.from_model(model, list(gradients.values()), layer="0")
    for layer_gradient in (one, two):
        np.testing.assert_array_equal(layer_gradient.weight, model[0].weight.detach().double())
        np.testing.assert_array_equal(layer_gradient.weight_grad, gradients["0.weight"].double())
        np.testing.assert_array_equal(layer_gradient.bias_grad, gradients["0.bias"].double())
        np.testing.assert_array_equal(layer_gradient.next_weight_grad, gradients["2.weight"].double())


def test_from_model_takes_any_layer(client):
    model, batch, labels = client
    gradients = client_gradient(model, batch, labels)
    second, last = (LayerGradient.from_model(model, gradients, layer=layer) for layer in (1, -1))
    np.testing.assert_array_equal(second.weight_grad, gradients["2.weight"].double())
    np.testing.assert_array_equal(last.weight_grad, gradients["4.weight"].double())
    assert second.next_weight_grad is not None
    assert last.next_weight_grad is None


def test_next_layer_is_the_one_that_takes_the_activation():
    for between, activation in (
        ([nn.Tanh()], "tanh"),
        ([nn.ReLU(), nn.Dropout()], "relu"),
        ([nn.ReLU6()], "relu6"),
        ([], Identity()),
        ([nn.ReLU(), nn.LayerNorm(8)], "relu"),
    ):
        model = nn.Sequential(nn.Linear(4, 8), *between, nn.Linear(8, 2))
        gradients = {name: torch.ones_like(tensor) for name, tensor in model.named_parameters()}
        given = LayerGradient.from_model(model, gradients)
        assert given.activation == activation
        goes_on = bool(between) and not isinstance(between[-1], nn.LayerNorm)
        assert (given.next_weight_grad is not None) == goes_on


def test_from_model_names_what_is_wrong(client):
    model, batch, labels = client
    gradients = client_gradient(model, batch, labels)
    with pytest.raises(ValueError, match=r"layer=7 is not one of the 3 linear layers \['0', '2', '4'\]"):
        LayerGradient.from_model(model, gradients, layer=7)
    with pytest.raises(ValueError, match="gradients has 2 tensors, the model has 6 parameters"):
        LayerGradient.from_model(model, list(gradients.values())[:2])
    with pytest.raises(ValueError, match="gradients has no tensor for '0.bias'.*is the bias frozen"):
        LayerGradient.from_model(model, {"0.weight": gradients["0.weight"]})
    bare = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU())
    with pytest.raises(ValueError, match="bias is missing"):
        LayerGradient.from_model(bare, [torch.ones(3, 4)])


def test_from_update_of_one_step_is_the_gradient(client):
    model, batch, labels = client
    gradients = client_gradient(model.double(), batch.double(), labels)
    before, after = fedavg_update(model, batch.double(), labels, learning_rate=0.05)
    for layer, name in ((0, "0"), (1, "2"), ("4", "4")):
        layer_gradient = LayerGradient.from_update(before, after, learning_rate=0.05, layer=layer)
        np.testing.assert_allclose(layer_gradient.weight_grad, gradients[f"{name}.weight"], atol=1e-13)
        np.testing.assert_allclose(layer_gradient.bias_grad, gradients[f"{name}.bias"], atol=1e-13)
        np.testing.assert_array_equal(layer_gradient.weight, before[f"{name}.weight"])


def test_from_update_takes_the_next_layer_where_the_state_goes_on_with_one(client):
    model, batch, labels = client
    before, after = fedavg_update(model.double(), batch.double(), labels, learning_rate=0.05)
    gradients = client_gradient(model, batch.double(), labels)
    first, last = (LayerGradient.from_update(before, after, learning_rate=0.05, layer=layer) for layer in (0, -1))
    np.testing.assert_allclose(first.next_weight_grad, gradients["2.weight"], atol=1e-13)
    assert last.next_weight_grad is None
    for between in ([nn.BatchNorm1d(3), nn.Linear(3, 2)], [nn.Linear(4, 2)]):
        state = nn.Sequential(nn.Linear(4, 3), *between).state_dict()
        after = {name: tensor - 1 for name, tensor in state.items()}
        assert LayerGradient.from_update(state, after, learning_rate=0.1).next_weight_grad is None


def test_from_update_names_what_is_wrong(client):
    before, after = fedavg_update(*client)
    with pytest.raises(ValueError, match="learning_rate must be a positive number, got 0"):
        LayerGradient.from_update(before, after, learning_rate=0)
    with pytest.raises(ValueError, match="layer=3 is not one of the 3 linear layers"):
        LayerGradient.from_update(before, after, learning_rate=0.1, layer=3)
    with pytest.raises(ValueError, match="after has no tensor for '0.weight'"):
        LayerGradient.from_update(before, {}, learning_rate=0.1)
    with pytest.raises(ValueError, match="all zeros"):
        LayerGradient.from_update(before, before, learning_rate=0.1)
