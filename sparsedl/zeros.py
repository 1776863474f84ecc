"""What counts as a zero of ``L q``, how many zeros are more than chance, and what zeros say about ``q``.

A direction through ``k - 1`` rows of ``L`` always has ``k - 1`` zeros. A true column has more, and their number is the
evidence: each further zero is a coincidence of the probability that a dense entry falls inside the tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from sparsedl.chance import FALSE_ACCEPTANCE, most_by_chance, required_of
from sparsedl.determinacy import Determinacy, DirectionalNoise
from sparsedl.linalg import in_other_units, normalized, reweight, vanishing_vectors
from sparsedl.repetitions import distinct_rows

__all__ = ["ZeroTest", "informative_rows"]

_HALF_NORMAL_DENSITY = 0.7978845608028654


def informative_rows(observations: torch.Tensor) -> torch.Tensor:
    """Return which rows are not all zeros: one that is, is zero in every direction and evidence for none."""
    rounding = 10 * torch.finfo(observations.dtype).eps * len(observations)
    return observations.abs().amax(dim=1) > rounding


@dataclass(frozen=True)
class ZeroTest:
    """Decides which entries of ``L q`` are zero and whether they prove that ``q`` is a column.

    Parameters
    ----------
    observations : torch.Tensor of shape (n_samples, n_components)
        Whitened observations ``L``.
    unmixing : torch.Tensor of shape (n_features, n_components)
        Whitening amplifies the noise of a direction by ``|unmixing @ q|``.
    noise_level : torch.Tensor of shape (n_samples,)
        Noise of each observation before whitening.
    evidence : torch.Tensor of shape (n_samples,) of bool or None, default=None
        Rows that count as evidence, where more is known of them than that equal ones count once.
    noise_multiple : float, default=6.5
        An entry is zero within this many standard deviations of its noise: below 1e-10 a Gaussian entry is missed.
    false_acceptance : float, default=1e-9
        Probability at which a direction that is no column passes the count of zeros.
    likely_multiple, visible : float, default=2.5 and 1e-3
        Under heavy noise an entry is likely zero within so many deviations, or below this share of the mean square.
    refit_multiple, refit_widths : float and tuple of float, default=1.5 and (1e-6, 1e-8, 0)
        Deviations over which the weights of the estimation from all zero rows fall off, and their least widths.
    largest_amplification : float, default=1e3
        Larger amplifications of the noise, relative to the smallest, count as this, for the sake of rounding.
    negligible : float, default=1e-3
        Width of zero below which noise does not matter for the estimation.
    determinacy : Determinacy
        What zeros have to determine.
    """

    observations: torch.Tensor
    unmixing: torch.Tensor
    noise_level: torch.Tensor
    evidence: torch.Tensor | None = None
    noise_multiple: float = 6.5
    false_acceptance: float = FALSE_ACCEPTANCE
    likely_multiple: float = 2.5
    visible: float = 1e-3
    refit_multiple: float = 1.5
    refit_widths: tuple[float, ...] = (1e-6, 1e-8, 0.0)
    largest_amplification: float = 1e3
    negligible: float = 1e-3
    determinacy: Determinacy = Determinacy()

    def tolerances(self, directions: torch.Tensor) -> torch.Tensor:
        """Return the width of zero, shape (n_directions, n_samples), for directions of shape (n_directions, k)."""
        unmixing, noise_level = self._balanced
        amplification = torch.linalg.vector_norm(directions @ unmixing.T, dim=1)
        # Beside the noise of the observations there is the rounding of our own decomposition, in whitened units.
        rounding = 10 * torch.finfo(directions.dtype).eps * len(self.observations)
        return self.noise_multiple * amplification[:, None] * noise_level + rounding

    @cached_property
    def is_precise(self) -> bool:
        """Whether noise is so small that what is proven once is so for good, and its zeros need no weights."""
        axes = torch.eye(self.observations.shape[1], dtype=torch.float64)
        return bool(self.tolerances(axes).amax() < self.negligible)

    def zeros(self, directions: torch.Tensor) -> torch.Tensor:
        """Return which entries of ``L q`` are zero, a boolean tensor of shape (n_directions, n_samples)."""
        return (directions @ self.observations.T).abs() <= self.tolerances(directions)

    def likely_zeros(self, directions: torch.Tensor) -> torch.Tensor:
        """Return which entries of ``L q`` are likelier zero than not.

        The same as `zeros` where the noise is small. Under heavy noise its wide tolerance takes in many small entries:
        good for a proof, too wide for an estimate.
        """
        tolerances = self.tolerances(directions)
        likely = (self.likely_multiple / self.noise_multiple * tolerances).clamp(min=self.visible)
        return (directions @ self.observations.T).abs() <= torch.minimum(tolerances, likely)

    def refit(self, directions: torch.Tensor) -> torch.Tensor:
        """Estimate each direction again from *all* its likely zeros: far less noise than a kernel of ``k - 1`` rows.

        Rows are first weighted softly, by how close to zero they are on a shrinking scale, so that a direction need
        not be exact to begin with and a row that is nearly zero by chance does no harm. The entries are made small in
        units of their noise (see `vanishing`).
        """
        for width in self.refit_widths:
            # The scale is that of each direction's own noise, and changes with it.
            scale = (self.refit_multiple / self.noise_multiple * self.tolerances(directions)).clamp(min=width)
            directions = reweight(
                directions,
                self.observations,
                scales=[scale],
                weigh=lambda entries, scale: (1 + (entries / scale).square()).reciprocal(),
                step=lambda weights, _: self.vanishing(weights),
            )
        return self.vanishing(self.likely_zeros(directions))

    def vanishing(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the unit ``q`` with the smallest ``sum_r w_r (L q)_r^2`` in units of its noise, for each row ``w``.

        Weights that are boolean say which rows to take.

        The noise of ``L q`` grows as ``|unmixing @ q|``: what vanishes only because it points where the noise is small
        says nothing. For weights that single out the zero rows of a column, this is its total least-squares estimate.
        """
        whitener, scaled = self.in_units_of_noise
        return normalized(vanishing_vectors(scaled, weights) @ whitener.T, dim=1)

    @cached_property
    def _balanced(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Unmixing and noise with a power of two moved from one to the other, which leaves their product as it is.

        In small units the one is huge and the other tiny, and neither has a square.
        """
        exponent = int(torch.frexp(self.unmixing.abs().max()).exponent)
        return in_other_units(self.unmixing, -exponent), in_other_units(self.noise_level, exponent)

    @cached_property
    def noise(self) -> DirectionalNoise:
        """The noise of ``L q`` in each direction."""
        return DirectionalNoise(self.observations, *self._balanced)

    @cached_property
    def in_units_of_noise(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The matrix of shape (k, k) that leads to directions of unit noise, and the observations times it."""
        amplification, axes = self.noise.decomposition
        whitener = axes / amplification.clamp(max=self.largest_amplification * amplification[-1])
        return whitener, self.observations @ whitener

    def accept(self, directions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which directions are columns to go on with in a search, and the number of zeros of each.

        Where the noise is small they are proven. Under heavy noise a mixture of columns may pass, for which a search
        has a use and a certificate has none; see `prove`.
        """
        zeros = self.zeros(directions)
        return self.prove(directions, zeros, by_chance=False), zeros.sum(dim=1)

    def prove(
        self,
        directions: torch.Tensor,
        zeros: torch.Tensor,
        eligible: torch.Tensor | None = None,
        *,
        by_chance: bool = True,
    ) -> torch.Tensor:
        """Return which directions are proven columns: their zeros are more than chance, and determine them.

        Equal rows count once: what makes one zero makes all of them zero. Where noise makes zero wide, some rows are
        zero by chance, and the others alone have to determine the direction (see `sparsedl.determinacy`).

        Parameters
        ----------
        directions : torch.Tensor of shape (n_directions, n_components)
            Unit rows.
        zeros : torch.Tensor of shape (n_directions, n_samples) of bool
            Zero rows of each.
        eligible : torch.Tensor of shape (n_directions, n_samples) of bool or None, default=None
            Rows where a zero was expected before looking; None expects one anywhere.
        by_chance : bool, default=True
            Whether to allow for rows that are zero by chance.
        """
        n_components = self.observations.shape[1]
        if n_components == 1:  # there is only one direction, and it needs no proof
            return torch.ones(len(directions), dtype=torch.bool, device=directions.device)
        rows = self.distinct_rows if eligible is None else self.distinct_rows & eligible
        zeros = zeros & rows
        counts, n_rows = zeros.sum(dim=1), rows.expand_as(zeros).sum(dim=1)
        chances = self._chances(directions, rows.expand_as(zeros), by_chance)
        proven = counts >= required_of(n_rows, n_components, chances, self.false_acceptance).to(counts.device)
        most = most_by_chance(n_rows - counts, chances) if by_chance else torch.zeros_like(chances)
        proven[proven.clone()] = self.determined(directions[proven], zeros[proven], most[proven])
        return proven

    def determined(
        self, directions: torch.Tensor, zeros: torch.Tensor, most: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return which directions their zeros determine; what was decided for the same zeros before stands.

        Parameters
        ----------
        directions : torch.Tensor of shape (n_directions, n_components)
            Unit rows.
        zeros : torch.Tensor of shape (n_directions, n_samples) of bool
            Zero rows of each.
        most : torch.Tensor of shape (n_directions,) or None, default=None
            How many of them may be zero by chance; None for none.
        """
        most = directions.new_zeros(len(zeros)) if most is None else most
        keys = [
            (row.tobytes(), n) for row, n in zip(np.packbits(zeros.cpu().numpy(), axis=1), most.tolist(), strict=True)
        ]
        before = self._decided
        new = torch.tensor([key not in before for key in keys], dtype=torch.bool)
        if new.any():
            decided = self.determinacy.of(self.observations, zeros[new], most[new], self.noise, directions[new])
            before.update(zip((key for key, n in zip(keys, new, strict=True) if n), decided.tolist(), strict=True))
        return torch.tensor([before[key] for key in keys], dtype=torch.bool, device=zeros.device)

    @cached_property
    def _decided(self) -> dict[tuple[bytes, float], bool]:
        return {}

    def apart(self, directions: torch.Tensor, zeros: torch.Tensor, eligible: torch.Tensor) -> torch.Tensor:
        """Return which directions of a basis are no mixture of another with whatever has zeros in common with it.

        Of the zeros of such a mixture the other direction lacks those alone that came by choice and by chance.

        Parameters
        ----------
        directions : torch.Tensor of shape (n_directions, n_components)
            Unit rows, linearly independent.
        zeros, eligible : torch.Tensor of shape (n_directions, n_samples) of bool
            As in `prove`.
        """
        rows = self.distinct_rows & eligible
        zeros = zeros & rows
        n_others = (rows & ~zeros).sum(dim=1)
        most = most_by_chance(n_others, self._chances(directions, rows, each=True))
        lacking = zeros.to(directions.dtype) @ (~self.zeros(directions)).to(directions.dtype).T
        lacking.fill_diagonal_(torch.inf)
        return lacking.amin(dim=1) > most + 1

    def _chances(self, directions: torch.Tensor, rows: torch.Tensor, each: bool) -> torch.Tensor:
        """Return the mean probability of a zero by chance, for entries as large as their row, or all alike.

        Under noise a row without signal (a unit that is off for the whole batch) is zero in every direction.
        """
        widths = self.tolerances(directions)
        if each:
            widths = widths / self.observations.square().mean(dim=1).sqrt().clamp(min=torch.finfo(widths.dtype).tiny)
        chances = (_HALF_NORMAL_DENSITY * widths).clamp(max=1.0)
        return (chances * rows).sum(dim=1) / rows.sum(dim=1).clamp(min=1)

    @cached_property
    def distinct_rows(self) -> torch.Tensor:
        """Which rows are evidence of their own: not all zeros, and no repetition of another, up to sign and noise."""
        if self.evidence is not None:
            return self.evidence & informative_rows(self.observations)
        unmixing, noise_level = self._balanced
        spread = torch.linalg.matrix_norm(unmixing, ord=2)
        return informative_rows(self.observations) & distinct_rows(
            self.observations, self.noise_multiple * spread * noise_level
        )
