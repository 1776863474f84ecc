"""The estimator: validate, precondition, search, select, expose. It orchestrates and holds no mathematics."""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from sparsedl._validation import as_numpy, check_observations, check_positive, draw_generator
from sparsedl.devices import check_device
from sparsedl.optimizers import Optimizer, RiemannianAdam
from sparsedl.pools import assemble_basis
from sparsedl.preconditioning import Whitening, whiten
from sparsedl.progress import progress_bar
from sparsedl.rounding import ReweightedRounding, Rounding
from sparsedl.search import Search, SearchResult
from sparsedl.surrogates import LogSum, Surrogate
from sparsedl.zeros import ZeroTest

__all__ = ["SparseDictionaryRecovery"]

Strategy = TypeVar("Strategy", Surrogate, Optimizer, Rounding)


class SparseDictionaryRecovery(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Recover a complete dictionary and its sparse codes exactly: ``X = codes_ @ components_``.

    The dictionary is *complete*: its components are linearly independent, so the codes are linear in the observations,
    ``codes_ = X @ directions_``, and each column of ``directions_`` is a direction in which the observations are
    sparse. Those directions are found one by one, ``min_q sum_r phi((L q)_r)`` on the unit sphere with ``L`` the
    whitened observations, from many starts kept away from the columns already found.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components; None takes the numerical rank of ``X``.
    surrogate : Surrogate or None, default=None
        What is minimised; None is ``LogSum()``. SPEAR++ uses ``L1()``.
    optimizer : Optimizer or None, default=None
        How; None is ``RiemannianAdam()``.
    rounding : Rounding or None, default=None
        What makes the ends of the optimiser exactly sparse; None is ``ReweightedRounding()``.
    n_starts : int or None, default=None
        Starts a round; None is twice the number of components and at least 64.
    max_rounds : int, default=20
        The budget, in rounds of starts.
    patience : int or None, default=None
        Rounds without a new component after which the search gives up; None spends the whole budget.
    deflation : tuple of float or None, default=(1.0, 2.0)
        How strongly starts are kept away from columns already found, used round by round in turn; 1 only draws the
        starts away from them, more also makes them costlier. None draws every start at random on the sphere, as the
        papers do, and recovers far less for the same number of starts.
    noise_level : float, array-like of shape (n_samples,) or None, default=None
        Standard deviation of the noise on the entries of ``X``. None derives it from the singular values beyond
        ``n_components`` and from the dtype.
    device : str, default="cpu"
        Where the starts run, ``"cpu"`` or ``"cuda"``. Starts are drawn on the CPU in float64, so devices agree.
    n_jobs : int or None, default=None
        Workers that share the starts of a round, through joblib; ``joblib.parallel_config`` with the backend
        ``"loky"``, ``"dask"`` or ``"ray"`` spreads them. Results do not depend on it.
    verbose : bool, default=False
        Whether to draw a progress bar (needs rich).
    random_state : int, RandomState or None, default=None
        Seed of the starts.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        The dictionary; rows of unit length whose largest entry is positive, those with the sparsest codes first.
    codes_ : ndarray of shape (n_samples, n_components)
        The sparse codes of the observations given to ``fit``.
    directions_ : ndarray of shape (n_features, n_components)
        ``codes_ = X @ directions_``.
    recovered_ : ndarray of shape (n_components,) of bool
        Which components are proven by their zeros. The others are the sparsest unproven directions, as far as they
        are independent, and complete the basis: estimates under heavy noise, and no more than a guess without.
    sparsity_ : ndarray of shape (n_components,)
        Share of zeros in each column of the codes; zero where not recovered.
    candidates_ : ndarray of shape (n_features, n_candidates)
        All distinct proven directions, the selected ones and any other.
    status_ : str
        ``"complete"``, or in words why not.
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
        When not every component is recovered within the budget.

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
        surrogate: Surrogate | None = None,
        optimizer: Optimizer | None = None,
        rounding: Rounding | None = None,
        n_starts: int | None = None,
        max_rounds: int = 20,
        patience: int | None = None,
        deflation: tuple[float, ...] | None = (1.0, 2.0),
        noise_level: ArrayLike | None = None,
        device: str = "cpu",
        n_jobs: int | None = None,
        verbose: bool = False,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
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

    def fit(self, X: Any, y: Any = None) -> SparseDictionaryRecovery:
        """Recover the dictionary of ``X``.

        Parameters
        ----------
        X : array-like or torch.Tensor of shape (n_samples, n_features)
            Observations, one a row. They are not centred.
        y : None
            Ignored.

        Returns
        -------
        self
        """
        self._check_parameters()
        X = check_observations(self, X, reset=True)
        self.surrogate_ = _strategy("surrogate", self.surrogate, Surrogate, LogSum)
        self.optimizer_ = _strategy("optimizer", self.optimizer, Optimizer, RiemannianAdam)
        self.rounding_ = _strategy("rounding", self.rounding, Rounding, ReweightedRounding)
        self.optimizer_.check_surrogate(self.surrogate_)
        whitening = whiten(X, self.n_components, self.noise_level)
        zero_test = ZeroTest(
            observations=torch.from_numpy(whitening.whitened),
            unmixing=torch.from_numpy(whitening.unmixing),
            noise_level=torch.from_numpy(np.ascontiguousarray(whitening.noise_level)),
        )
        k = whitening.whitened.shape[1]
        search = Search(
            zero_test=zero_test,
            surrogate=self.surrogate_,
            optimizer=self.optimizer_,
            rounding=self.rounding_,
            n_starts=max(64, 2 * k) if self.n_starts is None else self.n_starts,
            max_rounds=self.max_rounds,
            patience=self.patience,
            deflation=self.deflation,
            n_jobs=self.n_jobs,
            device=check_device(self, self.device),
        )
        with progress_bar(self.verbose, total=k, description="columns") as report:
            result = search.run(draw_generator(self.random_state), report)
        self._expose(X, whitening, result)
        if not self.recovered_.all():
            warnings.warn(self._advice(), ConvergenceWarning, stacklevel=2)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return the codes of observations, ``X @ directions_``.

        Parameters
        ----------
        X : array-like or torch.Tensor of shape (n_samples, n_features)
            Observations.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
        """
        check_is_fitted(self)
        return check_observations(self, X, reset=False) @ self.directions_

    def inverse_transform(self, codes: Any) -> np.ndarray:
        """Return the observations of codes, ``codes @ components_``.

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
        return codes @ self.components_

    def score(self, X: Any, y: Any = None) -> float:
        """Return the share of zeros in the codes of observations, less what they fail to explain.

        ``mean(|codes| <= 1e-6 rms(codes)) - |X - codes @ components_|^2 / |X|^2``: at most the true sparsity, which a
        proven dictionary reaches on unseen observations, and near zero for a dictionary that makes nothing sparse.

        Parameters
        ----------
        X : array-like or torch.Tensor of shape (n_samples, n_features)
            Observations, seen or not.
        y : None
            Ignored.
        """
        codes = self.transform(X)
        X = check_observations(self, X, reset=False)
        tolerance = max(1e-6, 100 * float(np.finfo(codes.dtype).eps)) * np.sqrt(np.mean(codes**2, axis=0))
        unexplained = np.sum((X - codes @ self.components_) ** 2) / max(np.sum(X**2), np.finfo(X.dtype).tiny)
        return float(np.mean(np.abs(codes) <= tolerance) - unexplained)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def _check_parameters(self) -> None:
        for name in ("n_components", "n_starts", "patience"):
            if getattr(self, name) is not None:
                check_positive(self, name, getattr(self, name), integer=True)
        check_positive(self, "max_rounds", self.max_rounds, integer=True)
        if self.deflation is not None:
            if not isinstance(self.deflation, tuple) or not self.deflation:
                raise ValueError(f"deflation must be a tuple of positive numbers or None, got {self.deflation!r}")
            for strength in self.deflation:
                check_positive(self, "deflation", strength)
        if self.noise_level is not None:
            noise = np.asarray(self.noise_level, dtype=float)
            if noise.ndim > 1 or not np.isfinite(noise).all() or (noise < 0).any():
                raise ValueError("noise_level must be a non-negative number, or one for each observation")

    def _expose(self, X: np.ndarray, whitening: Whitening, result: SearchResult) -> None:
        selection = result.pool.selection()
        basis = assemble_basis(selection, result.unproven)
        components = np.linalg.solve(basis, whitening.mixing)
        scale = np.linalg.norm(components, axis=1)
        largest = np.abs(components).argmax(axis=1)
        scale *= np.sign(components[np.arange(len(components)), largest])
        self.components_ = (components / scale[:, None]).astype(X.dtype)
        self.directions_ = (whitening.unmixing @ basis * scale).astype(X.dtype)
        self.codes_ = X @ self.directions_
        self.candidates_ = (whitening.unmixing @ result.pool.directions.numpy().T).astype(X.dtype)
        self.recovered_ = np.arange(len(components)) < len(selection.directions)
        self.sparsity_ = np.zeros(len(components))
        self.sparsity_[self.recovered_] = selection.n_zeros.numpy() / len(X)
        self.status_ = "complete" if self.recovered_.all() else result.status
        self.n_starts_ = result.n_starts
        self.n_successes_ = result.n_successes
        self.n_iter_ = result.n_rounds

    def _advice(self) -> str:
        n_found, k = int(self.recovered_.sum()), len(self.recovered_)
        advice = "raise max_rounds or n_starts"
        if n_found == 0:
            advice = (
                "the observations may be dense in every direction, have fewer than about 2 samples with a zero for "
                "each component, or be noisier than noise_level says: set noise_level, or give more observations"
            )
        return f"recovered {n_found} of {k} components ({self.status_}); {advice}"


def _strategy(name: str, given: Strategy | None, kind: type[Strategy], default: type[Strategy]) -> Strategy:
    """Return a clone of a strategy or the default, after checking its kind and its parameters."""
    if given is not None and not isinstance(given, kind):
        raise TypeError(f"{name} must be an instance of {kind.__name__} or None, got {given!r}")
    strategy = default() if given is None else clone(given)
    strategy.check_parameters()
    return strategy
