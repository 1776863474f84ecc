"""What an audit found of one layer: inputs, candidates, token ids, and why nothing where there is nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsedl_fl.audit.verdicts import Verdict
from sparsedl_fl.certify.candidates import Provenance, SearchEnd
from sparsedl_fl.certify.labels import NO_LABEL
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.models import LayerRow
from sparsedl_fl.propagate.backward import KnownBatch

__all__ = ["BY_CHANCE", "FED_THE_INPUT", "Candidate", "LayerAudit", "LikelySample", "Sample"]

BY_CHANCE = 1e-3
"""Chance at which any of a layer's candidates is as good as a likely one. (Not varied: of the updates in
`tests/hostile/calibration.md` it leaves 1 of 241 likely candidates below a correlation of 0.7.)"""

FED_THE_INPUT = "the model's input"


@dataclass(frozen=True, eq=False)
class Sample:
    """One recovered item.

    Attributes
    ----------
    index : int
        Its place among those of its layer.
    kind : str
        What it is: "inputs of the model", "features" or "tokens".
    layer : str
        The layer that is fed it.
    values : ndarray of shape (n,)
        What came back.
    error : float
        Its expected root-mean-square error, in its units.
    label : int
        Its label, `sparsedl_fl.certify.labels.NO_LABEL` where it is not known.
    """

    index: int
    kind: str
    layer: str
    values: np.ndarray
    error: float
    label: int


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
    kind: str
    layer: str
    values: np.ndarray
    correlation: float


@dataclass(frozen=True)
class Candidate:
    """Which of a layer's candidates is likely: its place, and its expected correlation with a true input."""

    index: int
    correlation: float


@dataclass(frozen=True, eq=False)
class LayerAudit:
    """What one layer gives away.

    Attributes
    ----------
    name : str
        Name of the layer in the model.
    inverter : GradientInverter or None
        Fitted to the layer; None where the layer could not be attacked by itself.
    reason : str
        What was recovered and what is in doubt, or why the layer could not be attacked.
    row : LayerRow or None
        What was seen of the layer before any attack.
    batch : KnownBatch or None
        What came back.
    source : str
        Where that comes from: an attack on the layer itself, or another layer.
    seconds : float
        Time spent on the layer.
    why_open : str
        Why nothing recovered here is no conclusion; empty where the layer was in range, and attacked to the end.
    likely_candidates : tuple of Candidate
        Candidates that chance does not explain and nothing certifies.
    tokens : tuple of int
        Token ids that the layer's gradient shows, where it is the table of an embedding.
    at_least : int
        Inputs that the layer's gradient shows at least, where it does not show them all.
    rows : int
        Inputs that each sample of the batch makes in the layer, such as its tokens.
    end : SearchEnd or None
        How the search ended; None where there was none.
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

    @property
    def n_inputs(self) -> int:
        """How many inputs the layer's gradient shows; zero where that is not known."""
        return 0 if self.batch is None else len(self.batch.inputs)

    @property
    def is_size_known(self) -> bool:
        """Whether these are all inputs of the layer, as far as its gradient tells."""
        is_clear = self.inverter is None or self.inverter.size_is_clear_
        return self.batch is not None and self.at_least == 0 and is_clear

    @property
    def n_certified(self) -> int:
        """How many of them are certified."""
        return 0 if self.batch is None else int(self.batch.certified.sum())

    @property
    def n_labels(self) -> int:
        """How many labels are known."""
        return 0 if self.batch is None else int(np.sum(self.batch.labels != NO_LABEL))

    @property
    def n_unproven(self) -> int:
        """Columns of the gradient that the attack found and nothing certifies."""
        return 0 if self.inverter is None else int(np.sum(self.inverter.provenance_ == Provenance.COLUMN_FOUND))

    @property
    def verdict(self) -> Verdict:
        """What these attacks got out of the layer."""
        if self.n_certified:
            return Verdict.RECOVERED if self.batch.is_whole and self.is_size_known else Verdict.PARTLY
        if self.likely_candidates:
            return Verdict.LIKELY
        if self.tokens:
            return Verdict.PARTLY
        return Verdict.OUT_OF_RANGE if self.batch is None or self.why_open else Verdict.NOT_RECOVERED

    @property
    def what(self) -> str:
        """What the layer is fed, as a noun in the plural."""
        feeds = "" if self.row is None else self.row.feeds
        return {FED_THE_INPUT: "inputs of the model", "tokens": "tokens"}.get(feeds, "features")

    @property
    def n_samples(self) -> int:
        """How many samples of the batch the layer's gradient shows, or shows at least; zero where it does not say."""
        if self.rows != 1 or self.what == "tokens":
            return 0
        return self.n_inputs if self.is_size_known else self.at_least

    @property
    def worst_error(self) -> float:
        """Expected root-mean-square error of the worst certified input, in its units; NaN without any."""
        return float(self.batch.errors[self.batch.certified].max()) if self.n_certified else np.nan

    @property
    def count(self) -> str:
        """How many came back of how many, in words."""
        if self.tokens:
            return f"{len(self.tokens)} token ids"
        if self.batch is None:
            return ""
        n = max(self.at_least, self.n_inputs)
        shown = f"{self.n_certified} of {'at least ' if self.at_least else ''}{n} {self.what}"
        return shown + (f", {len(self.likely_candidates)} others likely" if self.likely_candidates else "")

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What came back certified."""
        if self.batch is None:
            return ()
        batch = self.batch
        return tuple(
            Sample(int(i), self.what, self.name, batch.inputs[i], float(batch.errors[i]), int(batch.labels[i]))
            for i in np.flatnonzero(batch.certified)
        )

    @property
    def likely(self) -> tuple[LikelySample, ...]:
        """Candidates that chance does not explain and nothing certifies."""
        return tuple(
            LikelySample(one.index, self.what, self.name, self.batch.inputs[one.index], one.correlation)
            for one in self.likely_candidates
        )
