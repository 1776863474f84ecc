"""Damped Gauss-Newton: the minimum from many points at once, with a ridge, and which points would go on."""

from dataclasses import dataclass

import pytest
import torch

from sparsedl_fl.solvers import gauss_newton


@dataclass
class Valley:
    """Rosenbrock's residuals, ``(10 (y - x^2), 1 - x)``; the minimum is at one and one."""

    points: torch.Tensor

    @property
    def residual(self):
        x, y = self.points.T
        return torch.stack([10 * (y - x**2), 1 - x], dim=1)

    @property
    def jacobian(self):
        x = self.points[:, 0]
        rows = [torch.stack([-20 * x, torch.full_like(x, 10)], dim=1), torch.tensor([[-1.0, 0.0]]).expand(len(x), 2)]
        return torch.stack(rows, dim=1)

    @property
    def cost(self):
        return self.residual.square().sum(dim=1)

    @property
    def gradient(self):
        return (self.jacobian.transpose(1, 2) @ self.residual[..., None])[..., 0]


def solved(here, gradient, added):
    matrices = here.jacobian.transpose(1, 2) @ here.jacobian + torch.diag_embed(added.expand(-1, 2))
    return torch.linalg.solve(matrices, gradient)


def run(points, goes_on=lambda here, *_: here.cost > 1e-20, **options):
    given = {"n_steps": 100, "damping": torch.full_like(points[:, :1], 1e-3)} | options
    return gauss_newton(points, lambda at, index: Valley(at), solved, goes_on, **given)


@pytest.fixture
def points():
    return 2 * torch.randn((40, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("lengths", [(1.0,), (1.0, 0.25, 0.0625)])
def test_all_points_come_to_the_minimum(points, lengths):
    ended, is_open = run(points, lengths=lengths)
    torch.testing.assert_close(ended, torch.ones_like(ended))
    assert not is_open.any()


def test_many_points_are_as_each_alone(points):
    together, alone = run(points, n_steps=7)[0], [run(point[None], n_steps=7)[0] for point in points]
    torch.testing.assert_close(together, torch.cat(alone))


def test_no_step_makes_it_worse(points):
    costs = [Valley(run(points, n_steps=n)[0]).cost for n in range(8)]
    assert all((after <= before).all() for before, after in zip(costs, costs[1:], strict=False))
    assert (costs[0] == Valley(points).cost).all()


def test_a_ridge_that_stays_moves_the_minimum_and_one_that_shrinks_does_not(points):
    ridge = torch.full_like(points[:, :1], 0.1)
    kept = run(points, lambda *_: torch.ones(40, dtype=torch.bool), ridge=ridge)[0]
    gradient = Valley(kept).gradient + 0.1 * kept
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-6, rtol=0)
    torch.testing.assert_close(run(points, ridge=ridge, shrinkage=0.3)[0], torch.ones_like(points))


def test_those_that_do_not_go_on_stay_and_the_others_are_open(points):
    def goes_on(here, before, after, at, number):
        return at[:, 0] > 0

    ended, is_open = run(points, goes_on, n_steps=1)
    assert (is_open == (ended[:, 0] > 0)).all()
    further, _ = run(points, goes_on, n_steps=3)
    assert (further[~is_open] == ended[~is_open]).all()
    assert (further[is_open] != ended[is_open]).any()
