"""Pictures that their features leave open, recovered and proved with the gradients of the front's parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from sparsedl_fl.propagate.pictures.determinacy import ACCURACY, N_DRAWS, N_PRODUCTS, inverse_products
from sparsedl_fl.propagate.pictures.draws import normal_like
from sparsedl_fl.propagate.pictures.front import Front
from sparsedl_fl.propagate.pictures.given import Given
from sparsedl_fl.propagate.pictures.judging import FITS, LARGEST_NOISE, WORTHLESS
from sparsedl_fl.propagate.pictures.lifting import FIRST, Equations, JointFit, fit_with_slopes
from sparsedl_fl.propagate.pictures.linearized import Linearized
from sparsedl_fl.propagate.pictures.replaying import FrontReplay, replay_front
from sparsedl_fl.solvers import conjugate_gradient

__all__ = ["HELD_OUT", "JointResult", "held_out_entries", "joint_result"]

HELD_OUT = 0.1
"""Share of the gradients' entries that are no equations: they prove the pictures."""

SHOWN = 2.0
"""Errors of all that is given, over those that the equations left over show."""


@dataclass(frozen=True, eq=False)
class JointResult:
    """Pictures from features and gradients together.

    Attributes
    ----------
    fit : JointFit
        The pictures.
    residual : float
        Root of the sum of squared residuals over what errors explain: about one.
    errors : torch.Tensor of shape (b,)
        Expected root-mean-square errors; infinite where the equations do not determine the pictures.
    replay : FrontReplay
        The entries of gradients that were held out.
    n_equations : int
        Numbers of gradients that were fitted.
    """

    fit: JointFit
    residual: float
    errors: torch.Tensor
    replay: FrontReplay
    n_equations: int

    @property
    def is_proved(self) -> bool:
        """Whether everything fits, is determined and agrees with what was held out."""
        return self.residual <= FITS and bool(self.errors.isfinite().all()) and self.replay.is_match


def joint_result(
    front: Front, given: Given, pictures: torch.Tensor, max_rounds: int, first: float = FIRST
) -> JointResult:
    """Fit pictures (b, n_pixels) to features and gradients, and judge them all together.

    ``first`` is as of `fit_with_slopes`: how far from kinks slopes are open.
    """
    generator, held_out = torch.Generator().manual_seed(1), held_out_entries(front, given)
    equations = Equations(front, given.features, given.sent_back, given.gradients, held_out)
    rounding = replace(given, errors=given.rounding * given.sizes)
    floor, allowed = (
        max(float(draw.square().sum()) for draw in _draws(equations, one, pictures, generator))
        for one in (rounding, given)
    )
    fit = fit_with_slopes(equations, pictures, floor=floor, max_rounds=max_rounds, first=first)
    residual = (fit.cost / allowed) ** 0.5
    errors = torch.full_like(given.errors, torch.inf)
    if residual <= FITS and fit.cost <= LARGEST_NOISE**2:
        shown = SHOWN * max(1.0, (fit.cost / floor) ** 0.5)
        errors = shown * _errors(equations, fit.pictures, _draws(equations, rounding, fit.pictures, generator))
        spread = torch.maximum(fit.pictures.std(dim=1), 0.1 * fit.pictures.std())
        errors[errors > WORTHLESS * spread] = torch.inf
    sure = errors.isfinite().all()
    replay = replay_front(
        front,
        fit.pictures,
        errors if sure else torch.zeros_like(errors),
        given.sent_back,
        given.gradients,
        noise=given.noise,
        only=held_out,
    )
    return JointResult(fit, residual, errors, replay, equations.n_gradients)


def held_out_entries(front: Front, given: Given) -> dict[str, torch.Tensor]:
    """Return which entries of the gradients are no equations, by parameter."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: (torch.rand(tensor.shape, generator=generator) < HELD_OUT).to(front.device)
        for name, tensor in given.gradients.items()
    }


def _draws(
    equations: Equations, given: Given, pictures: torch.Tensor, generator: torch.Generator
) -> list[torch.Tensor]:
    """Return draws of the residuals that the errors of features, of ``D`` and of the gradients explain."""

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        return given.noise * tensor.square().mean().sqrt() * normal_like(tensor, generator)

    drawn = []
    for _ in range(N_DRAWS):
        of_features = given.errors[:, None] * normal_like(given.features, generator)
        shifted = equations.shifted(pictures, noise(given.sent_back))
        of_gradients = [
            (weight * (noise(given.gradients[name]) + shifted[name])).flatten()
            for name, weight in equations.weights.items()
        ]
        drawn.append(torch.cat([equations.of_features * of_features.flatten(), *of_gradients]))
    return drawn


def _errors(equations: Equations, pictures: torch.Tensor, draws: list[torch.Tensor]) -> torch.Tensor:
    """Return the root-mean-square change of each picture by draws of the residuals; infinite where not determined."""
    J = Linearized(equations.residual, pictures)
    squares = torch.zeros_like(pictures[:, 0])
    if inverse_products(J) is None:
        return torch.full_like(squares, torch.inf)
    for draw in draws:
        goal = J.back(draw).flatten()[None]
        shift, is_solved = conjugate_gradient(
            lambda v: J.back(J.along(v.reshape(pictures.shape))).flatten()[None],
            lambda v: v,
            goal,
            n_products=N_PRODUCTS,
            enough=ACCURACY,
        )
        if not is_solved:
            return torch.full_like(squares, torch.inf)
        squares += shift.reshape(pictures.shape).square().mean(dim=1) / len(draws)
    return squares.sqrt()
