"""Surrogates of the number of non-zeros: even functions ``phi`` whose sum over the entries of ``L q`` is minimised.

Which one to use
----------------
- `Cauchy` (the default) and `GemanMcClure` count non-zeros, smoothly: the most rugged, for
  `sparsedl.optimizers.Graduated`, which starts them from a smooth version of themselves.
- `LogSum` (the default of every other optimiser) is concave away from zero, so a true column stays a minimum even when
  the samples are few for the number of components, and needs no rounding of its own.
- `L1` is the surrogate of SPEAR++: one minimum a column when samples are plentiful.
- `LogCosh` and `Huber` are smooth versions of `L1`: fewer spurious minima, but they stop near a sparse direction, not
  at it, so `sparsedl.rounding` has to finish.
- `GaussianMoments` knows how large the noise is, and is blind to it: what it measures of noisy entries is, in
  expectation, what it would measure of clean ones. Where most entries are noise, `sparsedl.noisy` does better.
- `NegativeL4` is the classical spiky-ness measure. It wants many samples and very sparse codes.

Entries are in units in which a unit direction gives entries of mean square one, so parameters need no rescaling.
"""

from sparsedl.surrogates.cauchy import Cauchy
from sparsedl.surrogates.gaussian_moments import GaussianMoments
from sparsedl.surrogates.geman_mcclure import GemanMcClure
from sparsedl.surrogates.huber import Huber
from sparsedl.surrogates.l1 import L1
from sparsedl.surrogates.log_cosh import LogCosh
from sparsedl.surrogates.log_sum import LogSum
from sparsedl.surrogates.negative_l4 import NegativeL4
from sparsedl.surrogates.surrogate import Surrogate, check_surrogate

__all__ = [
    "Surrogate",
    "L1",
    "LogSum",
    "LogCosh",
    "Huber",
    "Cauchy",
    "GemanMcClure",
    "GaussianMoments",
    "NegativeL4",
    "check_surrogate",
]
