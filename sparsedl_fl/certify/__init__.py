"""Kinds of evidence for an input, one class each.

Every input is orthogonal to the columns of all others, ``P Q = I``: it is right when *those* are, whatever its own is.
So a column can be proven, by more zeros than chance which determine it, and then it counts for all other inputs; or an
input can be proven by itself.
"""

from sparsedl_fl.certify.criterion import Case, Criterion, EvidenceKind

__all__ = ["Case", "Criterion", "EvidenceKind"]
