"""What becomes of single inputs that a search has: fitted to all that they fulfil, and held against its noise."""

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
    """The fits of inputs, each by itself, on one problem; all return unit rows ``p``.

    Attributes
    ----------
    views : SampleCoordinates
        Both views, with nothing found.
    joint_refinement, descent : JointRefinement, Descent
        What fits exactly, and what does where that would take longer than the search.
    natural : NaturalCoordinates or None
        The forward view, with nothing known; None where nothing is fitted.
    equations : Constraint or None
        All that inputs fulfil, each by itself.
    subspaces, chain : DownstreamSubspaces or None
        The spans behind, those that identify inputs and all there are.
    is_exact : bool
        Whether the fits are exact.
    """

    coordinates: SampleCoordinates
    joint_refinement: JointRefinement
    descent: Descent
    natural: NaturalCoordinates | None
    equations: Constraint | None
    subspaces: DownstreamSubspaces | None
    chain: DownstreamSubspaces | None
    is_exact: bool

    def at_scale(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs at their true scale."""
        return inputs / (inputs @ self.coordinates.scale)[:, None]

    def preactivations(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return ``z``, of shape (n, m)."""
        return self.at_scale(inputs) @ self.coordinates.forward.T + self.coordinates.kink

    def fitted(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs fitted once more to all equations, where they fulfil these then."""
        if self.equations is None or len(inputs) == 0:
            return inputs
        fit = self.joint_refinement.alone if self.is_exact else self.descent.refined
        fitted = normalized(fit(self.natural, self.equations, self.at_scale(inputs)), dim=1)
        fits = self.equations.at(self.preactivations(fitted)).is_inside
        return torch.where(fits[:, None], fitted, inputs)

    def fitted_where_beside(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs with those fitted that lie beside the spans, and which they are, if nearer then.

        What the spans leave open stays: with fewer units on than unknowns a fit comes nearer anywhere along a line.
        """
        over_noise = self.subspaces.at(self.preactivations(inputs)).over_noise
        fitted, is_beside = inputs.clone(), over_noise > BESIDE
        fitted[is_beside] = self.fitted(inputs[is_beside])
        is_nearer = self.subspaces.at(self.preactivations(fitted)).over_noise < over_noise
        is_nearer[is_nearer.clone()] = self.say_more(fitted[is_nearer], inputs[is_nearer])
        return torch.where(is_nearer[:, None], fitted, inputs), is_nearer

    def say_more(self, fitted: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Return for which inputs the spans, to which they were fitted, say more than what they were without.

        There these lay further beside the spans than noise moves an input along what the spans say least of.
        """
        over_noise = self.subspaces.at(self.preactivations(inputs)).over_noise
        says_more = over_noise > 1
        least = (over_noise[says_more] ** -2).clamp(min=self.descent.least_share)
        says_more[says_more.clone()] = self.least_curvatures(self.subspaces, fitted[says_more]) > least
        return says_more

    def where_better(self, fitted: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Return fitted inputs, and as they were without that where the spans do not say more of them.

        No such input may lie further from the spans than the others do, by their noise: a proof asks that of all.
        """
        chosen = torch.where(self.say_more(fitted, inputs)[:, None], fitted, inputs)
        over_noise = self.subspaces.at(self.preactivations(chosen)).over_noise
        is_in_line = over_noise <= max(IN_LINE, FAR * _median(over_noise))
        return torch.where(is_in_line[:, None], chosen, fitted)

    def least_curvatures(self, equations: Constraint, inputs: torch.Tensor) -> torch.Tensor:
        """Return what equations say of the direction that they say least of, over what they say of another."""
        coordinates = self.natural.coordinates(self.at_scale(inputs))
        found = [self.descent.least_curvature(self.natural, equations, at) for at in coordinates]
        return torch.tensor(found, dtype=torch.float64)

    def fit_inputs_of_columns(self, knowledge: Knowledge) -> None:
        """Fit the inputs that all columns together make to the spans, where they lie beside these, and those known.

        One column that is a little of another takes some inputs away, and all the others stay. Where the spans say
        less of an input than all columns do it is as these have it: near half of the width up to ten times as exact.
        """
        knowledge.inputs, _ = self.fitted_where_beside(knowledge.inputs)
        of_columns = normalized(torch.linalg.inv(knowledge.coordinates.found.T), dim=1)
        own = of_columns[knowledge.coordinates.overlaps(knowledge.inputs, knowledge.coordinates.found).argmax(dim=1)]
        knowledge.inputs = self.where_better(knowledge.inputs, own)
        inputs, is_new = self.fitted_where_beside(of_columns)
        knowledge.add_inputs(inputs[is_new], is_new[is_new])

    @property
    def all_subspaces(self) -> DownstreamSubspaces:
        """All spans there are."""
        return self.subspaces if self.chain is None else self.chain

    def fitted_to_subspaces(self, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where fits to all spans end, from ``p`` at their true scale, and which inputs these determine."""
        minimisers = normalized(self.joint_refinement.alone(self.natural, self.all_subspaces, starts), dim=1)
        here = self.all_subspaces.at(self.preactivations(minimisers))
        minimisers = minimisers[here.is_likely & (here.over_noise <= FAR)]
        return minimisers, self.least_curvatures(self.all_subspaces, minimisers) > self.descent.least_share

    def near_subspaces(self, inputs: torch.Tensor, known: torch.Tensor, most: float = ROUNDING_SHARE) -> torch.Tensor:
        """Return which inputs lie no further from the spans than rounding and those that are known explain.

        No further than `most` times the noise either.

        A descent among straight pieces may end in a wrong one, next to an input, or before its last step: at 8 times
        the noise where the others leave 0.3, off by 2e-4. True ones had up to 1.7 (LeNet after 2000 steps); the least
        limit of 2 is not varied. (95 inputs behind 200 LeakyReLUs: two of 20 batches took in ends at 37 to 112 times.)
        """
        here = self.all_subspaces.at(self.preactivations(torch.cat([inputs, known])))
        over_noise, is_likely = here.over_noise[: len(inputs)], here.is_likely[: len(inputs)]
        usual = _median(here.over_noise[here.is_likely])
        return is_likely & (over_noise <= min(most, max(BESIDE, FAR * usual)))

    def near_columns(self, inputs: torch.Tensor, rest: TailGradient) -> torch.Tensor:
        """Return which inputs of a head lie no further from the column space than noise takes them.

        Between two inputs of one class there is a valley of ends that nearly fulfil all equations. Of 40 batches of 40
        inputs in 100 classes one such end was found, at 20 times the noise; all right ones were below 1.4.
        """
        here = rest.at(self.preactivations(inputs))
        return here.distances <= FAR * here.expected


def _median(over_noise: torch.Tensor) -> float:
    return over_noise.nanmedian().item() if len(over_noise) else 0.0
