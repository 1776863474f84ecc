"""The estimator: validate, precondition, search, select, expose. It orchestrates and holds no mathematics."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from sparsedl._validation import check_observations, check_settings, pick_strategy, rounding_of
from sparsedl.arrays import Matrix, RandomState, as_numpy, check_device, draw_generator
from sparsedl.diagnosis import advice, status
from sparsedl.intercept import best_recovery
from sparsedl.observations import Observations, exponents, product
from sparsedl.optimizers import Graduated, Optimizer, RiemannianAdam
from sparsedl.process import undisturbed
from sparsedl.progress import progress_bar
from sparsedl.recipes import attempt_for
from sparsedl.recovery import Recovery
from sparsedl.rounding import ReweightedRounding, Rounding
from sparsedl.surrogates import Cauchy, LogSum, Surrogate

__all__ = ["SparseDictionaryRecovery"]


class SparseDictionaryRecovery(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Recover a complete dictionary and its sparse codes exactly: ``X = codes_ @ components_``.

    The dictionary is *complete*: its components are linearly independent, so the codes are linear in the observations,
    ``codes_ = X @ directions_``, and each column of ``directions_`` is a direction in which the observations are
    sparse: ``min_q sum_r phi((L q)_r)`` on the unit sphere, with ``L`` the whitened observations. By default all
    directions start together, from a symmetric fixed point, and where samples are few thousands of starts follow; the
    smoothing of ``phi`` shrinks (graduated non-convexity). Where noise covers the zeros, the likelihood of all
    components together has the last word (`sparsedl.noisy`).

    There is no ``partial_fit``: a proof needs all rows. Give data beyond memory as a ``numpy.memmap``, of which there
    is no copy unless an offset is looked for: 1,000,000 x 50 in float32 take 0.25 GB, of which ``codes_`` are 0.2.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components; None takes the numerical rank of ``X``.
    fit_intercept : bool or "auto", default="auto"
        Whether the observations have an offset, ``X = codes @ components + intercept``: after centring, or behind a
        scaler or a PCA in a pipeline. "auto" looks for one where every column has the mean zero, and once more where
        a search without it was not complete.
    surrogate : Surrogate or None, default=None
        What is minimised; None is the default search. SPEAR++ uses ``L1()``.
    optimizer : Optimizer or None, default=None
        How; None is the default search, or with another surrogate ``RiemannianAdam()``. With
        ``optimizer=RiemannianAdam()`` alone the search is that of version 0.0: surrogate ``LogSum()``, starts at rows.
    rounding : Rounding or None, default=None
        What makes the ends of the optimiser exactly sparse; None is ``ReweightedRounding()``.
    n_starts : int or None, default=None
        Starts a round; None is 32 to 512, more with each round in vain, or of another optimiser two for each component
        and at least 64.
    max_rounds : int or None, default=None
        The budget, in rounds of starts; None is none, or 20 of another optimiser.
    patience : int or None, default=None
        Rounds without a new component after which the search gives up; None is 3 to 84, more with fewer samples a
        component (`sparsedl.recipes`), or of another optimiser the whole budget.
    deflation : tuple of float, "auto" or None, default="auto"
        How much costlier a column already found is, round by round in turn; by default a price between 1 and 5, drawn.
        None draws every start at random on the sphere, as the papers do, and recovers far less.
    noise_level : float, array-like of shape (n_samples,) or None, default=None
        Standard deviation of the noise on the entries of ``X``. None takes it from the singular values beyond
        ``n_components``, and where there are none from the codes (see `sparsedl.noisy.NoisyEstimate`).
    device : str, default="cpu"
        Where the starts run, ``"cpu"`` or ``"cuda"``. Starts are drawn on the CPU in float64, so devices agree.
    n_jobs : int or None, default=None
        Workers that share a round of starts, as joblib counts them: threads, and with ``joblib.parallel_config`` the
        processes of the backend ``"loky"``, ``"dask"`` or ``"ray"``. Results do not depend on it.
    verbose : bool, default=False
        Whether to draw a progress bar (needs rich).
    random_state : int, RandomState or None, default=None
        Seed of the starts.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        The dictionary; rows of unit length whose largest entry is positive, those with the sparsest codes first.
        Certain only where ``certain_components_`` says so.
    codes_ : ndarray of shape (n_samples, n_components)
        The sparse codes of the observations given to ``fit``.
    directions_ : ndarray of shape (n_features, n_components)
        ``codes_ = X @ directions_``.
    intercept_ : ndarray of shape (n_features,)
        The offset; zeros where there is none.
    recovered_ : ndarray of shape (n_components,) of bool
        Which components are proven by their zeros: ``codes_[:, recovered_]`` and ``directions_[:, recovered_]`` are
        exact, up to a scale each, on all rows but those that ``status_`` says are left out. The others are the sparsest
        unproven directions, as far as they are independent, and complete the basis: estimates under heavy noise, and no
        more than a guess without.
    certain_components_ : ndarray of shape (n_components,) of bool
        Which rows of ``components_`` are certain: all where all are recovered; where all but one are, the row of that
        one; else none. A row says what its code does not share with the others, so that it changes with each code
        that is open: those of recovered ones are off by a sine of 0.3 in the median, and up to 1.
    component_errors_ : ndarray of shape (n_components,)
        Expected sine (root mean square) of the angle of each row of ``components_`` to the true one; 1 where nothing is
        known: rows that are not recovered, without noise, and those that change with them.
    sparsity_ : ndarray of shape (n_components,)
        Share of zeros in each column of the codes; zero where not recovered.
    candidates_ : ndarray of shape (n_features, n_candidates)
        All distinct proven directions, the selected ones and any other.
    search_end_ : SearchEnd
        How the search ended: with everything found, by its patience, by ``max_rounds``, or by Ctrl-C.
    status_ : str
        ``"complete"`` where all are recovered, of two at least, from all observations; else in words why not.
    n_starts_ : int
        Starts spent.
    n_successes_ : int
        Starts that ended in a proven column, new or not.
    n_iter_ : int
        Rounds of starts.
    n_features_in_ : int
        Number of features seen in ``fit``.

    Warns
    -----
    ConvergenceWarning
        When not every component is recovered, with the cause and what helps; when there is only one component; and
        when observations are left out because they lie outside the span of all others, as one with a wrong entry does.

    References
    ----------
    Spielman, Wang and Wright, COLT 2012; Sun, Qu and Wright, IEEE Trans. Inf. Theory 2017; Bakarsky et al.,
    "SPEAR++: Scaling gradient inversion via sparsely-used dictionary learning", 2025.

    Examples
    --------
    >>> from sparsedl import SparseDictionaryRecovery
    >>> from sparsedl.datasets import make_sparse_dictionary
    >>> from sparsedl.metrics import match_components
    >>> X, codes, components = make_sparse_dictionary(300, 10, sparsity=0.6, random_state=0)
    >>> sdr = SparseDictionaryRecovery(random_state=0).fit(X)
    >>> bool(match_components(sdr.components_, components).errors.max() < 1e-8)
    True
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        fit_intercept: bool | str = "auto",
        surrogate: Surrogate | None = None,
        optimizer: Optimizer | None = None,
        rounding: Rounding | None = None,
        n_starts: int | None = None,
        max_rounds: int | None = None,
        patience: int | None = None,
        deflation: tuple[float, ...] | str | None = "auto",
        noise_level: ArrayLike | None = None,
        device: str = "cpu",
        n_jobs: int | None = None,
        verbose: bool = False,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.fit_intercept = fit_intercept
        self.surrogate = surrogate
        self.optimizer = optimizer
        self.rounding = rounding
        self.n_starts = n_starts
        self.max_rounds = max_rounds
        self.patience = patience
        self.deflation = deflation
        self.noise_level = noise_level
        self.device = device
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Matrix, y: None = None) -> SparseDictionaryRecovery:
        """Recover the dictionary of ``X``.

        Parameters
        ----------
        X : array-like or torch.Tensor of shape (n_samples, n_features)
            Observations, one a row, in any units. Half precision counts as rough as it is, and is computed in double.
        y : None
            Ignored.

        Returns
        -------
        self
        """
        check_settings(self)
        eps, X = rounding_of(X), check_observations(self, X, reset=True)
        graduated = isinstance(self.optimizer, Graduated) or self.optimizer is self.surrogate is None
        self.surrogate_ = pick_strategy("surrogate", self.surrogate, Surrogate, Cauchy if graduated else LogSum)
        self.optimizer_ = pick_strategy(
            "optimizer", self.optimizer, Optimizer, Graduated if graduated else RiemannianAdam
        )
        self.rounding_ = pick_strategy("rounding", self.rounding, Rounding, ReweightedRounding)
        self.optimizer_.check_surrogate(self.surrogate_)
        generator, device = draw_generator(self.random_state), check_device(self, self.device)

        total = self.n_components or min(X.shape)
        with undisturbed(), progress_bar(self.verbose, total=total, description="columns") as report:
            observations = Observations.of(X, self.noise_level, eps)
            attempt = attempt_for(self, observations, generator, device, report)
            best = best_recovery(attempt, observations.values, self.fit_intercept, self.patience)
            text = advice(best)
            self._expose(best, X.dtype)
            del best, attempt, observations  # a copy of X, before the codes are another
            self.codes_ = self._codes(X)
        if text is not None:
            warnings.warn(text, ConvergenceWarning, stacklevel=2)
        return self

    def transform(self, X: Matrix) -> np.ndarray:
        """Return the codes of observations, ``(X - intercept_) @ directions_``.

        Parameters
        ----------
        X : array-like or torch.Tensor of shape (n_samples, n_features)
            Observations.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
        """
        check_is_fitted(self)
        X = check_observations(self, X, reset=False)
        with undisturbed():
            return self._codes(X)

    def inverse_transform(self, codes: Matrix) -> np.ndarray:
        """Return the observations of codes, ``codes @ components_ + intercept_``.

        Parameters
        ----------
        codes : array-like or torch.Tensor of shape (n_samples, n_components)
            Sparse codes.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        codes = np.asarray(as_numpy(codes))
        if codes.ndim != 2 or codes.shape[1] != len(self.components_):
            raise ValueError(f"codes must have shape (n_samples, {len(self.components_)}), got {codes.shape}")
        with undisturbed():
            return product(codes, self.components_) + self.intercept_

    def score(self, X: Matrix, y: None = None) -> float:
        """Return the share of zeros in the codes of observations, less what they fail to explain.

        ``mean(|codes| <= 1e-6 rms(codes)) - |X - codes @ components_|^2 / |X|^2``: at most the true sparsity, which a
        proven dictionary reaches on unseen observations, and near zero for a dictionary that makes nothing sparse.
        Noise leaves no exact zeros: then it says nothing, and ``certain_components_`` and ``component_errors_`` do.

        Parameters
        ----------
        X : array-like or torch.Tensor of shape (n_samples, n_features)
            Observations, seen or not.
        y : None
            Ignored.
        """
        X = check_observations(self, X, reset=False)
        with undisturbed():
            codes = self._codes(X)
            unexplained = X - self.intercept_ - product(codes, self.components_)
            power = exponents(X)  # in units of X there are squares of all
            codes, observed, unexplained = (np.ldexp(part, -power) for part in (codes, X, unexplained))
            tolerance = max(1e-6, 100 * float(np.finfo(codes.dtype).eps)) * np.sqrt(np.mean(codes**2, axis=0))
            share = np.sum(unexplained**2) / max(np.sum(observed**2), np.finfo(observed.dtype).tiny)
            return float(np.mean(np.abs(codes) <= tolerance) - share)

    @property
    def mixing_(self) -> np.ndarray:
        """The transpose of ``components_``, under the name that it has in FastICA; (n_features, n_components)."""
        return self.components_.T

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def _expose(self, found: Recovery, dtype: np.dtype) -> None:
        components, directions, offset = found.solution()
        self.components_ = components.astype(dtype)
        self.directions_ = directions.astype(dtype)
        self.intercept_ = offset.astype(dtype)
        self.candidates_ = found.all_candidates().astype(dtype)
        self.recovered_ = found.proven
        self.certain_components_ = found.is_certain
        self.component_errors_ = found.errors
        self.sparsity_ = found.n_zeros / len(found.observations.values)
        self.status_, self.search_end_ = status(found), found.result.end
        self.n_starts_ = found.result.n_starts
        self.n_successes_ = found.result.n_successes
        self.n_iter_ = found.result.n_rounds

    def _codes(self, X: np.ndarray) -> np.ndarray:
        return product(X, self.directions_, self.intercept_ if self.intercept_.any() else None)
