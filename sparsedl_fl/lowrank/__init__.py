"""A layer's gradient as a product of two thin matrices, ``G = U S V^T``.

- `spectrum`: how many singular values belong to the batch; `factorization`: the rank, and whether the bias counts
  as a further feature.
- `factors`: the factors with their noise; `row_equilibration`: rows scaled to equal rounding.
"""
