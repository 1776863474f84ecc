"""Fits of single samples to their constraints, and tests of these by their noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsedl.linalg import normalized
from sparsedl_fl.constraints import BESIDE, FAR, IN_LINE, Constraint, DownstreamSubspaces, TailGradient
from sparsedl_fl.constraints.activation_subspace import ROUNDING_SHARE
from sparsedl_fl.search.columns_and_forward_pass import SampleCoordinates
from sparsedl_fl.search.descent import Descent
from sparsedl_fl.search.joint_refinement import JointRefinement
from sparsedl_fl.search.knowledge import Knowledge
from sparsedl_fl.search.natural_coordinates import NaturalCoordinates

__all__ = ["SingleFits"]


@dataclass(frozen=True)
class SingleFits:
    """Fits of samples, each by itself, on one problem; all return unit rows ``p``.

    Attributes
    ----------
    coordinates : SampleCoordinates
        The unknowns, without deflation.
    joint_refinement, descent : JointRefinement, Descent
        The exact fit, and the one for layers where that would take longer than the search.
    natural : NaturalCoordinates or None
        The unknowns of a descent, without deflation; None where nothing is fitted.
    equations : Constraint or None
        All constraints of a sample by itself.
    subspaces, all_levels : DownstreamSubspaces or None
        The activation subspaces that identify samples, and all there are.
    is_exact : bool
        Whether the fits are exact.
    """

    coordinates: SampleCoordinates
    joint_refinement: JointRefinement
    descent: Descent
    natural: NaturalCoordinates | None
    equations: Constraint | None
    subspaces: DownstreamSubspaces | None
    all_levels: DownstreamSubspaces | None
    is_exact: bool

    def at_scale(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs at their true scale."""
        return inputs / (inputs @ self.coordinates.scale)[:, None]

    def preactivations(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return ``z``, of shape (n, m)."""
        return self.at_scale(inputs) @ self.coordinates.forward.T + self.coordinates.kink

    def fitted(self, inputs: torch.Tensor) -> torch.Tensor:
        """Fit inputs once more to all equations; those that do not fulfil them then stay as they are."""
        if self.equations is None or len(inputs) == 0:
            return inputs
        fit = self.joint_refinement.alone if self.is_exact else self.descent.refined
        fitted = normalized(fit(self.natural, self.equations, self.at_scale(inputs)), dim=1)
        fits = self.equations.at(self.preactivations(fitted)).is_inside
        return torch.where(fits[:, None], fitted, inputs)

    def fitted_where_beside(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Fit inputs that lie beside the activation subspaces; return all, and which are better by their fit.

        An input that the subspaces do not determine stays: with fewer active units than unknowns a fit comes nearer
        anywhere along a line.
        """
        over_noise = self.subspaces.at(self.preactivations(inputs)).over_noise
        fitted, is_beside = inputs.clone(), over_noise > BESIDE
        fitted[is_beside] = self.fitted(inputs[is_beside])
        is_nearer = self.subspaces.at(self.preactivations(fitted)).over_noise < over_noise
        is_nearer[is_nearer.clone()] = self.is_fit_better(fitted[is_nearer], inputs[is_nearer])
        return torch.where(is_nearer[:, None], fitted, inputs), is_nearer

    def is_fit_better(self, fitted: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Return for which inputs a fit to the activation subspaces is more exact than they were without it.

        These were further from the subspaces than noise moves an input along the direction of least curvature.
        """
        over_noise = self.subspaces.at(self.preactivations(inputs)).over_noise
        is_better = over_noise > 1
        least = (over_noise[is_better] ** -2).clamp(min=self.descent.least_share)
        is_better[is_better.clone()] = self.least_curvatures(self.subspaces, fitted[is_better]) > least
        return is_better

    def where_better(self, fitted: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Return the fitted inputs where the fit is more exact, and the others as they were.

        None of these may lie much further from the subspaces than the others, over their noise: a certificate requires
        that.
        """
        chosen = torch.where(self.is_fit_better(fitted, inputs)[:, None], fitted, inputs)
        over_noise = self.subspaces.at(self.preactivations(chosen)).over_noise
        is_in_line = over_noise <= max(IN_LINE, FAR * _median(over_noise))
        return torch.where(is_in_line[:, None], chosen, fitted)

    def least_curvatures(self, equations: Constraint, inputs: torch.Tensor) -> torch.Tensor:
        """Return the smallest eigenvalue of the Gauss-Newton matrix at each input, over the largest."""
        coordinates = self.natural.coordinates(self.at_scale(inputs))
        found = [self.descent.least_curvature(self.natural, equations, at) for at in coordinates]
        return torch.tensor(found, dtype=torch.float64)

    def fit_inputs_of_columns(self, knowledge: Knowledge) -> None:
        """Fit known inputs, and those of all columns together, to the subspaces, where they lie beside these.

        A column that holds a little of another moves some inputs and leaves the others. Where the columns determine an
        input better than the subspaces, theirs is taken: near half of the width it is up to ten times as exact.
        """
        knowledge.inputs, _ = self.fitted_where_beside(knowledge.inputs)
        of_columns = normalized(torch.linalg.inv(knowledge.coordinates.found.T), dim=1)
        own = of_columns[knowledge.coordinates.overlaps(knowledge.inputs, knowledge.coordinates.found).argmax(dim=1)]
        knowledge.inputs = self.where_better(knowledge.inputs, own)
        inputs, is_new = self.fitted_where_beside(of_columns)
        knowledge.add_inputs(inputs[is_new], is_new[is_new])

    @property
    def all_subspaces(self) -> DownstreamSubspaces:
        """All activation subspaces there are."""
        return self.subspaces if self.all_levels is None else self.all_levels

    def fitted_to_subspaces(self, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Fit ``p`` at their true scale to all subspaces; return those that fulfil them, and which are isolated."""
        minimisers = normalized(self.joint_refinement.alone(self.natural, self.all_subspaces, starts), dim=1)
        here = self.all_subspaces.at(self.preactivations(minimisers))
        minimisers = minimisers[here.is_likely & (here.over_noise <= FAR)]
        return minimisers, self.least_curvatures(self.all_subspaces, minimisers) > self.descent.least_share

    def near_subspaces(self, inputs: torch.Tensor, known: torch.Tensor, most: float = ROUNDING_SHARE) -> torch.Tensor:
        """Return which inputs are as near to the subspaces as rounding and the known inputs explain.

        They may lie no further than `most` times the noise either.

        With a piecewise linear activation a descent may stop in a wrong piece next to a sample, or before its last
        step: at 8 times the noise where the others leave 0.3, off by 2e-4. True ones had up to 1.7 (LeNet after 2000
        steps); the least limit of 2 is not varied. (95 samples at 200 LeakyReLUs: two of 20 batches accepted spurious
        minimisers at 37 to 112 times.)
        """
        here = self.all_subspaces.at(self.preactivations(torch.cat([inputs, known])))
        over_noise, is_likely = here.over_noise[: len(inputs)], here.is_likely[: len(inputs)]
        usual = _median(here.over_noise[here.is_likely])
        return is_likely & (over_noise <= min(most, max(BESIDE, FAR * usual)))

    def near_columns(self, inputs: torch.Tensor, tail: TailGradient) -> torch.Tensor:
        """Return which inputs of a head are as near to the column space as noise explains.

        Between two samples of one class there is a valley that nearly fulfils all equations. Of 40 batches of 40
        samples in 100 classes one spurious minimiser there was found, at 20 times the noise; true ones were below 1.4.
        """
        here = tail.at(self.preactivations(inputs))
        return here.distances <= FAR * here.expected


def _median(over_noise: torch.Tensor) -> float:
    return over_noise.nanmedian().item() if len(over_noise) else 0.0
