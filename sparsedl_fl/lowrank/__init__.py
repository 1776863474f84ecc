"""A layer's gradient as a product of two thin matrices, ``G = U S V^T``.

- `spectrum`: where the batch ends among the singular values; `factorization`: which rank, and whether the bias is
  spanned.
- `factors`: the factors with their noise; `row_equilibration`: rows in units of their own rounding.
"""
