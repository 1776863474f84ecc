"""Where the optimiser starts.

Which one to use
----------------
- `SymmetricStarts` (the first of the default search) is FastICA's symmetric fixed point in the complement of what was
  found: where samples are plentiful, each start leads to another column.
- `RowStarts` (the second) are observations: each is a mixture of few columns, so that a column is near. They find
  columns where samples are few and `SymmetricStarts` none.
- `SphereStarts` are random, as in the papers.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from sparsedl._validation import Strategy
from sparsedl.linalg import normalized
from sparsedl.symmetric_fixed_point import symmetric_fixed_point
from sparsedl.workers import Share, in_turn

__all__ = ["RowStarts", "SphereStarts", "Starts", "SymmetricStarts", "complement_of"]


def complement_of(found: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis of the complement of independent rows, shape (n_components, n_left)."""
    n_found, n_components = found.shape
    if n_found == 0:
        return torch.eye(n_components, dtype=found.dtype)
    return torch.linalg.qr(found.T, mode="complete")[0][:, n_found:]


class Starts(Strategy):
    """Draws where the optimiser starts, knowing which columns were found."""

    @abstractmethod
    def draw(
        self,
        observations: torch.Tensor,
        found: torch.Tensor,
        n_starts: int,
        generator: torch.Generator,
        share: Share = in_turn,
    ) -> torch.Tensor:
        """Return unit directions, one a row.

        Parameters
        ----------
        observations : torch.Tensor of shape (n_samples, n_components)
            Whitened observations ``L``.
        found : torch.Tensor of shape (n_found, n_components)
            Independent columns found so far.
        n_starts : int
            How many are wanted; starts that come in sets may be more or fewer.
        generator : torch.Generator
            Source of randomness, on the CPU.
        share : callable
            What may share the work (`sparsedl.workers.Share`).
        """


@dataclass(eq=False, repr=False, kw_only=True)
class SphereStarts(Starts):
    """Directions at random, as in the papers."""

    def draw(
        self,
        observations: torch.Tensor,
        found: torch.Tensor,
        n_starts: int,
        generator: torch.Generator,
        share: Share = in_turn,
    ) -> torch.Tensor:
        """Draw uniformly on the sphere."""
        starts = torch.randn((n_starts, observations.shape[1]), generator=generator, dtype=torch.float64)
        return normalized(starts).to(observations.dtype)


@dataclass(eq=False, repr=False, kw_only=True)
class RowStarts(Starts):
    """Rows of ``L``, less a random share of their part in the span of the columns found.

    In whitened coordinates columns are nearly orthogonal, so what remains of a row leads to a new one.

    Parameters
    ----------
    noise : float, default=0.1
        Length of a random perturbation, for each entry: it keeps repeated rows apart, and replaces a row that is zero.
    """

    positive = ("noise",)
    noise: float = 0.1

    def draw(
        self,
        observations: torch.Tensor,
        found: torch.Tensor,
        n_starts: int,
        generator: torch.Generator,
        share: Share = in_turn,
    ) -> torch.Tensor:
        """Draw rows with replacement."""
        n_rows, n_components = observations.shape
        starts = observations[torch.randint(n_rows, (n_starts,), generator=generator)].double()
        starts = starts + self.noise * torch.randn((n_starts, n_components), generator=generator, dtype=torch.float64)
        part = torch.rand((n_starts, 1), generator=generator, dtype=torch.float64).sqrt()
        if 0 < len(found) < n_components:
            basis = torch.linalg.qr(found.T)[0]
            starts = starts - part * (starts @ basis) @ basis.T
        return normalized(starts).to(observations.dtype)


@dataclass(eq=False, repr=False, kw_only=True)
class SymmetricStarts(Starts):
    """The symmetric fixed point of FastICA, contrast ``log cosh``, in the complement of the columns found.

    All directions of the complement at once, no two of which go to the same column. It need not converge; the optimiser
    goes on.

    Parameters
    ----------
    max_iter : int, default=60
        Steps at most.
    tolerance : float, default=1e-3
        Change of a cosine at which a direction is settled.
    share : float, default=0.9
        Share of the directions that have to be for all to stop.

    References
    ----------
    Hyvarinen, "Fast and robust fixed-point algorithms for independent component analysis", IEEE Trans. Neural Netw.
    1999, Sec. 4 (symmetric decorrelation), Eq. 20.
    """

    positive, counts = ("tolerance", "share"), ("max_iter",)
    max_iter: int = 60
    tolerance: float = 1e-3
    share: float = 0.9

    def check_parameters(self) -> None:
        """Raise ``ValueError`` unless all are positive and ``share`` is at most one."""
        super().check_parameters()
        if self.share > 1:
            raise ValueError(f"{type(self).__name__}: share must be at most 1, got {self.share!r}")

    def draw(
        self,
        observations: torch.Tensor,
        found: torch.Tensor,
        n_starts: int,
        generator: torch.Generator,
        share: Share = in_turn,
    ) -> torch.Tensor:
        """Return whole sets, of as many as the complement has dimensions: one at least."""
        basis = complement_of(found).to(observations.dtype)
        n_left = basis.shape[1]
        inside = observations @ basis if len(found) else observations
        n_sets = max(1, n_starts // n_left)
        W = torch.randn((n_sets, n_left, n_left), generator=generator, dtype=torch.float64)
        W = symmetric_fixed_point(
            inside, W, max_iter=self.max_iter, tolerance=self.tolerance, settled_share=self.share, share=share
        )
        return normalized(W.view(-1, n_left) @ basis.T)
