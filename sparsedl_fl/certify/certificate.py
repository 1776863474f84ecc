"""The certificate: which criteria certify each input of a batch.

=====================  ================================================================================================
criterion              statement
=====================  ================================================================================================
`ZerosOfOthers`        all other columns are certified, and the pattern confirms that weights and gradient belong
                       together
`SentBackByNext`       the same where what the next layer's weights send back certifies columns that zeros do not
`ZerosOfGroup`         all others are certified by these two, and the input stands for several that share their zeros
`ByTail`               the network tail's gradient for the input lies in the column space of the layer's gradient
`BySubspace`           the activations of the input lie in the activation subspaces of downstream layers
`ByTailAndSubspaces`   both together, where each alone has too few equations
`ReplayOfAll`          the whole batch, replayed through the network tail, gives the gradient
`ZerosOfInput`         the input has more zeros of its own than by chance, and they determine it
`ZerosOfAll`           all columns are certified; the pattern does not fit (dropout, stale weights) but contradicts none
=====================  ================================================================================================

A further criterion is a class in `sparsedl_fl.certify.zero_criteria` or `constraint_criteria` and an entry of
`CRITERIA`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sparsedl.process import one_thread
from sparsedl_fl.certify.constraint_criteria import BySubspace, ByTail, ByTailAndSubspaces, ReplayOfAll
from sparsedl_fl.certify.criterion import Case, Criterion, EvidenceKind
from sparsedl_fl.certify.zero_criteria import SentBackByNext, ZerosOfAll, ZerosOfGroup, ZerosOfInput, ZerosOfOthers

__all__ = ["CRITERIA", "Certificate", "Criterion", "certify"]

CRITERIA: tuple[Criterion, ...] = (
    ZerosOfOthers(),
    SentBackByNext(),
    ZerosOfGroup(),
    ByTail(),
    BySubspace(),
    ByTailAndSubspaces(),
    ReplayOfAll(),
    ZerosOfInput(),
    ZerosOfAll(),
)
"""In order of precedence: the first that certifies an input is named."""


@dataclass(frozen=True)
class Certificate:
    """Which inputs are certified, and by which criterion.

    Attributes
    ----------
    evidence : ndarray of shape (b,) of str
        The first criterion that certifies each input; `EvidenceKind.NONE` where there is none.
    errors : ndarray of shape (b,)
        The least expected error by any criterion, in the units of the inputs; infinite where nothing is known.
    proven : ndarray of shape (b,) of bool
        Which inputs are certified.
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
    """Apply every criterion; nothing is certified where the noise is hidden, as expected errors are wrong there."""
    evidence, errors = np.full(len(case.columns), EvidenceKind.NONE, dtype=object), np.full(len(case.columns), np.inf)
    # One thread: the matrices of single inputs are small, and spinning threads cost more than they bring.
    with one_thread():
        for kind in kinds:
            if not kind.may_add(case, evidence != EvidenceKind.NONE):
                continue
            certified, by_kind = kind.prove(case)
            evidence = np.where(certified & (evidence == EvidenceKind.NONE), kind.kind, evidence)
            errors = np.minimum(errors, by_kind)
    known = case.hypothesis.known_errors
    if known is not None and (evidence != EvidenceKind.NONE).all():
        # The search fitted all at once; its errors hold if all are right.
        errors = np.minimum(errors, np.hypot(known, case.errors_by_columns[2]))
    found = Certificate(evidence.astype(str), errors)
    return found.without(np.full(len(errors), case.hypothesis.problem.is_noise_hidden))
