"""Criteria that certify a sample, one class each.

Every sample is orthogonal to the columns of all others, ``P Q = I``: it is right when *those* are, whatever its own is.
So zeros certify a column, where more vanish than by chance and they determine it, and this counts for all other
samples; or a criterion certifies a sample by itself.
"""

from sparsedl_fl.certify.criterion import Case, Criterion, EvidenceKind

__all__ = ["Case", "Criterion", "EvidenceKind"]
