"""Laws that every public activation obeys; the list in `sparsedl_fl.activations` drives them."""

import inspect
import pickle

import pytest
import torch

import sparsedl_fl.activations as package
from sparsedl_fl.activations import (
    CELU,
    ELU,
    GELU,
    KNOWN,
    Activation,
    Elementwise,
    Hardtanh,
    LeakyReLU,
    PReLU,
    ReLU,
    Softplus,
    Threshold,
    check_activation,
    resolve,
)

CLASSES = [
    value
    for name in package.__all__
    if inspect.isclass(value := getattr(package, name)) and issubclass(value, Activation) and hasattr(value, "name")
]


def snake(z):
    """An activation that the package does not know."""
    return z + torch.sin(z).square()


OTHERS = [Hardtanh(-0.3, 2.0), Threshold(0.2, 0.2), Threshold(-0.5, 0.1), Threshold(0.3, -0.2)]
OTHERS += [LeakyReLU(0.2), LeakyReLU(-0.5), PReLU(0.6), ELU(0.5), CELU(0.5), GELU("tanh"), Softplus(2.0)]
OTHERS += [Elementwise(snake, is_monotone=True)]
ACTIVATIONS = [cls() for cls in CLASSES if cls is not Elementwise] + OTHERS
CORE = torch.linspace(-2.9, 2.9, 581, dtype=torch.float64) + 0.0037
"""Where a smooth activation is not flat up to rounding yet."""

GRID = torch.cat([torch.linspace(-9, 9, 1801, dtype=torch.float64) + 0.0037])

every = pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)


def test_the_list_is_whole():
    assert {cls.name for cls in CLASSES} >= {"relu", "relu6", "hardtanh", "threshold", "gelu", "leaky_relu", "tanh"}
    assert all(type(activation) in CLASSES for activation in KNOWN.values())


@every
def test_value_is_that_of_the_torch_module(activation):
    parameters = {
        "hardtanh": lambda cls: cls(activation.lower, activation.upper),
        "threshold": lambda cls: cls(activation.lower, activation.value_below),
        "leaky_relu": lambda cls: cls(activation.negative_slope),
        "prelu": lambda cls: cls(init=activation.negative_slopes[0]).double(),
        "elu": lambda cls: cls(activation.alpha),
        "celu": lambda cls: cls(activation.alpha),
        "gelu": lambda cls: cls(activation.approximate),
        "softplus": lambda cls: cls(activation.beta),
    }
    assert activation.torch_types or isinstance(activation, Elementwise)
    for cls in activation.torch_types:
        module = parameters.get(activation.name, lambda cls: cls())(cls)
        torch.testing.assert_close(activation.value(GRID), module(GRID).detach())


@every
def test_derivative_is_that_of_autograd(activation):
    z = GRID.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(activation.value(z).sum(), z)
    torch.testing.assert_close(activation.derivative(GRID), gradient)


@pytest.mark.parametrize("activation", [ReLU(), Threshold(0.1, 0.05)], ids=repr)
def test_the_nearer_of_on_and_off_is_the_nearest_point(activation):
    z, y = (4 * torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64) for _ in range(2))
    y = y.flip(0)
    nearest_z, nearest_y = activation.nearest_on_graph(z, y, 2.0)
    points = torch.stack([torch.stack(point) for point in activation.nearest_where_on_and_off(z, y, 2.0)])
    costs = (points[:, 0] - z).square() + 2 * (points[:, 1] - y).square()
    torch.testing.assert_close(costs.amin(dim=0), (nearest_z - z).square() + 2 * (nearest_y - y).square())


@every
@pytest.mark.parametrize("weight", [0.1, 1.0, 50.0])
def test_nearest_point_of_the_graph_is_that_of_brute_force(activation, weight):
    generator = torch.Generator().manual_seed(0)
    z, y = (4 * torch.randn(200, generator=generator, dtype=torch.float64) for _ in range(2))
    near_z, near_y = activation.nearest_on_graph(z, y, weight)
    cost = (near_z - z).square() + weight * (near_y - y).square()
    grid = torch.linspace(-15, 15, 60_001, dtype=torch.float64)
    values = activation.value(grid)
    for i in range(0, 200, 8):
        least = ((grid - z[i]).square() + weight * (values - y[i]).square()).min()
        assert cost[i] <= least + 1e-9
    other_z, other_y = activation.near_on_graph(z, y, weight)
    other = (other_z - z).square() + weight * (other_y - y).square()
    assert torch.all(other >= cost - 1e-9)
    before = weight * (activation.value(z) - y).square()
    assert (other <= before + 1e-9).double().mean() > 0.6
    # At a jump the end of a piece counts as a point of the graph.
    gap = (activation.value(near_z) - near_y).abs()
    below, above = activation.value(near_z - 1e-9), activation.value(near_z + 1e-9)
    assert torch.all((gap < 1e-6) | ((below - near_y).abs() < 1e-6) | ((above - near_y).abs() < 1e-6))


