"""Laws of every constraint: `jvp` is the derivative of the residual, and `vjp` its transpose."""

import pytest
import torch
from torch import nn

from sparsedl_fl import LayerGradient
from sparsedl_fl.constraints import Stacked
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.simulation import client_gradient

KINDS = ["subspaces", "tail", "together"]


@pytest.fixture(scope="module")
def constraints():
    """What 6 samples fulfil behind 30 units, with a GELU layer and a head downstream; and points."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 30), nn.GELU(), nn.Linear(30, 25), nn.GELU(), nn.Linear(25, 20)).double()
    batch, labels = torch.randn((6, 12), dtype=torch.float64), torch.arange(6)
    gradients = client_gradient(model, batch, labels)
    problem = LayerProblem.of(LayerGradient.from_model(model, gradients, layer=0))
    subspaces, tail = problem.subspaces, problem.tail
    places = torch.randn((5, 30), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    subspaces, tail = subspaces.scaled_to(places), tail.settled(places)
    kinds = {"subspaces": subspaces, "tail": tail, "together": Stacked((subspaces, tail)).balanced(places)}
    return kinds, places


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_derivatives(constraints, kind, is_weighted):
    kinds, z = constraints
    constraint, generator = kinds[kind], torch.Generator().manual_seed(2)
    if is_weighted:
        constraint = constraint.weighted(len(z), 1.0, generator)
    changes = torch.randn(z.shape, generator=generator, dtype=z.dtype)
    here, step = constraint.at(z), 1e-6
    differences = (constraint.at(z + step * changes).residual - constraint.at(z - step * changes).residual) / (2 * step)
    changed = here.jvp(changes)
    torch.testing.assert_close(changed, differences, rtol=1e-5, atol=1e-6 * float(changed.abs().max()))
    rows = here.residual
    torch.testing.assert_close((changed * rows).sum(dim=1), (here.vjp(rows) * changes).sum(dim=1))
    torch.testing.assert_close(here.cost, rows.square().sum(dim=1))
    some = torch.tensor([3, 1])
    torch.testing.assert_close(constraint.of_some(some).at(z[some]).residual, rows[some])


@pytest.mark.parametrize("kind", KINDS)
def test_many_changes_of_a_single_sample(constraints, kind):
    kinds, z = constraints
    constraint = kinds[kind].of_some(torch.tensor([2]))
    changes = torch.randn((4, z.shape[1]), generator=torch.Generator().manual_seed(3), dtype=z.dtype)
    here = constraint.at(z[2:3])
    each = torch.cat([here.jvp(change[None]) for change in changes])
    torch.testing.assert_close(here.jvp(changes), each)
    torch.testing.assert_close(here.gram(changes), each @ each.T)


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_is_nearly_the_same(constraints, kind):
    kinds, z = constraints
    here, there = kinds[kind].at(z), kinds[kind].to(torch.float32).at(z.float())
    assert there.residual.dtype == torch.float32
    torch.testing.assert_close(
        there.residual.double(), here.residual, rtol=1e-3, atol=1e-4 * float(here.residual.abs().max())
    )
