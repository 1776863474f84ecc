"""The inverter: factorise, propose, filter, assemble, expose. It orchestrates and holds no mathematics."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np
from joblib import parallel_config
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning

from sparsedl.process import neutral_modes, one_thread
from sparsedl_fl.certify.assembly import Batch
from sparsedl_fl.certify.candidates import Candidates, Provenance, SearchEnd
from sparsedl_fl.certify.labels import labels_of
from sparsedl_fl.certify.many_samples_batch import many_samples_batch
from sparsedl_fl.certify.status import in_words
from sparsedl_fl.constraints.many_samples import ManySamplesProblem
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions import ActivationDirections, Directions, KnownInputs, best_known
from sparsedl_fl.directions.more_samples_than_features import propose_samples
from sparsedl_fl.layer_recovery import LayerRecovery
from sparsedl_fl.layers.bias_as_input import without_constant
from sparsedl_fl.layers.diagnosis import advice, advice_for_more_samples, obstacle, visible_reason, without_next_layer
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.factorization import check_arguments, factorize_with_bias
from sparsedl_fl.lowrank.row_equilibration import in_units_of_rounding
from sparsedl_fl.theory import Expectation, expect

__all__ = ["GradientInverter"]

EXACT_ENOUGH = 0.1
"""Largest expected error of an input, relative to its size, at which its label is returned; not varied. (At trained
heads with few labels four inputs had a wrong label, at 0.26 to 1.)"""


class GradientInverter(BaseEstimator):
    """Recover the batch of one layer's gradient exactly, with a certificate.

    Parameters
    ----------
    directions : Directions or None, default=None
        Strategy that proposes candidate directions; None is the best known, today `ActivationDirections` with
        `DictionaryDirections` for missing columns.
    batch_size : int or None, default=None
        Number of inputs; None takes the numerical rank of the gradient. Give it when the gradient is noisy.
    noise_level : float or None, default=None
        Standard deviation of the noise on each entry of the gradient (DP-SGD); None estimates it from the singular
        values beyond the batch size.
    n_jobs : int or None, default=None
        Workers, as joblib counts them: threads, which share rounds of starts, columns and their errors; with
        ``joblib.parallel_config`` processes of the backend ``"loky"``, ``"dask"`` or ``"ray"``, which share starts.
        Results do not depend on it.
    verbose : bool, default=False
        Whether to draw a progress bar (needs rich).
    random_state : int, RandomState or None, default=None
        Seed.

    Attributes
    ----------
    inputs_ : ndarray of shape (batch_size_, n)
        The recovered batch, in no particular order, on the scale of the layer's inputs.
    batch_size_ : int
        Number of inputs; duplicates and inputs without loss do not count.
    recovered_ : ndarray of shape (batch_size_,) of bool
        Which inputs are certified, each to within its ``uncertainty_``. The others may be right, but nothing certifies
        it.
    uncertainty_ : ndarray of shape (batch_size_,)
        Expected root-mean-square error of each input, in its units, from the noise of the gradient and the conditioning
        of its column; infinite where nothing is known.
    evidence_ : ndarray of shape (batch_size_,) of str
        The criterion that certifies each input, a kind of `sparsedl_fl.certify.certificate`: zeros of the gradient, the
        activation subspace ("span") of the next layer, the network tail ("rest"), both together, a replay of all, zeros
        of the input, columns alone, or none. Zeros "that several inputs share" certify one input for all records with
        the same active units, and its uncertainty is how far these may be from it.
    labels_ : ndarray of shape (batch_size_,) of int
        The label of each certified input, where the network tail is known and shows it; else -1.
    resolution_ : ndarray of shape (batch_size_,)
        Ambiguity radius: how far apart (root mean square) near-duplicates may be that the gradient does not distinguish
        from this input.
    provenance_ : ndarray of shape (batch_size_,) of str
        Where each input comes from: "certified"; "column found", whose own column was found but not every column that
        the input depends on; or "completed", a substitute for a missing column.
    disaggregation_ : ndarray of shape (batch_size_, batch_size_)
        ``Q``; of a head with row equilibration (see `sparsedl_fl.lowrank.row_equilibration`), that of the scaled
        gradient. With more samples than features the first axis has as many entries as features.
    preactivation_gradients_ : ndarray of shape (m, batch_size_)
        ``D = dL/dZ``; NaN where a part of such a batch does not determine it.
    sparsity_matching_ : float
        The coefficient ``lambda``, 1 for the true batch; NaN where inputs were found one by one.
    relative_residual_ : float
        ``|G - D X^T| / |G|``, with ``D`` cut to the ReLU pattern of the inputs.
    status_ : str
        What was recovered, in words.
    search_end_ : SearchEnd
        How the search ended: with everything found, by its own patience, by a budget or cap, or by Ctrl-C.
    signal_to_noise_ : float
        Smallest singular value of the batch over the largest beyond it: how clearly the batch size shows.
    size_is_clear_ : bool
        Whether the batch size is certain: by that ratio, by the caller, or by a coarse format of known rounding.
    noise_excess_ : float
        Largest singular value beyond the batch over that of white noise: about one for noise, up to 3.3 for rounding.
    uses_next_layer_ : bool
        Whether the next layer's gradient was used: it needs more rows than inputs, and noise below their gradients.
    n_starts_ : int
        Starts or draws spent.
    n_successes_ : int
        Starts that ended in a candidate, new or not.

    Warns
    -----
    ConvergenceWarning
        When not every input is certified.

    References
    ----------
    Dimitrov et al., "SPEAR: Exact gradient inversion of batches in federated learning", NeurIPS 2024, Algorithm 1;
    Bakarsky et al., "SPEAR++", 2025, Algorithm 2.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from sparsedl_fl import GradientInverter, LayerGradient
    >>> from sparsedl_fl.simulation import client_gradient, fully_connected
    >>> batch = torch.randn(8, 100, generator=torch.Generator().manual_seed(0))
    >>> model = fully_connected(100, width=120, random_state=0)
    >>> gradient = client_gradient(model, batch, labels=torch.arange(8))
    >>> inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, gradient))
    >>> inverter.batch_size_, bool(inverter.recovered_.all())
    (8, True)
    """

    def __init__(
        self,
        directions: Directions | None = None,
        *,
        batch_size: int | None = None,
        noise_level: float | None = None,
        n_jobs: int | None = None,
        verbose: bool = False,
        random_state: Any = None,
    ) -> None:
        self.directions = directions
        self.batch_size = batch_size
        self.noise_level = noise_level
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    @one_thread()
    @neutral_modes(gradients=True)
    def expect(self, layer_gradient: LayerGradient) -> Expectation:
        """Say what to expect before a search starts, from the size of the batch and the number of live units.

        Parameters
        ----------
        layer_gradient : LayerGradient
            Weights and gradient of one linear layer and its activation.

        Returns
        -------
        Expectation
            Its ``verdict`` is a sentence.
        """
        given, scale = _checked(layer_gradient).in_range()
        given, _ = self._equilibrated(given)
        _, factors = factorize_with_bias(given, self.batch_size, self._noise_level(scale))
        return expect(factors.batch_size, _n_live(layer_gradient), layer_gradient.next_layer.weight_grad is not None)

    @one_thread()  # threads of decompositions wait in loops: beside other work they took 20 times as long
    @neutral_modes(gradients=True)
    def fit(self, layer_gradient: LayerGradient, y: Any = None) -> GradientInverter:
        """Recover the batch.

        Parameters
        ----------
        layer_gradient : LayerGradient
            Weights and gradient of one linear layer and its activation.
        y : None
            Ignored.

        Returns
        -------
        self
        """
        if self.directions is not None and not isinstance(self.directions, Directions):
            raise TypeError(f"directions must be an instance of Directions or None, got {self.directions!r}")
        why_not = obstacle(_checked(layer_gradient))
        if why_not:
            raise ValueError(why_not)
        self.directions_ = best_known() if self.directions is None else clone(self.directions)
        given, scale = layer_gradient.in_range()
        if self._fit_more_samples_than_features(given, scale):
            return self
        given, units = self._equilibrated(given)
        problem = LayerProblem.of(given, self.batch_size, self._noise_level(scale))
        if not problem.activation.has_flat_part and problem.subspaces is None and problem.tail is None:
            raise ValueError(without_next_layer(given, problem.batch_size))
        with nullcontext() if self.n_jobs is None else parallel_config(n_jobs=self.n_jobs):
            found = LayerRecovery.of(
                problem, self.directions_, self.batch_size, self._noise_level(scale), self.random_state, self.verbose
            )
        problem, candidates, hypothesis, batch = found.problem, found.candidates, found.hypothesis, found.batch
        self._expose(problem.layer_gradient, batch, hypothesis.proposed, candidates, scale)
        self.search_end_ = SearchEnd.INTERRUPTED if found.is_interrupted else candidates.end
        self.signal_to_noise_, self.noise_excess_ = problem.factors.signal_to_noise, problem.factors.excess
        self.size_is_clear_ = self.batch_size is not None or problem.factors.ends_clearly or problem.factors.is_coarse
        self.uses_next_layer_ = problem.subspaces is not None
        self.preactivation_gradients_ *= units[:, None]
        # An input with a large ambiguity radius has no label: four such had that of another input.
        sizes = np.sqrt(np.mean(batch.inputs**2, axis=1))
        is_known = batch.recovered & (batch.uncertainty <= EXACT_ENOUGH * sizes)
        self.labels_ = labels_of(problem, batch.inputs, batch.preactivation_gradients, is_known)
        if not batch.recovered.all():
            verdict = expect(problem.batch_size, _n_live(given), given.next_layer.weight_grad is not None).verdict
            is_open = self.batch_size is None and not problem.factors.ends_clearly
            reason = visible_reason(problem.layer_gradient, problem.batch_size, is_open)
            has_zeros = problem.activation.has_flat_part
            text = advice(
                hypothesis.proposed, batch.recovered, batch.residual_floor, verdict, reason, has_zeros,
                matching=self.sparsity_matching_,
            )  # fmt: skip
            warnings.warn(f"{self.status_}. {text}", ConvergenceWarning, stacklevel=3)
        return self

    def _noise_level(self, scale: float) -> float | None:
        """Return the noise on each entry of a gradient that was scaled by a factor."""
        check_arguments(self.batch_size, self.noise_level)
        return None if self.noise_level is None else float(self.noise_level) * scale

    def _equilibrated(self, given: LayerGradient) -> tuple[LayerGradient, np.ndarray]:
        """Return a head with row equilibration, where its only noise is rounding, and the scales of its rows."""
        is_rounded = self.noise_level is None
        return in_units_of_rounding(given, self.batch_size) if is_rounded else (given, np.ones(given.shape[0]))

    def _fit_more_samples_than_features(self, given: LayerGradient, scale: float) -> bool:
        """Recover a batch with more samples than features; return whether it is one and something was found.

        Where nothing is found, the searches for other batches follow.
        """
        if self.noise_level is not None or not isinstance(self.directions_, ActivationDirections | KnownInputs):
            return False
        problem = ManySamplesProblem.of(given, self.batch_size)
        if problem is None:
            return False
        found = propose_samples(problem, self.directions_, random_state=self.random_state, verbose=self.verbose)
        if len(found.inputs) == 0:
            return False
        batch, self.labels_ = many_samples_batch(problem, found.inputs)
        self.search_end_, self.signal_to_noise_, self.noise_excess_ = found.end, np.inf, 1.0
        self.uses_next_layer_ = self.size_is_clear_ = True
        proposed = np.arange(problem.batch_size) < len(found.inputs)
        self._expose(given, batch, proposed, found, scale, "inputs")
        if not batch.recovered.all():
            text = advice_for_more_samples(len(found.inputs), int(batch.recovered.sum()), problem.batch_size)
            warnings.warn(f"{self.status_}. {text}", ConvergenceWarning, stacklevel=4)
        return True

    def _expose(
        self, given: LayerGradient, batch: Batch, proposed: np.ndarray, candidates: Candidates, scale: float,
        kind: str = "columns",
    ) -> None:  # fmt: skip
        self.batch_size_ = len(batch.inputs)
        both = np.stack([batch.uncertainty, batch.resolution])
        self.inputs_, (self.uncertainty_, self.resolution_) = without_constant(given, batch.inputs, both)
        self.recovered_ = batch.recovered
        self.provenance_ = np.select(
            [batch.recovered, proposed], [Provenance.CERTIFIED, Provenance.COLUMN_FOUND], Provenance.COMPLETED
        )
        self.evidence_ = batch.evidence
        self.disaggregation_ = batch.disaggregation / scale
        self.preactivation_gradients_ = batch.preactivation_gradients / scale
        self.sparsity_matching_ = float(batch.agreement.mean())
        self.relative_residual_ = batch.relative_residual
        self.n_starts_ = candidates.n_starts
        self.n_successes_ = candidates.n_successes
        how = f"{int(proposed.sum())} {kind} found, search {candidates.status}"
        self.status_ = in_words(batch, how, int(np.sum(~given.weight_grad.any(axis=0))))

    def fit_transform(self, layer_gradient: LayerGradient, y: Any = None) -> np.ndarray:
        """Recover the batch and return ``inputs_``, of shape (batch_size_, n)."""
        return self.fit(layer_gradient).inputs_


def _checked(layer_gradient: Any) -> LayerGradient:
    if not isinstance(layer_gradient, LayerGradient):
        raise TypeError(f"expected a LayerGradient, got {type(layer_gradient).__name__}")
    return layer_gradient


def _n_live(layer_gradient: LayerGradient) -> int:
    return int(np.any(layer_gradient.weight_grad, axis=1).sum())