@every
def test_each_row_may_have_a_weight_of_its_own(activation):
    z = GRID[:1800:40].reshape(3, -1)
    y, weights = z.flip(0), torch.tensor([[0.1], [1.0], [50.0]], dtype=torch.float64)
    for find in (activation.nearest_on_graph, activation.near_on_graph):
        alone = zip(*(find(z[[i]], y[[i]], weights[i].item()) for i in range(3)), strict=True)
        torch.testing.assert_close(find(z, y, weights), tuple(torch.cat(parts) for parts in alone))


@every
def test_flags_are_true(activation):
    values, slopes = activation.value(GRID), activation.derivative(GRID)
    assert activation.is_monotone == bool((values.diff() >= 0).all())
    assert activation.is_positively_homogeneous == all(
        torch.allclose(activation.value(c * GRID), c * values) for c in (0.5, 3.0)
    )
    assert activation.has_flat_part == bool((activation.derivative(CORE) == 0).any())
    second = activation.value(GRID[2:]) - 2 * activation.value(GRID[1:-1]) + activation.value(GRID[:-2])
    assert activation.is_piecewise_linear == bool((second.abs() < 1e-9).double().mean() > 0.98)
    if activation.is_positively_homogeneous:
        assert activation.slope_below == slopes[0]


@every
def test_units_are_off_where_the_derivative_is_zero(activation):
    is_off = activation.is_off(GRID)
    torch.testing.assert_close(activation.is_off(CORE), activation.derivative(CORE) == 0)
    assert is_off[activation.is_off(GRID, 0.1)].all()
    if activation.has_flat_part:
        depth = activation.depth(GRID)
        assert torch.all((depth > 0) == is_off)
        torch.testing.assert_close(depth >= 0.1, activation.is_off(GRID, 0.1))
        assert not activation.is_off(activation.nearest_on(GRID), 1e-12).any()
        torch.testing.assert_close((activation.nearest_on(GRID) - GRID).abs(), depth)
        moved = activation.is_off(GRID + activation.distance_to_kink(GRID) + 1e-9) != is_off
        moved |= activation.is_off(GRID - activation.distance_to_kink(GRID) - 1e-9) != is_off
        assert moved.all()


@pytest.mark.parametrize("activation", [one for one in ACTIVATIONS if one.has_flat_part], ids=repr)
def test_odds_are_those_of_draws(activation):
    z = torch.linspace(activation.lower - 1, activation.lower + 2, 7, dtype=torch.float64)
    draws = z + 0.7 * torch.randn((200_000, 7), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    share = (~activation.is_off(draws)).double().mean(dim=0)
    odds = torch.sigmoid(activation.log_odds_on(z, torch.tensor(0.7, dtype=torch.float64)))
    assert (share - odds).abs().max() < 0.005


@every
def test_can_be_copied_and_compared(activation):
    check_activation(activation)
    assert pickle.loads(pickle.dumps(activation)) == activation
    assert hash(pickle.loads(pickle.dumps(activation))) == hash(activation)
    assert resolve(activation) is activation


@pytest.mark.parametrize("wrong", [(1.0, 1.0), (0.0, float("inf"))])
def test_wrong_ends_are_refused(wrong):
    with pytest.raises(ValueError, match="lower and upper"):
        Hardtanh(*wrong)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z: z - z.mean(dim=0), "mixes the inputs of a batch"),
        (lambda z: torch.softmax(z, dim=-1), "mixes units"),
        (lambda z: torch.log(z), "not finite"),
        (lambda z: z.float().relu(), "must return the shape and precision"),
    ],
)
def test_functions_that_are_no_activations_are_refused(function, message):
    with pytest.raises(ValueError, match=message):
        Elementwise(function)


def test_a_wrong_derivative_is_seen():
    class Wrong(Elementwise):
        def derivative(self, z):
            return torch.ones_like(z)

    with pytest.raises(ValueError, match="derivative is not that of value"):
        Wrong(torch.tanh)
    with pytest.raises(TypeError, match="expected an Activation"):
        check_activation(torch.tanh)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeakyReLU(0.0), "that is a ReLU"),
        (lambda: PReLU([]), "negative_slopes"),
        (lambda: ELU(-1.0), "alpha must be a positive number"),
        (lambda: Softplus(0.0), "beta must be a positive number"),
        (lambda: GELU("erf"), "approximate must be"),
        (lambda: PReLU([0.1, 0.2]).value(torch.ones(3)), "2 numbers for 3 units"),
    ],
)
def test_wrong_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_wrong_threshold_is_refused():
    with pytest.raises(ValueError, match="threshold and below"):
        Threshold(float("nan"))
