"""What proves an input: all kinds of evidence, and what follows from them.

=====================  ================================================================================================
evidence               statement
=====================  ================================================================================================
`ZerosOfOthers`        all other columns are proven, and the pattern confirms that weights and gradient belong together
`ByTail`          the gradient that the rest of the network returns for it lies in the gradient's column space
`BySubspace`      the activations of the input lie in the spans of the gradients behind
`ByTailAndSubspaces`  what it returns and the activations do so together, where each alone leaves too much open
`ReplayOfAll`          the whole batch, run through the rest of the network, returns the gradient
`ZerosOfInput`         the input has more zeros of its own than chance, which determine it
`ZerosOfAll`           all columns are proven; the pattern does not fit (dropout, stale weights), yet contradicts none
=====================  ================================================================================================

Another kind is a class in `sparsedl_fl.certify.zero_criteria` or `constraint_criteria` and a place in `CRITERIA`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sparsedl.process import one_thread
from sparsedl_fl.certify.constraint_criteria import BySubspace, ByTail, ByTailAndSubspaces, ReplayOfAll
from sparsedl_fl.certify.criterion import Case, Criterion, EvidenceKind
from sparsedl_fl.certify.zero_criteria import ZerosOfAll, ZerosOfInput, ZerosOfOthers

__all__ = ["CRITERIA", "Certificate", "Criterion", "certify"]

CRITERIA: tuple[Criterion, ...] = (
    ZerosOfOthers(),
    ByTail(),
    BySubspace(),
    ByTailAndSubspaces(),
    ReplayOfAll(),
    ZerosOfInput(),
    ZerosOfAll(),
)
"""In the order in which they are named."""


@dataclass(frozen=True)
class Certificate:
    """Which inputs are proven, and by what.

    Attributes
    ----------
    evidence : ndarray of shape (b,) of str
        The first kind of evidence that proves each input; `EvidenceKind.NONE` where there is none.
    errors : ndarray of shape (b,)
        The least expected error by any kind, in the units of the inputs; infinite where nothing is known.
    """

    evidence: np.ndarray
    errors: np.ndarray
    proven: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "proven", self.evidence != EvidenceKind.NONE)

    def without(self, doubtful: np.ndarray) -> Certificate:
        """Return the certificate without some inputs."""
        return Certificate(np.where(doubtful, EvidenceKind.NONE, self.evidence), self.errors)


def certify(case: Case, kinds: tuple[Criterion, ...] = CRITERIA) -> Certificate:
    """Ask every kind of evidence; none counts where no expected error is true."""
    evidence, errors = np.full(len(case.columns), EvidenceKind.NONE, dtype=object), np.full(len(case.columns), np.inf)
    # One thread: the matrices of single inputs are small, and spinning threads cost more than they bring.
    with one_thread():
        for kind in kinds:
            if not kind.may_add(case, evidence != EvidenceKind.NONE):
                continue
            proven, by_kind = kind.prove(case)
            evidence = np.where(proven & (evidence == EvidenceKind.NONE), kind.kind, evidence)
            errors = np.minimum(errors, by_kind)
    known = case.hypothesis.known_errors
    if known is not None and (evidence != EvidenceKind.NONE).all():
        # They were fitted all at once, and are as exact as that says if all are right.
        errors = np.minimum(errors, np.hypot(known, case.errors_by_columns[2]))
    found = Certificate(evidence.astype(str), errors)
    return found.without(np.full(len(errors), case.hypothesis.problem.is_noise_hidden))
