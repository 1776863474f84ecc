"""What an audit found: one object for the notebook, the command line and the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sparsedl_fl.audit.verdicts import Verdict
from sparsedl_fl.audit.writing import written
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.labels import NO_LABEL
from sparsedl_fl.models import LayerRow
from sparsedl_fl.peeling import KnownBatch
from sparsedl_fl.replay import Replay

__all__ = ["AuditResult", "LayerAudit", "Sample"]

FED_THE_INPUT = "the model's input"

NOT_REACHED = "not reached"
"""Source of a layer in range whose turn did not come: nothing was recovered, and nothing says that it could not be."""


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
    """

    name: str
    inverter: GradientInverter | None
    reason: str
    row: LayerRow | None = None
    batch: KnownBatch | None = None
    source: str = ""
    seconds: float = 0.0

    @property
    def n_inputs(self) -> int:
        """How many inputs the layer's gradient shows; zero where that is not known."""
        return 0 if self.batch is None else len(self.batch.inputs)

    @property
    def n_certified(self) -> int:
        """How many of them are certified."""
        return 0 if self.batch is None else int(self.batch.certified.sum())

    @property
    def n_labels(self) -> int:
        """How many labels are known."""
        return 0 if self.batch is None else int(np.sum(self.batch.labels != NO_LABEL))

    @property
    def verdict(self) -> Verdict:
        """What these attacks got out of the layer."""
        if self.batch is None:
            return Verdict.NOT_RECOVERED if self.source == NOT_REACHED else Verdict.OUT_OF_RANGE
        if self.n_certified == 0:
            return Verdict.PARTLY if self.n_labels else Verdict.NOT_RECOVERED
        return Verdict.RECOVERED if self.batch.is_whole else Verdict.PARTLY

    @property
    def what(self) -> str:
        """What the layer is fed, as a noun in the plural."""
        feeds = "" if self.row is None else self.row.feeds
        return {FED_THE_INPUT: "inputs of the model", "tokens": "tokens"}.get(feeds, "features")

    @property
    def worst_error(self) -> float:
        """Expected root-mean-square error of the worst certified input, in its units; NaN without any."""
        return float(self.batch.errors[self.batch.certified].max()) if self.n_certified else np.nan


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
        Its label, `sparsedl_fl.labels.NO_LABEL` where it is not known.
    """

    index: int
    kind: str
    layer: str
    values: np.ndarray
    error: float
    label: int


@dataclass(frozen=True, eq=False)
class AuditResult(Mapping):
    """Everything an audit found; also a mapping of layer names to `LayerAudit`.

    Attributes
    ----------
    layers : tuple of LayerAudit
        Linear layers first, in the order in which they run, then everything else.
    replay : Replay or None
        What came of running the client again with what was recovered; None where that could not be done.
    replay_reason : str
        Why it could not.
    input_shape : tuple of int
        Shape of one of the model's inputs, where it is known.
    context : dict
        What the report says of how the audit was run: see `sparsedl_fl.audit.context.describe_run`.
    """

    layers: tuple[LayerAudit, ...]
    replay: Replay | None = None
    replay_reason: str = ""
    input_shape: tuple[int, ...] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    is_interrupted: bool = False

    def __getitem__(self, name: str) -> LayerAudit:
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(layer.name for layer in self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def verdict(self) -> Verdict:
        """What these attacks got out of the whole update."""
        return Verdict.worst(layer.verdict for layer in self.layers)

    @property
    def best(self) -> LayerAudit | None:
        """The layer that gives most away: nearest to the model's input among those with the worst verdict."""
        found = [layer for layer in self.layers if layer.verdict == self.verdict and layer.batch is not None]
        return min(found, key=lambda layer: layer.what != "inputs of the model", default=None)

    @property
    def batch_size(self) -> int:
        """Largest number of inputs that a layer's gradient shows; zero where none does."""
        return max((layer.n_inputs for layer in self.layers), default=0)

    @property
    def reason(self) -> str:
        """Why the verdict is what it is, in a sentence."""
        best = self.best
        if best is None:
            reasons = dict.fromkeys(
                layer.reason for layer in self.layers if layer.row is None or len(layer.row.shape) == 2
            )
            return "no layer is in range of these attacks: " + "; ".join(list(reasons)[:3])
        labels = f" and {best.n_labels} labels" if best.n_labels else ""
        text = f"{best.n_certified} of {best.n_inputs} {best.what}{labels} recovered at layer '{best.name}'"
        if best.n_certified:
            text += f", certified, each to within {best.worst_error:.1g} (expected error, in its units)"
        if best.verdict is Verdict.NOT_RECOVERED:
            text += f": {best.reason}"
        return text

    @property
    def labels(self) -> np.ndarray:
        """Labels that are known, of the layer at which most are; in the order of its inputs."""
        best = max(self.layers, key=lambda layer: layer.n_labels)
        return np.zeros(0, dtype=int) if best.n_labels == 0 else best.batch.labels[best.batch.labels != NO_LABEL]

    @property
    def is_complete(self) -> bool:
        """Whether nothing ended the audit early."""
        return not self.is_interrupted

    @property
    def labels_present(self) -> dict[int, int | None]:
        """Labels of the batch, with their counts."""
        found, counts = np.unique(self.labels, return_counts=True) if self.layers else ((), ())
        return {int(label): int(count) for label, count in zip(found, counts, strict=True)}

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What came back certified, at the layer that gives most away."""
        best = self.best
        if best is None:
            return ()
        batch = best.batch
        return tuple(
            Sample(int(i), best.what, best.name, batch.inputs[i], float(batch.errors[i]), int(batch.labels[i]))
            for i in np.flatnonzero(batch.certified)
        )

    def to_dict(self, show_samples: bool = False) -> dict[str, Any]:
        """Return the report as plain data, which follows the published schema.

        Parameters
        ----------
        show_samples : bool, default=False
            Whether to include the numbers of what was recovered. They are personal data where the batch was.
        """
        from sparsedl_fl.audit.report import as_dict

        return as_dict(self, show_samples)

    def to_json(self, path: str | Path | None = None, *, show_samples: bool = False) -> str:
        """Return the report as JSON, and write it where a path is given."""
        from sparsedl_fl.audit.report import as_json

        return written(as_json(self, show_samples), path, is_private=show_samples)

    def to_html(
        self, path: str | Path | None = None, *, show_samples: bool = False, decoder: Any = None, sweep: Any = None
    ) -> str:
        """Return the report as one self-contained page, and write it where a path is given.

        Parameters
        ----------
        path : str or Path or None, default=None
            Where it goes.
        show_samples : bool, default=False
            Whether to show what was recovered. It is personal data where the batch was.
        decoder : callable or sklearn.compose.ColumnTransformer, default=None
            What turns values of shape (k, n) into images (k, height, width[, 3]) in [0, 1], or into a mapping of
            column names to columns; a fitted encoder of a table will do. None shows images where the model's input
            has the shape of one, and numbers else.
        sweep : SweepResult or None, default=None
            Measured effect of defences, for the chapter about them.
        """
        from sparsedl_fl.audit.report import as_html

        page = as_html(self, show_samples=show_samples, decoder=decoder, sweep=sweep)
        return written(page, path, is_private=show_samples)

    def plot(self, axes: Any = None) -> Any:
        """Draw how much of its batch each layer gives away; needs matplotlib."""
        from sparsedl_fl.audit.report import plot_layers

        return plot_layers(self, axes)

    def _repr_html_(self) -> str:
        from sparsedl_fl.audit.report import as_table

        return as_table(self)

    def __repr__(self) -> str:
        return f"<AuditResult: {self.verdict}: {self.reason}>"
