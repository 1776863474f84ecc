"""Exact recovery of complete, sparsely-used dictionaries.

=====================  ====================================  ======================
here                   in the papers                         shape
=====================  ====================================  ======================
``X``                  observations (``G`` transposed)       (n_samples, n_features)
``codes_``             ``D = dL/dZ``, sparse                 (n_samples, n_components)
``components_``        ``Q^-1 R``, the dictionary            (n_components, n_features)
``directions_``        ``Q``                                 (n_features, n_components)
whitened ``X``         ``L``                                 (n_samples, n_components)
=====================  ====================================  ======================

Start with `SparseDictionaryRecovery`. Its strategies are in `sparsedl.surrogates`, `sparsedl.optimizers` and
`sparsedl.rounding`.
"""

from sparsedl.estimator import SparseDictionaryRecovery

__all__ = ["SparseDictionaryRecovery", "__version__"]
__version__ = "0.2.0"
