"""What an audit found at one layer: inputs, candidates, token ids, or why there is nothing.

Its verdict is one of five words; none of them is "safe".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from sparsedl_fl.audit.text import Text
from sparsedl_fl.certify.candidates import Provenance, SearchEnd
from sparsedl_fl.certify.labels import NO_LABEL
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.models import LayerRow
from sparsedl_fl.propagate.backward import KnownBatch

__all__ = ["Candidate", "Fed", "LayerAudit", "LikelySample", "Sample", "Verdict"]

BY_CHANCE = 1e-3
"""Chance that any wrong candidate of a layer agrees as well as a likely one. (Not varied. Of the updates in
`tests/hostile/calibration.md` 1 of 241 likely candidates had a correlation below 0.7.)"""

FED_THE_INPUT = "the model's input"

ATTACKED = "attacked"
"""Source of what an attack on the layer itself found."""


class Verdict(StrEnum):
    """What these attacks recovered from a layer, or from the whole update."""

    RECOVERED = "RECOVERED"
    """Every input of a layer that carries the whole batch (records, features or tokens) was recovered, certified; or
    every text of it, with its tokens in order."""

    PARTLY = "PARTLY"
    """Some of them, or the token ids of the batch."""

    LIKELY = "LIKELY"
    """Candidates that chance does not explain and nothing certifies."""

    OUT_OF_RANGE = "OUT OF RANGE"
    """No attack applies, or none ran to its end: no conclusion."""

    NOT_RECOVERED = "NOT RECOVERED"
    """A layer that carries the batch was in range, was attacked to the end, and nothing was recovered."""

    @property
    def is_leak(self) -> bool:
        """Whether something of the batch was recovered."""
        return self in (self.RECOVERED, self.PARTLY, self.LIKELY)

    @property
    def exit_status(self) -> int:
        """0 for nothing recovered, 1 for something, 3 for no conclusion."""
        return {self.NOT_RECOVERED: 0, self.OUT_OF_RANGE: 3}.get(self, 1)

    @property
    def meaning(self) -> str:
        """What the verdict means, in a sentence."""
        return {
            self.RECOVERED: "Every record of the batch was recovered and certified, or its features or tokens were.",
            self.PARTLY: "Some of the batch was recovered: certified records, features or tokens, or its token ids.",
            self.LIKELY: "Records or their features were found that chance does not explain; nothing certifies them.",
            self.OUT_OF_RANGE: (
                "No attack applies, none ran to its end, or an assumption is in doubt: there is no conclusion. "
                "This does not mean that nothing leaks."
            ),
            self.NOT_RECOVERED: (
                "A layer that carries the whole batch was in range and was attacked to the end; nothing was recovered. "
                "Other attacks, or more time, may still recover something."
            ),
        }[self]


class Fed(StrEnum):
    """What a layer is fed, as a noun in the plural."""

    INPUTS = "inputs of the model"
    FEATURES = "features"
    TOKENS = "tokens"


@dataclass(frozen=True, eq=False)
class Sample:
    """One recovered item.

    Attributes
    ----------
    index : int
        Its index among the inputs of its layer.
    kind : str
        What it is: "inputs of the model", "features" or "tokens".
    layer : str
        The layer that is fed it.
    label : int
        Its label, `sparsedl_fl.certify.labels.NO_LABEL` where it is not known.
    error : float
        Its expected root-mean-square error, in its units.
    values : ndarray of shape (n,)
        The recovered numbers.
    """

    index: int
    kind: Fed
    layer: str
    label: int
    error: float
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class LikelySample:
    """A candidate that chance does not explain and nothing certifies.

    Attributes
    ----------
    index, kind, layer, values
        As of `Sample`.
    correlation : float
        Its expected correlation with the true input.
    """

    index: int
    kind: Fed
    layer: str
    correlation: float
    values: np.ndarray


@dataclass(frozen=True)
class Candidate:
    """A likely candidate of a layer: its index, and its expected correlation with a true input."""

    index: int
    correlation: float


@dataclass(frozen=True, eq=False)
class LayerAudit:
    """What one layer leaks.

    Attributes
    ----------
    name : str
        Name of the layer in the model.
    inverter : GradientInverter or None
        Fitted to the layer; None where the layer could not be attacked by itself.
    reason : str
        What was recovered and what is in doubt, or why the layer could not be attacked.
    row : LayerRow or None
        What `inspect_model` says of the layer.
    batch : KnownBatch or None
        What was recovered.
    source : str
        How it was recovered: by an attack on the layer itself, or from another layer.
    seconds : float
        Time spent on the layer.
    why_open : str
        Why nothing recovered here is no conclusion; empty where the layer was in range and attacked to the end.
    likely_candidates : tuple of Candidate
        Candidates that chance does not explain and nothing certifies.
    tokens : tuple of int
        Token ids that the layer's gradient shows, where it is the table of an embedding.
    at_least : int
        Least number of inputs, where the layer's gradient does not show all.
    rows : int
        Inputs of the layer for each sample of the batch, such as its tokens.
    end : SearchEnd or None
        How the search ended; None where there was none.
    text : Text or None
        Tokens at their positions and sentences, where it is the first layer that is fed tokens.
    """

    name: str
    inverter: GradientInverter | None
    reason: str
    row: LayerRow | None = None
    batch: KnownBatch | None = None
    source: str = ""
    seconds: float = 0.0
    why_open: str = "it was not attacked"
    likely_candidates: tuple[Candidate, ...] = ()
    tokens: tuple[int, ...] = ()
    at_least: int = 0
    rows: int = 1
    end: SearchEnd | None = None
    text: Text | None = None

    @classmethod
    def closed(cls, row: LayerRow, why: str, **known: Any) -> LayerAudit:
        """Return the entry of a layer that was not attacked, with the reason."""
        return cls(row.name, None, why, row, why_open=why, **known)

    @property
    def n_inputs(self) -> int:
        """Number of inputs that the layer's gradient shows; zero for unknown."""
        return 0 if self.batch is None else len(self.batch.inputs)

    @property
    def is_size_known(self) -> bool:
        """Whether these are all inputs of the layer, as far as its gradient shows."""
        is_clear = self.inverter is None or self.inverter.size_is_clear_
        return self.batch is not None and self.at_least == 0 and is_clear

    @property
    def n_certified(self) -> int:
        """Number of certified inputs."""
        return 0 if self.batch is None else int(self.batch.certified.sum())

    @property
    def how(self) -> str:
        """How inputs were recovered; of a layer without a conclusion, why there is none."""
        why = self.why_open or self.reason if self.verdict is Verdict.OUT_OF_RANGE else ""
        return why or self.source or self.reason

    @property
    def summary(self) -> str:
        """How many inputs were recovered, and how; without a conclusion, why there is none."""
        if self.verdict is Verdict.OUT_OF_RANGE:
            return self.how
        return (self.count or self.reason) + (f" ({self.source})" if self.source else "")

    @property
    def n_labels(self) -> int:
        """Number of known labels."""
        return 0 if self.batch is None else int(np.sum(self.batch.labels != NO_LABEL))

    @property
    def n_unproven(self) -> int:
        """Number of candidates that the attack found and nothing certifies."""
        return 0 if self.inverter is None else int(np.sum(self.inverter.provenance_ == Provenance.COLUMN_FOUND))

    @property
    def verdict(self) -> Verdict:
        """What these attacks recovered from the layer."""
        if self.n_certified:
            return Verdict.RECOVERED if self.batch.is_whole and self.is_size_known else Verdict.PARTLY
        if self.text is not None and self.text.n_certified:
            return Verdict.RECOVERED if self.text.is_complete else Verdict.PARTLY
        if self.likely_candidates:
            return Verdict.LIKELY
        if self.tokens:
            return Verdict.PARTLY
        return Verdict.OUT_OF_RANGE if self.batch is None or self.why_open else Verdict.NOT_RECOVERED

    @property
    def what(self) -> Fed:
        """What the layer is fed."""
        feeds = "" if self.row is None else self.row.feeds
        return {FED_THE_INPUT: Fed.INPUTS, "tokens": Fed.TOKENS}.get(feeds, Fed.FEATURES)

    @property
    def n_samples(self) -> int:
        """Number of samples that the layer's gradient shows, or the least number; zero where it does not say."""
        if self.rows != 1 or self.what is Fed.TOKENS:
            return 0
        return self.n_inputs if self.is_size_known else self.at_least

    @property
    def worst_error(self) -> float:
        """Expected root-mean-square error of the worst certified input, in its units; NaN without any."""
        return float(self.batch.errors[self.batch.certified].max()) if self.n_certified else np.nan

    @property
    def count(self) -> str:
        """How many of how many were recovered, in words."""
        if self.tokens:
            return f"{len(self.tokens)} token ids"
        if self.text is not None:
            return self.text.count
        if self.batch is None:
            return ""
        n = max(self.at_least, self.n_inputs)
        shown = f"{self.n_certified} of {'at least ' if self.at_least else ''}{n} {self.what}"
        return shown + (f", {len(self.likely_candidates)} others likely" if self.likely_candidates else "")

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Certified inputs."""
        if self.batch is None:
            return ()
        batch = self.batch
        return tuple(
            Sample(int(i), self.what, self.name, int(batch.labels[i]), float(batch.errors[i]), batch.inputs[i])
            for i in np.flatnonzero(batch.certified)
        )

    @property
    def likely(self) -> tuple[LikelySample, ...]:
        """Candidates that chance does not explain and nothing certifies."""
        return tuple(
            LikelySample(one.index, self.what, self.name, one.correlation, self.batch.inputs[one.index])
            for one in self.likely_candidates
        )
